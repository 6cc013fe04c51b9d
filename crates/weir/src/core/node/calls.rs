//! Calls of backends to devices at other nodes: first the node is found, then it is asked.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tracing::debug;
use weir_broker::NodeNumber;
use weir_wire::v1;

use super::ClusterNode;
use super::call_letter::{CallLetter, Found};
use super::questions::Letter;
use crate::backends::calls::{DeviceCall, NoAnswer};
use crate::base::clock::unix_millis;
use crate::core::state::SharedState;
use crate::observe::counters::ClusterLimit;

/// The calls between this node and others.
///
/// Limits: [`CALLS_MAX`] of this node's, which wait, and as many of others', which are carried out
/// here. The device's node counts each among its own calls, too.
pub(super) struct NodeCalls {
    next: AtomicU64,
    finding: Waiting<u64, mpsc::Sender<(u16, Found)>>,
    asked: Waiting<u64, oneshot::Sender<Result<v1::Answer, NoAnswer>>>,
    /// By node and its number of the call. The end of the sender ends the call.
    answering: Waiting<(u16, u64), oneshot::Sender<Infallible>>,
    asking: Arc<Semaphore>,
    carrying: Arc<Semaphore>,
}

/// A table of what waits.
struct Waiting<K, V>(Mutex<HashMap<K, V>>);

/// An entry of such a table, until it is dropped.
struct Entry<'a, K: Eq + Hash + Copy, V> {
    table: &'a Waiting<K, V>,
    key: K,
}

impl Default for NodeCalls {
    fn default() -> Self {
        NodeCalls {
            // A node that starts again must not use a number of its earlier life.
            next: AtomicU64::new(unix_millis() << 20),
            finding: Waiting::default(),
            asked: Waiting::default(),
            answering: Waiting::default(),
            asking: Arc::new(Semaphore::new(CALLS_MAX)),
            carrying: Arc::new(Semaphore::new(CALLS_MAX)),
        }
    }
}

impl<K, V> Default for Waiting<K, V> {
    fn default() -> Self {
        Waiting(Mutex::default())
    }
}

impl<K: Eq + Hash + Copy, V> Waiting<K, V> {
    fn enter(&self, key: K, value: V) -> Entry<'_, K, V> {
        self.lock().insert(key, value);
        Entry { table: self, key }
    }

    fn take(&self, key: K) -> Option<V> {
        self.lock().remove(&key)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, V>> {
        self.0.lock().expect("no panic happens under the lock of calls")
    }
}

impl<K: Eq + Hash + Copy, V> Drop for Entry<'_, K, V> {
    fn drop(&mut self) {
        self.table.take(self.key);
    }
}

impl ClusterNode {
    /// Calls a device at another node. `None`: no other node has it, so this one is to answer.
    pub(in crate::core) async fn call_elsewhere(
        &self,
        device: &str,
        call: &DeviceCall,
    ) -> Option<Result<v1::Answer, NoAnswer>> {
        let Ok(_permit) = self.calls.asking.try_acquire() else {
            self.counters.count_cluster_limit(ClusterLimit::Questions);
            return Some(Err(NoAnswer::NodesSilent(Some(Vec::new()))));
        };
        match self.find_device(device, call.deadline).await {
            Ok(Some(node)) => Some(self.call_at(node, device, call).await),
            Ok(None) => None,
            Err(no_answer) => Some(Err(no_answer)),
        }
    }

    /// The node where the device answers calls.
    async fn find_device(&self, device: &str, deadline: Instant) -> Result<Option<u16>, NoAnswer> {
        let own = self.number();
        let nodes = self.cluster.broker().nodes().await;
        let nodes = nodes.map_err(|_| NoAnswer::NodesSilent(None))?;
        let mut silent: Vec<u16> = nodes.into_iter().map(|node| node.number.0).collect();
        silent.retain(|number| *number != own);
        silent.sort_unstable();
        let ask = self.calls.next.fetch_add(1, Ordering::Relaxed);
        let (sender, mut found) = mpsc::channel(silent.len().max(1));
        let _entry = self.calls.finding.enter(ask, sender);
        for node in silent.clone() {
            let letter = CallLetter::Find { ask, from: own, device: device.to_owned() };
            // A node that has just ended is not there, and needs not be asked.
            if let Ok(false) = self.write(node, letter).await {
                silent.retain(|number| *number != node);
            }
        }
        let deadline = deadline.min(Instant::now() + FIND_TIMEOUT);
        let mut is_connected = false;
        while !silent.is_empty() {
            let Ok(Some((node, at))) = timeout_at(deadline, found.recv()).await else {
                return Err(NoAnswer::NodesSilent(Some(silent)));
            };
            match at {
                Found::AnswersCalls => return Ok(Some(node)),
                Found::Unsupported => is_connected = true,
                Found::Nothing => {}
            }
            silent.retain(|number| *number != node);
        }
        if is_connected { Err(NoAnswer::Unsupported) } else { Ok(None) }
    }

    async fn call_at(
        &self,
        node: u16,
        device: &str,
        call: &DeviceCall,
    ) -> Result<v1::Answer, NoAnswer> {
        let ask = self.calls.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        let _entry = self.calls.asked.enter(ask, sender);
        let mut giving_up = GivingUp { of: self, node, ask, is_answered: false };
        let letter = CallLetter::Call {
            ask,
            from: self.number(),
            device: device.to_owned(),
            call: call.to_wire(0),
        };
        let asked = async {
            match self.write(node, letter).await {
                Ok(true) => answer.await.ok(),
                Ok(false) => Some(Err(NoAnswer::NotConnected)),
                Err(_) => Some(Err(NoAnswer::NodesSilent(Some(vec![node])))),
            }
        };
        let answered = timeout_at(call.deadline, asked).await;
        giving_up.is_answered = matches!(answered, Ok(Some(_)));
        match answered {
            Ok(Some(answered)) => answered,
            Ok(None) | Err(_) => Err(NoAnswer::DeadlineExceeded),
        }
    }

    async fn write(&self, node: u16, letter: CallLetter) -> Result<bool, weir_broker::Error> {
        self.cluster.broker().to_node(NodeNumber(node), Letter::Calls(letter).encode()).await
    }

    pub(super) fn take_call_letter(&self, shared: &Arc<SharedState>, letter: CallLetter) {
        match letter {
            CallLetter::Found { ask, node, found } => {
                if let Some(finding) = self.calls.finding.lock().get(&ask) {
                    // It has room for one answer of each node.
                    let _ = finding.try_send((node, found));
                }
            }
            CallLetter::Answered { ask, answer } => {
                if let Some(waiting) = self.calls.asked.take(ask) {
                    // The caller may have given up.
                    let _ = waiting.send(answer);
                }
            }
            CallLetter::Cancel { ask, from } => drop(self.calls.answering.take((from, ask))),
            CallLetter::Find { ask, from, device } => {
                let found = shared.find_for_call(&device);
                let letter = CallLetter::Found { ask, node: self.number(), found };
                self.carry(shared, from, async move { Some(letter) });
            }
            CallLetter::Call { ask, from, device, call } => {
                self.take_call(shared, (from, ask), (device, call));
            }
        }
    }

    /// Carries out a call of another node.
    fn take_call(
        &self,
        shared: &Arc<SharedState>,
        (from, ask): (u16, u64),
        (device, call): (String, v1::Call),
    ) {
        let (sender, cancelled) = oneshot::channel();
        let asking = Arc::clone(shared);
        let call = DeviceCall {
            deadline: Instant::now() + Duration::from_millis(u64::from(call.deadline_ms)),
            method: call.method,
            payload: call.payload.unwrap_or(v1::call::Payload::Data(Vec::new())),
            content_type: call.content_type,
        };
        self.calls.answering.lock().insert((from, ask), sender);
        self.carry(shared, from, async move {
            let answered = tokio::select! {
                biased;
                _ = cancelled => None,
                answer = asking.call_here(&device, &call) => Some(answer),
            };
            if let Some(node) = &asking.node {
                node.calls.answering.take((from, ask));
            }
            answered.map(|answer| CallLetter::Answered { ask, answer })
        });
    }

    /// Runs a task whose letter goes to a node.
    fn carry(
        &self,
        shared: &Arc<SharedState>,
        to: u16,
        task: impl Future<Output = Option<CallLetter>> + Send + 'static,
    ) {
        let Ok(permit) = Arc::clone(&self.calls.carrying).try_acquire_owned() else {
            self.counters.count_cluster_limit(ClusterLimit::Answers);
            debug!(to, "too many calls of other nodes: one stays without an answer");
            return;
        };
        let shared = Arc::clone(shared);
        self.runtime.spawn(async move {
            if let (Some(letter), Some(node)) = (task.await, &shared.node)
                && let Err(error) = node.write(to, letter).await
            {
                debug!(%error, to, "a call of another node stays without an answer");
            }
            drop(permit);
        });
    }
}

/// Tells the node of a call that nobody waits for its answer any more.
struct GivingUp<'a> {
    of: &'a ClusterNode,
    node: u16,
    ask: u64,
    is_answered: bool,
}

impl Drop for GivingUp<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let broker = Arc::clone(self.of.cluster.broker());
        let (node, ask, from) = (self.node, self.ask, self.of.number());
        self.of.runtime.spawn(async move {
            let letter = Letter::Calls(CallLetter::Cancel { ask, from }).encode();
            if let Err(error) = broker.to_node(NodeNumber(node), letter).await {
                debug!(%error, node, "a node was not told that a call was given up");
            }
        });
    }
}

impl SharedState {
    fn find_for_call(&self, device: &str) -> Found {
        let conns = self.devices.connections_of(device).unwrap_or_default();
        match (conns.is_empty(), self.calls.are_answered(&conns)) {
            (true, _) => Found::Nothing,
            (false, false) => Found::Unsupported,
            (false, true) => Found::AnswersCalls,
        }
    }
}

/// Each takes some kilobytes beside its payload.
const CALLS_MAX: usize = 16_384;
/// A node answers in milliseconds. One that needs longer is lost.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);
