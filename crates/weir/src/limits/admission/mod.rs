//! Admission: every limit on connections, in one place.
//!
//! It answers two questions. At accept: is there room for one more socket, and may its source have
//! it? At settling, when the device is known: is there room on a shard? The place taken at accept
//! is an [`Unsettled`]. If it is dropped, it gives everything back. Otherwise it passes to the
//! shard's connection, whose end gives it back with [`Admission::leave`].

mod handover;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::warn;
use weir_engine::{Budget, ConnId, Engine, Footprint, Nanos, Origin, ShardStats, Share, Transport};
use weir_wire::CloseReason;

use crate::base::config::{Config, EngineConfig, LimitsConfig};
use crate::base::model::Spoken;
use crate::base::threads::LimitedMemory;
use crate::limits::assignments::Assignments;
use crate::limits::sources::{Source, SourceFull, SourceRef, Sources};
use crate::observe::counters::{ConnectRefuseCause, Counters};

/// The limits on connections, and the counts against them.
///
/// Cost: a refusal takes some atomic operations, and the lock of one stripe of sources if these are
/// limited.
pub(crate) struct Admission {
    counters: Arc<Counters>,
    budget: Arc<Budget>,
    /// By shard.
    stats: Box<[Arc<ShardStats>]>,
    draining: watch::Receiver<bool>,
    assignments: Assignments,
    unsettled_max: AtomicUsize,
    tables: TableLimits,
    /// Sockets of devices in the front's descriptor table: accepted, and not reported closed. The
    /// shards' cells count the lingering ones. If shards have descriptors of their own, sockets
    /// leave the table with the offer to a shard.
    sockets: AtomicUsize,
    /// The memory that connections take beside the byte budget: the kernel's for their sockets, and
    /// that of our tables.
    memory: Vec<LimitedMemory>,
    /// Whether one of them was nearly used up at the last look.
    is_memory_short: AtomicBool,
    /// Present once sources are counted.
    sources: OnceLock<Sources>,
    spares: Spares,
    notices: [Notice; ConnectRefuseCause::ALL.len()],
    goodbyes: Goodbyes,
    /// When this process began.
    started: Instant,
    /// The time from which orders and the buckets of sources count, in nanoseconds of the monotonic
    /// clock: when the first of the processes that took over from each other began.
    began: AtomicU64,
    /// The next [`AcceptOrder`].
    next_order: AtomicU64,
}

/// The order of accepts: of two connections, the one with the larger number was accepted later.
///
/// Shape: the microsecond of the accept, counted from the start of the first of the processes that
/// took over from each other; where that is taken, the next one.
/// So the order also tells the age, which the nodes of a cluster compare.
/// A connection gets it at its accept. A later HTTP request on the same connection that opens a
/// long-lived stream gets its own order when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AcceptOrder(pub(crate) u64);

/// A place among the unsettled connections, with the places of its socket and source.
///
/// It must not hold the shared state. That holds the adoptions, which hold this, so a gateway that
/// ends with connections in their opening would never be freed.
pub(crate) struct Unsettled {
    admission: Arc<Admission>,
    transport: Transport,
    /// The source address, if it is known.
    addr: Option<IpAddr>,
    source: Option<SourceRef>,
    accepted: Instant,
    order: AcceptOrder,
    /// Whether it counts among the unsettled connections.
    is_waiting: bool,
    is_settled: bool,
    /// Whether its socket is in the front's descriptor table.
    is_on_front: bool,
}

/// The sockets of devices for which descriptor tables have room.
///
/// Shape: `usize::MAX` if there is no limit on open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableLimits {
    /// In the table of the front, which shards without descriptors of their own use too.
    pub(crate) front: usize,
    /// In the table of each shard, if it has one of its own.
    pub(crate) shard: Option<usize>,
}

/// A second descriptor that counts among the sockets of devices, in addition to a connection's
/// socket.
pub(crate) struct Descriptor(Arc<Admission>);

/// A place that no longer counts as unsettled: the places of the socket and its source.
pub(crate) struct Permit(Unsettled);

/// Refusals for one cause, and the number of them that were not logged.
#[derive(Default)]
struct Notice {
    untold: AtomicU64,
    /// Milliseconds after the start, plus one; 0: never.
    told_at: AtomicU64,
    /// The address of the last refused connection, as a hint for the operator.
    last: Mutex<Option<IpAddr>>,
}

/// Goodbyes to sources over their limits in one second.
#[derive(Default)]
struct Goodbyes {
    second: AtomicU64,
    count: AtomicUsize,
}

/// Spare descriptors. One is closed when all others are used up.
#[derive(Default)]
struct Spares(Mutex<Vec<OwnedFd>>);

impl Admission {
    /// `draining` becomes true when no more connections are admitted.
    pub(crate) fn new(
        config: &Config,
        counters: Arc<Counters>,
        engine: &Engine,
        draining: watch::Receiver<bool>,
        tables: TableLimits,
    ) -> Arc<Self> {
        let limits = &config.limits;
        let shards = engine.shard_count();
        let stats: Box<[Arc<ShardStats>]> =
            (0..shards).map(|shard| Arc::clone(engine.stats(shard))).collect();
        let assignments = Assignments::new(stats.clone(), limits.connections_max, tables.shard);
        let admission = Admission {
            counters,
            budget: Arc::clone(engine.budget()),
            stats,
            draining,
            assignments,
            unsettled_max: AtomicUsize::new(limits.unsettled_connections_max),
            tables,
            sockets: AtomicUsize::new(0),
            memory: LimitedMemory::of_this_process(Path::new("/")),
            is_memory_short: AtomicBool::new(false),
            sources: OnceLock::new(),
            spares: Spares::default(),
            notices: Default::default(),
            goodbyes: Goodbyes::default(),
            started: Instant::now(),
            began: AtomicU64::new(Nanos::now().0),
            next_order: AtomicU64::new(0),
        };
        // Behind a proxy the table also keeps the source of each connection.
        if Sources::are_limited(limits) || !config.listen.proxy_networks.is_empty() {
            admission.sources.get_or_init(|| Sources::new(limits));
        }
        admission.spares.refill();
        Arc::new(admission)
    }

    /// Changes the limits for further connections. If sources were not counted so far, earlier
    /// connections do not count for theirs.
    pub(crate) fn limit(&self, limits: &LimitsConfig) {
        self.assignments.limit(limits.connections_max);
        self.unsettled_max.store(limits.unsettled_connections_max, Ordering::Relaxed);
        let sources = match Sources::are_limited(limits) {
            true => Some(self.sources.get_or_init(|| Sources::new(limits))),
            false => self.sources.get(),
        };
        if let Some(sources) = sources {
            sources.limit(limits);
        }
    }

    /// Takes a place for a connection that was just accepted. It counts for its peer, unless the
    /// peer is a proxy, which names the source later.
    pub(crate) fn enter(
        self: &Arc<Self>,
        transport: Transport,
        spoken: Spoken,
        peer: Option<IpAddr>,
        is_proxied: bool,
    ) -> Result<Unsettled, ConnectRefuseCause> {
        let order = self.next_order();
        if *self.draining.borrow() {
            return Err(ConnectRefuseCause::Draining);
        }
        // When the budget is nearly used up, settled connections go first. The share of slow
        // connections does not matter here, because they are closed if it is full. The share of
        // unsettled ones is checked when they send.
        if self.budget.is_tight(Share::Messages) {
            return Err(ConnectRefuseCause::Memory);
        }
        if self.is_memory_short.load(Ordering::Relaxed) {
            return Err(ConnectRefuseCause::MemoryLimit);
        }
        // Most HTTP connections never settle, and they have a limit of their own.
        if spoken == Spoken::Frames {
            self.assignments.check()?;
        }
        let unsettled_max = self.unsettled_max.load(Ordering::Relaxed);
        if !self.counters.try_enter_unsettled(transport, unsettled_max) {
            return Err(ConnectRefuseCause::UnsettledMax);
        }
        // From here on, dropping the place gives everything back.
        let has_room = self.take_descriptor();
        let admission = Arc::clone(self);
        let accepted = Instant::now();
        let mut place = Unsettled {
            admission,
            transport,
            addr: peer,
            source: None,
            accepted,
            order,
            is_waiting: true,
            is_settled: false,
            is_on_front: true,
        };
        if !has_room {
            return Err(ConnectRefuseCause::Descriptors);
        }
        if let Some(peer) = peer.filter(|_| !is_proxied) {
            place.count_source(peer)?;
        }
        Ok(place)
    }

    /// Takes a place for relayed events, which need two descriptors. They count for the source of
    /// their connection, in addition to the connection itself. Otherwise one connection could take
    /// as many as it likes.
    pub(crate) fn enter_relayed(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
        order: AcceptOrder,
    ) -> Result<(Unsettled, Descriptor), ConnectRefuseCause> {
        let mut place = self.enter(Transport::Tcp, Spoken::Frames, peer, false)?;
        let has_room = self.take_descriptor();
        place.order = order;
        let descriptor = Descriptor(Arc::clone(self));
        if !has_room {
            return Err(ConnectRefuseCause::Descriptors);
        }
        Ok((place, descriptor))
    }

    /// Chooses a shard for a connection whose device is known, and counts it there.
    pub(crate) fn settle(&self) -> Result<usize, ConnectRefuseCause> {
        if self.budget.is_tight(Share::Messages) {
            return Err(ConnectRefuseCause::Memory);
        }
        self.assignments.assign()
    }

    /// Counts one connection less on a shard.
    pub(crate) fn release(&self, shard: usize) {
        self.assignments.release(shard);
    }

    /// The order of a connection that comes now.
    pub(crate) fn next_order(&self) -> AcceptOrder {
        let now = self.micros();
        let next = |next: u64| Some(next.max(now) + 1);
        let took = self.next_order.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        // The closure never refuses.
        AcceptOrder(took.unwrap_or(now).max(now))
    }

    /// How long ago a connection of that order was accepted.
    pub(crate) fn age(&self, AcceptOrder(order): AcceptOrder) -> Duration {
        Duration::from_micros(self.micros().saturating_sub(order))
    }

    /// Time since the start of this process.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The clock of orders and sources.
    fn elapsed(&self) -> Duration {
        Nanos::now().since(Nanos(self.began.load(Ordering::Relaxed)))
    }

    /// The same in microseconds.
    fn micros(&self) -> u64 {
        u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX / 2)
    }

    /// Gives back the place of a settled connection that has ended.
    pub(crate) fn leave(&self, origin: Origin) {
        let is_on_front = self.tables.shard.is_none();
        self.give_back(SourceRef::from_origin(origin.source), is_on_front);
    }

    /// Counts a refusal, logs it now and then, and returns the reason for the device.
    pub(crate) fn refuse(&self, cause: ConnectRefuseCause, addr: Option<IpAddr>) -> CloseReason {
        self.counters.count_connect_refused(cause);
        let notice = &self.notices[cause as usize];
        notice.note(addr);
        notice.tell(cause, self.started.elapsed());
        cause.reason()
    }

    /// Whether there is time for a goodbye to a refused connection.
    ///
    /// There is, except for a source over its limits, or a connection with an unexpected PROXY
    /// header. Their goodbyes cost more than all other work for them, and other connections wait.
    pub(crate) fn has_time_for_goodbye(&self, cause: ConnectRefuseCause) -> bool {
        match cause {
            ConnectRefuseCause::SourceConnections
            | ConnectRefuseCause::SourceRate
            | ConnectRefuseCause::ProxyHeader => {
                self.goodbyes.may_be_said(self.started.elapsed().as_secs())
            }
            ConnectRefuseCause::ConnectionsMax
            | ConnectRefuseCause::HttpConnectionsMax
            | ConnectRefuseCause::UnsettledMax
            | ConnectRefuseCause::Memory
            | ConnectRefuseCause::MemoryLimit
            | ConnectRefuseCause::Descriptors
            | ConnectRefuseCause::Handshakes
            | ConnectRefuseCause::Mailbox
            | ConnectRefuseCause::Draining => true,
        }
    }

    /// The source of a settled connection, if sources are counted.
    pub(crate) fn source(&self, origin: Origin) -> Option<Source> {
        self.sources.get()?.source(SourceRef::from_origin(origin.source)?)
    }

    /// The number of known sources.
    pub(crate) fn source_count(&self) -> usize {
        self.sources.get().map_or(0, Sources::count)
    }

    /// The known sources.
    pub(crate) fn sources_footprint(&self) -> Footprint {
        self.sources.get().map(Sources::footprint).unwrap_or_default()
    }

    /// The number of sources that were forgotten too early.
    pub(crate) fn sources_forgotten(&self) -> u64 {
        self.sources.get().map_or(0, Sources::forgotten)
    }

    /// Closes a spare descriptor to make room for one; `false` if none is left.
    pub(crate) fn lend_descriptor(&self) -> bool {
        self.spares.lend()
    }

    /// Opens the spare descriptors again, as far as there is room.
    pub(crate) fn restore_descriptors(&self) {
        self.spares.refill();
    }

    /// The limits on memory that are watched.
    pub(crate) fn memory(&self) -> &[LimitedMemory] {
        &self.memory
    }

    /// The limits of the descriptor tables.
    pub(crate) fn tables(&self) -> TableLimits {
        self.tables
    }

    /// Counts one more socket in the front's table. Returns whether there was room for it.
    fn take_descriptor(&self) -> bool {
        let open = self.sockets.fetch_add(1, Ordering::Relaxed);
        open.saturating_add(self.lingering()) < self.tables.front
    }

    /// Sockets in the front's table whose connections have been reported closed.
    fn lingering(&self) -> usize {
        if self.tables.shard.is_some() {
            return 0;
        }
        let lingering = self.stats.iter().map(|stats| stats.lingering.get());
        usize::try_from(lingering.sum::<u64>()).unwrap_or(usize::MAX)
    }

    fn give_back(&self, source: Option<SourceRef>, is_on_front: bool) {
        if let (Some(sources), Some(source)) = (self.sources.get(), source) {
            sources.leave(source, self.elapsed());
        }
        if is_on_front {
            self.sockets.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Forgets sources, logs the last refusals, and opens spare descriptors again, even if no
/// connection comes.
pub(crate) async fn maintain(admission: Arc<Admission>) {
    loop {
        sleep(MAINTENANCE_INTERVAL).await;
        if let Some(sources) = admission.sources.get() {
            sources.sweep(admission.elapsed());
        }
        let now = admission.started.elapsed();
        for cause in ConnectRefuseCause::ALL {
            admission.notices[cause as usize].tell(cause, now);
        }
        admission.spares.refill();
    }
}

/// Looks again and again how much memory is left. Without this the kernel would kill the process
/// when sockets have taken it.
pub(crate) async fn watch_memory(admission: Arc<Admission>) {
    let is_left_less_than =
        |reserves| admission.memory.iter().any(|memory| memory.leaves_less_than(reserves));
    loop {
        let is_near = is_left_less_than(3);
        admission.is_memory_short.store(is_near && is_left_less_than(1), Ordering::Relaxed);
        sleep(if is_near { MEMORY_INTERVAL_NEAR } else { MEMORY_INTERVAL }).await;
    }
}

impl Unsettled {
    /// Counts the connection for its source, which has just become known.
    pub(crate) fn count_source(&mut self, addr: IpAddr) -> Result<(), ConnectRefuseCause> {
        self.addr = Some(addr);
        let Some(sources) = self.admission.sources.get() else { return Ok(()) };
        debug_assert!(self.source.is_none(), "a connection comes from one place");
        let entered = sources.enter(Source::of(addr), self.admission.elapsed());
        self.source = Some(entered.map_err(|full| match full {
            SourceFull::Connections => ConnectRefuseCause::SourceConnections,
            SourceFull::Rate => ConnectRefuseCause::SourceRate,
        })?);
        Ok(())
    }

    /// The source address, if it is known.
    pub(crate) fn addr(&self) -> Option<IpAddr> {
        self.addr
    }

    /// What carries its frames.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// The order of its accept.
    pub(crate) fn order(&self) -> AcceptOrder {
        self.order
    }

    /// Counts a refusal and returns the reason for the device.
    pub(crate) fn refuse(&self, cause: ConnectRefuseCause) -> CloseReason {
        self.admission.refuse(cause, self.addr)
    }

    /// The source as a shard carries it.
    pub(crate) fn source(&self) -> u32 {
        SourceRef::to_origin(self.source)
    }

    /// The connection has been offered to a shard. If that has descriptors of its own, the socket
    /// has left the front's table.
    pub(crate) fn note_offered(&mut self) {
        if self.admission.tables.shard.is_some() && std::mem::take(&mut self.is_on_front) {
            self.admission.sockets.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The shard has the connection, whose end will give the place back.
    pub(crate) fn settle(mut self) {
        self.admission.counters.settle_times.record(self.accepted.elapsed());
        self.is_settled = true;
    }
}

impl Unsettled {
    /// Gives back the place among the unsettled: the connection stays on the front.
    pub(crate) fn permit(mut self) -> Permit {
        self.admission.counters.leave_unsettled(self.transport);
        self.is_waiting = false;
        Permit(self)
    }
}

impl Permit {
    /// The source address, if it is known.
    pub(crate) fn addr(&self) -> Option<IpAddr> {
        self.0.addr
    }

    /// Takes a place among the unsettled again, because the connection now moves to a shard.
    /// `order` is that of the request that moves it. Without such a place it keeps its permit until
    /// its socket is closed.
    pub(crate) fn stand_up(
        mut self,
        order: AcceptOrder,
    ) -> Result<Unsettled, (Permit, ConnectRefuseCause)> {
        let Admission { counters, unsettled_max, .. } = &*self.0.admission;
        let unsettled_max = unsettled_max.load(Ordering::Relaxed);
        if !counters.try_enter_unsettled(self.0.transport, unsettled_max) {
            return Err((self, ConnectRefuseCause::UnsettledMax));
        }
        (self.0.is_waiting, self.0.accepted, self.0.order) = (true, Instant::now(), order);
        Ok(self.0)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if self.is_waiting {
            self.admission.counters.leave_unsettled(self.transport);
        }
        if !self.is_settled {
            self.admission.give_back(self.source, self.is_on_front);
        }
    }
}

impl Notice {
    fn note(&self, addr: Option<IpAddr>) {
        self.untold.fetch_add(1, Ordering::Relaxed);
        // Any address of simultaneous refusals will do, and nothing waits here.
        if let (Some(addr), Ok(mut last)) = (addr, self.last.try_lock()) {
            *last = Some(addr);
        }
    }

    /// Logs the refusals, if a line is due.
    fn tell(&self, cause: ConnectRefuseCause, now: Duration) {
        let Some((times, last)) = self.due(now) else { return };
        let source = last.map(|addr| addr.to_canonical().to_string());
        warn!(cause = cause.name(), limit = cause.limit(), times, source, "connections refused");
    }

    /// The number of refusals that were not logged, and the address of the last one. `None` if
    /// there are none, or if the last line is too recent.
    fn due(&self, now: Duration) -> Option<(u64, Option<IpAddr>)> {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        let told_at = self.told_at.load(Ordering::Relaxed);
        if told_at != 0 && now.saturating_sub(told_at) < TELL_INTERVAL_MS
            || self.untold.load(Ordering::Relaxed) == 0
        {
            return None;
        }
        let order = Ordering::Relaxed;
        self.told_at.compare_exchange(told_at, now, order, order).ok()?;
        let last = self.last.lock().expect("no panic happens under a notice's lock").take();
        Some((self.untold.swap(0, order), last))
    }
}

impl Goodbyes {
    fn may_be_said(&self, second: u64) -> bool {
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed) < GOODBYES_PER_SECOND
    }
}

impl Spares {
    fn lend(&self) -> bool {
        self.lock().pop().is_some()
    }

    fn refill(&self) {
        let mut spares = self.lock();
        while spares.len() < SPARES {
            let Ok(spare) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
            spares.push(spare);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.0.lock().expect("no panic happens under the spares' lock")
    }
}

/// Sockets of devices for which a limit on open files has room, if the process holds `own` other
/// descriptors.
///
/// Some are reserved for the admin API and for files that are opened briefly. Under a small limit
/// that would take too much from devices, so at most a quarter is reserved.
pub(crate) fn sockets_max(open_files: u64, own: u64) -> usize {
    if open_files == u64::MAX {
        return usize::MAX;
    }
    let kept = KEPT_DESCRIPTORS.min(open_files / 4);
    let room = open_files.saturating_sub(own.saturating_add(kept));
    usize::try_from(room).unwrap_or(usize::MAX)
}

/// The same for a shard, if it has a descriptor table of its own. Nothing else opens files there,
/// except a panic that prints where it happened.
pub(crate) fn shard_sockets_max(config: &EngineConfig, open_files: u64) -> Option<usize> {
    if !config.own_descriptors {
        return None;
    }
    if open_files == u64::MAX {
        return Some(usize::MAX);
    }
    let own = Engine::SHARD_DESCRIPTORS + SHARD_KEPT_DESCRIPTORS;
    Some(usize::try_from(open_files).unwrap_or(usize::MAX).saturating_sub(own))
}

/// Settled connections that can be: `limits.connections_max`, unless there is no room for so many sockets, or the shards
/// cannot number so many.
pub(crate) fn connections_max(limits: &LimitsConfig, tables: TableLimits, shards: usize) -> usize {
    let room = tables.shard.map_or(tables.front, |shard| shard.saturating_mul(shards));
    limits.connections_max.min(room).min(shards * ConnId::SLOTS_MAX)
}

/// The connections of the admin API, the spare descriptors, and some more.
const KEPT_DESCRIPTORS: u64 = 320;
const SHARD_KEPT_DESCRIPTORS: usize = 8;
/// One for each listener that may lack a descriptor at the same time.
const SPARES: usize = 8;
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// In this time a storm of connections takes a few megabytes.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);
/// When less than three reserves is left. A small cgroup has no megabytes to spare.
const MEMORY_INTERVAL_NEAR: Duration = Duration::from_millis(10);
/// To all sources over their limits together.
const GOODBYES_PER_SECOND: usize = 1_000;
const TELL_INTERVAL_MS: u64 = 10_000;

#[cfg(test)]
mod tests;
