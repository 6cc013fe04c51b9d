//! The gateway from the inside: what the publish API, an embedding program and the metrics call.

mod from_device;

use std::sync::Arc;

use weir_engine::{ConnId, ConnectionInfo, Engine};

use crate::base::config::Config;
use crate::base::mailboxes::Publisher;
use crate::base::model::{Accepted, Publication, PublishError, TopicInfo};
use crate::core::events::{EventCounts, EventFilter, Events};
use crate::core::state::SharedState;
use crate::limits::admission::Admission;
use crate::observe::access::AccessLog;
use crate::observe::counters::Counters;
use crate::observe::readiness::Readiness;
use crate::provisioning::device_store::DeviceStore;
use crate::tls::Contexts;

pub(crate) use from_device::OnPublish;
pub use from_device::{FromDevice, Refusal};

/// The gateway from the inside.
///
/// Cost: cloning copies two pointers; whoever holds one keeps the gateway's tables alive, not its threads.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<SharedState>,
    pub(in crate::core) on_publish: Option<OnPublish>,
}

/// How many things the front holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Device records: devices that are connected or connecting.
    pub devices: usize,
    /// Topics.
    pub topics: usize,
    /// Source addresses that are known; none where they are not limited.
    pub sources: usize,
}

/// What all topics keep together for those who come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retained {
    /// Messages.
    pub messages: usize,
    /// What they occupy.
    pub bytes: usize,
    /// The most that they may occupy.
    pub bytes_max: usize,
    /// Messages that were not kept since the start, because of that limit.
    pub refused: u64,
}

impl Handle {
    pub(crate) fn new(shared: Arc<SharedState>, on_publish: Option<OnPublish>) -> Handle {
        Handle { shared, on_publish }
    }

    /// Publishes a message. Never waits.
    ///
    /// Errors: a topic name or a size that cannot be; a full mailbox, budget or tick, or more messages than the topic
    /// takes, to be tried again after the delay.
    /// Cost: one encoding and one allocation, if anyone is to get it; for a topic its lock, and a push a shard.
    pub fn publish(&self, publication: &Publication<'_>) -> Result<Accepted, PublishError> {
        self.shared.publish(publication, Publisher::Backend)
    }

    /// Connections, a page at a time, and where to go on. A page may hold fewer than the limit.
    ///
    /// Errors: a shard does not answer; so do the three below.
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

    /// Closes a connection with `closed_by_operator`; `false` if it has gone.
    pub async fn close(&self, id: ConnId) -> Result<bool, ShardSilent> {
        self.shared.close(id).await
    }

    /// A device's connections; `None` if the device is unknown.
    pub async fn device(&self, id: &str) -> Result<Option<Vec<Connection>>, ShardSilent> {
        self.shared.device(id).await
    }

    /// Ends what a device was permitted: its connections are closed with `revoked`, those that are just being
    /// authenticated too; `false` if the device is unknown. It may connect again with credentials that are still
    /// valid.
    ///
    /// Errors: a shard that does not take it; as soon as it does, the connections are closed nevertheless.
    pub async fn revoke(&self, id: &str) -> Result<bool, ShardSilent> {
        self.shared.revoke(id).await
    }

    /// Where devices are kept, if anywhere.
    pub fn device_store(&self) -> Option<&Arc<DeviceStore>> {
        self.shared.device_store.as_ref()
    }

    /// Topics whose name begins with `prefix` and stands behind `after`, at most `limit`, by name.
    pub fn topics(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicInfo> {
        self.shared.topics(prefix, after, limit)
    }

    /// Whether the gateway listens, does not drain, has all its shards, and has a store that works, if it has one.
    pub fn is_ready(&self) -> bool {
        self.shared.is_ready()
    }

    /// The same part by part, since when, and why not.
    ///
    /// Cost: a short lock. The store is asked every five seconds, and not by this.
    pub fn readiness(&self) -> Readiness {
        self.shared.readiness.read()
    }

    /// The shards, for what they count.
    pub fn engine(&self) -> &Engine {
        self.shared.engine()
    }

    pub(crate) fn shared(&self) -> &Arc<SharedState> {
        &self.shared
    }

    pub(crate) fn config(&self) -> &Config {
        self.shared.config()
    }

    /// What happens to connections from now on, as far as the filter lets it pass.
    ///
    /// Errors: `None` if [`Events::READERS_MAX`] read already. Cost: nothing is built while nobody reads.
    pub fn events(&self, filter: EventFilter) -> Option<Events> {
        self.shared.events.listen(filter)
    }

    pub(crate) fn event_counts(&self) -> EventCounts {
        self.shared.events.counts()
    }

    /// What the front counts.
    pub fn counters(&self) -> &Counters {
        self.shared.counters()
    }

    /// Has the files that `[tls]` names read now, and the keys of `[auth.jwt]`; the log tells what came of it. They are
    /// looked at every `reload_interval` anyway. `false`: nothing listens with TLS, and no key is configured.
    pub fn reload_certificates(&self) -> bool {
        let has_keys = self.shared.auth.ask_reload();
        self.tls().map(Contexts::ask_reload).is_some() || has_keys
    }

    /// Has the file of the access log opened anew, once it has been renamed; the log tells what came of it. `false`:
    /// there is none.
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

    /// How many devices and topics there are.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            devices: self.shared.devices.device_count(),
            topics: self.shared.router.topic_count(),
            sources: self.shared.admission.source_count(),
        }
    }

    /// What all topics keep together.
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

/// A shard did not answer in time: what it holds cannot be told, nor that it is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard} does not answer")]
pub struct ShardSilent {
    /// Its index.
    pub shard: usize,
}

/// One connection with names instead of numbers.
#[derive(Debug, Clone)]
pub struct Connection {
    /// What its shard says.
    pub info: ConnectionInfo,
    /// Its device's id.
    pub device: String,
    /// Where it comes from, as limits count it: an IPv4 address, or a /64 of IPv6. Behind a proxy it is what the proxy
    /// says, and `info.peer` is the proxy.
    pub source: Option<String>,
    /// Names of the topics it is in.
    pub topics: Vec<String>,
}

/// Which connections to list.
#[derive(Debug, Clone, Default)]
pub struct ConnectionQuery {
    /// Only those of this device.
    pub device: Option<String>,
    /// Only those in this topic.
    pub topic: Option<String>,
    /// Where to go on: from the page before.
    pub cursor: Option<ConnectionCursor>,
    /// How many at most.
    pub limit: usize,
}

/// A place in the list of connections: shard, and that shard's cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCursor {
    /// Index of the shard.
    pub shard: u32,
    /// The shard's cursor.
    pub cursor: u32,
}
