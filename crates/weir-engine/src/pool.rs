//! Blocks for frames that arrive in pieces. A pool keeps used blocks, by size class.

use crate::memory::{Footprint, rounded};
use crate::time::Tick;

/// The bytes of a begun frame, or of frames for which the front has no room.
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Box<[u8]>,
    filled: usize,
    /// When the first byte came. `frame_timeout` counts from here.
    pub(crate) since: Tick,
}

/// Free blocks of a shard.
///
/// Shape: each size is four times the one before, from [`LEAST_BYTES`] on. A block grows with the
/// bytes that have come, never with the length that a prefix promises.
/// Limits: at most [`KEPT_BYTES_MAX`] a class stay for later use; the rest goes back to the
/// allocator.
/// Cost: take and give are a pop and a push.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    #[expect(clippy::vec_box, reason = "they move into entries as boxes")]
    free: [Vec<Box<Block>>; CLASSES],
}

/// The smallest block. It holds most frames of devices.
const LEAST_BYTES: usize = 256;
const CLASSES: usize = 6;
/// A quarter of a megabyte a class: enough for a burst, little beside a shard's other memory.
const KEPT_BYTES_MAX: usize = 256 * 1024;

impl Block {
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub(crate) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.filled]
    }

    /// Forgets the bytes after the first `bytes`.
    pub(crate) fn truncate(&mut self, bytes: usize) {
        self.filled = self.filled.min(bytes);
    }

    /// Bytes that this block occupies.
    pub(crate) fn footprint(&self) -> usize {
        self.bytes.len() + size_of::<Block>()
    }

    /// The bytes that the allocator takes for it.
    pub(crate) fn occupied(&self) -> usize {
        rounded(size_of::<Block>()) + rounded(self.bytes.len())
    }

    fn room(&self) -> usize {
        self.bytes.len() - self.filled
    }
}

impl Pool {
    /// The free blocks.
    pub(crate) fn footprint(&self) -> Footprint {
        let mut sum = Footprint::default();
        for (class, free) in self.free.iter().enumerate() {
            let block = rounded(size_of::<Block>()) + rounded(class_bytes(class));
            let list = rounded(free.capacity() * size_of::<Box<Block>>());
            sum += Footprint::new(free.len(), free.len() * block + list);
        }
        sum
    }

    /// A block that holds `bytes` and was begun at `since`.
    pub(crate) fn take(&mut self, bytes: &[u8], since: Tick) -> Box<Block> {
        let mut block = match class_of(bytes.len()) {
            Some(class) => self.free[class].pop().unwrap_or_else(|| fresh(class_bytes(class))),
            None => fresh(bytes.len()),
        };
        block.bytes[..bytes.len()].copy_from_slice(bytes);
        block.filled = bytes.len();
        block.since = since;
        block
    }

    /// Appends `more`, moving to a larger block if it must.
    pub(crate) fn extend(&mut self, block: Box<Block>, more: &[u8]) -> Box<Block> {
        let mut block = block;
        if block.room() < more.len() {
            let larger = self.larger(&block, block.filled + more.len());
            self.give(std::mem::replace(&mut block, larger));
        }
        let end = block.filled + more.len();
        block.bytes[block.filled..end].copy_from_slice(more);
        block.filled = end;
        block
    }

    /// Takes a block back.
    pub(crate) fn give(&mut self, block: Box<Block>) {
        let Some(class) = class_of(block.bytes.len()) else { return };
        let size = class_bytes(class);
        if block.bytes.len() == size && self.free[class].len() < KEPT_BYTES_MAX / size {
            self.free[class].push(block);
        }
    }

    fn larger(&mut self, block: &Block, bytes: usize) -> Box<Block> {
        let mut larger = match class_of(bytes) {
            Some(class) => self.free[class].pop().unwrap_or_else(|| fresh(class_bytes(class))),
            None => fresh(bytes),
        };
        larger.bytes[..block.filled].copy_from_slice(block.filled());
        larger.filled = block.filled;
        larger.since = block.since;
        larger
    }
}

fn fresh(bytes: usize) -> Box<Block> {
    Box::new(Block { bytes: vec![0; bytes].into_boxed_slice(), filled: 0, since: Tick(0) })
}

/// The smallest class whose blocks hold `bytes`; `None` above the largest.
fn class_of(bytes: usize) -> Option<usize> {
    (0..CLASSES).find(|class| bytes <= class_bytes(*class))
}

const fn class_bytes(class: usize) -> usize {
    LEAST_BYTES << (2 * class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_grows_with_what_comes_and_keeps_its_beginning() {
        let mut pool = Pool::default();
        let mut block = pool.take(&[1; 200], Tick(7));
        assert_eq!(block.bytes.len(), 256);
        block = pool.extend(block, &[2; 100]);
        assert_eq!(block.bytes.len(), 1024);
        assert_eq!(block.since, Tick(7));
        assert_eq!(block.filled()[..200], [1; 200]);
        assert_eq!(block.filled()[200..], [2; 100]);
        assert_eq!(pool.free[0].len(), 1, "the outgrown block is kept");
    }

    #[test]
    fn what_is_above_the_classes_is_not_kept() {
        let mut pool = Pool::default();
        let block = pool.take(&[0; 300_000], Tick(0));
        pool.give(block);
        assert!(pool.free.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_class_keeps_no_more_than_its_share() {
        let mut pool = Pool::default();
        let blocks: Vec<_> = (0..2000).map(|_| pool.take(&[0; 10], Tick(0))).collect();
        for block in blocks {
            pool.give(block);
        }
        assert_eq!(pool.free[0].len(), KEPT_BYTES_MAX / LEAST_BYTES);
    }
}
