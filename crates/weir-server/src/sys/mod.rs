//! The allocator, and what else needs unsafe code.

pub(crate) mod passed;
pub(crate) mod sampler;

use std::ffi::CStr;

use tikv_jemalloc_ctl::thread::{self, ThreadLocal};
use tikv_jemalloc_ctl::{Access as _, AsName as _, epoch, raw, stats};
use weir::{AllocatorStats, Diagnostics};

/// Bytes that the calling thread has allocated since it began, including those freed again; 0 if
/// jemalloc does not count them.
///
/// Cost: the first call of a thread asks jemalloc for the address of its counter; later calls read
/// the counter.
pub(crate) fn allocated_bytes() -> u64 {
    thread_local! {
        static COUNTER: Option<ThreadLocal<u64>> = thread::allocatedp::read().ok();
    }
    COUNTER.with(|counter| counter.as_ref().map_or(0, |counter| counter.get()))
}

/// Bytes that the whole process has allocated and not freed; 0 if jemalloc does not count them.
///
/// Cost: jemalloc adds up the counters of all arenas.
pub(crate) fn allocated_in_all() -> u64 {
    Process.allocator().map_or(0, |stats| stats.allocated as u64)
}

/// This process, for the gateway in it.
pub(crate) struct Process;

impl Diagnostics for Process {
    fn allocator(&self) -> Option<AllocatorStats> {
        // The statistics are as of the last change of the epoch.
        epoch::advance().ok()?;
        Some(AllocatorStats {
            allocated: stats::allocated::read().ok()?,
            active: stats::active::read().ok()?,
            resident: stats::resident::read().ok()?,
            retained: stats::retained::read().ok()?,
            metadata: stats::metadata::read().ok()?,
            cached: CACHED.name().read().ok()?,
        })
    }
}

/// The bytes in the caches of threads, of all arenas: the number stands for all of them.
const CACHED: &[u8] = b"stats.arenas.4096.tcache_bytes\0";

/// Lets jemalloc write its profile of the heap into this file.
///
/// Errors: jemalloc does not sample allocations, or cannot write the file.
pub(crate) fn dump_heap(path: &CStr) -> tikv_jemalloc_ctl::Result<()> {
    #[expect(unsafe_code, reason = "jemalloc takes a pointer")]
    // SAFETY: `prof.dump` takes a pointer to a text that ends in NUL, and reads it during the call.
    unsafe {
        raw::write(b"prof.dump\0", path.as_ptr())
    }
}

/// jemalloc, for Rust and C alike. Its names have no prefix, so C libraries allocate from the same
/// arenas. The same statistics count their memory, and the same rules return it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's options; jemalloc reads them before `main`.
///
/// - `background_thread`: a separate thread returns pages to the kernel, not a shard during a
///   fan-out.
/// - `dirty_decay_ms`, `muzzy_decay_ms`: the memory of a burst returns to the kernel within
///   seconds. Muzzy pages would still count as resident, so that stage is skipped.
/// - `narenas`: each arena keeps its own free pages, and there are few threads. Four suffice for
///   the shards of a small machine and the front, since shards allocate little.
///
/// The variable `MALLOC_CONF` overrides these options.
#[expect(unsafe_code, reason = "jemalloc finds its options by the name of the symbol")]
// SAFETY: jemalloc declares `const char *malloc_conf`, a pointer to a text that ends in NUL. A
// reference to an array is such a pointer. The text is constant for the life of the process, and
// nothing else in the program defines the symbol.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &[u8; 70] =
    b"background_thread:true,dirty_decay_ms:2000,muzzy_decay_ms:0,narenas:4\0";

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn what_a_thread_allocates_is_counted() {
        let before = allocated_bytes();
        drop(black_box(vec![1_u8; 100_000]));
        let grown = allocated_bytes() - before;
        assert!((100_000..200_000).contains(&grown), "{grown}");
        let idle = allocated_bytes();
        assert_eq!(allocated_bytes(), idle, "asking allocates nothing");
    }

    #[test]
    fn the_figures_are_those_of_this_moment() {
        let before = Process.allocator().expect("jemalloc has statistics");
        let kept = black_box(vec![1_u8; 100_000_000]);
        let after = Process.allocator().expect("jemalloc has statistics");
        // Other tests give back memory meanwhile.
        assert!(after.allocated >= before.allocated + kept.len() / 2);
        assert!(after.active >= after.allocated && after.resident >= after.active);
        assert!(after.cached > 0 && after.metadata > 0);
    }

    #[test]
    fn allocations_are_rounded_as_weir_expects() {
        for bytes in (0..5_000).chain((5_000..200_000).step_by(97)).chain([1 << 20, 5_000_001]) {
            let before = allocated_bytes();
            drop(black_box(Vec::<u8>::with_capacity(bytes)));
            let taken = usize::try_from(allocated_bytes() - before).unwrap();
            assert_eq!(taken, weir::allocated_size(bytes), "{bytes}");
        }
    }

    #[test]
    fn each_thread_has_a_count_of_its_own() {
        let before = allocated_bytes();
        let other = std::thread::scope(|scope| {
            let work = || {
                drop(black_box(vec![1_u8; 10_000_000]));
                allocated_bytes()
            };
            scope.spawn(work).join().unwrap()
        });
        assert!(other >= 10_000_000, "{other}");
        assert!(allocated_bytes() - before < 1_000_000);
    }
}
