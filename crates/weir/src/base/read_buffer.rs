//! Bytes of an unsettled connection that are not a whole unit yet.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use weir_engine::tls::Violation;
use weir_engine::{Budget, Share};
use weir_wire::CloseReason;

use crate::base::peer_charge::{NoRoom, PeerCharge};

/// Bytes of an incomplete PROXY header, handshake or `Hello`. Their capacity counts in the byte
/// budget.
///
/// Limits: each growth is charged to [`Share::Unsettled`].
pub(crate) struct ReadBuffer {
    pub(crate) bytes: Vec<u8>,
    charge: PeerCharge,
}

impl ReadBuffer {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { bytes: Vec::new(), charge: PeerCharge::none(budget, Share::Unsettled) }
    }

    /// Moves the charge to HTTP's share: from now on the bytes belong to an HTTP connection.
    pub(crate) fn charge_http(&mut self) -> Result<(), CloseReason> {
        self.charge.move_to(Share::Http).map_err(|NoRoom| CloseReason::BudgetExhausted)
    }

    /// Charges further bytes for data of our own, until the result is dropped.
    pub(crate) fn charge_beside(&self, bytes: usize) -> Result<PeerCharge, CloseReason> {
        self.charge.of_ours(bytes).map_err(|NoRoom| CloseReason::BudgetExhausted)
    }

    /// The charge of the bytes, for the kept part of their content.
    pub(crate) fn into_charge(self) -> PeerCharge {
        self.charge
    }

    /// Waits for bytes and reads them.
    ///
    /// The read goes to the stack first, so that the connection owns only the bytes that it sent.
    pub(crate) async fn read_more(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Result<(), CloseReason> {
        poll_fn(|cx| {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            let polled = ready!(Pin::new(&mut *stream).poll_read(cx, &mut read));
            Poll::Ready(match polled {
                Ok(()) if read.filled().is_empty() => Err(CloseReason::PeerClosed),
                Ok(()) => self.extend(read.filled()),
                Err(error) => Err(reason_of(&error)),
            })
        })
        .await
    }

    /// Appends `more`, if the budget has room.
    pub(crate) fn extend(&mut self, more: &[u8]) -> Result<(), CloseReason> {
        let needed = self.bytes.len() + more.len();
        let charged = self.charge.bytes();
        if needed > charged {
            // A quarter ahead: the charge stays close to the sent bytes, and the bytes are seldom
            // moved.
            let capacity = needed.max(charged + charged / 4);
            self.charge.set(capacity).map_err(|NoRoom| CloseReason::BudgetExhausted)?;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }

    /// Removes the first `count` bytes after another owner has copied the part that it needs. They
    /// stay charged until [`consume`] or the end.
    ///
    /// [`consume`]: ReadBuffer::consume
    pub(crate) fn hand_on(&mut self, count: usize) {
        if count < self.bytes.len() {
            self.bytes.drain(..count);
        } else {
            self.bytes = Vec::new();
        }
    }

    /// Removes the first `count` bytes. Removing all frees the memory.
    pub(crate) fn consume(&mut self, count: usize) {
        if count < self.bytes.len() {
            self.bytes.drain(..count);
        } else {
            self.bytes = Vec::new();
            // A charge of zero always succeeds.
            let _ = self.charge.set(0);
        }
    }
}

/// The close reason for an error of a socket, or of its TLS records.
pub(crate) fn reason_of(error: &io::Error) -> CloseReason {
    if error.get_ref().is_some_and(|inner| inner.is::<Violation>()) {
        return CloseReason::TlsRecord;
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that grows")]
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => CloseReason::PeerReset,
        ErrorKind::TimedOut => CloseReason::KernelTimeout,
        ErrorKind::OutOfMemory => CloseReason::BudgetExhausted,
        _ => CloseReason::SocketError,
    }
}

/// A `Hello` with a signed token fits into one read.
pub(crate) const READ_BYTES: usize = 4096;
