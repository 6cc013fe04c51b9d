//! The memory of SQLite. This is the only file of the crate with unsafe code.

/// The bytes that SQLite has allocated in this process: mostly pages of its caches.
pub(crate) fn sqlite_bytes() -> usize {
    #[expect(unsafe_code, reason = "SQLite is written in C")]
    // SAFETY: the function has no conditions; it reads a counter under SQLite's own lock.
    let bytes = unsafe { rusqlite::ffi::sqlite3_memory_used() };
    usize::try_from(bytes).unwrap_or(0)
}
