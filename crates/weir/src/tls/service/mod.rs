//! The service that listeners with TLS use: the current configuration and the queue of handshakes.

use std::future::pending;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tracing::debug;
use weir_engine::Footprint;
use weir_wire::CloseReason;

use super::contexts::H2;
use super::handshake::{Handshake, Info, Step};
use super::keylog::Capture;
use super::pool::{NotStepped, Pool};
use super::signing::SigningKeys;
use super::stream::Stream;
use super::{Contexts, TlsError};
use crate::base::config::Config;
use crate::base::deadline::Deadline;
use crate::base::model::Spoken;
use crate::base::read_buffer::{ReadBuffer, reason_of};
use crate::base::workers::Workers;
use crate::observe::counters::Counters;
use crate::observe::counters::tls::{HandshakeFailure, SessionLookup};

/// Makes handshakes.
pub(crate) struct Service {
    contexts: Arc<Contexts>,
    pool: Pool,
    counters: Arc<Counters>,
}

/// The result of a handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Secured {
    /// The device that the client's certificate names.
    pub(crate) identity: Option<String>,
    /// Whether HTTP/2 was agreed.
    pub(crate) is_h2: bool,
}

/// The reason why a connection was not secured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotSecured {
    /// The peer left, was too slow, or failed. If there was an alert, it has been sent.
    Closed(CloseReason),
    /// Too many handshakes wait, or this one has waited too long.
    Refused,
}

impl Service {
    /// Reads the files of `[tls]`. Handshakes run on `workers`.
    ///
    /// Errors: a file that cannot be used.
    pub(crate) fn start(
        config: &Config,
        workers: &Workers,
        signing_keys: Option<Box<SigningKeys>>,
        counters: Arc<Counters>,
    ) -> Result<Service, TlsError> {
        let may_block = signing_keys.is_some();
        let contexts = Arc::new(Contexts::new(config, Arc::new(Capture), signing_keys)?);
        let current = Arc::clone(&contexts);
        let step = move |handshake: &mut Handshake| {
            let spoken = handshake.spoken;
            handshake
                .step(|hello| current.current(spoken, hello.is_chacha_first, hello.takes_tickets))
        };
        let waiting_max = config.tls.handshake_queue_max;
        let pool = Pool::start(workers, may_block, waiting_max, Arc::clone(&counters), step);
        Ok(Service { contexts, pool, counters })
    }

    pub(crate) fn contexts(&self) -> &Arc<Contexts> {
        &self.contexts
    }

    /// Stored sessions, and handshakes that wait for their turn.
    pub(crate) fn memory(&self) -> (Footprint, Footprint) {
        (self.contexts.sessions().footprint(), self.pool.footprint())
    }

    /// Makes the handshake; afterwards the stream is secured.
    ///
    /// `spoken` is the protocol after it, and `received` holds the bytes so far. The peer's time
    /// stands still while the handshake waits for its turn. That wait has the same limit again.
    pub(crate) async fn secure(
        &self,
        stream: &mut Stream,
        spoken: Spoken,
        received: ReadBuffer,
        deadline: &mut Deadline,
    ) -> Result<Secured, NotSecured> {
        let handshake = Box::new(Handshake::new(spoken, received));
        let secured = self.shake_hands(stream, handshake, deadline).await;
        match &secured {
            Ok(info) => {
                self.counters.tls.count_handshake(info.suite, info.kind);
                let Info { version, suite, kind, server_name, alpn, .. } = info;
                debug!(?version, ?suite, ?kind, ?server_name, ?alpn, "TLS handshake done");
            }
            Err(NotSecured::Closed(CloseReason::HelloTimeout)) => {
                self.counters.tls.count_failed(HandshakeFailure::TimedOut);
            }
            Err(NotSecured::Closed(
                CloseReason::PeerClosed
                | CloseReason::PeerReset
                | CloseReason::KernelTimeout
                | CloseReason::SocketError,
            )) => {
                self.counters.tls.count_failed(HandshakeFailure::Closed);
            }
            // These are counted at their cause.
            Err(NotSecured::Closed(_) | NotSecured::Refused) => {}
        }
        let info = secured?;
        let identity = self.contexts.identity(&info.certificates).map_err(|error| {
            debug!(%error, "a client's certificate names no device");
            NotSecured::Closed(CloseReason::Unauthorized)
        })?;
        Ok(Secured { identity, is_h2: info.alpn.is_some_and(|alpn| *alpn == *H2) })
    }

    async fn shake_hands(
        &self,
        stream: &mut Stream,
        mut handshake: Box<Handshake>,
        deadline: &mut Deadline,
    ) -> Result<Info, NotSecured> {
        // Held as long as the handshake, from its complete ClientHello on.
        let mut state = None;
        loop {
            while !handshake.is_ready() {
                let read = deadline.within(handshake.input.read_more(stream)).await;
                read.and_then(|read| read).map_err(NotSecured::Closed)?;
            }
            if state.is_none() {
                let charged = handshake.input.charge_beside(STATE_BYTES);
                state = Some(charged.map_err(NotSecured::Closed)?);
                self.fetch_session(&mut handshake, deadline).await;
            }
            let (returned, step) = self.step(stream, handshake, deadline).await?;
            handshake = returned;
            let output = std::mem::take(&mut handshake.output);
            if let Step::Failed(failure) = step {
                if handshake.has_alert {
                    self.counters.tls.count_last_alert(&output, handshake.alert);
                }
                // Counted first, because the peer may be gone already.
                let failed = self.failed(failure);
                let _ = deadline.within(stream.write_all(&output)).await;
                return Err(failed);
            }
            // The output contains tickets, so it must leave before anything else.
            let sent = deadline.within(stream.write_all(&output)).await;
            sent.and_then(|sent| sent.map_err(|error| reason_of(&error)))
                .map_err(NotSecured::Closed)?;
            if let Step::Established(established) = step {
                stream.secure(established.session, handshake.into_input(), &self.counters);
                return Ok(established.info);
            }
        }
    }

    /// Fetches the session that the client wants to resume, if another node may have stored it.
    async fn fetch_session(&self, handshake: &mut Handshake, deadline: &mut Deadline) {
        let Some(id) = handshake.stored_session() else { return };
        let sessions = self.contexts.sessions();
        let Ok(Some(result)) = deadline.suspend(sessions.fetch(&id)).await else { return };
        self.counters.tls.count_session_lookup(result);
        if matches!(result, SessionLookup::Miss | SessionLookup::Unreadable) {
            // It waits with the full handshakes.
            handshake.set_session_unknown();
        }
    }

    /// Makes one step, unless the peer has left meanwhile, or the step has waited too long.
    async fn step(
        &self,
        stream: &Stream,
        handshake: Box<Handshake>,
        deadline: &mut Deadline,
    ) -> Result<(Box<Handshake>, Step), NotSecured> {
        // After its ClientHello a client waits for an answer. After its last message it may close
        // at once.
        let is_waiting = !handshake.has_begun();
        let stepped = async {
            tokio::select! {
                // A step without a queue is made at once, even if the peer has closed after its
                // last message.
                biased;
                stepped = self.pool.step(handshake) => Ok(stepped),
                reason = gone(stream.socket()), if is_waiting => Err(reason),
            }
        };
        match deadline.suspend(stepped).await {
            Ok(Ok(Ok(stepped))) => Ok(stepped),
            Ok(Ok(Err(NotStepped::Full))) => Err(NotSecured::Refused),
            Ok(Ok(Err(NotStepped::Failed))) => Err(self.failed(HandshakeFailure::Internal)),
            Ok(Err(reason)) => Err(NotSecured::Closed(reason)),
            // The peer is not at fault.
            Err(_) => {
                self.counters.tls.count_refused();
                Err(NotSecured::Refused)
            }
        }
    }

    fn failed(&self, failure: HandshakeFailure) -> NotSecured {
        self.counters.tls.count_failed(failure);
        NotSecured::Closed(match failure {
            HandshakeFailure::Internal
            | HandshakeFailure::NotMovable
            | HandshakeFailure::Signer => CloseReason::Internal,
            HandshakeFailure::Malformed
            | HandshakeFailure::Incompatible
            | HandshakeFailure::NoProtocol
            | HandshakeFailure::Certificate
            | HandshakeFailure::NoCertificate
            | HandshakeFailure::AlertReceived
            | HandshakeFailure::Misbehaved
            | HandshakeFailure::Decrypt
            | HandshakeFailure::Closed
            | HandshakeFailure::TimedOut
            | HandshakeFailure::TooLong => CloseReason::TlsHandshake,
        })
    }
}

/// Waits until the peer has closed its side. Unread bytes in front of the close hide it.
async fn gone(socket: &TcpStream) -> CloseReason {
    match socket.peek(&mut [0]).await {
        Ok(0) => CloseReason::PeerClosed,
        Ok(_) => pending().await,
        Err(error) => reason_of(&error),
    }
}

/// The memory of rustls between ClientHello and the client's last message. Measured with 2,000
/// handshakes, a connection costs 7.3 KB then, and 2.9 KB before. Further messages are charged as
/// they come.
const STATE_BYTES: usize = 4608;

#[cfg(test)]
mod tests;
