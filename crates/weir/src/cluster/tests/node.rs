//! A simulated node: a real router and cluster, with scripted shards.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use weir_broker::memory::{Memory, NodeOptions};
use weir_broker::{Broker, Entry, EventHandler, Name, Position, QueueLimits};
use weir_engine::{Budget, ConnId, CreditKind, Detached, Nanos, Share};
use weir_wire::format::Format;
use weir_wire::hot;
use weir_wire::v1;

use super::clients::Clients;
use super::shard::Shard;
use crate::base::config::{Config, TopicClass};
use crate::base::mailboxes::{Mailboxes, Publisher};
use crate::cluster::{BrokerEvents, Cluster, ClusterSettings, run_presence};
use crate::observe::counters::Counters;
use crate::topics::{Envelope, Offer, Router, SeededBug, Subscriber};

/// What publishers have been told: topic, position and text.
pub(super) type Accepted = Arc<Mutex<Vec<(String, Position, String)>>>;

pub(super) struct Node {
    pub(super) name: String,
    pub(super) router: Arc<Router>,
    mailboxes: Arc<Mailboxes>,
    shards: Vec<Shard>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) budget: Arc<Budget>,
    pub(super) counters: Arc<Counters>,
    /// Until then its shards do nothing.
    pub(super) slow_until: Option<Instant>,
    /// Bytes of the budget that something else uses, and until when.
    squeezed: Option<(usize, Instant)>,
    /// What runs as long as it lives, beside the tasks of the cluster.
    _tasks: JoinSet<()>,
}

pub(super) const SHARDS: usize = 2;
/// Nodes that are away for longer lose their members.
const NODE_TTL: Duration = Duration::from_secs(2);
const CREDITS: usize = 24;
pub(super) const BUDGET_BYTES: usize = 4 << 20;

/// Whether the time of a message is over when it reaches a node.
pub(super) fn is_late(text: &str) -> bool {
    text.starts_with('x')
}

/// The conflation key of a message.
pub(super) fn key_of(text: &str) -> &str {
    &text[text.len() - 1..]
}

/// What the nodes of a run keep of a topic; the broker keeps it by number alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

fn config(kept: Kept) -> Config {
    let retention_messages = kept.messages;
    let class = |pattern: &str, retention_messages, tick| TopicClass {
        pattern: pattern.to_owned(),
        retention_messages,
        retention_bytes: kept.bytes,
        tick,
        conflation: pattern.starts_with("keys"),
        presence: true,
        // What is kept of an earlier epoch would come again, and the broker's journal has it under that.
        resume_from_oldest: Some(false),
        ..TopicClass::default()
    };
    let tick = Duration::from_millis(100);
    let mut config = Config {
        topic_classes: vec![
            class("kept/*", retention_messages, Duration::ZERO),
            class("tick/*", retention_messages, tick),
            class("keys/*", retention_messages, tick),
            class("live/tick/*", 0, tick),
        ],
        ..Config::default()
    };
    // Some messages make a part of a resume.
    config.connection.low_watermark_bytes = 200;
    config.limits.topics_max = 100;
    config
}

/// Announces a node again and again.
async fn announce(broker: Arc<dyn Broker>, name: String) {
    loop {
        let (number, name) = (broker.number(), name.clone());
        let node = weir_broker::Node { number, name, revoked_to: None, about: String::new() };
        // What fails is done again.
        let _ = broker.announce(node).await;
        sleep(NODE_TTL / 4).await;
    }
}

impl Node {
    pub(super) fn start(
        memory: &Memory,
        name: &str,
        (kept, bug): (Kept, Option<SeededBug>),
        seed: u64,
    ) -> Node {
        let config = config(kept);
        let (mailboxes, ends): (Vec<_>, Vec<_>) =
            (0..SHARDS).map(|_| Detached::mailbox(CREDITS, 1)).unzip();
        let mailboxes: Arc<Mailboxes> = mailboxes.into();
        let budget = Budget::new(BUDGET_BYTES);
        let of_router = (Arc::clone(&mailboxes), Arc::clone(&budget));
        let counters = Arc::<Counters>::default();
        let router = Router::new(of_router.0, of_router.1, Arc::clone(&counters), &config, true);
        if let Some(bug) = bug {
            router.seed_bug(bug);
        }
        let router = Arc::new(router);
        let options = NodeOptions {
            timeout: Duration::from_millis(500),
            node_ttl: NODE_TTL,
            ..NodeOptions::default()
        };
        let events = BrokerEvents::new(Arc::clone(&router));
        let broker: Arc<dyn Broker> =
            memory.node(name, options, Arc::clone(&events) as Arc<dyn EventHandler>);
        let settings = ClusterSettings {
            queue: QueueLimits { timeout: Duration::from_secs(3), ..QueueLimits::default() },
            // The simulation lets topics go by itself, since this clock does not stand still.
            leave_delay: Duration::from_secs(3600),
            compare_interval: Duration::from_secs(5),
            seed,
        };
        let cluster = Cluster::start((broker, &events), Arc::clone(&router), settings);
        let shard = |(index, end)| Shard::new(index, end);
        let shards = ends.into_iter().enumerate().map(shard).collect();
        let name = name.to_owned();
        let (slow_until, squeezed) = (None, None);
        let mut tasks = JoinSet::new();
        let broker = || Arc::clone(cluster.broker());
        tasks.spawn(run_presence(Arc::clone(&router), Some((broker(), cluster.turns().clone()))));
        tasks.spawn(announce(broker(), name.to_owned()));
        Node {
            name,
            router,
            mailboxes,
            shards,
            cluster,
            budget,
            counters,
            slow_until,
            squeezed,
            _tasks: tasks,
        }
    }

    pub(super) fn open(&mut self, conn: ConnId) {
        self.shards[conn.shard()].open(conn);
    }

    pub(super) fn close(&mut self, conn: ConnId) {
        self.shards[conn.shard()].close(&self.router, conn);
    }

    /// `false`: there is no credit.
    pub(super) fn subscribe(
        &self,
        (client, conn): (usize, ConnId),
        topic: &str,
        (position, presence): (Option<v1::Position>, bool),
    ) -> Result<(), bool> {
        let mailbox = &self.mailboxes[conn.shard()];
        let credit = mailbox.try_credit(CreditKind::Control).ok_or(false)?;
        let mut subscriber = Subscriber::new(conn, Format::Stream);
        (subscriber.position, subscriber.presence) = (position, presence);
        let device = || Some(Name::from(format!("c{client}")));
        let subscribed = self.router.subscribe(credit, topic, subscriber, device);
        subscribed.map_err(|_| true)
    }

    pub(super) fn unsubscribe(&self, conn: ConnId, topic: &str) -> bool {
        let Some(credit) = self.mailboxes[conn.shard()].try_credit(CreditKind::Control) else {
            return false;
        };
        self.router.unsubscribe(credit, conn, topic);
        true
    }

    /// Publishes as the core does; `false`: it was refused.
    pub(super) fn publish(&self, topic: &str, text: &str, accepted: &Accepted) -> bool {
        let push = hot::Push {
            topic,
            payload: hot::Payload::Text(text),
            key: key_of(text),
            message_id: 1,
            ..hot::Push::default()
        };
        let offer = Offer {
            frame_bytes: push.frame_bytes(),
            key: push.key,
            accepted_at: Nanos::now(),
            publisher: Publisher::Backend,
        };
        let destination = self.router.destination(topic);
        let Ok((_, retention)) = self.router.admit(topic, destination, offer) else { return false };
        // The wall clock does not follow the simulation: what expires has done so long ago.
        let envelope = match is_late(text) {
            true => Envelope { accepted_ms: 1, ttl: Some(Duration::from_secs(1)), push },
            false => {
                let accepted_ms = crate::base::clock::unix_millis();
                Envelope { accepted_ms, ttl: Some(Duration::from_secs(3600)), push }
            }
        };
        let entry = Entry { payload: envelope.encode(), idempotency_key: None };
        let Ok(waiting) = self.cluster.offer(&Name::from(topic), retention, entry) else {
            return false;
        };
        let (topic, text, accepted) = (topic.to_owned(), text.to_owned(), Arc::clone(accepted));
        tokio::spawn(async move {
            if let Ok((position, _)) = waiting.await {
                accepted.lock().unwrap().push((topic, position, text));
            }
        });
        true
    }

    /// Something else uses up the budget for a while.
    pub(super) fn squeeze(&mut self, until: Instant) {
        let bytes = BUDGET_BYTES.saturating_sub(self.budget.used());
        let taken = (0..bytes).step_by(256).take_while(|_| self.budget.take(Share::Messages, 256));
        let taken = taken.count() * 256;
        let before = self.squeezed.map_or(0, |(bytes, _)| bytes);
        self.squeezed = Some((before + taken, until));
    }

    pub(super) fn release(&mut self) {
        if let Some((bytes, _)) = self.squeezed.take() {
            self.budget.give(Share::Messages, bytes);
        }
    }

    /// Lets shards carry out some commands; all of them if there are no dice.
    pub(super) fn turn(&mut self, clients: &mut Clients, dice: Option<&mut StdRng>) -> bool {
        let now = Instant::now();
        if self.squeezed.is_some_and(|(_, until)| until <= now) {
            self.release();
        }
        if self.slow_until.is_some_and(|until| until > now) {
            return false;
        }
        self.slow_until = None;
        let count = dice.map_or(usize::MAX, |dice| dice.random_range(0..30));
        let mut is_busy = false;
        for shard in &mut self.shards {
            for _ in 0..count {
                let has_stepped = shard.step(&self.router, clients);
                if !shard.resume_next(&self.router, &self.mailboxes) && !has_stepped {
                    break;
                }
                is_busy = true;
            }
        }
        self.router.retry_retirements();
        is_busy
    }

    /// All clients have gone and all topics are left: nothing remains.
    pub(super) fn check_end(&self) -> Result<(), String> {
        self.router.check_empty()?;
        if self.mailboxes.iter().any(|mailbox| mailbox.depth() > 0) {
            return Err("credits are missing".to_owned());
        }
        match self.budget.used() {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes of the budget are missing")),
        }
    }
}
