//! What a listener with TLS needs: the configuration of the day, and the queue of handshakes.

use std::future::pending;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tracing::debug;
use weir_wire::CloseReason;

use super::counts::HandshakeFailure;
use super::handshake::{Handshake, Info, Step};
use super::keylog::Capture;
use super::pool::{NotStepped, Pool};
use super::signing::SigningKeys;
use super::stream::Stream;
use super::{Contexts, TlsError};
use crate::config::Config;
use crate::counters::Counters;
use crate::partial::{Partial, reason_of};
use crate::patience::Patience;
use crate::workers::Workers;

/// Makes handshakes.
pub(crate) struct Service {
    contexts: Arc<Contexts>,
    pool: Pool,
    counters: Arc<Counters>,
}

/// Why a connection was not secured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotSecured {
    /// The peer went away, was too slow, or failed; if there was an alert to send, it is sent.
    Closed(CloseReason),
    /// Too many handshakes wait, or this one has waited too long.
    Refused,
}

impl Service {
    /// Reads what `[tls]` names; handshakes are made on `workers`.
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
            handshake.step(|hello| current.current(hello.is_chacha_first, hello.takes_tickets))
        };
        let waiting_max = config.tls.handshake_queue_max;
        let pool = Pool::start(workers, may_block, waiting_max, Arc::clone(&counters), step);
        Ok(Service { contexts, pool, counters })
    }

    pub(crate) fn contexts(&self) -> &Arc<Contexts> {
        &self.contexts
    }

    /// Makes the handshake: from here on the stream is secured. Returns the device that the client's certificate names.
    ///
    /// `received`: what has come so far. The peer's time does not run while the handshake waits for its turn, which ends
    /// by itself after as long again.
    pub(crate) async fn secure(
        &self,
        stream: &mut Stream,
        received: Partial,
        patience: &mut Patience,
    ) -> Result<Option<String>, NotSecured> {
        let secured = self.shake_hands(stream, received, patience).await;
        match &secured {
            Ok(info) => {
                self.counters.tls.count_handshake(info);
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
            // Counted where it is known why.
            Err(NotSecured::Closed(_) | NotSecured::Refused) => {}
        }
        let identity = self.contexts.identity(&secured?.certificates);
        identity.map_err(|error| {
            debug!(%error, "a client's certificate names no device");
            NotSecured::Closed(CloseReason::Unauthorized)
        })
    }

    async fn shake_hands(
        &self,
        stream: &mut Stream,
        received: Partial,
        patience: &mut Patience,
    ) -> Result<Info, NotSecured> {
        let mut handshake = Box::new(Handshake::new(received));
        loop {
            while !handshake.is_ready() {
                let read = patience.within(handshake.input.read_more(stream)).await;
                read.and_then(|read| read).map_err(NotSecured::Closed)?;
            }
            let (returned, step) = self.step(stream, handshake, patience).await?;
            handshake = returned;
            let output = std::mem::take(&mut handshake.output);
            if let Step::Failed(failure) = step {
                if handshake.has_alert {
                    self.counters.tls.count_last_alert(&output, handshake.alert);
                }
                // Counted before the peer, which may be gone already, hears of it.
                let failed = self.failed(failure);
                let _ = patience.within(stream.write_all(&output)).await;
                return Err(failed);
            }
            // Tickets are in it: nothing else is sent before them.
            let sent = patience.within(stream.write_all(&output)).await;
            sent.and_then(|sent| sent.map_err(|error| reason_of(&error)))
                .map_err(NotSecured::Closed)?;
            if let Step::Established(established) = step {
                stream.secure(established.session, handshake.into_input(), &self.counters);
                return Ok(established.info);
            }
        }
    }

    /// Has one step made, if that is worth it: whoever has gone away meanwhile, or has waited for as long as it may take
    /// by itself, gets none.
    async fn step(
        &self,
        stream: &Stream,
        handshake: Box<Handshake>,
        patience: &mut Patience,
    ) -> Result<(Box<Handshake>, Step), NotSecured> {
        // Behind its ClientHello a client waits; behind its last message it may have said all it wanted to say.
        let is_waiting = !handshake.has_begun();
        let stepped = async {
            tokio::select! {
                // What needs no turn is made at once, though the peer may have gone behind its last word.
                biased;
                stepped = self.pool.step(handshake) => Ok(stepped),
                reason = gone(stream.socket()), if is_waiting => Err(reason),
            }
        };
        match patience.suspend(stepped).await {
            Ok(Ok(Ok(stepped))) => Ok(stepped),
            Ok(Ok(Err(NotStepped::Full))) => Err(NotSecured::Refused),
            Ok(Ok(Err(NotStepped::Failed))) => Err(self.failed(HandshakeFailure::Internal)),
            Ok(Err(reason)) => Err(NotSecured::Closed(reason)),
            // The fault is not the peer's.
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

/// Waits until the peer has closed its side, as far as that shows: not behind bytes that nobody reads.
async fn gone(socket: &TcpStream) -> CloseReason {
    match socket.peek(&mut [0]).await {
        Ok(0) => CloseReason::PeerClosed,
        Ok(_) => pending().await,
        Err(error) => reason_of(&error),
    }
}

#[cfg(test)]
mod tests;
