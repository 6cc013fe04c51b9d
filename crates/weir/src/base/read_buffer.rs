//! Bytes of a connection that has not settled: what it has sent of something that is not whole yet.

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

/// Bytes of a PROXY header, a handshake or a `Hello` that is not complete, counted in the byte budget by their capacity.
///
/// Limits: they are charged to [`Share::Unsettled`] each time when more bytes come.
pub(crate) struct ReadBuffer {
    pub(crate) bytes: Vec<u8>,
    charge: PeerCharge,
}

impl ReadBuffer {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { bytes: Vec::new(), charge: PeerCharge::none(budget, Share::Unsettled) }
    }

    /// From here on the bytes are those of a connection that HTTP is spoken on.
    pub(crate) fn charge_http(&mut self) -> Result<(), CloseReason> {
        self.charge.move_to(Share::Http).map_err(|NoRoom| CloseReason::BudgetExhausted)
    }

    /// Charges as much beside the bytes for what we keep ourselves, as long as the answer lives.
    pub(crate) fn charge_beside(&self, bytes: usize) -> Result<PeerCharge, CloseReason> {
        self.charge.of_ours(bytes).map_err(|NoRoom| CloseReason::BudgetExhausted)
    }

    /// Their charge, for what is kept of their content.
    pub(crate) fn into_charge(self) -> PeerCharge {
        self.charge
    }

    /// Waits for bytes and reads them.
    ///
    /// They are read on the stack, so that the connection owns only what it sent.
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

    /// Takes `more` over, if the budget has room for it.
    pub(crate) fn extend(&mut self, more: &[u8]) -> Result<(), CloseReason> {
        let needed = self.bytes.len() + more.len();
        let charged = self.charge.bytes();
        if needed > charged {
            // A quarter ahead: what is charged is not much more than what was sent, nor are the bytes moved often.
            let capacity = needed.max(charged + charged / 4);
            self.charge.set(capacity).map_err(|NoRoom| CloseReason::BudgetExhausted)?;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }

    /// Forgets the first `count` bytes, of which somebody else keeps what he needs: they stay counted, until [`consume`]
    /// or the end.
    ///
    /// [`consume`]: ReadBuffer::consume
    pub(crate) fn hand_on(&mut self, count: usize) {
        if count < self.bytes.len() {
            self.bytes.drain(..count);
        } else {
            self.bytes = Vec::new();
        }
    }

    /// Forgets the first `count` bytes; with the last ones the memory is given back.
    pub(crate) fn consume(&mut self, count: usize) {
        if count < self.bytes.len() {
            self.bytes.drain(..count);
        } else {
            self.bytes = Vec::new();
            // Nothing is always there.
            let _ = self.charge.set(0);
        }
    }
}

/// How an error of the socket, or of the records on it, is told.
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
