//! The builder: everything that a gateway gets before it starts.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustls::sign::SigningKey;
use weir_broker::{Answer, Broker, EventHandler};
use weir_engine::{Budget, Engine, OwnNode, Source, Taken, Transport};
use weir_wire::handover::v1::BrokerHeard;

use super::bind::{Bound, Passed, addrs, bind_admin, bind_all};
use super::handover::{Incoming, NewNode, Rest, TakenFront};
use super::{Gateway, OWN_DESCRIPTORS, Settling, StartError, Started, launch, start_shards};
use crate::admin::{AdminPage, OfProgram};
use crate::auth::jwt::Jwt;
use crate::auth::{Authenticator, TokenSource, Verifier};
use crate::backends::Backends;
use crate::backends::notices::{Notices, Stands, Who};
use crate::backends::questions::Questions;
use crate::base::config::{CertificateConfig, Config, ConfigError, Scope, TlsVersion};
use crate::base::diagnostics::Diagnostics;
use crate::base::model::Spoken;
use crate::base::profiler::Profiler;
use crate::base::reloader::Reloader;
use crate::base::threads::{OpenFiles, Resources, raise_open_files};
use crate::cluster::{self, BrokerEvents, OpenBroker};
use crate::connection::listener::Buffers;
use crate::core::handle::{FromDevice, Handle, OnPublish, Refusal};
use crate::core::publishing::Publishing;
use crate::core::state::{Doorkeepers, Observers, SharedState, Topics};
use crate::handover::Predecessor;
use crate::limits::admission::TableLimits;
use crate::observe::access::AccessLog;
use crate::observe::counters::Counters;
use crate::observe::traces::Tracer;
use crate::provisioning::device_store::DeviceStore;
use crate::tls::{Development, NoKey, SigningKeys};
use crate::topics::CLASS_NUMBERS;
use crate::{admin, limits::admission, tls, udp};

/// A gateway before it runs.
#[derive(Default)]
pub struct GatewayBuilder {
    /// In a box; otherwise each future with a builder would be as large as the whole configuration.
    config: Box<Config>,
    on_publish: Option<OnPublish>,
    allocated_bytes: Option<fn() -> u64>,
    diagnostics: Option<Arc<dyn Diagnostics>>,
    signing_keys: Option<Box<SigningKeys>>,
    tokens: Option<Arc<dyn TokenSource>>,
    device_store: Option<Arc<DeviceStore>>,
    broker: Option<OpenBroker>,
    of_program: OfProgram,
    pages: Vec<AdminPage>,
    sockets: Vec<(String, OwnedFd)>,
    pub(super) predecessor: Option<Predecessor>,
    pub(super) depths: Depths,
}

/// The capacities of the queues to and from one shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depths {
    pub(super) messages: usize,
    pub(super) control: usize,
    pub(super) reports: usize,
}

impl GatewayBuilder {
    /// Uses this configuration instead of the default one.
    pub fn config(mut self, config: Config) -> Self {
        *self.config = config;
        self
    }

    /// Passes all messages from devices to `on_publish`, which alone decides about each, and passes
    /// its answer to them. Without it, topic classes decide who may publish.
    ///
    /// It runs on a front thread, in each connection's order, and must not block: later frames from
    /// all devices of the shard wait for it. To pass a message on to its topic, return
    /// `Ok(Some(message.publish()?))`.
    pub fn on_publish(
        mut self,
        on_publish: impl Fn(&FromDevice<'_>) -> Result<Option<Publishing>, Refusal>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.on_publish = Some(Arc::new(on_publish));
        self
    }

    /// Shows the allocated bytes of each shard's thread in its statistics. `allocated_bytes`
    /// returns the bytes of the calling thread, which only the program's allocator knows. The shard
    /// calls it once a turn.
    pub fn allocated_bytes(mut self, allocated_bytes: fn() -> u64) -> Self {
        self.allocated_bytes = Some(allocated_bytes);
        self
    }

    /// Shows figures of the allocator beside those of the gateway.
    pub fn diagnostics(mut self, diagnostics: Arc<dyn Diagnostics>) -> Self {
        self.diagnostics = Some(diagnostics);
        self
    }

    /// Lets other hardware, or a service that alone has the keys, sign handshakes.
    ///
    /// The gateway calls `signing_key` for the key of each of `[[tls.certificates]]`. `Ok(None)`
    /// means that the key is in its file. If it returns a key, the gateway does not open the file
    /// `key`, which may then be any name. If the key knows its [`SigningKey::public_key`], that
    /// must be the certificate's. The call may block: at the start it delays
    /// [`GatewayBuilder::start`], later it occupies a thread for blocking work.
    ///
    /// The gateway calls it again for all certificates at each reload. New handshakes then use the
    /// new keys. Running handshakes end with the key they began with. If the call fails, or a
    /// public key does not match, everything stays as it was, and the log says so. Earlier keys are
    /// used until a reload succeeds.
    ///
    /// [`rustls::sign::Signer::sign`] may block too, but must end: it occupies a thread of
    /// `tls.handshake_threads` that the gateway cannot take back. Choose as many threads as
    /// handshakes a second times the seconds of a signature, and one more for each processor.
    /// Connected devices do not wait for signatures; up to `tls.handshake_queue_max` connecting
    /// ones do. An error of `sign` ends the handshake with the alert `internal_error`. It is
    /// counted in `weir_tls_handshakes_failed_total{cause="signer"}`, and logged at most every ten
    /// seconds.
    pub fn signing_keys(
        mut self,
        signing_key: impl Fn(&CertificateConfig) -> Result<Option<Arc<dyn SigningKey>>, NoKey>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.signing_keys = Some(Box::new(signing_key));
        self
    }

    /// Looks up tokens of activated devices there if the configuration does not know them.
    ///
    /// The gateway asks only for texts in the form of such a token, of 22 characters. It waits for
    /// an answer at most as long as `Hello` may take. [`crate::LimitsConfig`] bounds the number of
    /// waiting connections. After an error the device is told to come back later.
    pub fn tokens(mut self, tokens: Arc<dyn TokenSource>) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Keeps devices in this store. They activate there (`[activation]`), and the admin API
    /// imports, lists and revokes them. Their tokens are looked up there, unless
    /// [`GatewayBuilder::tokens`] names another source.
    pub fn devices(mut self, device_store: Arc<DeviceStore>) -> Self {
        self.device_store = Some(device_store);
        self
    }

    /// Makes this node part of a cluster, held together by a broker. `open` is called at the start.
    /// Its handler must be told everything that the broker tells this node.
    pub fn broker(
        mut self,
        open: impl FnOnce(Arc<dyn EventHandler>) -> Answer<'static, Arc<dyn Broker>> + Send + 'static,
    ) -> Self {
        self.broker = Some(Box::new(open));
        self
    }

    /// Lets the admin API answer `/v1/debug/cpu` and `/v1/debug/heap` with profiles that `profiler`
    /// makes. Without it, these paths have nothing.
    pub fn profiler(mut self, profiler: Arc<dyn Profiler>) -> Self {
        self.of_program.profiler = Some(profiler);
        self
    }

    /// Lets the admin API answer `POST /v1/reload`: `reloader` reads the configuration again, and
    /// applies it with [`Handle::reload`]. Without it, this path has nothing.
    pub fn reloader(mut self, reloader: Arc<dyn Reloader>) -> Self {
        self.of_program.reloader = Some(reloader);
        self
    }

    /// Adds a page to the admin listener.
    ///
    /// Errors: [`GatewayBuilder::start`] refuses a page whose path is taken or not allowed.
    pub fn page(mut self, page: AdminPage) -> Self {
        self.pages.push(page);
        self
    }

    /// Listens on these sockets, which another program has opened, as systemd does for a service.
    /// Addresses without such a socket are opened as usual.
    ///
    /// Shape: a listening TCP socket with its name: `tcp`, `tls`, `http`, `https` or `admin`, as
    /// the keys of `[listen]`. That key must name the socket's address.
    /// Errors: [`GatewayBuilder::start`] refuses any other socket.
    pub fn sockets(mut self, sockets: Vec<(String, OwnedFd)>) -> Self {
        self.sockets = sockets;
        self
    }

    /// Makes the gateway of what an old process hands over, instead of an empty one.
    ///
    /// Errors: [`GatewayBuilder::start`] fails if the old process ends the upgrade, or if this
    /// process cannot use what it gets. The old process is told why, and serves on.
    pub fn take_over(mut self, predecessor: Predecessor) -> Self {
        self.predecessor = Some(predecessor);
        self
    }

    /// Starts the gateway on the current tokio runtime, which needs its time and network drivers.
    ///
    /// Errors: an invalid configuration, an address in use, no threads.
    pub async fn start(self) -> Result<Gateway, StartError> {
        // In a box; otherwise the caller's future would be as large as all values of the start.
        Box::pin(self.start_or_take_over()).await
    }

    async fn start_or_take_over(mut self) -> Result<Gateway, StartError> {
        let incoming = self.predecessor.take().map(Incoming::new);
        let started = Box::pin(self.start_now(incoming.as_ref())).await;
        match (started, incoming) {
            (Ok((gateway, rest)), Some(incoming)) => {
                gateway.go_on(incoming, rest).await;
                Ok(gateway)
            }
            (Ok((gateway, _)), None) => Ok(gateway),
            (Err(error), Some(incoming)) => {
                incoming.fail(&error);
                Err(error)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.config.validate()?;
        if self.tokens.is_none() && self.device_store.is_none() {
            self.config.check_admits()?;
        }
        Ok(())
    }

    async fn start_now(self, incoming: Option<&Incoming>) -> Result<(Gateway, Rest), StartError> {
        self.check()?;
        let GatewayBuilder {
            config,
            on_publish,
            allocated_bytes,
            diagnostics,
            signing_keys,
            tokens,
            device_store,
            broker,
            of_program,
            pages,
            sockets,
            predecessor: _,
            depths,
        } = self;
        let resources = Resources::detect();
        let (mut passed, sources) = take_sockets(incoming, sockets, &config, &resources)?;
        let admin = bind_admin(config.listen.admin, &mut passed).await?;
        let pages = admin::pages(pages)?;
        let open_files = raise_open_files();
        let shards = resources.pins(&config.threads, resources.shards(&config.threads));
        let budget_bytes = resources.budget_bytes(&config.memory);
        let settling = Settling::start(&config, &resources).map_err(StartError::Settling)?;
        let (listeners, buffers) = bind_all(&config, &settling, &mut passed)?;
        let udp = udp::bind(&config, &resources, |addr| passed.take_datagrams(addr));
        let udp = udp.map_err(StartError::listen_udp)?;
        let (counters, own) = (Arc::<Counters>::default(), OwnNode::default());
        let old = incoming.map(Incoming::process);
        let (backends, questions, notices) = backends(&config, &counters, &own, old).await?;
        let start_tls =
            |workers| tls::Service::start(&config, workers, signing_keys, Arc::clone(&counters));
        let tls = settling.tls.as_ref().map(start_tls).transpose()?;
        let tokens = (tokens, device_store.clone());
        let auth = authenticator(&config, &resources, tokens, &questions, &counters)?;
        let access_log = access_log(&config, &resources)?;
        let budget = byte_budget(&config, &resources, budget_bytes);
        let shard_sockets_max = admission::shard_sockets_max(&config.engine, open_files.soft);
        let (broker, node) = open_node(incoming, &config, broker, &budget).await?;
        let given = ((depths, own.clone()), shard_sockets_max);
        let (engine, queues, taken) =
            start_shards(&config, given, allocated_bytes, budget, (&shards, sources))?;
        let tables = table_limits(&open_files, shard_sockets_max, taken.iter().map(Vec::len).sum());
        let development = tls.as_ref().and_then(|tls| tls.contexts().development().cloned());
        let connections_max = admission::connections_max(&config.limits, tables, shards.len());
        let opened = (&*listeners, &*udp, admin.as_ref().map(|(addr, _)| *addr));
        let sizes = (shards, budget_bytes, connections_max, buffers);
        let started = started(opened, development, (resources, open_files), sizes);
        started.log(&config);
        let doors = Doorkeepers { tls, auth, backends, notices, questions, device_store };
        let topics = start_topics(&config, (&engine, own), &counters, broker).await?;
        let node = (node, topics.events.clone());
        let observers = Observers { access_log, counters, diagnostics };
        let shared = SharedState::new(*config, engine, (doors, topics), observers, tables);
        list_standing(&shared);
        let front = take_front(incoming, &shared, &taken, node).await?;
        let TakenFront { terms, remembered, rest, .. } = front;
        let handle = Handle::new(shared, on_publish);
        let udp = udp::start(&handle, udp, remembered).map_err(StartError::Udp)?;
        let (taken, of_admin) = ((queues, terms), (of_program, pages));
        let launched = launch(handle, settling, taken, listeners, admin, of_admin, started);
        let mut gateway = launched.await;
        gateway.udp = udp;
        Ok((gateway, rest))
    }
}

/// The sockets that are open already, and by shard what it begins with, if another process hands it
/// over.
fn take_sockets(
    incoming: Option<&Incoming>,
    sockets: Vec<(String, OwnedFd)>,
    config: &Config,
    resources: &Resources,
) -> Result<(Passed, Option<Vec<Source>>), StartError> {
    let Some(incoming) = incoming else {
        return Ok((Passed::check(sockets, &config.listen)?, None));
    };
    let taken = incoming.prepare(resources.shards(&config.threads));
    let taken = taken.map_err(StartError::TakeOver)?;
    Ok((Passed::of_predecessor(taken.sockets, &config.listen), Some(taken.sources)))
}

/// Takes the place of another process, if there is one. Then it begins this node's part in its
/// cluster.
async fn take_front(
    incoming: Option<&Incoming>,
    shared: &Arc<SharedState>,
    taken: &[Vec<Taken>],
    (node, events): (Option<NewNode>, Option<Arc<BrokerEvents>>),
) -> Result<TakenFront, StartError> {
    let Some(incoming) = incoming else {
        join_cluster(shared, events, None).await;
        return Ok(TakenFront::default());
    };
    let front = incoming.own(shared, taken, node.as_ref()).map_err(StartError::TakeOver)?;
    shared.notices.go_on();
    join_cluster(shared, events, node.as_ref().map(|node| (node, &front.heard))).await;
    Ok(front)
}

fn started(
    (listeners, udp, admin): (&[Bound], &[udp::Bound], Option<SocketAddr>),
    development: Option<Development>,
    (resources, open_files): (Resources, OpenFiles),
    (shards, budget_bytes, connections_max, buffers): (Vec<Option<usize>>, usize, usize, Buffers),
) -> Started {
    Started {
        tcp: addrs(listeners, Transport::Tcp, Spoken::Frames),
        tls: addrs(listeners, Transport::Tls, Spoken::Frames),
        http: addrs(listeners, Transport::Tcp, Spoken::Http),
        https: addrs(listeners, Transport::Tls, Spoken::Http),
        udp: udp.iter().map(|bound| bound.addr).collect(),
        udp_buffers: udp.first().and_then(|bound| bound.buffers().ok()),
        development,
        admin,
        resources,
        connections_max,
        shards,
        budget_bytes,
        open_files,
        buffers,
    }
}

/// Lets the notices find what stands, and the router tell of topics.
fn list_standing(shared: &Arc<SharedState>) {
    shared.router.tell_to(&shared.notices);
    // The notices must not hold these: the shared state holds all of them.
    let (devices, router) = (Arc::downgrade(&shared.devices), Arc::downgrade(&shared.router));
    shared.notices.list_by(Box::new(move |each| {
        if let Some(devices) = devices.upgrade() {
            devices.each_connection(|device, conn, order| {
                each(Stands::Connection(Who { device, conn, order }));
            });
        }
        if let Some(router) = router.upgrade() {
            router.each_occupied(|topic| each(Stands::Topic(topic)));
        }
    }));
}

/// The sockets for which there is room. `held` of the open ones are those of devices already, which
/// an old process has handed over.
pub(super) fn table_limits(
    open_files: &OpenFiles,
    shard: Option<usize>,
    held: usize,
) -> TableLimits {
    // Those of a shard with a table of its own are not among them.
    let held = if shard.is_some() { 0 } else { held as u64 };
    let own_fds = admin::open_fds().unwrap_or(OWN_DESCRIPTORS).saturating_sub(held);
    TableLimits { front: admission::sockets_max(open_files.soft, own_fds), shard }
}

fn access_log(config: &Config, resources: &Resources) -> Result<AccessLog, StartError> {
    // Front threads and settling threads write to it.
    let writers = resources.front_threads(&config.threads) + resources.settling_threads();
    Ok(AccessLog::start(&config.access_log, writers)?)
}

fn byte_budget(config: &Config, resources: &Resources, bytes: usize) -> Arc<Budget> {
    Budget::with_classes(bytes, config.retention_bytes(resources), CLASS_NUMBERS)
}

/// The services that the gateway calls, what it asks them, and what it tells them: at first, what a
/// crash has ended.
async fn backends(
    config: &Config,
    counters: &Arc<Counters>,
    own: &OwnNode,
    old: Option<u32>,
) -> Result<(Arc<Backends>, Arc<Questions>, Arc<Notices>), StartError> {
    let backends = Arc::new(Backends::new(config)?);
    let questions = Questions::new(
        config,
        Arc::clone(&backends),
        Arc::clone(counters),
        Arc::new(Tracer::new(&config.telemetry)),
    );
    let notices = Notices::new(Arc::clone(&backends), own.clone());
    notices.start(config, old).await?;
    Ok((backends, questions, notices))
}

fn authenticator(
    config: &Config,
    resources: &Resources,
    (tokens, device_store): (Option<Arc<dyn TokenSource>>, Option<Arc<DeviceStore>>),
    questions: &Arc<Questions>,
    counters: &Arc<Counters>,
) -> Result<Authenticator, StartError> {
    let tokens = tokens.or(device_store.map(|devices| devices as Arc<dyn TokenSource>));
    let jwt = Jwt::new(config)?;
    let verifier = Verifier::new(resources.settling_threads());
    if config.auth.jwt.has_keys() {
        verifier.start().map_err(StartError::Settling)?;
    }
    let auth = Authenticator::new(config, tokens, jwt, verifier, Arc::clone(counters));
    Ok(auth.asking(Arc::clone(questions)))
}

/// What opens the broker, and the node as which this process goes on, if it takes one over.
async fn open_node(
    incoming: Option<&Incoming>,
    config: &Config,
    broker: Option<OpenBroker>,
    budget: &Arc<Budget>,
) -> Result<(Option<OpenBroker>, Option<NewNode>), StartError> {
    let Some(incoming) = incoming else { return Ok((broker, None)) };
    let node = incoming.open_node(config, broker.is_some(), budget).await;
    let node = node.map_err(StartError::TakeOver)?;
    Ok((node.as_ref().map(NewNode::opened), node))
}

/// Starts the router, and its part in the cluster that the program or the configuration names.
async fn start_topics(
    config: &Config,
    (engine, own): (&Engine, OwnNode),
    counters: &Arc<Counters>,
    broker: Option<OpenBroker>,
) -> Result<Topics, StartError> {
    let broker = match broker {
        Some(open) => Some(open),
        None => cluster::configured(config).map_err(StartError::BrokerAuthorities)?,
    };
    Ok(Topics::start(config, (engine, own), counters, broker).await?)
}

/// Begins this node's part in its cluster, if it has one. If configured, all nodes find the stored
/// sessions of TLS.
/// `taken`: the node as which this process goes on, and what the broker has told the old process.
async fn join_cluster(
    shared: &Arc<SharedState>,
    events: Option<Arc<BrokerEvents>>,
    taken: Option<(&NewNode, &BrokerHeard)>,
) {
    match (&shared.node, events, taken) {
        (Some(node), Some(events), None) => node.begin(shared, &events).await,
        (Some(node), Some(events), Some((taken, heard))) => {
            node.go_on(shared, &events);
            taken.go_on(shared, events, heard);
        }
        (None, ..) | (Some(_), None, _) => {}
    }
    let config = shared.config();
    let config = &config.tls;
    // TLS 1.3 has no stored sessions.
    let is_asked =
        config.session_cache == Scope::Cluster && config.min_version == TlsVersion::Tls12;
    if let (Some(tls), Some(cluster), true) = (&shared.tls, &shared.cluster, is_asked) {
        tls.contexts().share(cluster.share_sessions(config.session_cache_max, shared.counters()));
    }
}

impl Default for Depths {
    fn default() -> Self {
        // Room for a burst of publishes, of subscriptions or of closes. Beyond it, commands are
        // refused or wait.
        Self { messages: 3072, control: 1024, reports: 4096 }
    }
}
