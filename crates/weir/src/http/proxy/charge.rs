//! The memory of a request on its way to an upstream and back, charged to HTTP's share.

use std::sync::Arc;

use weir_engine::{Budget, Share};

/// The memory of one request.
///
/// Limits: [`SMALL_BYTES`] for heads and small bodies. With the first piece above [`PIECE_BYTES`] a
/// direction takes [`LARGE_BYTES`]: the buffers between two sockets hold no more, whatever the length
/// of a body.
#[derive(Debug)]
pub(super) struct ProxyCharge {
    budget: Arc<Budget>,
    bytes: usize,
}

/// HTTP's share has no room.
#[derive(Debug)]
pub(super) struct NoRoom;

impl ProxyCharge {
    pub(super) fn take(budget: &Arc<Budget>) -> Result<ProxyCharge, NoRoom> {
        match budget.take(Share::Http, SMALL_BYTES) {
            true => Ok(ProxyCharge { budget: Arc::clone(budget), bytes: SMALL_BYTES }),
            false => Err(NoRoom),
        }
    }

    /// The charge of the other direction, whose first bytes this one covers.
    pub(super) fn begin_other(&self) -> ProxyCharge {
        ProxyCharge { budget: Arc::clone(&self.budget), bytes: 0 }
    }

    /// Notes that a piece of a body passes.
    pub(super) fn pass(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes <= PIECE_BYTES || self.bytes == LARGE_BYTES {
            return Ok(());
        }
        if !self.budget.take(Share::Http, LARGE_BYTES - self.bytes) {
            return Err(NoRoom);
        }
        self.bytes = LARGE_BYTES;
        Ok(())
    }
}

impl Drop for ProxyCharge {
    fn drop(&mut self) {
        self.budget.give(Share::Http, self.bytes);
    }
}

/// Heads, and a piece on either side.
const SMALL_BYTES: usize = 16 * 1024;
/// Smaller pieces belong to the usual cost of a request.
const PIECE_BYTES: usize = 8 * 1024;
/// The read buffer of one side and the piece that left it last, of 64 KiB each.
const LARGE_BYTES: usize = 128 * 1024;
