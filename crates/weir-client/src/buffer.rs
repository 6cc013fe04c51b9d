//! Received bytes until they form frames.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt};
use weir_wire::{WireError, frame};

/// Bytes from the server, from the first one that no frame has taken yet.
///
/// Shape: `bytes[taken..]` is unread. The part before it goes when a read needs the room.
/// Limits: never more than one frame of the largest size, plus one read.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    /// At most `bytes.len()`.
    taken: usize,
}

impl FrameBuffer {
    /// The body of the next whole frame, if there is one.
    pub(crate) fn next_frame(
        &mut self,
        frame_bytes_max: usize,
    ) -> Result<Option<&[u8]>, WireError> {
        let unread = self.bytes.get(self.taken..).unwrap_or_default();
        match frame::decode(unread, frame_bytes_max)? {
            Some((body, bytes)) => {
                self.taken += bytes;
                Ok(Some(body))
            }
            None => Ok(None),
        }
    }

    /// Whether a part of a frame is here.
    pub(crate) fn holds_bytes(&self) -> bool {
        self.taken < self.bytes.len()
    }

    /// Reads once. 0 means that the peer has closed.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.reserve(READ_BYTES);
        pin!(from.read_buf(&mut self.bytes)).poll(cx)
    }
}

/// Room for one read: some dozens of small messages a syscall, and little memory in a test with
/// thousands of clients.
const READ_BYTES: usize = 4 << 10;
