//! The allocator of the program `weir`, for embedded gateways, and a count of its allocations.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tikv_jemallocator::Jemalloc;

/// Counts after a call of [`count_allocations`]. Before that, an allocation costs one more load.
struct Counting;

/// Allocations of all threads so far, including those freed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Allocations {
    /// The number of allocations. A block that grows counts again.
    pub(crate) count: u64,
    /// The number of requested bytes.
    pub(crate) bytes: u64,
}

/// Starts to count in this process.
pub(crate) fn count_allocations() {
    COUNTS.store(true, Ordering::Relaxed);
}

/// The counts so far.
pub(crate) fn allocations() -> Allocations {
    Allocations { count: COUNT.load(Ordering::Relaxed), bytes: BYTES.load(Ordering::Relaxed) }
}

fn note(bytes: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

static COUNTS: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The options of the program `weir`; its source gives the reasons. jemalloc reads them before
/// `main`.
// SAFETY: jemalloc declares `const char *malloc_conf`, a pointer to a text that ends in NUL. A
// reference to an array is such a pointer. The text is constant for the life of the process, and
// nothing else in the program defines the symbol.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &[u8; 70] =
    b"background_thread:true,dirty_decay_ms:2000,muzzy_decay_ms:0,narenas:4\0";

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: each call is passed to jemalloc unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller guarantees what jemalloc requires.
        unsafe { Jemalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as above.
        unsafe { Jemalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: as above.
        unsafe { Jemalloc.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { Jemalloc.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted_once_that_was_asked_for() {
        count_allocations();
        let before = allocations();
        drop(std::hint::black_box(vec![1_u8; 100_000]));
        let after = allocations();
        assert!(after.count > before.count && after.bytes >= before.bytes + 100_000, "{after:?}");
    }
}
