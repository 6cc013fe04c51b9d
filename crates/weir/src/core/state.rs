//! The shared state of the front: shards, router, devices, counters.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::{Mutex, watch};
use weir_broker::EventHandler;
use weir_engine::{Engine, Mailbox, Nanos, OwnNode};

use crate::auth::Authenticator;
use crate::auth::admin::AdminAccess;
use crate::auth::devices::Devices;
use crate::backends::Backends;
use crate::backends::calls::Calls;
use crate::backends::notices::Notices;
use crate::backends::questions::Questions;
use crate::base::clock::unix_time;
use crate::base::config::Config;
use crate::base::diagnostics::Diagnostics;
use crate::base::door::Door;
use crate::base::levels::SharedFootprint;
use crate::base::mailboxes::Mailboxes;
use crate::base::memory::Heap;
use crate::base::model::TopicInfo;
use crate::cluster::{BrokerEvents, Cluster, ClusterSettings, OpenBroker};
use crate::core::adoptions::PendingAdoptions;
use crate::core::clients::Clients;
use crate::core::drain::Drains;
use crate::core::ends::Ends;
use crate::core::events::Bus;
use crate::core::forwards::Forwards;
use crate::core::idempotency::Idempotency;
use crate::core::node::ClusterNode;
use crate::core::pauses::Pauses;
use crate::core::recheck::Rechecks;
use crate::limits::admission::{Admission, TableLimits};
use crate::limits::http_ledger::HttpShare;
use crate::limits::rates::Rates;
use crate::observe::access::AccessLog;
use crate::observe::audit::Audit;
use crate::observe::counters::Counters;
use crate::observe::readiness::Board;
use crate::observe::traces::Tracer;
use crate::observe::upgrades::Upgrades;
use crate::provisioning::activation::Activator;
use crate::provisioning::device_store::DeviceStore;
use crate::tls;
use crate::topics::{Router, SharedFormats};

/// The shared state of a gateway.
pub(crate) struct SharedState {
    pub(crate) router: Arc<Router>,
    /// Present if this node is one of several.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Likewise: what is not about topics.
    pub(crate) node: Option<Arc<ClusterNode>>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) auth: Authenticator,
    /// The services that the gateway calls.
    pub(crate) backends: Arc<Backends>,
    /// What hooks are asked.
    pub(crate) questions: Arc<Questions>,
    pub(crate) calls: Arc<Calls>,
    /// Tells services what happens.
    pub(crate) notices: Arc<Notices>,
    /// The callers of the admin API. A reload replaces them.
    pub(crate) admin_access: AdminAccess,
    pub(crate) events: Arc<Bus>,
    /// The last ends of connections.
    pub(crate) ends: Ends,
    /// Names of client programs.
    pub(crate) clients: Arc<Clients>,
    /// By shard.
    pub(crate) adoptions: Box<[PendingAdoptions]>,
    pub(crate) admission: Arc<Admission>,
    /// The publish rates of each device's requests, over HTTP and by datagram together.
    pub(crate) publish_rates: Rates,
    /// The rates of datagrams from each source.
    pub(crate) datagram_rates: Arc<Rates>,
    /// Keys of messages that the broker does not know.
    pub(crate) idempotency: Arc<Idempotency>,
    /// Formats that connections have used.
    pub(crate) formats: SharedFormats,
    /// Present if a listener uses TLS.
    pub(crate) tls: Option<tls::Service>,
    pub(crate) access_log: AccessLog,
    pub(crate) audit: Audit,
    /// By shard: the reports that its dispatcher has not carried out, and credentials that end.
    pub(crate) dispatchers: Box<[SharedFootprint]>,
    pub(crate) heap_at_start: OnceLock<Heap>,
    /// Present if the program shows figures of its process.
    pub(crate) diagnostics: Option<Arc<dyn Diagnostics>>,
    /// HTTP's share of the byte budget.
    pub(crate) http_share: Arc<HttpShare>,
    /// Present if a store is configured.
    pub(crate) device_store: Option<Arc<DeviceStore>>,
    /// Present if devices may activate here.
    pub(crate) activator: Option<Activator>,
    pub(crate) readiness: Board,
    pub(crate) upgrades: Upgrades,
    pub(crate) tracer: Arc<Tracer>,
    /// Whether the gateway admits nothing new: it ends, or is being emptied.
    pub(crate) draining: watch::Sender<bool>,
    pub(crate) drains: Drains,
    pub(crate) rechecks: Rechecks,
    pub(crate) pauses: Pauses,
    /// Whether this process serves.
    pub(crate) door: Arc<Door>,
    /// Messages that it takes and does not publish itself any more.
    pub(crate) forwards: Forwards,
    /// Held while a configuration is applied, or another process takes over.
    pub(crate) reloading: Arc<Mutex<()>>,
    /// The configuration in use.
    config: ArcSwap<Config>,
    engine: Engine,
    mailboxes: Arc<Mailboxes>,
    counters: Arc<Counters>,
    pub(in crate::core) message_ids: AtomicU64,
}

/// The parts that admit connections and devices.
pub(crate) struct Doorkeepers {
    pub(crate) tls: Option<tls::Service>,
    pub(crate) auth: Authenticator,
    pub(crate) backends: Arc<Backends>,
    pub(crate) questions: Arc<Questions>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) device_store: Option<Arc<DeviceStore>>,
}

/// The parts that tell what the gateway does.
pub(crate) struct Observers {
    pub(crate) access_log: AccessLog,
    pub(crate) counters: Arc<Counters>,
    pub(crate) diagnostics: Option<Arc<dyn Diagnostics>>,
}

/// The router, and the cluster that it is part of.
pub(crate) struct Topics {
    mailboxes: Arc<Mailboxes>,
    router: Arc<Router>,
    cluster: Option<Arc<Cluster>>,
    node: Option<Arc<ClusterNode>>,
    /// Where the broker tells what it hears, if there is one.
    pub(crate) events: Option<Arc<BrokerEvents>>,
}

impl Topics {
    /// `open` opens the broker. Connections get the number `own`, which changes with that of the
    /// node.
    pub(crate) async fn start(
        config: &Config,
        (engine, own): (&Engine, OwnNode),
        counters: &Arc<Counters>,
        open: Option<OpenBroker>,
    ) -> Result<Topics, weir_broker::Error> {
        let shards = engine.shard_count();
        let mailboxes: Arc<Mailboxes> =
            (0..shards).map(|shard| engine.mailbox(shard).clone()).collect();
        let budget = Arc::clone(engine.budget());
        let router = Router::new(
            Arc::clone(&mailboxes),
            budget,
            Arc::clone(counters),
            config,
            open.is_some(),
        );
        let router = Arc::new(router);
        let Some(open) = open else {
            return Ok(Topics { mailboxes, router, cluster: None, node: None, events: None });
        };
        let events = BrokerEvents::new(Arc::clone(&router));
        let broker = open(Arc::clone(&events) as Arc<dyn EventHandler>).await?;
        let settings = ClusterSettings::of(config);
        let cluster = Cluster::start((broker, &events), Arc::clone(&router), settings);
        let node = ClusterNode::new(Arc::clone(&cluster), own, counters);
        let (cluster, node, events) = (Some(cluster), Some(node), Some(events));
        Ok(Topics { mailboxes, router, cluster, node, events })
    }
}

impl SharedState {
    /// `tables` tells for how many device sockets there are descriptors.
    pub(crate) fn new(
        config: Config,
        engine: Engine,
        (doorkeepers, topics): (Doorkeepers, Topics),
        Observers { access_log, counters, diagnostics }: Observers,
        tables: TableLimits,
    ) -> Arc<SharedState> {
        let Doorkeepers { tls, auth, backends, notices, questions, device_store } = doorkeepers;
        let activator =
            device_store.as_ref().filter(|_| config.activation.enabled).map(|devices| {
                Activator::new(&config.activation, Arc::clone(devices), Arc::clone(&counters))
            });
        let has_cache = device_store.as_ref().is_some_and(|devices| devices.has_cache());
        let shards = engine.shard_count();
        let Topics { mailboxes, router, cluster, node, .. } = topics;
        let limits = &config.limits;
        let started_ms = u64::try_from(unix_time().as_millis()).unwrap_or(0);
        let (draining, door) = (watch::Sender::new(false), Arc::<Door>::default());
        Arc::new(SharedState {
            router,
            cluster,
            node,
            devices: Devices::new(limits.connections_per_device_max),
            auth,
            calls: Calls::new(&config, &backends, (&mailboxes, &door), &counters),
            backends,
            tracer: Arc::clone(&questions.tracer),
            questions,
            notices,
            admin_access: AdminAccess::new(&config.admin, &config.auth.services),
            events: Arc::default(),
            ends: Ends::default(),
            clients: Arc::default(),
            adoptions: (0..shards).map(|_| PendingAdoptions::default()).collect(),
            admission: Admission::new(
                &config,
                Arc::clone(&counters),
                &engine,
                draining.subscribe(),
                tables,
            ),
            publish_rates: Rates::new(limits.publishes_per_second, limits.publish_burst),
            datagram_rates: Arc::new(Rates::new(
                config.udp.datagrams_per_source_per_second,
                config.udp.datagrams_per_source_burst,
            )),
            idempotency: Idempotency::new(engine.budget(), limits.idempotency_keys_max),
            formats: SharedFormats::default(),
            tls,
            access_log,
            audit: Audit::default(),
            dispatchers: (0..shards).map(|_| SharedFootprint::default()).collect(),
            heap_at_start: OnceLock::new(),
            diagnostics,
            http_share: HttpShare::new(engine.budget()),
            readiness: Board::new(device_store.is_some(), has_cache),
            upgrades: Upgrades::default(),
            device_store,
            activator,
            draining,
            drains: Drains::new(shards),
            rechecks: Rechecks::new(shards),
            pauses: Pauses::new(shards),
            door,
            forwards: Forwards::default(),
            reloading: Arc::default(),
            engine,
            mailboxes,
            counters,
            message_ids: AtomicU64::new(started_ms << MESSAGE_COUNT_BITS),
            config: ArcSwap::from_pointee(config),
        })
    }

    /// The configuration in use. A reload replaces it.
    pub(crate) fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    pub(in crate::core) fn set_config(&self, config: Arc<Config>) {
        self.config.store(config);
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn mailboxes(&self) -> &Arc<Mailboxes> {
        &self.mailboxes
    }

    /// The mailbox of an existing shard.
    pub(crate) fn mailbox(&self, shard: usize) -> &Mailbox<OwnedFd> {
        &self.mailboxes[shard]
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn topics(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicInfo> {
        self.router.list(prefix, after, limit)
    }

    /// Waits until this node knows the epochs of these topics, and what they keep.
    ///
    /// Errors: a topic of the cluster whose broker does not answer.
    pub(crate) async fn follow<'a>(
        &self,
        topics: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), &'a str> {
        match &self.cluster {
            Some(cluster) => cluster.follow(topics).await,
            None => Ok(()),
        }
    }

    /// Forgets idempotency keys that are too old, ended sessions of the admin API, and forgiven
    /// failures to sign in. Enters in the audit log what was only counted. Call it each second.
    pub(crate) fn sweep(&self) {
        self.idempotency.sweep();
        self.admin_access.sweep();
        self.audit.settle(Duration::from_nanos(Nanos::now().0));
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    /// The next message's id: the milliseconds at the start of the server, above a count. Ids of
    /// different starts differ unless one server publishes four million messages a millisecond for
    /// its whole life.
    ///
    /// In a cluster the lowest 10 bits are the number of the node, so nodes that start together
    /// differ; four thousand messages a millisecond are then the limit.
    pub(crate) fn next_message_id(&self) -> u64 {
        let Some(cluster) = &self.cluster else {
            return self.message_ids.fetch_add(1, Ordering::Relaxed);
        };
        let count = self.message_ids.fetch_add(1 << NODE_BITS, Ordering::Relaxed);
        count | u64::from(cluster.node().0)
    }
}

/// Bits of a node's number.
const NODE_BITS: u32 = 10;
/// 42 bits of milliseconds last until the year 2109.
const MESSAGE_COUNT_BITS: u32 = 22;
