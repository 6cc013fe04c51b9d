//! The causes of failed handshakes, derived from errors of rustls.

use rustls::Error;

use super::signing::SignerFailed;
use crate::observe::counters::tls::HandshakeFailure;

/// The cause under which an error of rustls is counted.
pub(super) fn failure_of(error: &Error) -> HandshakeFailure {
    #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that grows")]
    match error {
        Error::InvalidMessage(_) | Error::PeerSentOversizedRecord => HandshakeFailure::Malformed,
        Error::PeerIncompatible(_) => HandshakeFailure::Incompatible,
        Error::NoApplicationProtocol => HandshakeFailure::NoProtocol,
        Error::InvalidCertificate(_) | Error::InvalidCertRevocationList(_) => {
            HandshakeFailure::Certificate
        }
        Error::NoCertificatesPresented => HandshakeFailure::NoCertificate,
        Error::AlertReceived(_) => HandshakeFailure::AlertReceived,
        Error::PeerMisbehaved(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. } => HandshakeFailure::Misbehaved,
        Error::DecryptError => HandshakeFailure::Decrypt,
        Error::Other(error) if SignerFailed::is(error) => HandshakeFailure::Signer,
        _ => HandshakeFailure::Internal,
    }
}
