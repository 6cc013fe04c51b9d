//! The allocator: the one place of the program with an unsafe attribute.

use tikv_jemalloc_ctl::thread::{self, ThreadLocal};

/// Bytes that the calling thread has allocated since it began, those freed again included; 0 if jemalloc does not say.
///
/// Cost: the first call of a thread asks jemalloc where it counts, the others read that counter.
pub(crate) fn allocated_bytes() -> u64 {
    thread_local! {
        static COUNTER: Option<ThreadLocal<u64>> = thread::allocatedp::read().ok();
    }
    COUNTER.with(|counter| counter.as_ref().map_or(0, |counter| counter.get()))
}

/// jemalloc, for Rust and for C alike: with its names unprefixed, what C libraries allocate lives in the same arenas,
/// is counted by the same statistics and is given back by the same rules.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's options, read by it before `main`.
///
/// - `background_thread`: pages are given back by a thread of its own, not in the middle of a fan-out.
/// - `dirty_decay_ms`, `muzzy_decay_ms`: what a burst needed is back with the kernel within seconds. Muzzy pages would
///   still count as resident, so that stage is skipped.
/// - `narenas`: every arena keeps free pages of its own, and there are few threads. Four suffice for the shards of a
///   small machine and the front; shards allocate little.
///
/// `MALLOC_CONF` in the environment goes over it.
#[expect(unsafe_code, reason = "jemalloc finds its options by the name of the symbol")]
// SAFETY: jemalloc declares `const char *malloc_conf`, a pointer to a text that ends in NUL. A reference to an array is
// such a pointer, the text is constant for the life of the process, and nothing else in the program defines the symbol.
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
