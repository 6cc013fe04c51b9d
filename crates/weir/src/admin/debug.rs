//! `/v1/debug`: where memory is, and what keeps it.

use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::base::clock::millis;
use crate::http::web::problem::Problem;
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::{AllocatorStats, Explained, Handle, MemoryPart, MemoryReport, Retainer};

/// Where the memory of the process is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Memory)]
pub(super) struct MemoryView {
    /// Anonymous memory that is resident, as the kernel counts it, in bytes.
    rss_anon: u64,
    /// All parts. Those with `heap` are what the allocator has given out; the others are the rest of
    /// the anonymous memory.
    parts: Vec<MemoryPartView>,
    /// The figures of jemalloc; `null` if the program has another allocator.
    #[schema(required)]
    allocator: Option<AllocatorView>,
    /// How far the parts explain the growth since the start; `null` without figures.
    #[schema(required)]
    explained: Option<ExplainedView>,
}

/// A part of the memory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MemoryPart)]
struct MemoryPartView {
    name: &'static str,
    /// A division of the part: the pattern of a topic class, or a purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    of: Option<String>,
    /// The number of things in it.
    count: u64,
    /// Their bytes, as the allocator rounds them.
    bytes: u64,
    /// Whether it is a part of what the allocator has given out.
    heap: bool,
}

/// Bytes, by the names of jemalloc's statistics.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Allocator)]
struct AllocatorView {
    /// Given out, also to the caches of threads.
    allocated: u64,
    /// Pages in which something is given out.
    active: u64,
    /// Pages that the kernel has backed with memory.
    resident: u64,
    /// Mapped, and given back to the kernel.
    retained: u64,
    /// Used by the allocator for itself.
    metadata: u64,
    /// Of `allocated`: held in the caches of threads.
    cached: u64,
    /// What the kernel counts of the allocator's mappings.
    mapped_anon: u64,
}

/// Growth since the start, in bytes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explained)]
struct ExplainedView {
    /// Of `allocated`.
    allocated: i64,
    /// Of all parts of the heap together.
    parts: i64,
    /// `parts` as a share of `allocated`; `null` if less than 64 KiB were given out.
    #[schema(required)]
    share: Option<f64>,
}

/// What has kept memory for longest.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Retention)]
pub(super) struct RetentionView {
    /// The oldest first, of each kind.
    retainers: Vec<RetainerView>,
}

/// Something that keeps memory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Retainer)]
struct RetainerView {
    /// `outbox`, `message`, `block`, `subscription` or `ring`.
    kind: &'static str,
    /// The topic, where it is known.
    #[schema(required)]
    topic: Option<String>,
    /// The device; `null` for a ring.
    #[schema(required)]
    device: Option<String>,
    /// The connection; `null` for a ring.
    #[schema(required, pattern = "^[0-9a-f]{16}$")]
    connection: Option<String>,
    bytes: u64,
    age_ms: u64,
}

impl MemoryView {
    fn of(report: MemoryReport) -> MemoryView {
        let view = |heap| {
            move |MemoryPart { name, of, count, bytes }| MemoryPartView {
                name,
                of,
                count: count as u64,
                bytes: bytes as u64,
                heap,
            }
        };
        let heap = report.heap.into_iter().map(view(true));
        let parts = heap.chain(report.outside.into_iter().map(view(false))).collect();
        let allocator = report.allocator.map(|stats| {
            let AllocatorStats { allocated, active, resident, .. } = stats;
            let AllocatorStats { retained, metadata, cached, .. } = stats;
            AllocatorView {
                allocated: allocated as u64,
                active: active as u64,
                resident: resident as u64,
                retained: retained as u64,
                metadata: metadata as u64,
                cached: cached as u64,
                mapped_anon: report.mapped_anon as u64,
            }
        });
        let explained = report.explained.map(|explained: Explained| ExplainedView {
            allocated: explained.allocated as i64,
            parts: explained.parts as i64,
            share: explained.share(),
        });
        MemoryView { rss_anon: report.rss_anon as u64, parts, allocator, explained }
    }
}

impl RetainerView {
    fn of(retainer: Retainer) -> RetainerView {
        let Retainer { kind, topic, device, connection, bytes, age } = retainer;
        RetainerView {
            kind,
            topic,
            device,
            connection: connection.map(|connection| connection.to_string()),
            bytes: bytes as u64,
            age_ms: millis(age),
        }
    }
}

/// `GET /v1/debug/memory`.
pub(super) async fn memory(handle: &Handle) -> Result<Reply, Problem> {
    let view = MemoryView::of(handle.memory().await?);
    Ok(reply::json(StatusCode::OK, &view))
}

/// `GET /v1/debug/retention`.
pub(super) async fn retention(handle: &Handle, query: Option<&str>) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["limit"])?;
    let retainers = handle.retention(query.limit()?).await?;
    let retainers = retainers.into_iter().map(RetainerView::of).collect();
    Ok(reply::json(StatusCode::OK, &RetentionView { retainers }))
}
