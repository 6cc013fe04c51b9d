//! A node of the cluster that goes on in another process.
//!
//! The new process opens the broker as the node of the old one, and listens to all that concerns it,
//! before the old one stands still. Messages of topics have offsets, which tell what is still to be
//! applied. Of all else the old process notes what it has carried out.

mod early;
mod passing;

use std::time::Duration;

use tokio::time::{sleep, timeout};
use weir_broker::{ConnectionNumber, Error, NodeNumber, NodeState};
use weir_engine::Nanos;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::{Cluster, Rest};
use crate::base::handover::{check_column, count, narrow};
use crate::observe::counters::{ClusterLimit, Counters};
pub(crate) use early::EarlyEvents;
pub(super) use passing::Passing;

impl Cluster {
    /// Another process begins to listen: from here on it is noted what the broker tells.
    pub(crate) fn begin_passing(&self) {
        self.events.passing().note();
    }

    /// The topics that are followed here. The caller keeps the rest, if they must not become more.
    pub(crate) fn joined(&self) -> Vec<String> {
        self.router.joined()
    }

    /// Waits until nothing is changed at the broker any more; `None`: a call lasts for too long.
    pub(crate) async fn rest(&self, patience: Duration) -> Option<Rest> {
        self.turns.rest(patience).await
    }

    /// Waits until all messages that were taken have their answers, for `patience` at most.
    pub(crate) async fn settle(&self, patience: Duration) {
        let settled = async {
            while self.queue.counts().waiting > 0 {
                sleep(SETTLE_PAUSE).await;
            }
        };
        // Those who wait longer are answered by this process.
        let _ = timeout(patience, settled).await;
    }

    /// From here on the other process alone carries out what the broker tells, until
    /// [`Cluster::resume_hearing`].
    pub(crate) fn hold_back(&self) {
        self.events.passing().hold();
    }

    /// What the broker has told and was carried out here.
    pub(crate) fn heard(&self) -> v1::BrokerHeard {
        self.events.passing().heard()
    }

    /// The other process does not go on, yet.
    pub(crate) fn resume_hearing(&self, counters: &Counters) {
        if self.events.resume() {
            counters.count_cluster_limit(ClusterLimit::Upgrade);
        }
    }

    /// The other process does not go on at all.
    pub(crate) fn end_passing(&self) {
        self.events.end_passing();
    }

    /// The other process has gone on: this one hears nothing, and tells nothing of the node.
    pub(crate) fn leave_to_other(&self, rest: Rest) {
        self.broker.hush();
        // Nobody else sets it.
        let _ = self.rests.set(rest);
    }

    /// What another process needs to open the broker as this node; `None`: the broker has no such
    /// thing. What this process asks of the broker afterwards counts for the node, too.
    ///
    /// Errors: the broker does not tell.
    pub(crate) async fn export(&self) -> Result<Option<v1::BrokerNode>, Error> {
        let state = self.broker.state().await?;
        Ok(state.map(|state| export(state, Nanos::now())))
    }
}

fn export(state: NodeState, now: Nanos) -> v1::BrokerNode {
    let (entries, entry_numbers) =
        state.entries.into_iter().map(|(name, number)| (name.to_string(), number)).unzip();
    let (claimed_devices, claimed_conns) =
        state.claimed.into_iter().map(|(device, conn)| (device.to_string(), conn.0)).unzip();
    v1::BrokerNode {
        instance: state.instance,
        number: state.number.0.into(),
        lease_until: now.after(state.lease_left).0,
        stay: state.stay,
        last_entry: state.last_entry,
        last_call: state.last_call,
        entries,
        entry_numbers,
        claimed_devices,
        claimed_conns,
    }
}

/// What [`configured_as`](super::configured_as) needs.
pub(crate) fn node_state(node: v1::BrokerNode, now: Nanos) -> Result<NodeState, NotUnderstood> {
    check_column("broker_node.entries", node.entries.len(), node.entry_numbers.len())?;
    let conns = node.claimed_conns;
    check_column("broker_node.claimed_devices", node.claimed_devices.len(), conns.len())?;
    let entries = node.entries.into_iter().zip(node.entry_numbers);
    let claimed = node.claimed_devices.into_iter().zip(conns);
    Ok(NodeState {
        instance: node.instance,
        number: NodeNumber(narrow("broker_node.number", node.number)?),
        // A day at most, so that a damaged time keeps nothing for ever.
        lease_left: Nanos(node.lease_until).since(now).min(LEASE_MAX),
        stay: count("broker_node.stay", node.stay)?,
        last_entry: count("broker_node.last_entry", node.last_entry)?,
        last_call: count("broker_node.last_call", node.last_call)?,
        entries: entries.map(|(name, number)| (name.into(), number)).collect(),
        claimed: claimed.map(|(device, conn)| (device.into(), ConnectionNumber(conn))).collect(),
    })
}

/// A broker nearby answers in less.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);
const LEASE_MAX: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_stays_what_it_is() {
        let state = NodeState {
            instance: "0123456789abcdef".to_owned(),
            number: NodeNumber(7),
            lease_left: Duration::from_secs(60),
            stay: 2,
            last_entry: 9,
            last_call: 11,
            entries: vec![("room".into(), 3), ("\u{1}room".into(), 4)],
            claimed: vec![("phone".into(), ConnectionNumber(1 << 60))],
        };
        let now = Nanos(5_000_000_000);
        let node = export(state.clone(), now);
        let later = now.after(Duration::from_secs(1));
        let left = NodeState { lease_left: Duration::from_secs(59), ..state };
        assert_eq!(node_state(node.clone(), later), Ok(left));
        let damages: &[fn(&mut v1::BrokerNode)] = &[
            |node| node.number = 1 << 16,
            |node| node.entries.clear(),
            |node| node.stay = u64::MAX,
            |node| node.claimed_conns.push(1),
        ];
        for damage in damages {
            let mut node = node.clone();
            damage(&mut node);
            assert!(node_state(node, now).is_err());
        }
        let eternal = v1::BrokerNode { lease_until: u64::MAX, ..node };
        assert_eq!(node_state(eternal, now).unwrap().lease_left, LEASE_MAX);
    }
}
