//! The gateway handle: calls for the publish API, an embedding program and the metrics.

mod from_device;

use std::sync::Arc;

use arc_swap::Guard;
use weir_engine::{ConnId, ConnectionInfo, Engine};

use crate::backends::notices::Author;
use crate::base::config::Config;
use crate::base::model::{Publication, PublishError, TopicInfo};
use crate::core::drain::{DrainError, DrainInfo, DrainOptions};
use crate::core::events::{EventCounts, EventFilter, Events};
use crate::core::publishing::Publishing;
use crate::core::state::SharedState;
use crate::limits::admission::Admission;
use crate::observe::access::AccessLog;
use crate::observe::counters::Counters;
use crate::observe::readiness::Readiness;
use crate::provisioning::device_store::DeviceStore;
use crate::tls::Contexts;

pub(crate) use from_device::OnPublish;
pub use from_device::{FromDevice, Refusal};

/// The means to control a running gateway.
///
/// Cost: cloning copies two pointers. A handle keeps the gateway's tables alive, but not its
/// threads.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<SharedState>,
    pub(in crate::core) on_publish: Option<OnPublish>,
}

/// The sizes of the front's tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Device records: devices that are connected or connecting.
    pub devices: usize,
    /// Topics.
    pub topics: usize,
    /// Known source addresses; 0 if no limit applies to sources.
    pub sources: usize,
}

/// The retained messages of all topics together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retained {
    /// Messages.
    pub messages: usize,
    /// The bytes that they occupy.
    pub bytes: usize,
    /// The limit on these bytes.
    pub bytes_max: usize,
    /// Messages since the start that a limit on bytes or on unattended topics kept from being
    /// retained.
    pub refused: u64,
}

impl Handle {
    pub(crate) fn new(shared: Arc<SharedState>, on_publish: Option<OnPublish>) -> Handle {
        Handle { shared, on_publish }
    }

    /// Publishes a message. Never waits.
    ///
    /// Errors: an invalid topic name or size. A full mailbox, budget or tick, or a reached rate of
    /// the topic: these errors say when to try again.
    /// Cost: one encoding and one allocation, if there is a reader. A topic also costs its lock,
    /// and one push for each shard.
    pub fn publish(&self, publication: &Publication<'_>) -> Result<Publishing, PublishError> {
        self.shared.publish(publication, Author::Program, None)
    }

    /// A page of connections, and the cursor of the next page. A page may hold fewer than the
    /// limit.
    ///
    /// Errors: a shard does not answer. The three methods below fail alike.
    pub async fn connections(
        &self,
        query: &ConnectionQuery,
    ) -> Result<(Vec<Connection>, Option<ConnectionCursor>), ShardSilent> {
        self.shared.connections(query).await
    }

    /// One connection; `None` if it has gone.
    pub async fn connection(&self, id: ConnId) -> Result<Option<Connection>, ShardSilent> {
        self.shared.connection(id).await
    }

    /// Asks every shard, and waits for the answers: all of them live.
    ///
    /// Errors: a shard has not answered within two seconds, or has ended.
    /// Cost: one turn of each shard.
    pub async fn check_shards(&self) -> Result<(), ShardSilent> {
        self.shared.check_shards().await
    }

    /// Closes a connection with `closed_by_operator`; `false` if it has gone.
    pub async fn close(&self, id: ConnId) -> Result<bool, ShardSilent> {
        self.shared.close(id).await
    }

    /// A device's connections; `None` if the device is unknown.
    pub async fn device(&self, id: &str) -> Result<Option<Vec<Connection>>, ShardSilent> {
        self.shared.device(id).await
    }

    /// Withdraws a device's admission: closes its connections with `revoked`, including those that
    /// are being authenticated. `false` if the device is unknown. The device may connect again with
    /// credentials that are still valid.
    ///
    /// Errors: a shard does not take the command in time. The connections are still closed as soon
    /// as it does.
    pub async fn revoke(&self, id: &str) -> Result<bool, ShardSilent> {
        self.shared.revoke(id).await
    }

    /// The store of devices, if there is one.
    pub fn device_store(&self) -> Option<&Arc<DeviceStore>> {
        self.shared.device_store.as_ref()
    }

    /// Topics in the order of their names: those that begin with `prefix` and come after `after`,
    /// at most `limit`.
    pub fn topics(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicInfo> {
        self.shared.topics(prefix, after, limit)
    }

    /// Begins to drain the node: it tells its connections to come back elsewhere, and delivers to
    /// the others. Without this, [`crate::Gateway::shutdown`] drains it when it ends.
    ///
    /// Errors: options beyond their limits, or a drain that goes on.
    /// Cost: returns at once. A task of the gateway carries the drain out.
    pub fn drain(&self, options: DrainOptions) -> Result<DrainInfo, DrainError> {
        self.shared.drain(options)
    }

    /// How far the last drain is.
    pub fn drain_info(&self) -> DrainInfo {
        self.shared.drain_info()
    }

    /// Cancels the drain, if there is one: no further connection is closed, and new ones are
    /// admitted.
    ///
    /// Errors: a shard does not answer. It ends the drain as soon as it can.
    pub async fn cancel_drain(&self) -> Result<DrainInfo, ShardSilent> {
        self.shared.cancel_drain().await
    }

    /// Whether the gateway listens, does not drain, and has all its shards and, if configured, a
    /// working store.
    pub fn is_ready(&self) -> bool {
        self.shared.is_ready()
    }

    /// The readiness of each part, with the time of its last change and the cause of a failure.
    ///
    /// Cost: a short lock. This does not ask the store; the gateway asks it every five seconds.
    pub fn readiness(&self) -> Readiness {
        self.shared.readiness.read()
    }

    /// The shards and their statistics.
    pub fn engine(&self) -> &Engine {
        self.shared.engine()
    }

    pub(crate) fn shared(&self) -> &Arc<SharedState> {
        &self.shared
    }

    /// The configuration in use.
    pub(crate) fn config(&self) -> Guard<Arc<Config>> {
        self.shared.config()
    }

    /// The events of connections from now on that pass the filter. `None` if there are
    /// [`Events::READERS_MAX`] readers already.
    ///
    /// Cost: no event is built while there is no reader.
    pub fn events(&self, filter: EventFilter) -> Option<Events> {
        self.shared.events.listen(filter)
    }

    pub(crate) fn event_counts(&self) -> EventCounts {
        self.shared.events.counts()
    }

    /// The counters of the front.
    pub fn counters(&self) -> &Counters {
        self.shared.counters()
    }

    /// Reads the files of `[tls]` and the keys of `[auth.jwt]` now; the log tells the result. The
    /// gateway checks them every `reload_interval` anyway. `false` if no listener uses TLS and no
    /// key is configured.
    pub fn reload_certificates(&self) -> bool {
        let has_keys = self.shared.auth.ask_reload();
        self.tls().map(Contexts::ask_reload).is_some() || has_keys
    }

    /// Opens the access log's file again after it was renamed; the log tells the result. `false` if
    /// there is no access log.
    pub fn reopen_access_log(&self) -> bool {
        self.shared.access_log.reopen()
    }

    pub(crate) fn access_log(&self) -> &AccessLog {
        &self.shared.access_log
    }

    pub(crate) fn tls(&self) -> Option<&Contexts> {
        self.shared.tls.as_ref().map(|tls| &**tls.contexts())
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// The numbers of devices, topics and sources.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            devices: self.shared.devices.device_count(),
            topics: self.shared.router.topic_count(),
            sources: self.shared.admission.source_count(),
        }
    }

    /// The retained messages of all topics together.
    pub fn retained(&self) -> Retained {
        let retained = self.shared.router.retained();
        Retained {
            messages: retained.messages(),
            bytes: retained.bytes(),
            bytes_max: retained.bytes_max(),
            refused: retained.refused(),
        }
    }
}

/// A shard did not answer in time, so its connections are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard} does not answer")]
pub struct ShardSilent {
    /// Its index.
    pub shard: usize,
}

/// One connection, with names instead of ids.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The shard's description.
    pub info: ConnectionInfo,
    /// Its device's id.
    pub device: String,
    /// The source of the connection, as limits count it: an IPv4 address, or a /64 of IPv6. Behind
    /// a proxy the proxy names it, and `info.peer` is the proxy.
    pub source: Option<String>,
    /// The name of its client program, as `Hello` or the request gave it: at most 64 bytes.
    /// `other` if too many names are in use.
    pub client: Option<Arc<str>>,
    /// The names of its topics.
    pub topics: Vec<String>,
}

/// A choice of connections to list.
#[derive(Debug, Clone, Default)]
pub struct ConnectionQuery {
    /// Only connections of this device.
    pub device: Option<String>,
    /// Only subscribers of this topic.
    pub topic: Option<String>,
    /// The cursor from the previous page.
    pub cursor: Option<ConnectionCursor>,
    /// The most connections on a page.
    pub limit: usize,
}

/// A place in the list of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCursor {
    /// The index of the shard.
    pub shard: u32,
    /// The cursor in the shard.
    pub cursor: u32,
}
