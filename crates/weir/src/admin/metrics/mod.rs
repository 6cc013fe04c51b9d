//! `GET /metrics`: the counters of shards and front, read at the moment of the scrape.
//!
//! Only one collector is registered: the cells stay with the threads that write them. The encoder
//! adds `_total` and the unit to the end of a name.

mod audit;
mod auth;
mod calls;
mod cluster;
mod connections;
mod descriptors;
mod families;
mod hooks;
mod http;
mod machine;
mod notices;
mod presence;
mod store;
mod text;
mod tls;
#[cfg(feature = "otlp")]
mod traces;
mod udp;
mod upgrades;
mod upstreams;

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::{Registry, Unit};
use weir_engine::{Cell, CreditKind, DropRule, Durations, Priority, ShardStats, Share};

use self::families::Families;
pub(super) use self::families::Histogram;
pub(super) use self::text::Form;
use crate::{
    AcceptError, ConnectRefuseCause, Handle, PartState, PublishTarget, RefuseCause, ResumeOutcome,
    SubscribeRefuseCause,
};

/// All metrics of a gateway.
pub(super) struct Metrics {
    registry: Registry,
}

impl Metrics {
    pub(super) fn new(handle: Handle) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Gateway::new(handle)));
        Self { registry }
    }

    /// All metrics in the text form of OpenMetrics.
    ///
    /// Cost: some hundred lines: relaxed reads, three reads of /proc, and the locks of the sources,
    /// one after another and each for a moment.
    pub(super) fn text(&self) -> String {
        let mut text = String::with_capacity(32 * 1024);
        encode(&mut text, &self.registry).expect("a String takes everything");
        text
    }

    /// The same in one of the two text forms.
    pub(super) fn text_as(&self, form: Form) -> String {
        match form {
            Form::OpenMetrics => self.text(),
            Form::Prometheus => text::to_prometheus(&self.text()),
        }
    }
}

impl Handle {
    /// All metrics in the text form of OpenMetrics, as `GET /metrics` answers a request that
    /// accepts it.
    ///
    /// Cost: some 20 KB of text, from relaxed reads of the counters of shards and front.
    pub fn metrics(&self) -> String {
        Metrics::new(self.clone()).text()
    }
}

/// Reads a gateway's counters.
pub(super) struct Gateway {
    handle: Handle,
}

impl Collector for Gateway {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        self.connections(&mut families)?;
        self.ends(&mut families)?;
        self.descriptors(&mut families)?;
        self.front(&mut families)?;
        self.auth(&mut families)?;
        self.audit(&mut families)?;
        self.cluster(&mut families)?;
        self.events(&mut families)?;
        self.notices(&mut families)?;
        self.traffic(&mut families)?;
        self.memory(&mut families)?;
        self.tls(&mut families)?;
        self.http(&mut families)?;
        self.udp(&mut families)?;
        self.hooks(&mut families)?;
        self.devices(&mut families)?;
        self.upstreams(&mut families)?;
        self.readiness(&mut families)?;
        self.upgrades(&mut families)?;
        #[cfg(feature = "otlp")]
        self.traces(&mut families)?;
        self.mailboxes(&mut families)?;
        self.times(&mut families)?;
        self.allocated(&mut families)?;
        self.machine(&mut families)
    }
}

impl Gateway {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    fn front(&self, to: &mut Families<'_>) -> fmt::Result {
        let (front, gauges) = (self.handle.counters(), self.handle.gauges());
        to.gauge("weir_devices", "Devices that are known.", gauges.devices as u64)?;
        to.gauge("weir_topics", "Topics that exist.", gauges.topics as u64)?;
        to.counter(
            "weir_connections_accepted",
            "Connections accepted by the device listeners.",
            front.accepted(),
        )?;
        to.counters(
            "weir_accept_errors",
            "Errors of accepting connections, by kind.",
            AcceptError::ALL.map(|error| ([("error", error.name())], front.accept_errors(error))),
        )?;
        to.counters(
            "weir_connections_refused",
            "Connections that were not let in, by the limit that they met.",
            ConnectRefuseCause::ALL
                .map(|cause| ([("cause", cause.name())], front.connect_refused(cause))),
        )?;
        self.sources(to)?;
        to.counters(
            "weir_messages_published",
            "Messages accepted for publishing, by target.",
            PublishTarget::ALL.map(|target| ([("target", target.name())], front.published(target))),
        )?;
        to.counters(
            "weir_publish_refused",
            "Messages not accepted for publishing, by cause.",
            RefuseCause::ALL.map(|cause| ([("cause", cause.name())], front.refused(cause))),
        )?;
        self.idempotency(to)?;
        to.counters(
            "weir_subscribe_refused",
            "Answers that refused subscriptions, by cause; one for all that a Hello asked for beyond the limit.",
            SubscribeRefuseCause::ALL
                .map(|cause| ([("cause", cause.name())], self.subscribe_refused(cause))),
        )?;
        self.presence(to)?;
        self.calls(to)?;
        self.ticks(to)?;
        self.retention(to)?;
        to.counter(
            "weir_log_lines_dropped",
            "Log lines dropped because the queue of the log was full.",
            front.log_lines_dropped(),
        )?;
        to.counter(
            "weir_log_lines_suppressed",
            "Log lines that were not written because one place in the code logged more than log.lines_per_second.",
            front.log_lines_suppressed(),
        )?;
        self.access_log(to)
    }

    /// Writes nothing if there is no access log.
    fn access_log(&self, to: &mut Families<'_>) -> fmt::Result {
        let Some(counts) = self.handle.access_log().counts() else { return Ok(()) };
        to.counter(
            "weir_access_log_lines",
            "Lines of the access log that are in its file.",
            counts.lines,
        )?;
        to.counter(
            "weir_access_log_dropped",
            "Lines of the access log dropped because the file took them too slowly (access_log.queue_bytes).",
            counts.dropped,
        )?;
        to.counter(
            "weir_access_log_errors",
            "Writes to the access log, and attempts to open it anew, that failed.",
            counts.errors,
        )
    }

    fn ticks(&self, to: &mut Families<'_>) -> fmt::Result {
        let front = self.handle.counters();
        to.counter("weir_ticks", "Ticks that ended with messages.", front.ticks())?;
        to.counter(
            "weir_tick_messages",
            "Messages that left with their tick.",
            front.tick_messages(),
        )?;
        to.counter(
            "weir_tick_messages_conflated",
            "Messages that a newer one of their key replaced within their tick.",
            front.tick_conflated(),
        )?;
        to.counter(
            "weir_ticks_deferred",
            "Ticks that went on at their end, because a mailbox or the byte budget was full.",
            front.ticks_deferred(),
        )
    }

    fn retention(&self, to: &mut Families<'_>) -> fmt::Result {
        let (front, retained) = (self.handle.counters(), self.handle.retained());
        to.counters(
            "weir_resumes",
            "Subscriptions from a position on, by how that ended.",
            ResumeOutcome::ALL
                .map(|outcome| ([("outcome", outcome.name())], front.resumes(outcome))),
        )?;
        to.gauge(
            "weir_retained_messages",
            "Messages that topics keep for those who come back.",
            retained.messages as u64,
        )?;
        to.gauge_in(
            "weir_retained",
            &Unit::Bytes,
            "Bytes of the messages that topics keep; they are part of the byte budget.",
            retained.bytes as u64,
        )?;
        to.gauge(
            "weir_retained_bytes_max",
            "The most bytes that all topics together may keep.",
            retained.bytes_max as u64,
        )?;
        to.counter(
            "weir_retention_refused",
            "Messages that were not kept, because other topics keep as much as they may.",
            retained.refused,
        )
    }

    fn idempotency(&self, to: &mut Families<'_>) -> fmt::Result {
        let counts = self.handle.shared().idempotency.counts();
        to.gauge(
            "weir_idempotency_keys",
            "Idempotency keys that this node remembers.",
            counts.known as u64,
        )?;
        to.counter(
            "weir_publish_repeated",
            "Messages that were not published again, as this node knew their idempotency key.",
            counts.repeated,
        )?;
        to.counter(
            "weir_idempotency_keys_forgotten",
            "Idempotency keys forgotten before five minutes were over, as there were more than `limits.idempotency_keys_max`.",
            counts.forgotten,
        )
    }

    fn events(&self, to: &mut Families<'_>) -> fmt::Result {
        let events = self.handle.event_counts();
        to.gauge(
            "weir_event_readers",
            "Readers of the events of connections.",
            events.readers as u64,
        )?;
        to.counter(
            "weir_event_readers_cut",
            "Readers of events that fell behind and were cut.",
            events.cut,
        )?;
        to.counter(
            "weir_events_dropped",
            "Events that waited for a reader when it was cut, and the one that it had no room for.",
            events.dropped,
        )?;
        let stats = &self.handle.counters().stats;
        to.gauge("weir_stats_readers", "Readers of the stream of figures.", stats.open() as u64)?;
        to.counter(
            "weir_stats_readers_refused",
            "Readers of the stream of figures that were refused, as there were too many.",
            stats.refused(),
        )?;
        to.counter(
            "weir_stats_skipped",
            "Documents that a reader of the stream did not get, as it had not taken the one before.",
            stats.skipped(),
        )
    }

    fn traffic(&self, to: &mut Families<'_>) -> fmt::Result {
        to.counter(
            "weir_messages_delivered",
            "Messages whose last byte a connection's socket took.",
            self.sum(|shard| &shard.delivered),
        )?;
        to.counters(
            "weir_messages_dropped",
            "Messages accepted for a connection and not sent, by rule.",
            DropRule::ALL.map(|rule| ([("rule", rule.name())], self.dropped(rule))),
        )?;
        to.counter_in(
            "weir_sent",
            &Unit::Bytes,
            "Bytes that the sockets of settled connections took.",
            self.sum(|shard| &shard.sent_bytes),
        )?;
        to.counter_in(
            "weir_received",
            &Unit::Bytes,
            "Bytes read from settled connections.",
            self.sum(|shard| &shard.received_bytes),
        )?;
        to.counter(
            "weir_received_frames",
            "Whole frames read from settled connections.",
            self.sum(|shard| &shard.received_frames),
        )?;
        to.counter("weir_pings", "Pings answered.", self.sum(|shard| &shard.pings))?;
        to.counter(
            "weir_publishes_rate_limited",
            "Messages from devices refused because they came faster than limits.publishes_per_second.",
            self.sum(|shard| &shard.publishes_rate_limited),
        )?;
        to.counter(
            "weir_reads_rate_limited",
            "Times that a connection was not read from for a while because it sent faster than limits.frames_per_second.",
            self.sum(|shard| &shard.reads_rate_limited),
        )
    }

    fn memory(&self, to: &mut Families<'_>) -> fmt::Result {
        let budget = self.handle.engine().budget();
        to.gauge_in(
            "weir_queued",
            &Unit::Bytes,
            "The byte budget's use: messages that wait for sockets, that ticks gather or topics keep, and pieces held by shards.",
            budget.used() as u64,
        )?;
        to.gauge(
            "weir_queued_bytes_max",
            "The byte budget: the most that weir_queued_bytes may be.",
            budget.bytes_max() as u64,
        )?;
        to.gauge(
            "weir_queued_bytes_peak",
            "The most that weir_queued_bytes ever was.",
            budget.peak() as u64,
        )?;
        let help = "Connections closed because what waits had no room, and they held the most.";
        to.counter("weir_connections_cut", help, self.sum(|shard| &shard.cut))?;
        let by_share = |value: &dyn Fn(Share) -> u64| {
            Share::ALL.map(|share| ([("share", share.name())], value(share)))
        };
        to.gauges(
            "weir_budget_used_bytes",
            "The byte budget's use, by what its bytes are for.",
            by_share(&|share| budget.used_of(share) as u64),
        )?;
        to.gauges(
            "weir_budget_share_bytes",
            "The most that each share of the byte budget may hold.",
            by_share(&|share| budget.bytes_max_of(share) as u64),
        )?;
        to.counters(
            "weir_budget_refused",
            "Requests for a part of the byte budget that were refused, by share.",
            by_share(&|share| budget.refused_of(share)),
        )
    }

    fn mailboxes(&self, to: &mut Families<'_>) -> fmt::Result {
        let engine = self.handle.engine();
        let mut depths = Vec::new();
        let names: Vec<String> = (0..engine.shard_count()).map(|shard| shard.to_string()).collect();
        for (shard, name) in names.iter().enumerate() {
            let mailbox = engine.mailbox(shard);
            let queues = CreditKind::ALL.map(|kind| (kind.name(), mailbox.depth_of(kind)));
            for (queue, depth) in queues.into_iter().chain([("reserved", mailbox.reserved_depth())])
            {
                depths.push(([("shard", name.as_str()), ("lane", queue)], depth as u64));
            }
        }
        to.gauges(
            "weir_mailbox_depth",
            "Commands that wait for a shard or are being carried out: messages, all other commands, and the reserved queue.",
            depths,
        )
    }

    /// Of the states of a part, exactly one has the value 1.
    fn readiness(&self, to: &mut Families<'_>) -> fmt::Result {
        let parts = self.handle.readiness().parts;
        to.gauges(
            "weir_part_state",
            "How each part of the gateway is: 1 for its state, 0 for the others; a part that has failed makes /readyz answer 503.",
            parts.iter().flat_map(|part| {
                PartState::ALL.map(|state| {
                    ([("part", part.part.name()), ("state", state.name())], u64::from(part.state == state))
                })
            }),
        )?;
        to.gauges(
            "weir_part_since_seconds",
            "When the state of each part changed last, in seconds since 1970.",
            parts.iter().map(|part| {
                let since = Duration::from_millis(part.since_ms).as_secs_f64();
                ([("part", part.part.name())], since)
            }),
        )?;
        to.gauge(
            "weir_draining",
            "Whether the node is not ready because of a drain, or because it shuts down: 1, or 0.",
            u64::from(self.handle.shared().drains.is_active()),
        )
    }

    fn times(&self, to: &mut Families<'_>) -> fmt::Result {
        let lags = Priority::ALL
            .map(|priority| (priority, self.durations(|shard| &shard.lag[priority.index()])));
        to.histograms(
            "weir_delivery_lag",
            "From a message's acceptance to its send, weighted by the sends of a batch, by the connections' priority.",
            lags.each_ref().map(|(priority, times)| ([("priority", priority.name())], times)),
        )?;
        to.histogram(
            "weir_fanout_duration",
            "From a fan-out's first send on a shard to its last.",
            &self.durations(|shard| &shard.fanout),
        )?;
        to.histogram(
            "weir_settle",
            "From accept to the shard's answer: PROXY header, TLS handshake, Hello, authentication.",
            &Histogram::of(&self.handle.counters().settle_times),
        )?;
        let turn = self.durations(|shard| &shard.turn);
        to.histogram("weir_shard_turn", "Length of a shard's turns, waiting not counted.", &turn)?;
        let longest = self.by_shard(|shard| shard.turn.max().as_secs_f64());
        to.gauges(
            "weir_shard_turn_seconds_max",
            "The longest turn, by shard.",
            longest.iter().map(|(shard, seconds)| ([("shard", shard.as_str())], *seconds)),
        )?;
        let stalls = [
            ("recovered", self.durations(|shard| &shard.stall_recovered)),
            ("closed", self.durations(|shard| &shard.stall_closed)),
        ];
        to.histograms(
            "weir_stall",
            "From the crossing of the high watermark to the recovery or the close.",
            stalls.each_ref().map(|(outcome, times)| ([("outcome", *outcome)], times)),
        )?;
        to.gauges(
            "weir_stall_seconds_max",
            "The longest stall, by outcome.",
            stalls.each_ref().map(|(outcome, times)| ([("outcome", *outcome)], times.max)),
        )
    }

    /// The allocations of the shards' threads; nothing if the allocator does not count them.
    fn allocated(&self, to: &mut Families<'_>) -> fmt::Result {
        let allocated = self.by_shard(|shard| shard.allocated_bytes.get());
        to.counters(
            "weir_shard_allocated_bytes",
            "Bytes that a shard's thread has allocated, those freed again included; 0 if the allocator does not tell.",
            allocated.iter().map(|(shard, bytes)| ([("shard", shard.as_str())], *bytes)),
        )
    }

    /// Refusals of subscriptions, of front and shards.
    pub(super) fn subscribe_refused(&self, cause: SubscribeRefuseCause) -> u64 {
        let shards = match cause {
            SubscribeRefuseCause::TopicsPerConnectionMax => {
                self.sum(|shard| &shard.subscriptions_refused)
            }
            SubscribeRefuseCause::TopicsMax
            | SubscribeRefuseCause::TopicName
            | SubscribeRefuseCause::NotPermitted
            | SubscribeRefuseCause::Broker
            | SubscribeRefuseCause::NoPresence
            | SubscribeRefuseCause::PresenceMembersMax
            | SubscribeRefuseCause::Hook
            | SubscribeRefuseCause::HookUnavailable
            | SubscribeRefuseCause::HookWaiting => 0,
        };
        self.handle.counters().subscribe_refused(cause) + shards
    }

    /// Messages that were accepted for a connection and not sent, on shards and in ticks.
    pub(super) fn dropped(&self, rule: DropRule) -> u64 {
        let shards = self.sum(|shard| &shard.dropped[rule as usize]);
        let in_ticks = if rule == DropRule::Expired { self.handle.counters().expired() } else { 0 };
        shards + in_ticks
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &ShardStats> {
        let engine = self.handle.engine();
        (0..engine.shard_count()).map(|shard| &**engine.stats(shard))
    }

    /// A number of each shard, with the shard as a label.
    fn by_shard<V>(&self, of: impl Fn(&ShardStats) -> V) -> Vec<(String, V)> {
        self.shards().enumerate().map(|(shard, stats)| (shard.to_string(), of(stats))).collect()
    }

    pub(super) fn sum(&self, of: impl Fn(&ShardStats) -> &Cell) -> u64 {
        self.shards().map(|shard| of(shard).get()).sum()
    }

    pub(super) fn durations(&self, of: impl Fn(&ShardStats) -> &Durations) -> Histogram {
        Histogram::sum(self.shards().map(of))
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}
