//! What only the program knows about its process: the allocator.

/// Figures of the program that embeds the gateway.
pub trait Diagnostics: Send + Sync {
    /// The figures of the allocator; `None` if it has none.
    ///
    /// Cost: must not block for longer than some 100 µs.
    fn allocator(&self) -> Option<AllocatorStats>;
}

/// The figures of an allocator, in bytes. Their names are those of jemalloc.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocatorStats {
    /// Given out, also to the caches of threads.
    pub allocated: usize,
    /// Pages in which something is given out.
    pub active: usize,
    /// Pages that the kernel has backed with memory.
    pub resident: usize,
    /// Mapped, and given back to the kernel.
    pub retained: usize,
    /// Used by the allocator for itself.
    pub metadata: usize,
    /// Of `allocated`: held in the caches of threads, for what they allocate next.
    pub cached: usize,
}
