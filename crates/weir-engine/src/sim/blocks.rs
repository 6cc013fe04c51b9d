//! The pool of blocks by itself, for its benchmark.

use crate::pool::{Block, Pool};
use crate::time::Tick;

/// The pool of a shard.
#[derive(Debug, Default)]
pub struct Blocks(Pool);

/// A block taken from it.
#[derive(Debug)]
pub struct PooledBlock(Box<Block>);

impl Blocks {
    /// Takes a block that holds `bytes`.
    pub fn take(&mut self, bytes: &[u8]) -> PooledBlock {
        PooledBlock(self.0.take(bytes, Tick(0)))
    }

    /// Gives a block back.
    pub fn give(&mut self, block: PooledBlock) {
        self.0.give(block.0);
    }
}

impl PooledBlock {
    /// The bytes in the block.
    pub fn filled(&self) -> &[u8] {
        self.0.filled()
    }
}
