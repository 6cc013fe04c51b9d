//! Starting a gateway, and ending it so that its devices are told.

mod bind;
mod builder;
mod handover;
mod store_watch;
#[cfg(feature = "otlp")]
mod traces;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};
use weir_engine::datagrams::DatagramBuffers;
use weir_engine::{
    Budget, DrainWhat, Engine, Front, OwnNode, ShardSettings, Source, Taken, Transport, Urgent,
};

use crate::admin::OfProgram;
use crate::auth::jwt::{self, JwtKeyError};
use crate::backends::notices::NoticesError;
use crate::base::config::{Config, ConfigError};
use crate::base::model::Spoken;
use crate::base::threads::{OpenFiles, Resources};
use crate::base::workers::Workers;
use crate::cluster::{run_attendance, run_presence};
use crate::connection::dispatcher::{self, TakenTerms};
use crate::connection::listener::{self, Buffers, Door, Serve};
use crate::connection::opening;
use crate::connection::reports::{self, Reports, ReportsWatch};
use crate::core::handle::Handle;
use crate::core::reload::shard_limits;
use crate::core::state::SharedState;
use crate::handover::NotMoved;
use crate::http::{self, Edge};
use crate::observe::access::AccessLogError;
use crate::tls::{Development, TlsError};
use crate::{
    admin, base::frames, core::drain, limits::admission, provisioning::activation, tls, udp,
};
use bind::{Bound, copies};
use builder::Depths;
pub use builder::GatewayBuilder;

/// A running gateway.
///
/// Shape: the shards' threads, threads for unsettled connections, and tasks on the runtime on which
/// it was started.
/// Limits: end it with [`Gateway::shutdown`]. Dropping it closes all connections without a goodbye.
pub struct Gateway {
    shared: Arc<SharedState>,
    handle: Handle,
    /// Runs the listeners until it is dropped.
    _settling: Settling,
    /// Present if there is a listener for HTTP.
    edge: Option<Arc<Edge>>,
    listeners: JoinSet<()>,
    /// Copies of the listening sockets with their names, for a new process.
    listening: Arc<Vec<(&'static str, OwnedFd)>>,
    dispatchers: JoinSet<()>,
    /// Whether reports wait, by shard.
    reports: Arc<Vec<ReportsWatch>>,
    /// Maintenance tasks.
    services: JoinSet<()>,
    /// Present until the shutdown, if there is a listener for datagrams.
    udp: Option<udp::Running>,
    /// The admin API, and the sender that ends it, also when dropped: how long requests that run get.
    admin: Option<(oneshot::Sender<Duration>, JoinHandle<()>)>,
    /// Closes the file of notices after this gateway was handed over.
    last_notices: Option<JoinHandle<()>>,
    started: Box<Started>,
}

/// The threads that accept and settle connections. TLS has its own, since a signer may block them.
struct Settling {
    tcp: Workers,
    /// Present if there is a listener with TLS.
    tls: Option<Workers>,
    /// Present if there is a listener for HTTP.
    http: Option<http::Threads>,
}

impl Settling {
    fn start(config: &Config, resources: &Resources) -> io::Result<Settling> {
        let threads = resources.handshake_threads(config.tls.handshake_threads);
        let has_tls = config.listen.has_tls();
        let has_http = !config.listen.http.is_empty() || !config.listen.https.is_empty();
        Ok(Settling {
            tcp: Workers::start("weir-settle", resources.settling_threads())?,
            tls: has_tls.then(|| Workers::start("weir-tls", threads)).transpose()?,
            http: has_http.then(|| http::Threads::start(resources)).transpose()?,
        })
    }

    /// The runtimes that accept such connections; each has its own listener.
    fn of(&self, transport: Transport, spoken: Spoken) -> Vec<&runtime::Handle> {
        match (transport, &self.tls, spoken, &self.http) {
            (Transport::Tls, Some(workers), ..) => vec![workers.handle()],
            (Transport::Tcp, _, Spoken::Http, Some(threads)) => threads.handles().collect(),
            (Transport::Tcp | Transport::Tls, _, Spoken::Frames | Spoken::Http, _) => {
                vec![self.tcp.handle()]
            }
        }
    }
}

/// The resources of a started gateway.
#[derive(Debug, Clone)]
pub struct Started {
    /// Addresses for devices over TCP: those of the configuration, in their order, with real ports.
    pub tcp: Vec<SocketAddr>,
    /// Addresses for devices over TLS, in the same form.
    pub tls: Vec<SocketAddr>,
    /// Addresses for HTTP, in the same form.
    pub http: Vec<SocketAddr>,
    /// Addresses for HTTP over TLS, in the same form.
    pub https: Vec<SocketAddr>,
    /// Addresses for datagrams, in the same form.
    pub udp: Vec<SocketAddr>,
    /// Buffer sizes of each UDP socket.
    pub udp_buffers: Option<DatagramBuffers>,
    /// The certificate in use for TLS if none is configured.
    pub development: Option<Development>,
    /// The address of the admin API.
    pub admin: Option<SocketAddr>,
    /// Processors, quota and memory.
    pub resources: Resources,
    /// The processor of each pinned shard.
    pub shards: Vec<Option<usize>>,
    /// The byte budget.
    pub budget_bytes: usize,
    /// The limit on open files, after raising it.
    pub open_files: OpenFiles,
    /// The limit on settled connections: `limits.connections_max`, or less if the limit on open
    /// files has no room for so many. With `engine.own_descriptors` that limit counts for each
    /// shard.
    pub connections_max: usize,
    /// Buffer sizes of a device's socket.
    pub buffers: Buffers,
}

/// The reason why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value of the configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The broker of the cluster cannot be used.
    #[error("[cluster]: {0}")]
    Broker(#[from] weir_broker::Error),
    /// The file of the authorities for a Redis over TLS cannot be read.
    #[error("cluster.ca: {0}")]
    BrokerAuthorities(io::Error),
    /// The gateway cannot listen on an address.
    #[error("{key}: cannot listen on {addr}: {source}")]
    Listen {
        /// The key with the address.
        key: &'static str,
        /// The address.
        addr: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// A socket of [`GatewayBuilder::sockets`] cannot be used.
    #[error("the passed socket {name:?} {cause}")]
    Socket {
        /// Its name.
        name: String,
        /// What is wrong with it.
        cause: String,
    },
    /// What an old process hands over cannot be taken.
    #[error("cannot take over: {0}")]
    TakeOver(NotMoved),
    /// A file of `[tls]` cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A key file of `[auth.jwt]` cannot be used.
    #[error(transparent)]
    Jwt(#[from] JwtKeyError),
    /// The file of `hooks.notices_file` cannot be used.
    #[error(transparent)]
    Notices(#[from] NoticesError),
    /// The file of the access log cannot be used.
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
    /// The shards did not start.
    #[error("cannot start the shards: {0}")]
    Shards(#[source] io::Error),
    /// The threads for unsettled connections did not start.
    #[error("cannot start the threads that settle connections: {0}")]
    Settling(#[source] io::Error),
    /// The threads for datagrams did not start.
    #[error("cannot start the threads that answer datagrams: {0}")]
    Udp(#[source] io::Error),
}

impl Gateway {
    /// The builder of a gateway.
    pub fn builder() -> GatewayBuilder {
        GatewayBuilder::default()
    }

    /// A gateway handle; there may be any number.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// The addresses for devices over TCP.
    pub fn tcp_addrs(&self) -> &[SocketAddr] {
        &self.started.tcp
    }

    /// The addresses for devices over TLS.
    pub fn tls_addrs(&self) -> &[SocketAddr] {
        &self.started.tls
    }

    /// The addresses for HTTP.
    pub fn http_addrs(&self) -> &[SocketAddr] {
        &self.started.http
    }

    /// The addresses for HTTP over TLS.
    pub fn https_addrs(&self) -> &[SocketAddr] {
        &self.started.https
    }

    /// The addresses for datagrams.
    pub fn udp_addrs(&self) -> &[SocketAddr] {
        &self.started.udp
    }

    /// The address of the admin API.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.started.admin
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&Arc<SharedState>, Option<&Arc<Edge>>) {
        (&self.shared, self.edge.as_ref())
    }

    /// The resources that the gateway found and took at its start.
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Stops accepting, spreads its goodbyes to all connections over `drain_timeout`, and ends the
    /// shards.
    ///
    /// Cost: returns when the last connection is closed, at the latest some seconds after
    /// `drain_timeout`.
    pub async fn shutdown(mut self) {
        let (began, over) = (Instant::now(), self.shared.config().connection.drain_timeout);
        info!(connections = self.shared.devices.connection_count(), ?over, "draining");
        let number = self.shared.begin_shutdown();
        // The last copies of the listening sockets, which refuse connections from now on.
        self.listening = Arc::default();
        while self.listeners.join_next().await.is_some() {}
        if let Some(udp) = self.udp.take()
            && spawn_blocking(|| udp.finish()).await.is_err()
        {
            warn!("the threads for datagrams did not end in order");
        }
        if let Some(edge) = &self.edge {
            edge.drain();
        }
        let drained = timeout(over + DRAIN_GRACE, self.drain(number, over)).await;
        if drained.is_err() {
            warn!("not all connections closed in time");
        }
        self.stop_shards();
        // Each shard drops its end of the reports when it ends, which ends the shard's dispatcher.
        let ended = async { while self.dispatchers.join_next().await.is_some() {} };
        if timeout(STOP_TIMEOUT, ended).await.is_err() {
            warn!("a shard did not stop in time");
        }
        self.services.shutdown().await;
        if let Some(node) = &self.shared.node
            && timeout(STOP_TIMEOUT, node.retire()).await.is_err()
        {
            warn!("the broker was not told that this node ends");
        }
        if let Some(devices) = &self.shared.device_store
            && !matches!(timeout(STOP_TIMEOUT, devices.tell_seen()).await, Ok(Ok(())))
        {
            warn!("the store of devices was not told of the last that have connected");
        }
        // The receivers get the notices of the last ends in what is left of the time.
        self.shared.notices.finish(over.saturating_sub(began.elapsed()).max(STOP_TIMEOUT)).await;
        // The readers have got the events of all ends.
        self.shared.events.close();
        // Last, so that an operator can watch the drain.
        if let Some((stop, admin)) = self.admin.take() {
            let _ = stop.send(admin::SHUTDOWN_TIMEOUT);
            let _ = admin.await;
        }
        let shared = Arc::clone(&self.shared);
        if spawn_blocking(move || shared.access_log.finish()).await.is_err() {
            warn!("the access log ended by itself; its last lines are lost");
        }
        info!("stopped");
    }

    async fn drain(&self, number: u32, over: Duration) {
        // Accepted messages leave before the goodbyes.
        let left = async {
            while !self.shared.router.end_ticks() {
                sleep(TICK_INTERVAL).await;
            }
        };
        if timeout(TICK_GRACE, left).await.is_err() {
            warn!("not all ticks could leave: a mailbox or the byte budget is full");
        }
        let open = self.shared.open_connections();
        // Up to a thousand a second are not spread.
        let each = |open| (DrainWhat::All, over.min(Duration::from_millis(open)));
        self.shared.drain_shards(number, &open, each).await;
        self.shared.drains.wait_for_shards(number).await;
        // Tasks of unsettled connections send their goodbyes, and end with the runtime.
        let spoken_with = || self.edge.as_ref().map_or(0, |edge| edge.connection_count());
        while self.shared.counters().unsettled() + spoken_with() > 0 {
            sleep(UNSETTLED_INTERVAL).await;
        }
    }

    fn stop_shards(&self) {
        for mailbox in self.shared.mailboxes().iter() {
            if mailbox.try_urgent(Urgent::Stop).is_err() {
                warn!("a shard's reserved queue is full; it stops with the process");
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shared.begin_shutdown();
        self.shared.events.close();
        self.stop_shards();
    }
}

impl Started {
    fn log(&self, config: &Config) {
        let OpenFiles { soft, hard } = self.open_files;
        info!(
            tcp = ?self.tcp,
            tls = ?self.tls,
            http = ?self.http,
            https = ?self.https,
            udp = ?self.udp,
            admin = ?self.admin,
            shards = self.shards.len(),
            topic_classes = config.topic_classes.len(),
            pinned = self.shards.iter().all(Option::is_some),
            budget_bytes = self.budget_bytes,
            memory_bytes = self.resources.memory_bytes,
            memory_limit = %self.resources.memory_limit,
            open_files_soft = soft,
            open_files_hard = hard,
            connections_max = self.connections_max,
            own_descriptors = config.engine.own_descriptors,
            send_buffer_bytes = self.buffers.send_bytes,
            recv_buffer_bytes = self.buffers.recv_bytes,
            "listening"
        );
        if let Some(granted) = self.udp_buffers {
            udp::log_buffers(granted, &config.udp);
        }
        let budget_bytes = config.memory.budget_bytes;
        if budget_bytes > self.resources.memory_bytes {
            let Resources { memory_bytes, memory_limit, .. } = &self.resources;
            warn!(
                budget_bytes,
                memory_bytes,
                %memory_limit,
                "memory.budget_bytes is more than there is memory"
            );
        }
        let configured = config.limits.connections_max;
        if self.connections_max < configured {
            warn!(
                connections_max = self.connections_max,
                configured,
                open_files = soft,
                "the limit on open files has room for fewer connections than limits.connections_max"
            );
        }
    }
}

impl StartError {
    fn listen_udp((addr, source): (SocketAddr, io::Error)) -> StartError {
        StartError::Listen { key: "listen.udp", addr, source }
    }
}

/// By shard: its reports, and the connections that it has taken over.
type StartedShards = (Engine, Vec<Reports>, Vec<Vec<Taken>>);

fn start_shards(
    config: &Config,
    ((depths, node), shard_sockets_max): ((Depths, OwnNode), Option<usize>),
    allocated_bytes: Option<fn() -> u64>,
    budget: Arc<Budget>,
    (pins, sources): (&[Option<usize>], Option<Vec<Source>>),
) -> Result<StartedShards, StartError> {
    let own_descriptors = shard_sockets_max.is_some();
    let settings = ShardSettings {
        node,
        own_descriptors,
        allocated_bytes,
        retry_after_ms: frames::RETRY_AFTER_MS,
        message_capacity: depths.messages,
        control_capacity: depths.control,
        ..shard_limits(config, shard_sockets_max)
    };
    let mut queues = Vec::with_capacity(pins.len());
    let mut fronts: Vec<(Box<dyn Front>, Option<usize>)> = Vec::with_capacity(pins.len());
    for pin in pins {
        let (reporter, reports) = reports::queue(depths.reports, own_descriptors);
        fronts.push((Box::new(reporter), *pin));
        queues.push(reports);
    }
    let started = match sources {
        None => Engine::start(&settings, budget, fronts).map(|engine| (engine, Vec::new())),
        Some(sources) => {
            let fronts = fronts.into_iter().zip(sources);
            let fronts = fronts.map(|((front, pin), source)| (front, pin, source));
            Engine::take_over(&settings, budget, fronts.collect())
        }
    };
    let (mut engine, taken) = started.map_err(StartError::Shards)?;
    for (shard, reports) in queues.iter_mut().enumerate() {
        if let Some(wakes) = engine.take_wakes(shard) {
            let mailbox = engine.mailbox(shard).clone();
            reports.wake_by(wakes, mailbox).map_err(StartError::Shards)?;
        }
    }
    Ok((engine, queues, taken))
}

/// Begins the tasks, after everything else is ready. The last ones let connections in.
async fn launch(
    handle: Handle,
    settling: Settling,
    (queues, terms): (Vec<Reports>, Vec<TakenTerms>),
    bound: Vec<Bound>,
    admin: Option<(SocketAddr, TcpListener)>,
    admin_parts: (OfProgram, admin::AddedPages),
    started: Started,
) -> Gateway {
    let shared = Arc::clone(handle.shared());
    let (mut listeners, mut dispatchers, mut services) =
        (JoinSet::new(), JoinSet::new(), JoinSet::new());
    let reports = Arc::new(queues.iter().map(Reports::watch).collect());
    let copied = copies(&bound, admin.as_ref().map(|(_, admin)| admin));
    let listening = Arc::new(copied.unwrap_or_else(|error| {
        warn!(%error, "there are no copies of the listening sockets: an upgrade cannot pass them on");
        Vec::new()
    }));
    let mut terms = terms.into_iter();
    for (shard, reports) in queues.into_iter().enumerate() {
        dispatchers.spawn(dispatcher::run(handle.clone(), shard, reports, terms.next()));
    }
    shared.engine().begin();
    let edge = settling.http.as_ref().map(|threads| Edge::start(&handle, threads));
    services.spawn(retire_topics(Arc::clone(&shared)));
    services.spawn(sweep_rings(Arc::clone(&shared)));
    services.spawn(Arc::clone(&shared.router).run_ticks());
    services.spawn(drain::run(Arc::clone(&shared)));
    services.spawn(admission::maintain(Arc::clone(&shared.admission)));
    services.spawn(admission::watch_memory(Arc::clone(&shared.admission)));
    services.spawn(maintain_activations(Arc::clone(&shared)));
    services.spawn(tell_seen(Arc::clone(&shared)));
    services.spawn(store_watch::watch_store(Arc::clone(&shared)));
    if let Some(node) = &shared.node {
        node.spawn(&shared, &mut services);
    }
    let broker = shared.cluster.as_ref();
    let broker = broker.map(|cluster| (Arc::clone(cluster.broker()), cluster.turns().clone()));
    if let Some(broker) = &broker {
        services.spawn(run_attendance(Arc::clone(&shared.router), broker.clone()));
    }
    services.spawn(run_presence(Arc::clone(&shared.router), broker));
    if let Some(tls) = &shared.tls {
        services.spawn(tls::watch(Arc::clone(tls.contexts())));
    }
    spawn_keys(&shared, &mut services);
    #[cfg(feature = "otlp")]
    services.spawn(traces::export(Arc::clone(&shared)));
    shared.note_heap_at_start().await;
    for Bound { transport, spoken, listener, runtime, .. } in bound {
        let serve = serve(&shared, spoken, edge.as_ref());
        let door = Door { transport, spoken, serve };
        listeners.spawn_on(listener::run(Arc::clone(&shared), listener, door), &runtime);
    }
    let admin = admin.map(|(_, listener)| {
        let handle = handle.clone();
        let (stop, stopped) = oneshot::channel();
        let stopped = async { stopped.await.unwrap_or(admin::SHUTDOWN_TIMEOUT) };
        (stop, tokio::spawn(admin::serve(listener, handle, admin_parts, stopped)))
    });
    shared.readiness.set_listening();
    let started = Box::new(started);
    Gateway {
        shared,
        handle,
        _settling: settling,
        edge,
        listeners,
        listening,
        dispatchers,
        reports,
        services,
        last_notices: None,
        udp: None,
        admin,
        started,
    }
}

/// Keeps the keys of signed tokens fresh.
fn spawn_keys(shared: &Arc<SharedState>, services: &mut JoinSet<()>) {
    let jwt = shared.auth.jwt();
    if jwt.has_files() {
        services.spawn(jwt::watch(Arc::clone(jwt)));
    }
    let of_issuers = Arc::clone(shared);
    let troubled = move |troubles| of_issuers.readiness.set_issuers(troubles);
    services.spawn(jwt::fetch_keys(Arc::clone(jwt), Arc::clone(&shared.backends), troubled));
}

/// Removes the traces of failed activations and ended tokens.
async fn maintain_activations(shared: Arc<SharedState>) {
    if let Some(activator) = &shared.activator {
        activation::maintain(activator).await;
    }
}

/// Tells the device store which devices have connected.
async fn tell_seen(shared: Arc<SharedState>) {
    if let Some(devices) = &shared.device_store {
        activation::tell_seen(devices).await;
    }
}

/// The function that serves each connection of a listener.
fn serve(shared: &Arc<SharedState>, spoken: Spoken, edge: Option<&Arc<Edge>>) -> Serve {
    let shared = Arc::clone(shared);
    match (spoken, edge.map(Arc::clone)) {
        (Spoken::Http, Some(edge)) => Box::new(move |stream, unsettled, is_proxied| {
            let (shared, edge) = (Arc::clone(&shared), Arc::clone(&edge));
            tokio::spawn(http::run(shared, edge, stream, unsettled, is_proxied));
        }),
        (Spoken::Frames | Spoken::Http, _) => Box::new(move |stream, unsettled, is_proxied| {
            tokio::spawn(opening::run(Arc::clone(&shared), stream, unsettled, is_proxied));
        }),
    }
}

/// Removes retained messages that are too old, and what else ends with time.
async fn sweep_rings(shared: Arc<SharedState>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        shared.router.sweep_rings().await;
        shared.sweep();
    }
}

/// Repeats the `Retire` commands that found a full mailbox.
async fn retire_topics(shared: Arc<SharedState>) {
    loop {
        shared.router.retirement_due().await;
        while !shared.router.retry_retirements() {
            sleep(RETIRE_INTERVAL).await;
        }
    }
}

/// A drained connection may linger for a second; the rest is for a busy machine.
const DRAIN_GRACE: Duration = Duration::from_secs(4);
/// Assumed if the kernel does not count them.
const OWN_DESCRIPTORS: u64 = 64;
const STOP_TIMEOUT: Duration = Duration::from_secs(4);
const UNSETTLED_INTERVAL: Duration = Duration::from_millis(10);
/// A mailbox empties within a few turns.
const TICK_GRACE: Duration = Duration::from_secs(1);
const TICK_INTERVAL: Duration = Duration::from_millis(2);
/// `retention_ttl` is at least a second.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const RETIRE_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
