//! The report of memory: where it is, and what has kept it for longest.

use std::time::Duration;

use weir_engine::ConnId;

use crate::base::diagnostics::AllocatorStats;

/// Where the memory of the process is.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryReport {
    /// Anonymous memory that is resident, as the kernel counts it.
    pub rss_anon: usize,
    /// Parts of the memory that the allocator has given out.
    pub heap: Vec<MemoryPart>,
    /// Parts of the other anonymous memory: stacks, data of the program, and what the allocator has
    /// mapped but not given out.
    pub outside: Vec<MemoryPart>,
    /// The figures of the allocator, if the program shows them.
    pub allocator: Option<AllocatorStats>,
    /// Of `rss_anon`: what the allocator has mapped, as the kernel counts it.
    pub mapped_anon: usize,
    /// What the parts of the heap explain of the memory that was given out since the start.
    pub explained: Option<Explained>,
}

/// A part of the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPart {
    /// Its name. docs/admin-api.md lists them.
    pub name: &'static str,
    /// For parts that are divided further: the pattern of the topic class, or the purpose.
    pub of: Option<String>,
    /// The number of things in it.
    pub count: usize,
    /// Their bytes, as the allocator rounds them.
    pub bytes: usize,
}

/// How far the parts explain the growth since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explained {
    /// Growth of what the allocator has given out.
    pub allocated: isize,
    /// Growth of all parts of the heap together.
    pub parts: isize,
}

/// Something that keeps memory, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retainer {
    /// `outbox`, `message`, `block`, `subscription` or `ring`.
    pub kind: &'static str,
    /// The topic, where it is known.
    pub topic: Option<String>,
    /// The device, if a connection keeps it.
    pub device: Option<String>,
    /// The connection.
    pub connection: Option<ConnId>,
    /// The kept bytes.
    pub bytes: usize,
    /// The time since it began.
    pub age: Duration,
}

/// How much of the heap was given out, and how much of it all parts had.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heap {
    pub(crate) allocated: usize,
    parts: usize,
}

impl Heap {
    pub(crate) fn of(parts: &[MemoryPart], stats: AllocatorStats) -> Heap {
        let parts = parts.iter().map(|part| part.bytes).sum();
        Heap { allocated: stats.allocated, parts }
    }

    /// What was given out without a part for it.
    pub(crate) fn unexplained(&self) -> isize {
        difference(self.allocated, self.parts)
    }

    pub(crate) fn explained_since(&self, start: Heap) -> Explained {
        Explained {
            allocated: difference(self.allocated, start.allocated),
            parts: difference(self.parts, start.parts),
        }
    }
}

impl Explained {
    /// The share; `None` if less than 64 KiB have been given out since the start.
    pub fn share(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "the share of some gigabytes")]
        let share = self.parts as f64 / self.allocated as f64;
        (self.allocated >= LITTLE).then_some(share)
    }
}

fn difference(now: usize, before: usize) -> isize {
    now.cast_signed().wrapping_sub(before.cast_signed())
}

/// With less growth, the share says nothing.
const LITTLE: isize = 64 * 1024;
