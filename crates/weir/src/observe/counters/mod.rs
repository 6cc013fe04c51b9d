//! The counters of the front; the shards have their own.

pub(crate) mod activation;
mod auth;
pub(crate) mod calls;
pub(crate) mod hooks;
pub(crate) mod http;
mod readers;
pub(crate) mod routes;
mod times;
pub(crate) mod tls;
pub(crate) mod udp;

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weir_engine::{NotPassed, Transport};
use weir_wire::CloseReason;
use weir_wire::format::Format;

use crate::base::model::AuthKind;
use crate::base::model::SubscribeError;
use crate::base::model::{PublishError, Target};
use crate::observe::counters::activation::ActivationCounts;
use crate::observe::counters::calls::CallCounts;
use crate::observe::counters::hooks::HookCounts;
use crate::observe::counters::http::HttpCounts;
use crate::observe::counters::routes::RouteCounts;
use crate::observe::counters::tls::TlsCounts;
use crate::observe::counters::udp::UdpCounts;
pub use auth::{AuthOutcome, RefreshOutcome};
pub(crate) use readers::ReaderCounts;
pub(crate) use times::Times;

/// All counters of the front. Totals never fall; `unsettled` and `admin_connections` are levels.
///
/// Cost: one relaxed atomic operation for each event.
#[derive(Debug, Default)]
pub struct Counters {
    accepted: AtomicU64,
    unsettled: AtomicUsize,
    unsettled_of: [AtomicUsize; Transport::COUNT],
    admin_connections: AtomicUsize,
    accept_errors: [AtomicU64; AcceptError::ALL.len()],
    closed: [AtomicU64; CloseReason::COUNT],
    published: [AtomicU64; PublishTarget::ALL.len()],
    refused: [AtomicU64; RefuseCause::ALL.len()],
    subscribe_refused: [AtomicU64; SubscribeRefuseCause::ALL.len()],
    resumes: [AtomicU64; ResumeOutcome::ALL.len()],
    resume_reads: AtomicU64,
    history_reads: AtomicU64,
    following: [AtomicU64; Following::ALL.len()],
    from_broker: [AtomicU64; FromBroker::ALL.len()],
    epoch_changes: [AtomicU64; EpochOutcome::ALL.len()],
    cluster_limits: [AtomicU64; ClusterLimit::ALL.len()],
    presence: [AtomicU64; PresenceOutcome::ALL.len()],
    ticks: AtomicU64,
    tick_messages: AtomicU64,
    tick_conflated: AtomicU64,
    ticks_deferred: AtomicU64,
    /// By format.
    encoded: [AtomicU64; Format::COUNT],
    expired: AtomicU64,
    connect_refused: [AtomicU64; ConnectRefuseCause::ALL.len()],
    not_passed: [AtomicU64; NotPassed::ALL.len()],
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
    pub(crate) routes: RouteCounts,
    pub(crate) udp: UdpCounts,
    /// Readers of the stream of figures.
    pub(crate) stats: ReaderCounts,
    pub(crate) activation: ActivationCounts,
    pub(crate) hooks: HookCounts,
    pub(crate) calls: CallCounts,
}

weir_wire::named_enum! {
    /// The reason why a connection could not be accepted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AcceptError {
        /// The process has no descriptor left (`EMFILE`).
        Emfile = "emfile",
        /// The machine has no descriptor left (`ENFILE`).
        Enfile = "enfile",
        /// The kernel has no memory for the connection (`ENOBUFS`, `ENOMEM`).
        Memory = "memory",
        /// The peer left before the accept (`ECONNABORTED` and similar errors).
        Aborted = "aborted",
        /// Anything else.
        Other = "other",
    }
}

weir_wire::named_enum! {
    /// The kind of target of a message.
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
    /// The reason why a message was refused.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RefuseCause {
        /// A shard's mailbox was full.
        Mailbox = "mailbox",
        /// The byte budget was used up.
        Budget = "budget",
        /// The message does not fit a frame, or is too long for its topic.
        TooLarge = "too_large",
        /// The topic's name is invalid.
        TopicName = "topic_name",
        /// The topic had reached its class's messages in a second.
        RateLimited = "rate_limited",
        /// The topic's tick had reached its limit of bytes.
        TickFull = "tick_full",
        /// The device or service lacks the right.
        NotPermitted = "not_permitted",
        /// The message would begin a topic, but there are too many topics.
        TopicsMax = "topics_max",
        /// The sender's requests exceed its publish rate.
        SenderRate = "sender_rate",
        /// The broker cannot be reached, or refuses the message.
        Broker = "broker",
        /// The broker has not answered: the message may have been published.
        BrokerUncertain = "broker_uncertain",
        /// A message with the same idempotency key is on its way.
        InProgress = "in_progress",
        /// The key or media type is too long, or contains a character that is not allowed.
        InvalidField = "invalid_field",
        /// The backend that was asked refuses it.
        Hook = "hook",
        /// The backend that was asked did not answer.
        HookUnavailable = "hook_unavailable",
        /// Too many frames of the connection wait for answers.
        HookWaiting = "hook_waiting",
    }
}

weir_wire::named_enum! {
    /// The outcome of a subscription with a position.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ResumeOutcome {
        /// The connection got all messages that it had missed, or had missed none.
        Recovered = "recovered",
        /// The position is of another epoch, or a later message is no longer retained.
        NotRecovered = "not_recovered",
        /// The topic removed missed messages faster than the connection took them.
        FellBehind = "fell_behind",
    }
}

weir_wire::named_enum! {
    /// The reason why a subscription was refused.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SubscribeRefuseCause {
        /// There are too many topics.
        TopicsMax = "topics_max",
        /// The connection has too many topics, or its `Hello` asks for too many. Shards count their
        /// own refusals.
        TopicsPerConnectionMax = "topics_per_connection_max",
        /// The topic's name is invalid.
        TopicName = "topic_name",
        /// The device or service lacks the right.
        NotPermitted = "not_permitted",
        /// The topic belongs to the cluster, whose broker cannot be reached or has too much to do.
        Broker = "broker",
        /// It asks for presence, which the topic's class does not have.
        NoPresence = "no_presence",
        /// It asks for presence, and there are too many members.
        PresenceMembersMax = "presence_members_max",
        /// The backend that was asked refuses it.
        Hook = "hook",
        /// The backend that was asked did not answer.
        HookUnavailable = "hook_unavailable",
        /// Too many frames of the connection wait for answers.
        HookWaiting = "hook_waiting",
    }
}

weir_wire::named_enum! {
    /// What happened to a change of who is in a topic.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PresenceOutcome {
        /// Watchers on this node were told that a connection has entered.
        Joined = "joined",
        /// Watchers on this node were told that a connection has left.
        Left = "left",
        /// A connection was not listed, because there were too many members.
        Unlisted = "unlisted",
        /// Watchers of a topic on this node were told that they may have missed something.
        Missed = "missed",
    }
}

weir_wire::named_enum! {
    /// What happened to a message, or a place, of a topic of the cluster on this node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Following {
        /// The message came by the subscription, or when the topic was joined.
        Applied = "applied",
        /// The message had been missed, and was read from the broker.
        Filled = "filled",
        /// The message had come before.
        Duplicate = "duplicate",
        /// Messages before it were missing, and the broker was asked for them.
        Gap = "gap",
        /// The message could not be had any more: subscribers see a gap, or are told.
        Lost = "lost",
        /// Subscribers were told that messages may have been lost, and where they go on.
        Restarted = "restarted",
        /// Another version of Weir wrote the message, and this one cannot read it.
        Unknown = "unknown",
    }
}

weir_wire::named_enum! {
    /// What a new epoch of a topic of the cluster means for this node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum EpochOutcome {
        /// The broker still had all messages that this node had got: a false alarm, as far as this
        /// node can tell.
        Continued = "continued",
        /// The broker had lost messages that this node had got.
        Lost = "lost",
    }
}

weir_wire::named_enum! {
    /// What may wait for the broker, or for another node, only in a limited number.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ClusterLimit {
        /// Messages of a topic that wait for earlier ones. One more is read again, or lost.
        Held = "held",
        /// Subscriptions. One more is answered with `busy`.
        Subscriptions = "subscriptions",
        /// Messages to devices and to all. One more is refused.
        Messages = "messages",
        /// Claims of new connections. For one more, its device is marked in its record, and claimed
        /// in turn.
        Claims = "claims",
        /// Releases of connections. One more is forgotten, and ends with this node.
        Releases = "releases",
        /// Questions to other nodes. One more is not asked, and the node counts as silent.
        Questions = "questions",
        /// Questions of other nodes. One more is not answered.
        Answers = "answers",
        /// What the broker tells while another process begins to listen. Where something is let go
        /// of, what has been missed is asked for.
        Upgrade = "upgrade",
    }
}

weir_wire::named_enum! {
    /// What happened on this node to a message to a device or to all that the broker has carried.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FromBroker {
        /// It was queued for the connections of this node.
        Delivered = "delivered",
        /// A mailbox or the budget had no room for it.
        Lost = "lost",
        /// Its time was over.
        Expired = "expired",
        /// Another version of Weir wrote the message, and this one cannot read it.
        Unknown = "unknown",
    }
}

weir_wire::named_enum! {
    /// The reason why a connection was refused.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ConnectRefuseCause {
        /// Its source has reached its limit of connections.
        SourceConnections = "source_connections",
        /// Its source connects too fast.
        SourceRate = "source_rate",
        /// The limit of settled connections is reached.
        ConnectionsMax = "connections_max",
        /// The limit of HTTP connections is reached, and all are busy.
        HttpConnectionsMax = "http_connections_max",
        /// The limit of unsettled connections is reached.
        UnsettledMax = "unsettled_max",
        /// The byte budget is nearly used up.
        Memory = "memory",
        /// The memory of the machine or of the cgroup is nearly used up.
        MemoryLimit = "memory_limit",
        /// The limit on open files has room for no more connections.
        Descriptors = "descriptors",
        /// The limit of waiting TLS handshakes is reached.
        Handshakes = "handshakes",
        /// Its shard accepted nothing for some seconds.
        Mailbox = "mailbox",
        /// It comes from a network of `listen.proxy_networks` without a PROXY header, or from
        /// another network with one.
        ProxyHeader = "proxy_header",
        /// The gateway shuts down.
        Draining = "draining",
    }
}

impl Counters {
    /// Accepted connections.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Level: connections without `Hello`, or on their way to a shard.
    pub fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// The same for one transport, by the listener.
    pub fn unsettled_of(&self, transport: Transport) -> usize {
        self.unsettled_of[transport.index()].load(Ordering::Relaxed)
    }

    /// The number of such errors of accepting.
    pub fn accept_errors(&self, error: AcceptError) -> u64 {
        self.accept_errors[error as usize].load(Ordering::Relaxed)
    }

    /// Connections that ended on the front, before a shard had them, for this reason.
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.closed[reason.index()].load(Ordering::Relaxed)
    }

    /// Accepted messages.
    pub fn published(&self, target: PublishTarget) -> u64 {
        self.published[target as usize].load(Ordering::Relaxed)
    }

    /// Refused messages.
    pub fn refused(&self, cause: RefuseCause) -> u64 {
        self.refused[cause as usize].load(Ordering::Relaxed)
    }

    /// The front's refusals of subscriptions. All topics of a `Hello` beyond the limit count as
    /// one.
    pub fn subscribe_refused(&self, cause: SubscribeRefuseCause) -> u64 {
        self.subscribe_refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Subscriptions with a position, by outcome.
    pub fn resumes(&self, outcome: ResumeOutcome) -> u64 {
        self.resumes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Ticks that ended with messages to send or retain.
    pub fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Messages that left with their tick.
    pub fn tick_messages(&self) -> u64 {
        self.tick_messages.load(Ordering::Relaxed)
    }

    /// Messages that a newer one of the same key replaced within their tick.
    pub fn tick_conflated(&self) -> u64 {
        self.tick_conflated.load(Ordering::Relaxed)
    }

    /// Messages to several connections that the front encoded in a format before it pushed them to
    /// shards.
    pub fn encoded(&self, format: Format) -> u64 {
        self.encoded[format.index()].load(Ordering::Relaxed)
    }

    /// The number of ticks that lacked a credit or budget at their end, and went on.
    pub fn ticks_deferred(&self) -> u64 {
        self.ticks_deferred.load(Ordering::Relaxed)
    }

    /// Messages that expired within their tick, each counted once for every connection that it was
    /// for.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Refused connections.
    pub fn connect_refused(&self, cause: ConnectRefuseCause) -> u64 {
        self.connect_refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Attempts to pass a socket to a shard with descriptors of its own that failed.
    pub fn not_passed(&self, cause: NotPassed) -> u64 {
        self.not_passed[cause as usize].load(Ordering::Relaxed)
    }

    /// Checked credentials: of connections, of requests and of refreshes.
    pub fn authentications(&self, kind: AuthKind, outcome: AuthOutcome) -> u64 {
        self.authentications[kind as usize][outcome as usize].load(Ordering::Relaxed)
    }

    /// Verified signed tokens. A token that was found valid recently is not verified again.
    pub fn verifications(&self) -> u64 {
        self.verifications.load(Ordering::Relaxed)
    }

    /// Refreshes of connections.
    pub fn refreshes(&self, outcome: RefreshOutcome) -> u64 {
        self.refreshes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Connections that were told of the coming end of their credentials.
    pub fn expiring_told(&self) -> u64 {
        self.expiring_told.load(Ordering::Relaxed)
    }

    /// Dropped log lines, as far as the program has reported them.
    pub fn log_lines_dropped(&self) -> u64 {
        self.log_lines_dropped.load(Ordering::Relaxed)
    }

    /// Sets the total of dropped log lines. The log belongs to the program, the metrics to the
    /// gateway.
    pub fn set_log_lines_dropped(&self, total: u64) {
        self.log_lines_dropped.store(total, Ordering::Relaxed);
    }

    /// Log lines above their rate, as the program last reported.
    pub fn log_lines_suppressed(&self) -> u64 {
        self.log_lines_suppressed.load(Ordering::Relaxed)
    }

    /// Sets the total of log lines above their rate since the start, which the program's log knows.
    pub fn set_log_lines_suppressed(&self, total: u64) {
        self.log_lines_suppressed.store(total, Ordering::Relaxed);
    }

    pub(crate) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_admin_connections(&self, count: usize) {
        self.admin_connections.store(count, Ordering::Relaxed);
    }

    /// Connections to the admin API.
    pub(crate) fn admin_connections(&self) -> usize {
        self.admin_connections.load(Ordering::Relaxed)
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

    /// Messages to devices and to all that the broker has carried here, by what happened to them.
    pub fn from_broker(&self, what: FromBroker) -> u64 {
        self.from_broker[what as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_from_broker(&self, what: FromBroker) {
        self.from_broker[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Changes of who is in topics, by what happened to them.
    pub fn presence(&self, outcome: PresenceOutcome) -> u64 {
        self.presence[outcome as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_presence(&self, outcome: PresenceOutcome, count: usize) {
        self.presence[outcome as usize].fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Messages and places of topics of the cluster, by what happened to them.
    pub fn following(&self, what: Following) -> u64 {
        self.following[what as usize].load(Ordering::Relaxed)
    }

    /// How often a limit on what waits for the broker was reached.
    pub fn cluster_limits(&self, limit: ClusterLimit) -> u64 {
        self.cluster_limits[limit as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_cluster_limit(&self, limit: ClusterLimit) {
        self.cluster_limits[limit as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// New epochs of topics of the cluster, by what they mean.
    pub fn epoch_changes(&self, what: EpochOutcome) -> u64 {
        self.epoch_changes[what as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_epoch_change(&self, what: EpochOutcome) {
        self.epoch_changes[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_followed(&self, what: Following, count: u64) {
        self.following[what as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn count_resume(&self, outcome: ResumeOutcome) {
        self.resumes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Parts of resumes that the broker was asked for, as the ring of this node did not reach them.
    pub fn resume_reads(&self) -> u64 {
        self.resume_reads.load(Ordering::Relaxed)
    }

    /// Parts of histories that the broker was asked for, as this node did not have them.
    pub fn history_reads(&self) -> u64 {
        self.history_reads.load(Ordering::Relaxed)
    }

    pub(crate) fn count_history_read(&self) {
        self.history_reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_resume_read(&self) {
        self.resume_reads.fetch_add(1, Ordering::Relaxed);
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

    pub(crate) fn count_not_passed(&self, cause: NotPassed) {
        self.not_passed[cause as usize].fetch_add(1, Ordering::Relaxed);
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

    /// Counts one more unsettled connection, unless there are `max` already.
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
            PublishError::Uncertain(_) => RefuseCause::BrokerUncertain,
            PublishError::InProgress(_) => RefuseCause::InProgress,
            PublishError::BrokerUnavailable(_) | PublishError::BrokerRefused(_) => {
                RefuseCause::Broker
            }
        }
    }
}

impl SubscribeRefuseCause {
    /// `None`: it is not refused, but tried again.
    pub(crate) fn of(error: SubscribeError) -> Option<SubscribeRefuseCause> {
        Some(match error {
            SubscribeError::Name(_) => SubscribeRefuseCause::TopicName,
            SubscribeError::TooManyTopics => SubscribeRefuseCause::TopicsMax,
            SubscribeError::BrokerUnavailable => SubscribeRefuseCause::Broker,
            SubscribeError::TooManyMembers => SubscribeRefuseCause::PresenceMembersMax,
            SubscribeError::Busy => return None,
        })
    }
}

impl ConnectRefuseCause {
    /// The key that an operator raises or changes to admit more connections.
    pub(crate) const fn limit(self) -> &'static str {
        match self {
            ConnectRefuseCause::SourceConnections => "limits.connections_per_source_max",
            ConnectRefuseCause::SourceRate => "limits.connects_per_source_per_second",
            ConnectRefuseCause::ConnectionsMax => "limits.connections_max",
            ConnectRefuseCause::HttpConnectionsMax => "http.connections_max",
            ConnectRefuseCause::UnsettledMax => "limits.unsettled_connections_max",
            ConnectRefuseCause::Memory => "memory.budget_bytes",
            ConnectRefuseCause::MemoryLimit => "the memory of the machine or of the cgroup",
            ConnectRefuseCause::Descriptors => "the limit on open files",
            ConnectRefuseCause::Handshakes => "tls.handshake_queue_max",
            ConnectRefuseCause::Mailbox => "threads.shards",
            ConnectRefuseCause::ProxyHeader => "listen.proxy_networks",
            ConnectRefuseCause::Draining => "none: it shuts down, or is drained",
        }
    }

    /// The close reason for the device.
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
            ConnectRefuseCause::Memory | ConnectRefuseCause::MemoryLimit => {
                CloseReason::BudgetExhausted
            }
            // The operator made the mistake, so the device must be able to come back.
            ConnectRefuseCause::ProxyHeader => CloseReason::Internal,
            ConnectRefuseCause::Draining => CloseReason::Draining,
        }
    }
}
