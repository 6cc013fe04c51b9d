//! A table that grows in chunks: no element ever moves, and growing costs one chunk.

/// A growing array of fixed chunks.
///
/// Shape: chunks of [`CHUNK`] elements; a `Vec` of a million entries would be copied whole when it doubles.
#[derive(Debug)]
pub(crate) struct Chunks<T> {
    chunks: Vec<Box<[T]>>,
}

/// Elements a chunk: some 100 KiB of connections.
pub(crate) const CHUNK: usize = 1024;

impl<T> Chunks<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    /// Elements that exist.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.chunks.len() * CHUNK).expect("tables are bounded by 2^24 entries")
    }

    /// Adds one chunk.
    pub(crate) fn grow(&mut self, make: impl Fn() -> T) {
        self.chunks.push((0..CHUNK).map(|_| make()).collect());
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.chunks.get(index as usize / CHUNK).map(|chunk| &chunk[index as usize % CHUNK])
    }
}

impl<T> std::ops::Index<u32> for Chunks<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

impl<T> std::ops::IndexMut<u32> for Chunks<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}
