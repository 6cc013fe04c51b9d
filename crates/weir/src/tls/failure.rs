//! Why a handshake failed, from what the TLS library says.

use rustls::Error;

use super::signing::SignerFailed;
use crate::observe::counters::tls::HandshakeFailure;

/// The cause that is counted for an error of the library.
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
