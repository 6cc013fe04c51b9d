//! Connects this node to its cluster: carries the needs of topics to the broker, and the broker's
//! events to topics and devices.
//!
//! `worker` runs what topics need; `events` takes what the broker tells; `presence` tells of who is
//! in topics, without a broker too; `attendance` tells which topics have subscribers here;
//! `sessions` keeps sessions of TLS for all nodes.

mod attendance;
mod events;
pub(crate) mod handover;
mod presence;
mod sessions;
#[cfg(test)]
mod tests;
mod turns;
mod worker;

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};
use weir_broker::{
    Answer, BatchId, Broker, DurationCounts, Entry, Error, EventHandler, History, HistoryQuery,
    Name, NodeNumber, NodeState, Overloaded, PublishQueue, QueueCounts, QueueLimits, RedisAnswer,
    RedisBroker, RedisOptions, Retention, Waiting,
};

use crate::base::clock::{unix_millis, unix_time};
use crate::base::config::Config;
use crate::observe::counters::Counters;
use crate::tls::SharedSessions;
use crate::topics::{Followed, Range, Router};
pub(crate) use attendance::run as run_attendance;
pub(crate) use events::{BrokerEvents, LocalNode};
pub(crate) use handover::EarlyEvents;
pub(crate) use presence::run as run_presence;
use sessions::ClusterSessions;
pub(crate) use turns::{Rest, Turns};

/// This node's part in its cluster.
///
/// Limits: the queue's, for messages on their way to the broker; everything else that waits for the
/// broker is bounded by the topics and devices of this node.
pub(crate) struct Cluster {
    broker: Arc<dyn Broker>,
    queue: Arc<PublishQueue>,
    events: Arc<BrokerEvents>,
    turns: Turns,
    /// Set when another process has gone on as this node.
    rests: OnceLock<Rest>,
    router: Arc<Router>,
    settings: ClusterSettings,
    /// Requests that may read a history.
    histories: Semaphore,
}

/// What a node of a cluster may be told.
#[derive(Debug, Clone)]
pub(crate) struct ClusterSettings {
    /// How much may wait for the broker, and how it is sent.
    pub(crate) queue: QueueLimits,
    /// How long a topic without subscribers is followed.
    pub(crate) leave_delay: Duration,
    /// How often the newest positions of the topics are compared with the broker's.
    pub(crate) compare_interval: Duration,
    /// Of the chance that spreads these comparisons: nodes that start together do not ask together.
    pub(crate) seed: u64,
}

/// Opens the Redis that the configuration names; `None`: it names none, and this node works alone.
///
/// Errors: the file of authorities cannot be read. A Redis that cannot be used is an error of the
/// broker.
pub(crate) fn configured(config: &Config) -> io::Result<Option<OpenBroker>> {
    configured_as(config, None)
}

/// The same, for a process that goes on as the node of another one.
pub(crate) fn configured_as(
    config: &Config,
    goes_on: Option<NodeState>,
) -> io::Result<Option<OpenBroker>> {
    if !config.cluster.is_set() {
        return Ok(None);
    }
    let options = RedisOptions { goes_on, ..redis_options(config)? };
    Ok(Some(Box::new(move |handler| {
        Box::pin(async move {
            let broker = RedisBroker::open(options, handler).await?;
            Ok(Arc::new(broker) as Arc<dyn Broker>)
        })
    })))
}

/// Asks each Redis of `[cluster]` for its clock and its eviction policy, as an operator would.
///
/// Errors: the file of the authorities cannot be read, or a URL cannot be used.
pub async fn ask_redis(config: &Config) -> io::Result<Vec<RedisAnswer>> {
    let options = redis_options(config)?;
    weir_broker::ask_redis(&options, unix_millis).await.map_err(io::Error::other)
}

fn redis_options(config: &Config) -> io::Result<RedisOptions> {
    let cluster = &config.cluster;
    let authorities = match cluster.ca.as_os_str().is_empty() {
        true => None,
        false => Some(std::fs::read(&cluster.ca)?),
    };
    Ok(RedisOptions {
        urls: cluster.redis.0.clone(),
        user: (!cluster.user.is_empty()).then(|| cluster.user.clone()),
        password: (!cluster.password.is_empty()).then(|| cluster.password.clone()),
        authorities,
        prefix: cluster.prefix.clone(),
        connections_per_device_max: config.limits.connections_per_device_max,
        timeout: cluster.timeout,
        waiting_max: cluster.waiting_max,
        wait_replicas: usize::try_from(cluster.wait_replicas).unwrap_or(usize::MAX),
        node_kept: cluster.node_ttl,
        presence_kept: cluster.presence_kept,
        ..RedisOptions::new("", cluster.id(), &cluster.node())
    })
}

/// Opens a broker, which tells the handler what it hears.
pub(crate) type OpenBroker =
    Box<dyn FnOnce(Arc<dyn EventHandler>) -> Answer<'static, Arc<dyn Broker>> + Send>;

impl ClusterSettings {
    pub(crate) fn of(config: &Config) -> ClusterSettings {
        let cluster = &config.cluster;
        ClusterSettings {
            queue: QueueLimits {
                waiting_max: cluster.waiting_max,
                waiting_bytes_max: cluster.waiting_bytes_max,
                gather_max: Duration::from_micros(cluster.flush_delay_us.into()),
                timeout: cluster.publish_timeout,
                ..QueueLimits::default()
            },
            leave_delay: cluster.leave_delay,
            compare_interval: Duration::from_secs(30),
            seed: rand::random(),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.router.needs().close();
    }
}

impl Cluster {
    /// Called within a tokio runtime. The tasks end with the last reference. `events` is what the
    /// broker was opened with.
    pub(crate) fn start(
        (broker, events): (Arc<dyn Broker>, &Arc<BrokerEvents>),
        router: Arc<Router>,
        settings: ClusterSettings,
    ) -> Arc<Cluster> {
        // A node that starts again must not use a number of its earlier life.
        let first = u64::try_from(unix_time().as_micros()).unwrap_or(u64::MAX / 2);
        let queue = PublishQueue::new(Arc::clone(&broker), settings.queue.clone(), BatchId(first));
        let queue = Arc::new(queue);
        events.set_queue(&queue);
        let histories = Semaphore::new(HISTORIES_MAX);
        let cluster = Arc::new(Cluster {
            broker,
            queue,
            events: Arc::clone(events),
            turns: Turns::default(),
            rests: OnceLock::new(),
            router,
            settings,
            histories,
        });
        worker::start(&cluster);
        cluster
    }

    /// Hands a message to the broker. Messages of one topic are published in the order of these
    /// calls.
    pub(crate) fn offer(
        &self,
        topic: &Name,
        retention: Option<Retention>,
        entry: Entry,
    ) -> Result<Waiting, Overloaded> {
        self.queue.offer(topic, retention, entry)
    }

    /// Waits until this node follows these topics, so that it knows their epochs and what is kept.
    /// They are followed for `leave_delay` at least. Topics of this node alone do not wait.
    ///
    /// Errors: the name of the first topic that cannot be followed in time.
    pub(crate) async fn follow<'a>(
        &self,
        topics: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), &'a str> {
        let topics: Vec<&str> = topics.into_iter().collect();
        // All are asked for together.
        for topic in &topics {
            let _ = self.router.follow(topic);
        }
        let deadline = Instant::now() + FOLLOW_TIMEOUT;
        for topic in topics {
            loop {
                match self.router.follow(topic) {
                    Followed::Live => break,
                    Followed::Waits if Instant::now() < deadline => sleep(FOLLOW_PAUSE).await,
                    Followed::Waits | Followed::Refused => return Err(topic),
                }
            }
        }
        Ok(())
    }

    /// Waits until a part of a history may be read.
    pub(crate) async fn turn_to_read(&self) -> Option<SemaphorePermit<'_>> {
        // Nobody closes it.
        self.histories.acquire().await.ok()
    }

    /// Reads a part of what the broker keeps of a topic.
    pub(crate) async fn history(&self, topic: &str, range: Range) -> Result<History, Error> {
        if self.router.is_broker_lost() {
            return Err(Error::Unavailable("it is lost".to_owned()));
        }
        let topic = Name::from(topic);
        let kept = self.read(range.query(&topic, true)).await?;
        if range.is_known_at(kept.top) {
            return Ok(kept);
        }
        self.read(range.query(&topic, false)).await
    }

    async fn read(&self, query: HistoryQuery) -> Result<History, Error> {
        let histories = self.broker.read(vec![query]).await?;
        let missing = || Error::Damaged("an answer is missing".to_owned());
        histories.into_iter().next().ok_or_else(missing)
    }

    /// What has gone through the queue to the broker.
    pub(crate) fn queue_counts(&self) -> QueueCounts {
        self.queue.counts()
    }

    /// From the offer of a message to the broker's answer.
    pub(crate) fn publish_durations(&self) -> DurationCounts {
        self.queue.durations()
    }

    /// The sessions of TLS that all nodes find. Called within a tokio runtime. This node keeps at
    /// most `kept_max` of its own there.
    pub(crate) fn share_sessions(
        &self,
        kept_max: usize,
        counters: &Arc<Counters>,
    ) -> Arc<dyn SharedSessions> {
        let (broker, router) = (Arc::clone(&self.broker), Arc::clone(&self.router));
        Arc::new(ClusterSessions::start(broker, router, kept_max, Arc::clone(counters)))
    }

    /// The broker, for what is not about topics.
    pub(crate) fn broker(&self) -> &Arc<dyn Broker> {
        &self.broker
    }

    /// The turns of those who ask the broker something for this node.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The number of this node.
    pub(crate) fn node(&self) -> NodeNumber {
        self.broker.number()
    }
}

/// Each takes as much of the byte budget as its answer may have, until it knows how much that is.
const HISTORIES_MAX: usize = 4;
/// How long a request waits for a topic: a slow broker's answer, twice.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(2);
/// A broker nearby answers in less.
const FOLLOW_PAUSE: Duration = Duration::from_millis(2);
