//! The allocator: the one place of the program with an unsafe attribute.

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
