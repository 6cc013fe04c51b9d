//! Where the memory of the gateway is: each part with the number of its things and their bytes.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use weir_engine::{
    BlockAge, BlockPurpose, Footprint, Holding, HoldingKind, MessagePlace, ShardMemory,
};

use crate::base::diagnostics::AllocatorStats;
use crate::base::mailboxes::survey;
use crate::base::memory::{Heap, MemoryPart, MemoryReport, Retainer};
use crate::core::handle::{Handle, ShardSilent};
use crate::core::state::SharedState;
use crate::observe::counters::http::Dialect;
use crate::observe::mappings::Mappings;
use crate::topics::{OldRing, TopicsMemory};

impl Handle {
    /// Tells where the memory of the process is.
    ///
    /// Errors: a shard does not answer.
    /// Cost: each shard is asked for some thousand connections at a time, and goes on with its work
    /// in between. On the front it takes some 0.3 µs for each topic and device. The kernel counts pages
    /// for a thread of their own: some milliseconds for a gigabyte.
    pub async fn memory(&self) -> Result<MemoryReport, ShardSilent> {
        let shared = self.shared();
        let (heap, allocator) = shared.heap().await?;
        let now = allocator.map(|stats| Heap::of(&heap, stats));
        let explained = now.zip(shared.heap_at_start.get());
        let explained = explained.map(|(now, start)| now.explained_since(*start));
        let mappings = spawn_blocking(Mappings::read).await.ok().flatten().unwrap_or_default();
        let mut outside = Parts::default();
        outside.add("thread_stacks", mappings.stacks);
        outside.add("program_data", mappings.data);
        if let Some(stats) = &allocator {
            let Footprint { count, bytes } = mappings.allocator;
            let overhead = bytes.saturating_sub(stats.allocated);
            outside.add("allocator_overhead", Footprint::new(count, overhead));
        }
        let Mappings { rss_anon, allocator: Footprint { bytes: mapped_anon, .. }, .. } = mappings;
        let outside = outside.0;
        Ok(MemoryReport { rss_anon, heap, outside, allocator, mapped_anon, explained })
    }

    /// Lists what has kept memory for longest: at most `limit` of each kind, the oldest first.
    ///
    /// Errors: a shard does not answer.
    /// Cost: that of [`Handle::memory`], and some 50 ns of a shard for each membership.
    pub async fn retention(&self, limit: usize) -> Result<Vec<Retainer>, ShardSilent> {
        let shared = self.shared();
        let mut holdings = Vec::new();
        for shard in 0..shared.mailboxes().len() {
            holdings.extend(shared.survey(shard, limit).await?.1);
        }
        keep_oldest(&mut holdings, limit);
        let mut retainers: Vec<Retainer> =
            holdings.into_iter().map(|holding| shared.named(holding)).collect();
        retainers.extend(shared.router.memory(limit).await.oldest.into_iter().map(Retainer::of));
        retainers.sort_by_key(|retainer| Reverse(retainer.age));
        Ok(retainers)
    }
}

impl Retainer {
    fn of(OldRing { topic, bytes, age }: OldRing) -> Retainer {
        Retainer { kind: RING, topic: Some(topic), device: None, connection: None, bytes, age }
    }
}

impl SharedState {
    /// Notes how the heap is before connections are let in. Threads still begin then, and the parts
    /// are read one after the other. So it looks until two looks agree, some 20 ms, and at most for
    /// half a second.
    pub(crate) async fn note_heap_at_start(&self) {
        let mut before: Option<Heap> = None;
        for _ in 0..LOOKS_AT_START {
            let Ok((parts, Some(stats))) = self.heap().await else { return };
            let now = Heap::of(&parts, stats);
            let agrees =
                |before: Heap| before.unexplained().abs_diff(now.unexplained()) <= AGREES_WITHIN;
            let is_calm = before.is_some_and(agrees);
            before = Some(now);
            if is_calm {
                break;
            }
            sleep(BETWEEN_LOOKS).await;
        }
        if let Some(heap) = before {
            let _ = self.heap_at_start.set(heap);
        }
    }

    /// The bytes that the allocator has given out, now and before connections were let in. `None` if
    /// the allocator does not tell.
    pub(crate) fn allocated(&self) -> Option<[u64; 2]> {
        let (now, start) = self.allocator().zip(self.heap_at_start.get())?;
        Some([now.allocated, start.allocated].map(|bytes| bytes as u64))
    }

    fn allocator(&self) -> Option<AllocatorStats> {
        self.diagnostics.as_ref().and_then(|diagnostics| diagnostics.allocator())
    }

    /// The parts of the heap, and the stats of the allocator right after.
    async fn heap(&self) -> Result<(Vec<MemoryPart>, Option<AllocatorStats>), ShardSilent> {
        let mut shards = ShardMemory::default();
        for shard in 0..self.mailboxes().len() {
            shards.add(&self.survey(shard, 0).await?.0);
        }
        let mut parts = Parts::default();
        let patterns = self.router.class_patterns();
        parts.add_shards(&shards, &patterns);
        self.add_messages(&patterns, &mut parts);
        parts.add_topics(&self.router.memory(0).await);
        self.add_tables(&mut parts);
        self.add_unsettled(&mut parts);
        let stats = self.allocator();
        if let Some(stats) = stats {
            parts.add("thread_caches", Footprint::new(0, stats.cached));
        }
        Ok((parts.0, stats))
    }

    /// Asks a shard page by page, and keeps the oldest holdings of each kind.
    async fn survey(
        &self,
        shard: usize,
        holdings_max: usize,
    ) -> Result<(ShardMemory, Vec<Holding>), ShardSilent> {
        let (mut memory, mut holdings) = (ShardMemory::default(), Vec::new());
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let page = survey(self.mailbox(shard), from, holdings_max).await;
            let page = page.ok_or(ShardSilent { shard })?;
            memory.add(&page.memory);
            holdings.extend(page.holdings);
            keep_oldest(&mut holdings, holdings_max);
            cursor = page.next_cursor;
        }
        Ok((memory, holdings))
    }

    /// Replaces ids by names.
    fn named(&self, holding: Holding) -> Retainer {
        let Holding { kind, conn, device, topic, epoch, bytes, age } = holding;
        Retainer {
            kind: kind.name(),
            topic: topic.and_then(|topic| self.router.name_in(topic, epoch)),
            device: self.devices.id_of(device, conn),
            connection: Some(conn),
            bytes,
            age,
        }
    }

    fn add_messages(&self, patterns: &[(u16, Option<String>)], parts: &mut Parts) {
        let budget = self.engine().budget();
        for (class, pattern) in patterns {
            for place in MessagePlace::ALL {
                let name = match place {
                    MessagePlace::Moving => "messages_moving",
                    MessagePlace::Retained => "messages_in_rings",
                    MessagePlace::Waiting => "messages_waiting",
                };
                parts.add_of(name, pattern.as_deref(), budget.messages(*class, place));
            }
        }
    }

    /// The tables of the front.
    fn add_tables(&self, parts: &mut Parts) {
        parts.add("devices", self.devices.footprint());
        parts.add("sources", self.admission.sources_footprint());
        parts.add("rates", self.publish_rates.footprint());
        let credentials = self.auth.memory();
        let mut failures = credentials.failures;
        failures += self.admin_access.failures_footprint();
        parts.add("failed_sources", failures);
        parts.add("verified_tokens", credentials.verified);
        parts.add("grants", credentials.grants);
        parts.add("idempotency_keys", self.idempotency.footprint());
        parts.add("event_readers", self.events.footprint());
        parts.add("ends", self.ends.footprint());
        parts.add("clients", self.clients.footprint());
        parts.add("calls", self.calls.footprint());
        parts.add("hook_answers", self.questions.footprint());
        parts.add("access_log", self.access_log.footprint());
        parts.add("audit_log", self.audit.footprint());
        if let Some(tls) = &self.tls {
            let (sessions, handshakes) = tls.memory();
            parts.add("tls_sessions", sessions);
            parts.add("tls_handshakes", handshakes);
        }
        if let Some(store) = &self.device_store {
            parts.add("store", store.footprint());
        }
        let mut mailboxes = Footprint::default();
        self.mailboxes().iter().for_each(|mailbox| mailboxes += mailbox.footprint());
        parts.add("mailboxes", mailboxes);
    }

    /// What has not settled, or stays on the front.
    fn add_unsettled(&self, parts: &mut Parts) {
        let mut adoptions = Footprint::default();
        self.adoptions.iter().for_each(|pending| adoptions += pending.footprint());
        parts.add("adoptions", adoptions);
        let mut dispatchers = Footprint::default();
        self.dispatchers.iter().for_each(|levels| dispatchers += levels.get());
        parts.add("dispatchers", dispatchers);
        let counters = self.counters();
        let unsettled = counters.unsettled();
        parts.add("openings", Footprint::of_each(unsettled, OPENING_BYTES));
        for (dialect, bytes) in [(Dialect::Http1, HTTP1_BYTES), (Dialect::Http2, HTTP2_BYTES)] {
            let count = counters.http.connections(dialect);
            parts.add_of("http", Some(dialect.name()), Footprint::of_each(count, bytes));
        }
        parts.add_of("http", Some("unsent"), self.http_share.unsent());
        let admin = Footprint::of_each(counters.admin_connections(), HTTP1_BYTES);
        parts.add_of("http", Some("admin"), admin);
    }
}

/// Parts as they are listed.
#[derive(Debug, Default)]
struct Parts(Vec<MemoryPart>);

impl Parts {
    fn add(&mut self, name: &'static str, Footprint { count, bytes }: Footprint) {
        self.0.push(MemoryPart { name, of: None, count, bytes });
    }

    /// Adds a division of a part, unless it is empty.
    fn add_of(&mut self, name: &'static str, of: Option<&str>, footprint: Footprint) {
        let Footprint { count, bytes } = footprint;
        if count > 0 || bytes > 0 {
            self.0.push(MemoryPart { name, of: of.map(str::to_owned), count, bytes });
        }
    }

    fn add_shards(&mut self, shards: &ShardMemory, patterns: &[(u16, Option<String>)]) {
        self.add("connections", shards.connections);
        self.add("tls", shards.tls);
        self.add("members", shards.members);
        for (class, pattern) in patterns {
            if let Some(outboxes) = shards.outboxes.get(usize::from(*class)) {
                self.add_of("outboxes", pattern.as_deref(), *outboxes);
            }
        }
        self.add("outboxes_spare", shards.spare_outboxes);
        for purpose in BlockPurpose::ALL {
            for age in BlockAge::ALL {
                let of = format!("{} {}", purpose.name(), age.name());
                self.add_of("blocks", Some(&of), shards.blocks[purpose as usize][age as usize]);
            }
        }
        self.add("blocks_free", shards.free_blocks);
        self.add("conflation", shards.conflation);
        self.add("resumes_of_shards", shards.resumes);
        self.add("positions", shards.positions);
        self.add("fanouts", shards.fanouts);
        self.add("reports_kept", shards.backlog);
        self.add("shard_buffers", shards.buffers);
    }

    fn add_topics(&mut self, memory: &TopicsMemory) {
        self.add("topics", memory.topics);
        self.add("rings", memory.rings);
        self.add("ticks", memory.ticks);
        self.add("presence", memory.presence);
        self.add("cluster_topics", memory.cluster);
        self.add("resumes", memory.resumes);
    }
}

fn keep_oldest(holdings: &mut Vec<Holding>, max: usize) {
    holdings.sort_by_key(|holding| Reverse(holding.age));
    for kind in HoldingKind::ALL {
        let mut count = 0;
        holdings.retain(|holding| {
            count += usize::from(holding.kind == kind);
            holding.kind != kind || count <= max
        });
    }
}

const LOOKS_AT_START: usize = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
const AGREES_WITHIN: usize = 1024;
const RING: &str = "ring";
/// A connection in its opening, with its task.
/// Source: `hostile::ten_thousand_connections_without_hello…`.
const OPENING_BYTES: usize = 3072;
/// An HTTP connection with its task and its buffers.
/// Source: 40 silent connections to the admin API after one request took 19.8 KB each.
const HTTP1_BYTES: usize = 20 * 1024;
const HTTP2_BYTES: usize = 32 * 1024;
