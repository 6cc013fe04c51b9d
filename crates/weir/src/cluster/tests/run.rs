//! One run: what happens in which order, decided by a seed.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};
use weir_broker::memory::{Break, Chances, Delays, Memory, MemoryOptions, Method, NewEpoch};
use weir_broker::{Name, Scope};
use weir_engine::{ConnId, Nanos};

use super::clients::{Clients, Present, Stage, View};
use super::node::{Accepted, Kept, Node, SHARDS};
use super::presence::{self, PRESENCE_KEPT, has_presence};
use super::summary::Summary;
use super::verify;
use crate::topics::SeededBug;

/// A bug that a test plants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    Router(SeededBug),
    /// The broker keeps its epochs in a failover that has lost messages.
    FailedOverEpoch,
    /// The broker carries out late what a node has told of its members, behind what the node has told since.
    LatePresence,
}

/// A fault of the run. What only chance decides, such as a doubled event, the broker counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Dropped,
    Doubled,
    Delayed,
    /// A connection breaks under a request, before or after its execution, or the request arrives late.
    Cut,
    Resubscribed,
    Disconnected,
    Unreachable,
    Paused,
    FailedOver,
    Killed,
    /// The shards of a node do nothing, so that credits run out.
    Slow,
    NoBudget,
    /// A node leaves all topics that have no subscribers.
    Left,
}

impl Fault {
    pub(super) const ALL: [Fault; 13] = [
        Fault::Dropped,
        Fault::Doubled,
        Fault::Delayed,
        Fault::Cut,
        Fault::Resubscribed,
        Fault::Disconnected,
        Fault::Unreachable,
        Fault::Paused,
        Fault::FailedOver,
        Fault::Killed,
        Fault::Slow,
        Fault::NoBudget,
        Fault::Left,
    ];

    /// Faults that lose nothing that a client could hear of.
    fn is_harmless(self) -> bool {
        matches!(self, Fault::Doubled | Fault::Delayed | Fault::Slow | Fault::Left)
    }
}

/// Why a run failed.
pub(super) struct Failure {
    pub(super) seed: u64,
    pub(super) what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.what)
    }
}

/// Runs one seed.
pub(super) fn run_seed(seed: u64, bug: Option<Bug>) -> Result<Summary, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let run = runtime.block_on(async {
        let mut run = Run::new(seed, bug);
        let result = run.run().await;
        result.map(|()| run.summary())
    });
    run.map_err(|what| Failure { seed, what })
}

pub(super) struct Run {
    dice: StdRng,
    bug: Option<Bug>,
    pub(super) memory: Memory,
    kept: Kept,
    /// Faults that may happen in this run.
    faults: Vec<Fault>,
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) clients: Clients,
    pub(super) accepted: Accepted,
    /// What ends by itself, and when.
    ends: Vec<(Instant, End)>,
    started: Instant,
    conns: u64,
    done: Summary,
}

/// The end of a fault.
enum End {
    Reconnect(usize),
    Reachable,
    Resume(Option<usize>),
    Restart(usize),
}

pub(super) const TOPICS: [&str; 9] =
    ["kept/1", "kept/2", "kept/3", "tick/1", "tick/2", "keys/1", "live/1", "live/2", "live/tick/1"];
const NODES: usize = 3;
pub(super) const CLIENTS: usize = 12;
const STEPS: usize = 600;

fn name_of(node: usize) -> String {
    format!("node-{node}")
}

impl Run {
    fn new(seed: u64, bug: Option<Bug>) -> Run {
        let mut dice = StdRng::seed_from_u64(seed);
        let options = MemoryOptions {
            seed,
            keeps_journal: true,
            presence_kept: PRESENCE_KEPT,
            obeys_late_calls: bug == Some(Bug::LatePresence),
            ..MemoryOptions::default()
        };
        let memory = Memory::new(&options);
        // Every fourth run is calm: then not even a loss that is told may happen.
        let is_calm = seed.is_multiple_of(4);
        let may = |fault: &Fault, dice: &mut StdRng| match is_calm {
            true => fault.is_harmless(),
            false => dice.random_bool(0.6),
        };
        let faults = Fault::ALL.into_iter().filter(|fault| may(fault, &mut dice)).collect();
        let kept = Kept {
            messages: match is_calm {
                true => 10_000,
                false => *[20, 60, 10_000].choose(&mut dice).unwrap(),
            },
            // Every other run has rings of some messages only: resumes then need the broker.
            bytes: if dice.random() { 2_000 } else { 1 << 20 },
        };
        let mut run = Run {
            dice,
            bug,
            memory,
            kept,
            faults,
            nodes: Vec::new(),
            clients: Clients::new(CLIENTS, is_calm),
            accepted: Arc::new(Mutex::default()),
            ends: Vec::new(),
            started: Instant::now(),
            conns: 0,
            done: Summary::default(),
        };
        for node in 0..NODES {
            run.nodes.push(None);
            run.start(node);
        }
        run
    }

    fn start(&mut self, node: usize) {
        let bug = match self.bug {
            Some(Bug::Router(bug)) => Some(bug),
            Some(Bug::FailedOverEpoch | Bug::LatePresence) | None => None,
        };
        let name = name_of(node);
        let seed = self.dice.random();
        let started = Node::start(&self.memory, &name, (self.kept, bug), seed);
        self.nodes[node] = Some(started);
        let millis = |range: std::ops::Range<u64>| {
            Duration::from_millis(range.start)..Duration::from_millis(range.end)
        };
        let slow = if self.has(Fault::Delayed) { 20 } else { 2 };
        let delays = Delays {
            request: millis(0..slow),
            answer: millis(0..slow),
            event: millis(0..2 * slow),
        };
        self.memory.set_delays(&name, delays);
        self.memory.set_chances(
            &name,
            Chances {
                drop: if self.has(Fault::Dropped) { 0.02 } else { 0.0 },
                double: if self.has(Fault::Doubled) { 0.05 } else { 0.0 },
                break_before_execution: if self.has(Fault::Cut) { 0.01 } else { 0.0 },
                break_before_answer: if self.has(Fault::Cut) { 0.01 } else { 0.0 },
                late: if self.has(Fault::Cut) { 0.04 } else { 0.0 },
                // Longer than a call waits for its answer: the node says it again before.
                late_max: Duration::from_secs(4),
            },
        );
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    fn summary(&self) -> Summary {
        let counts = self.memory.counts(None);
        let mut faults = self.done.faults;
        faults[Fault::Dropped as usize] = counts.dropped;
        faults[Fault::Doubled as usize] = counts.doubled;
        faults[Fault::Cut as usize] += counts.broken;
        if self.has(Fault::Delayed) {
            faults[Fault::Delayed as usize] = counts.events.values().sum();
        }
        let nodes = self.nodes.iter().flatten();
        let resume_reads = nodes.map(|node| node.counters.resume_reads()).sum::<u64>();
        Summary {
            sum: self.clients.sum,
            resume_reads: self.done.resume_reads + resume_reads,
            jumps: self.clients.jumps.len() as u64,
            events: counts.events.values().sum::<u64>() + counts.calls.values().sum::<u64>(),
            virtual_secs: self.started.elapsed().as_secs(),
            accepted: self.accepted.lock().unwrap().len() as u64,
            delivered: self.clients.delivered.len() as u64,
            told: self.clients.told,
            faults,
            ..self.done
        }
    }

    async fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.step();
            let millis = match self.dice.random_range(0..20) {
                0 => self.dice.random_range(20..400),
                _ => self.dice.random_range(0..20),
            };
            sleep(Duration::from_millis(millis)).await;
            self.check()?;
        }
        self.heal();
        self.settle(Duration::from_secs(20), true).await?;
        let (clients, topics) = (0..CLIENTS, TOPICS);
        // The last message of each topic finds everybody.
        for topic in topics {
            for node in 0..NODES {
                self.publish(node, topic, false);
            }
        }
        self.settle(Duration::from_secs(10), true).await?;
        verify::check_messages(self)?;
        verify::check_jumps(self)?;
        verify::check_positions(self).await?;
        presence::check(self).await?;
        for client in clients {
            self.disconnect(client);
        }
        self.settle(Duration::from_secs(2), false).await?;
        self.leave_all();
        self.settle(Duration::from_secs(5), false).await?;
        verify::check_end(self)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match self.clients.findings.first() {
            Some(finding) => Err(finding.clone()),
            None => Ok(()),
        }
    }

    /// Ends all faults.
    fn heal(&mut self) {
        self.clients.note("- heal".to_owned());
        for (_, end) in std::mem::take(&mut self.ends) {
            self.end(end);
        }
        for node in 0..NODES {
            self.memory.set_chances(&name_of(node), Chances::default());
            if let Some(node) = &mut self.nodes[node] {
                node.slow_until = None;
                node.release();
            }
        }
        self.memory.set_reachable(true);
        self.memory.resume(None);
    }

    /// Lets time pass while clients ask for everything again that they have been told to.
    async fn settle(&mut self, time: Duration, asks: bool) -> Result<(), String> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            for client in 0..CLIENTS {
                if asks {
                    self.come_back(client);
                }
            }
            for node in self.nodes.iter_mut().flatten() {
                node.turn(&mut self.clients, None);
                node.router.end_ticks();
            }
            sleep(Duration::from_millis(20)).await;
            self.check()?;
        }
        Ok(())
    }

    /// A client asks for every topic that it is in no more.
    fn come_back(&mut self, client: usize) {
        if self.clients.is_impatient(client) {
            self.disconnect(client);
        }
        let views = self.clients.list[client].views.iter();
        let out = views.filter(|(_, view)| view.stage == Stage::Out);
        let out: Vec<String> = out.map(|(topic, _)| topic.clone()).collect();
        for topic in out {
            self.subscribe(client, &topic, false);
        }
    }

    fn step(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.ends.iter().position(|(at, _)| *at <= now) {
            let (_, end) = self.ends.swap_remove(at);
            self.end(end);
        }
        let client = self.dice.random_range(0..CLIENTS);
        let topic = *TOPICS.choose(&mut self.dice).unwrap();
        let node = self.dice.random_range(0..NODES);
        match self.dice.random_range(0..100) {
            0..45 => {
                for _ in 0..self.dice.random_range(1..6) {
                    let is_late = self.dice.random_bool(0.05);
                    self.publish(node, topic, is_late);
                }
            }
            45..75 => {
                let is_fresh = self.dice.random_bool(0.15);
                self.subscribe(client, topic, is_fresh);
            }
            75..80 => self.unsubscribe(client, topic),
            80..88 => self.disconnect(client),
            88..92 if !self.faults.is_empty() => {
                let fault = *self.faults.choose(&mut self.dice).unwrap();
                self.inject(fault, node);
            }
            _ => {}
        }
        for client in 0..CLIENTS {
            if self.clients.is_impatient(client) {
                self.disconnect(client);
            }
        }
        for node in self.nodes.iter_mut().flatten() {
            node.turn(&mut self.clients, Some(&mut self.dice));
            if self.dice.random_bool(0.2) {
                node.router.end_ticks();
            }
        }
    }

    fn publish(&mut self, node: usize, topic: &str, is_late: bool) {
        let Some(node) = &self.nodes[node] else { return };
        self.done.published += 1;
        let text = format!("{}{}", if is_late { 'x' } else { 'm' }, self.done.published);
        node.publish(topic, &text, &self.accepted);
    }

    fn subscribe(&mut self, client: usize, topic: &str, is_fresh: bool) {
        let of_client = &self.clients.list[client];
        let view = of_client.views.get(topic);
        if view.is_some_and(|view| view.stage != Stage::Out) {
            return;
        }
        let position = view.and_then(|view| view.position).filter(|_| !is_fresh);
        let Some((at, conn)) = of_client.conn.or_else(|| self.connect(client)) else { return };
        let Some(node) = &self.nodes[at] else { return };
        let is_asked = has_presence(topic) && client.is_multiple_of(2);
        let stage = match node.subscribe((client, conn), topic, (position, is_asked)) {
            Ok(()) => Stage::Waiting(position, Instant::now()),
            Err(is_refused) => {
                self.clients.told.refused += u64::from(is_refused);
                return;
            }
        };
        self.clients.note(format!("c{client} asks {at} for {topic} from {position:?}"));
        let view = View { stage, position, present: Present::new(is_asked) };
        self.clients.list[client].views.insert(topic.to_owned(), view);
    }

    fn connect(&mut self, client: usize) -> Option<(usize, ConnId)> {
        let living = (0..NODES).filter(|node| self.nodes[*node].is_some()).collect::<Vec<_>>();
        let node = *living.choose(&mut self.dice)?;
        self.conns += 1;
        let shard = self.dice.random_range(0..SHARDS) as u64;
        let conn = ConnId::from_u64(shard << 46 | self.conns);
        self.nodes[node].as_mut()?.open(conn);
        self.clients.connect(client, node, conn);
        Some((node, conn))
    }

    fn unsubscribe(&mut self, client: usize, topic: &str) {
        let of_client = &mut self.clients.list[client];
        let Some((node, conn)) = of_client.conn else { return };
        let Some(view) = of_client.views.get_mut(topic) else { return };
        let Some(node) = &self.nodes[node] else { return };
        if matches!(view.stage, Stage::In | Stage::Waiting(..)) && node.unsubscribe(conn, topic) {
            view.stage = Stage::Leaving(Instant::now());
            self.clients.note(format!("c{client} leaves {topic}"));
        }
    }

    fn disconnect(&mut self, client: usize) {
        let Some((node, conn)) = self.clients.list[client].conn else { return };
        self.clients.note(format!("c{client} closes {TOPICS:?}"));
        self.clients.disconnect(client);
        if let Some(node) = &mut self.nodes[node] {
            node.close(conn);
        }
    }

    /// Every node leaves the topics that nobody is in.
    fn leave_all(&self) {
        for node in self.nodes.iter().flatten() {
            node.router.leave_empty(Duration::ZERO, Nanos(u64::MAX));
        }
    }

    /// A node has gone, and its clients notice.
    fn lose(&mut self, node: usize) {
        for client in 0..CLIENTS {
            if self.clients.list[client].conn.is_some_and(|(at, _)| at == node) {
                self.clients.note(format!("c{client} loses its node {TOPICS:?}"));
                self.clients.disconnect(client);
            }
        }
        if let Some(node) = self.nodes[node].take() {
            self.done.resume_reads += node.counters.resume_reads();
        }
    }

    fn inject(&mut self, fault: Fault, node: usize) {
        let name = name_of(node);
        self.clients.note(format!("- {fault:?} at {node}"));
        let mut long = |millis: std::ops::Range<u64>| {
            Instant::now() + Duration::from_millis(self.dice.random_range(millis))
        };
        match fault {
            Fault::Dropped | Fault::Doubled | Fault::Delayed => return,
            Fault::Cut => {
                let late = Duration::from_millis(self.dice.random_range(0..1000));
                let places = [Break::BeforeExecution, Break::BeforeAnswer, Break::Late(late)];
                let place = *places.choose(&mut self.dice).unwrap();
                let methods =
                    [Method::Publish, Method::Read, Method::Join, Method::Enter, Method::Exit];
                let method = *methods.choose(&mut self.dice).unwrap();
                self.memory.break_next(&name, Some(method), place);
                return;
            }
            Fault::Resubscribed => {
                let count = self.dice.random_range(1..=TOPICS.len());
                let topics = TOPICS[..count].iter().map(|topic| Name::from(*topic)).collect();
                let scopes = [Scope::All, Scope::Topics(topics)];
                let scope = scopes.choose(&mut self.dice).unwrap();
                self.memory.lose_subscriptions(&name, scope);
            }
            Fault::Disconnected => {
                self.ends.push((long(100..3_000), End::Reconnect(node)));
                self.memory.disconnect(&name);
            }
            Fault::Unreachable => {
                self.ends.push((long(100..5_000), End::Reachable));
                self.memory.set_reachable(false);
            }
            Fault::Paused => {
                let until = long(100..10_000);
                let of = self.dice.random_bool(0.7).then_some(node);
                self.ends.push((until, End::Resume(of)));
                self.memory.pause(of.map(name_of).as_deref());
            }
            Fault::FailedOver => {
                let lost = self.dice.random_range(0..6);
                let epochs = match self.dice.random_bool(0.6) {
                    true => NewEpoch::GoesOn,
                    false => NewEpoch::BeginsAgain,
                };
                let is_missing = self.bug == Some(Bug::FailedOverEpoch);
                let epochs = if is_missing { NewEpoch::Missing } else { epochs };
                self.memory.fail_over(lost, epochs);
            }
            Fault::Killed => {
                if self.nodes.iter().flatten().count() < NODES {
                    return;
                }
                self.ends.push((long(100..5_000), End::Restart(node)));
                self.memory.kill(&name);
                self.lose(node);
            }
            Fault::Slow => {
                let until = long(100..4_000);
                let Some(node) = &mut self.nodes[node] else { return };
                node.slow_until = Some(until);
            }
            Fault::NoBudget => {
                let until = long(100..3_000);
                let Some(node) = &mut self.nodes[node] else { return };
                node.squeeze(until);
            }
            Fault::Left => self.leave_all(),
        }
        self.done.faults[fault as usize] += 1;
    }

    fn end(&mut self, end: End) {
        match end {
            End::Reconnect(node) => self.memory.reconnect(&name_of(node)),
            End::Reachable => self.memory.set_reachable(true),
            End::Resume(node) => self.memory.resume(node.map(name_of).as_deref()),
            End::Restart(node) => self.start(node),
        }
    }
}
