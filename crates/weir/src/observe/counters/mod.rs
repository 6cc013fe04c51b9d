//! What the front counts; the shards count for themselves.

pub(crate) mod activation;
mod auth;
pub(crate) mod http;
mod times;
pub(crate) mod tls;
pub(crate) mod udp;

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weir_engine::Transport;
use weir_wire::CloseReason;
use weir_wire::format::Format;

use crate::base::model::AuthKind;
use crate::base::model::SubscribeError;
use crate::base::model::{PublishError, Target};
use crate::observe::counters::activation::ActivationCounts;
use crate::observe::counters::http::HttpCounts;
use crate::observe::counters::tls::TlsCounts;
use crate::observe::counters::udp::UdpCounts;
pub use auth::{AuthOutcome, RefreshOutcome};
pub(crate) use times::Times;

/// Everything the front counts. Totals never fall; `unsettled` is a level.
///
/// Cost: one relaxed atomic operation an event.
#[derive(Debug, Default)]
pub struct Counters {
    accepted: AtomicU64,
    unsettled: AtomicUsize,
    unsettled_of: [AtomicUsize; Transport::COUNT],
    accept_errors: [AtomicU64; AcceptError::ALL.len()],
    closed: [AtomicU64; CloseReason::COUNT],
    published: [AtomicU64; PublishTarget::ALL.len()],
    refused: [AtomicU64; RefuseCause::ALL.len()],
    subscribe_refused: [AtomicU64; SubscribeRefuseCause::ALL.len()],
    resumes: [AtomicU64; ResumeOutcome::ALL.len()],
    ticks: AtomicU64,
    tick_messages: AtomicU64,
    tick_conflated: AtomicU64,
    ticks_deferred: AtomicU64,
    /// By format.
    encoded: [AtomicU64; Format::COUNT],
    expired: AtomicU64,
    connect_refused: [AtomicU64; ConnectRefuseCause::ALL.len()],
    authentications: [[AtomicU64; AuthOutcome::ALL.len()]; AuthKind::ALL.len()],
    refreshes: [AtomicU64; RefreshOutcome::ALL.len()],
    expiring_told: AtomicU64,
    verifications: AtomicU64,
    log_lines_dropped: AtomicU64,
    log_lines_suppressed: AtomicU64,
    /// From accept to the shard's answer.
    pub(crate) settle_times: Times,
    pub(crate) tls: TlsCounts,
    pub(crate) http: HttpCounts,
    pub(crate) udp: UdpCounts,
    pub(crate) activation: ActivationCounts,
}

weir_wire::named_enum! {
    /// Why a connection could not be accepted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AcceptError {
        /// The process has no descriptor left (`EMFILE`).
        Emfile = "emfile",
        /// The machine has no descriptor left (`ENFILE`).
        Enfile = "enfile",
        /// The kernel has no memory for it (`ENOBUFS`, `ENOMEM`).
        Memory = "memory",
        /// The peer was gone before it was accepted (`ECONNABORTED` and its like).
        Aborted = "aborted",
        /// Anything else.
        Other = "other",
    }
}

weir_wire::named_enum! {
    /// What a message was published to.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PublishTarget {
        /// A topic.
        Topic = "topic",
        /// A device.
        Device = "device",
        /// All connections.
        All = "all",
    }
}

weir_wire::named_enum! {
    /// Why a message was refused.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RefuseCause {
        /// A shard's mailbox was full.
        Mailbox = "mailbox",
        /// The byte budget was used up.
        Budget = "budget",
        /// The message would not fit a frame, or is longer than its topic takes.
        TooLarge = "too_large",
        /// The topic's name cannot be.
        TopicName = "topic_name",
        /// The topic had as many as its class allows in a second.
        RateLimited = "rate_limited",
        /// The topic's tick had gathered as much as it may.
        TickFull = "tick_full",
        /// The device, or the service, has no right to.
        NotPermitted = "not_permitted",
        /// Its topic would have to begin, and as many exist as may.
        TopicsMax = "topics_max",
        /// Its sender publishes faster by requests than one may.
        SenderRate = "sender_rate",
        /// Its key or its media type is too long, or holds what it must not.
        InvalidField = "invalid_field",
    }
}

weir_wire::named_enum! {
    /// How it ends that a connection names the position from which it subscribes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ResumeOutcome {
        /// It got all that it had missed, or had missed nothing.
        Recovered = "recovered",
        /// The position is of another epoch, or something behind it is not kept any more.
        NotRecovered = "not_recovered",
        /// It took what it had missed more slowly than the topic let go of it.
        FellBehind = "fell_behind",
    }
}

weir_wire::named_enum! {
    /// Why a subscription was refused.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SubscribeRefuseCause {
        /// As many topics exist as may.
        TopicsMax = "topics_max",
        /// The connection is in as many topics as it may be, or its `Hello` asks for more. What
        /// shards refuse they count themselves.
        TopicsPerConnectionMax = "topics_per_connection_max",
        /// The topic's name cannot be.
        TopicName = "topic_name",
        /// The device, or the service, has no right to.
        NotPermitted = "not_permitted",
    }
}

weir_wire::named_enum! {
    /// Why a connection was not let in.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ConnectRefuseCause {
        /// Its source has as many connections as one may have.
        SourceConnections = "source_connections",
        /// Its source connects faster than one may.
        SourceRate = "source_rate",
        /// As many connections have settled as may.
        ConnectionsMax = "connections_max",
        /// HTTP is spoken on as many connections as may be, and all are busy.
        HttpConnectionsMax = "http_connections_max",
        /// As many connections have not settled yet as may.
        UnsettledMax = "unsettled_max",
        /// The byte budget is nearly used up.
        Memory = "memory",
        /// The limit on open files has room for no more.
        Descriptors = "descriptors",
        /// As many TLS handshakes wait as may.
        Handshakes = "handshakes",
        /// Its shard took nothing over for some seconds.
        Mailbox = "mailbox",
        /// It comes from a network of `listen.proxy_networks` without a PROXY header, or with one
        /// from elsewhere.
        ProxyHeader = "proxy_header",
        /// The gateway shuts down.
        Draining = "draining",
    }
}

impl Counters {
    /// Connections accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Level: connections that have not said `Hello`, or wait to be taken over by a shard.
    pub fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// Those of one transport: of the listener that they came to.
    pub fn unsettled_of(&self, transport: Transport) -> usize {
        self.unsettled_of[transport.index()].load(Ordering::Relaxed)
    }

    /// How often accepting failed in this way.
    pub fn accept_errors(&self, error: AcceptError) -> u64 {
        self.accept_errors[error as usize].load(Ordering::Relaxed)
    }

    /// Connections that ended on the front, before a shard had them, for this reason.
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.closed[reason.index()].load(Ordering::Relaxed)
    }

    /// Messages accepted.
    pub fn published(&self, target: PublishTarget) -> u64 {
        self.published[target as usize].load(Ordering::Relaxed)
    }

    /// Messages refused.
    pub fn refused(&self, cause: RefuseCause) -> u64 {
        self.refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Answers of the front that refuse subscriptions; one for all that a `Hello` asks for beyond the limit.
    pub fn subscribe_refused(&self, cause: SubscribeRefuseCause) -> u64 {
        self.subscribe_refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Subscriptions from a position on, by how that ended.
    pub fn resumes(&self, outcome: ResumeOutcome) -> u64 {
        self.resumes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Ticks that have ended with something to send or to keep.
    pub fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Messages that have left with their tick.
    pub fn tick_messages(&self) -> u64 {
        self.tick_messages.load(Ordering::Relaxed)
    }

    /// Messages that a newer one of their key replaced within their tick.
    pub fn tick_conflated(&self) -> u64 {
        self.tick_conflated.load(Ordering::Relaxed)
    }

    /// Messages to many that were made in a format before they went to the shards.
    pub fn encoded(&self, format: Format) -> u64 {
        self.encoded[format.index()].load(Ordering::Relaxed)
    }

    /// How often a tick could not leave at its end, for want of a credit or of budget, and went on.
    pub fn ticks_deferred(&self) -> u64 {
        self.ticks_deferred.load(Ordering::Relaxed)
    }

    /// Messages that expired within their tick, each as often as there were connections to get it.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Connections that were not let in.
    pub fn connect_refused(&self, cause: ConnectRefuseCause) -> u64 {
        self.connect_refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Credentials looked at, of connections, of requests and to prolong a connection.
    pub fn authentications(&self, kind: AuthKind, outcome: AuthOutcome) -> u64 {
        self.authentications[kind as usize][outcome as usize].load(Ordering::Relaxed)
    }

    /// Signed tokens that were verified; one that was found valid lately is not verified again.
    pub fn verifications(&self) -> u64 {
        self.verifications.load(Ordering::Relaxed)
    }

    /// `Refresh` of connections.
    pub fn refreshes(&self, outcome: RefreshOutcome) -> u64 {
        self.refreshes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Connections that were told that their credentials end.
    pub fn expiring_told(&self) -> u64 {
        self.expiring_told.load(Ordering::Relaxed)
    }

    /// Log lines dropped, as far as somebody tells.
    pub fn log_lines_dropped(&self) -> u64 {
        self.log_lines_dropped.load(Ordering::Relaxed)
    }

    /// Takes over how many log lines were dropped in all: the log is the program's, the metrics are here.
    pub fn set_log_lines_dropped(&self, total: u64) {
        self.log_lines_dropped.store(total, Ordering::Relaxed);
    }

    /// Log lines that came faster than their rate, as the program said last.
    pub fn log_lines_suppressed(&self) -> u64 {
        self.log_lines_suppressed.load(Ordering::Relaxed)
    }

    /// Says how many log lines came faster than their rate since the start: the program's log knows.
    pub fn set_log_lines_suppressed(&self, total: u64) {
        self.log_lines_suppressed.store(total, Ordering::Relaxed);
    }

    pub(crate) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_accept_error(&self, error: AcceptError) {
        self.accept_errors[error as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_closed(&self, reason: CloseReason) {
        self.closed[reason.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_published(&self, target: PublishTarget) {
        self.published[target as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self, cause: RefuseCause) {
        self.refused[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_subscribe_refused(&self, cause: SubscribeRefuseCause) {
        self.subscribe_refused[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_resume(&self, outcome: ResumeOutcome) {
        self.resumes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_tick(&self, messages: usize) {
        self.ticks.fetch_add(1, Ordering::Relaxed);
        self.tick_messages.fetch_add(messages as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_tick_conflated(&self) {
        self.tick_conflated.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_encoded(&self, format: Format) {
        self.encoded[format.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_tick_deferred(&self) {
        self.ticks_deferred.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_expired(&self, deliveries: u64) {
        self.expired.fetch_add(deliveries, Ordering::Relaxed);
    }

    pub(crate) fn count_connect_refused(&self, cause: ConnectRefuseCause) {
        self.connect_refused[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_authentication(&self, kind: AuthKind, outcome: AuthOutcome) {
        self.authentications[kind as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_verification(&self) {
        self.verifications.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refresh(&self, outcome: RefreshOutcome) {
        self.refreshes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_expiring_told(&self) {
        self.expiring_told.fetch_add(1, Ordering::Relaxed);
    }

    /// One more unsettled connection, unless there are `max` already.
    pub(crate) fn try_enter_unsettled(&self, transport: Transport, max: usize) -> bool {
        let entered = self.unsettled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < max).then_some(count + 1)
        });
        if entered.is_ok() {
            self.unsettled_of[transport.index()].fetch_add(1, Ordering::Relaxed);
        }
        entered.is_ok()
    }

    pub(crate) fn leave_unsettled(&self, transport: Transport) {
        self.unsettled_of[transport.index()].fetch_sub(1, Ordering::Relaxed);
        self.unsettled.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AcceptError {
    pub(crate) fn of(error: &io::Error) -> AcceptError {
        use rustix::io::Errno;
        match Errno::from_io_error(error) {
            Some(Errno::MFILE) => AcceptError::Emfile,
            Some(Errno::NFILE) => AcceptError::Enfile,
            Some(Errno::NOBUFS | Errno::NOMEM) => AcceptError::Memory,
            // accept(2) also passes on errors that were already pending on the new socket.
            Some(
                Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                | Errno::NONET
                | Errno::PERM,
            ) => AcceptError::Aborted,
            Some(_) | None => AcceptError::Other,
        }
    }
}

impl PublishTarget {
    pub(crate) fn of(target: &Target<'_>) -> PublishTarget {
        match target {
            Target::Topic(_) => PublishTarget::Topic,
            Target::Device(_) => PublishTarget::Device,
            Target::All => PublishTarget::All,
        }
    }
}

impl RefuseCause {
    pub(crate) fn of(error: &PublishError) -> RefuseCause {
        match error {
            PublishError::TopicName(_) => RefuseCause::TopicName,
            PublishError::TooLarge { .. } | PublishError::TooLargeForTopic { .. } => {
                RefuseCause::TooLarge
            }
            PublishError::RateLimited { .. } => RefuseCause::RateLimited,
            PublishError::TickFull { .. } => RefuseCause::TickFull,
            PublishError::TooManyTopics { .. } => RefuseCause::TopicsMax,
            PublishError::Busy(_) => RefuseCause::Mailbox,
            PublishError::BudgetExhausted(_) => RefuseCause::Budget,
        }
    }
}

impl SubscribeRefuseCause {
    pub(crate) fn of(error: SubscribeError) -> SubscribeRefuseCause {
        match error {
            SubscribeError::Name(_) => SubscribeRefuseCause::TopicName,
            SubscribeError::TooManyTopics => SubscribeRefuseCause::TopicsMax,
        }
    }
}

impl ConnectRefuseCause {
    /// What an operator would turn to let more in.
    pub(crate) const fn limit(self) -> &'static str {
        match self {
            ConnectRefuseCause::SourceConnections => "limits.connections_per_source_max",
            ConnectRefuseCause::SourceRate => "limits.connects_per_source_per_second",
            ConnectRefuseCause::ConnectionsMax => "limits.connections_max",
            ConnectRefuseCause::HttpConnectionsMax => "http.connections_max",
            ConnectRefuseCause::UnsettledMax => "limits.unsettled_connections_max",
            ConnectRefuseCause::Memory => "memory.budget_bytes",
            ConnectRefuseCause::Descriptors => "the limit on open files",
            ConnectRefuseCause::Handshakes => "tls.handshake_queue_max",
            ConnectRefuseCause::Mailbox => "threads.shards",
            ConnectRefuseCause::ProxyHeader => "listen.proxy_networks",
            ConnectRefuseCause::Draining => "none: it shuts down",
        }
    }

    /// What the device is told.
    pub(crate) const fn reason(self) -> CloseReason {
        match self {
            ConnectRefuseCause::SourceConnections
            | ConnectRefuseCause::SourceRate
            | ConnectRefuseCause::ConnectionsMax
            | ConnectRefuseCause::HttpConnectionsMax
            | ConnectRefuseCause::UnsettledMax
            | ConnectRefuseCause::Descriptors
            | ConnectRefuseCause::Handshakes
            | ConnectRefuseCause::Mailbox => CloseReason::TooManyConnections,
            ConnectRefuseCause::Memory => CloseReason::BudgetExhausted,
            // The operator's fault and not the device's, which is to come back when it is mended.
            ConnectRefuseCause::ProxyHeader => CloseReason::Internal,
            ConnectRefuseCause::Draining => CloseReason::Draining,
        }
    }
}
