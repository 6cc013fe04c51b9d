//! A table that grows in chunks. No element ever moves, and growing costs one chunk.

use crate::memory::rounded;

/// A growing array of fixed chunks.
///
/// Shape: chunks of `SIZE` elements. A `Vec` of a million entries would be copied whole when it
/// doubles. A skipped chunk costs 16 bytes until one of its elements is needed.
#[derive(Debug)]
pub(crate) struct Chunks<T, const SIZE: usize = CHUNK> {
    /// Each chunk is full, or empty if none of its elements was needed yet.
    chunks: Vec<Box<[T]>>,
}

/// Elements a chunk: some 100 KiB of connections.
pub(crate) const CHUNK: usize = 1024;

impl<T, const SIZE: usize> Chunks<T, SIZE> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    /// The end of the last chunk.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.chunks.len() * SIZE).expect("tables are bounded by 2^24 entries")
    }

    /// Adds one chunk.
    pub(crate) fn grow(&mut self, make: impl Fn() -> T) {
        self.chunks.push((0..SIZE).map(|_| make()).collect());
    }

    /// The element at `index`. Adds its chunk if necessary, and no other.
    pub(crate) fn get_or_add(&mut self, index: u32, make: impl Fn() -> T) -> &mut T {
        let chunk = index as usize / SIZE;
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, Box::default);
        }
        let chunk = &mut self.chunks[chunk];
        if chunk.is_empty() {
            *chunk = (0..SIZE).map(|_| make()).collect();
        }
        &mut chunk[index as usize % SIZE]
    }

    /// The bytes that the table occupies.
    ///
    /// Cost: looks at each chunk's pointer; some microseconds for a million elements.
    pub(crate) fn occupied(&self) -> usize {
        let chunks = self.chunks.iter().filter(|chunk| !chunk.is_empty()).count();
        rounded(self.chunks.capacity() * size_of::<Box<[T]>>())
            + chunks * rounded(SIZE * size_of::<T>())
    }

    /// The element at `index`; `None` if there is no chunk for it.
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.chunks.get(index as usize / SIZE)?.get(index as usize % SIZE)
    }

    /// The element at `index`; `None` if there is no chunk for it.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.chunks.get_mut(index as usize / SIZE)?.get_mut(index as usize % SIZE)
    }
}

#[cfg(any(test, feature = "sim"))]
impl<T, const SIZE: usize> Chunks<T, SIZE> {
    /// All elements that exist.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }
}

impl<T, const SIZE: usize> std::ops::Index<u32> for Chunks<T, SIZE> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        &self.chunks[index as usize / SIZE][index as usize % SIZE]
    }
}

impl<T, const SIZE: usize> std::ops::IndexMut<u32> for Chunks<T, SIZE> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.chunks[index as usize / SIZE][index as usize % SIZE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_is_not_there() {
        let mut chunks: Chunks<u32, 4> = Chunks::new();
        *chunks.get_or_add(41, || 7) = 1;
        assert_eq!((chunks.get(41), chunks.get(40), chunks.len()), (Some(&1), Some(&7), 44));
        assert_eq!((chunks.get(39), chunks.get(44)), (None, None));
        assert!(chunks.get_mut(0).is_none());
        assert_eq!(chunks.chunks.iter().filter(|chunk| !chunk.is_empty()).count(), 1);
        *chunks.get_or_add(0, || 7) += 1;
        assert_eq!((chunks[0], chunks[41]), (8, 1));
    }
}
