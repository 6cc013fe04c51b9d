//! The alert that ends a failed handshake.
//!
//! A peer that breaks the rules is told why. Every failure of a handshake has its alert here,
//! unless the peer sent one itself. rustls makes most of them. It makes none for some failures, and
//! for others not the alert that the RFC names; then ours takes its place.

use rustls::{AlertDescription, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved};

use super::hello::ClientHello;

/// The alert for an error of rustls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Only the output of rustls: the peer has sent an alert itself.
    Silent,
    /// The alert of rustls, or this one if rustls makes none.
    Usual(AlertDescription),
    /// This alert, whatever rustls makes.
    Instead(AlertDescription),
}

impl Ending {
    /// `hello` is the client's first one.
    pub(super) fn of(error: &Error, hello: &ClientHello) -> Ending {
        use AlertDescription as Alert;
        #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that grows")]
        match error {
            Error::AlertReceived(_) => Ending::Silent,
            // RFC 8446 section 5.4; records in plaintext are treated alike.
            Error::InvalidMessage(InvalidMessage::InvalidEmptyPayload) => {
                Ending::Instead(Alert::UnexpectedMessage)
            }
            Error::InvalidMessage(message) => Ending::Usual(Alert::from(*message)),
            // RFC 8446 section 9.2: a hello without a pre-shared key needs both.
            Error::PeerIncompatible(
                PeerIncompatible::KeyShareExtensionRequired
                | PeerIncompatible::SignatureAlgorithmsExtensionRequired,
            ) if hello.offers_tls13 && !hello.has_psk => Ending::Instead(Alert::MissingExtension),
            Error::PeerIncompatible(_) => Ending::Usual(Alert::HandshakeFailure),
            Error::PeerMisbehaved(PeerMisbehaved::ServerNameDifferedOnRetry) => {
                Ending::Usual(Alert::IllegalParameter)
            }
            Error::PeerMisbehaved(PeerMisbehaved::UnsolicitedCertExtension) => {
                Ending::Usual(Alert::UnsupportedExtension)
            }
            Error::PeerMisbehaved(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. } => {
                Ending::Usual(Alert::UnexpectedMessage)
            }
            Error::PeerSentOversizedRecord => Ending::Usual(Alert::RecordOverflow),
            Error::DecryptError => Ending::Usual(Alert::BadRecordMac),
            Error::InvalidCertificate(error) => Ending::Usual(Alert::from(error.clone())),
            Error::NoCertificatesPresented => Ending::Usual(Alert::CertificateRequired),
            Error::NoApplicationProtocol => Ending::Usual(Alert::NoApplicationProtocol),
            _ => Ending::Usual(Alert::InternalError),
        }
    }
}

/// The alert for a record that no handshake may have, judged by its header. rustls does not see it.
///
/// RFC 8446 section 5.1: plaintext has at most 2^14 bytes, and records of handshake and alert are
/// never empty. In TLS 1.2 the sealed record before the end of a handshake is a `Finished`, which
/// is far shorter.
pub(super) fn of_header(kind: u8, bytes: usize) -> Option<AlertDescription> {
    let (bytes_min, bytes_max) = match kind {
        CHANGE_CIPHER_SPEC..=HANDSHAKE => (1, PLAINTEXT_BYTES_MAX),
        _ => (0, PLAINTEXT_BYTES_MAX + SEALED_BYTES_MORE),
    };
    if bytes < bytes_min {
        Some(AlertDescription::UnexpectedMessage)
    } else if bytes > bytes_max {
        Some(AlertDescription::RecordOverflow)
    } else {
        None
    }
}

/// Whether a sealed record of TLS 1.3 has no content. rustls has opened it in place: the text is
/// the type, followed by zeros (RFC 8446 section 5.2).
///
/// An unopened record looks like this only by chance.
pub(super) fn is_empty_inside(record: &[u8]) -> bool {
    let Some((text, _tag)) = record.get(HEADER_BYTES..).and_then(<[u8]>::split_last_chunk::<16>)
    else {
        return false;
    };
    record[0] == APPLICATION_DATA && text.iter().rposition(|byte| *byte != 0) == Some(0)
}

/// Length of the alert at the end of `records`; `None` if they end with something else.
pub(super) fn last_alert_bytes(mut records: &[u8]) -> Option<usize> {
    let mut found = None;
    while let Some(([kind, _, _, high, low], rest)) = records.split_first_chunk::<HEADER_BYTES>() {
        let bytes = usize::from(u16::from_be_bytes([*high, *low]));
        // In TLS 1.3 an alert is a record of two bytes, a type and a tag. No other record of a
        // server is as short.
        let is_alert = *kind == ALERT || (*kind == APPLICATION_DATA && bytes == 2 + 1 + 16);
        found = is_alert.then_some(HEADER_BYTES + bytes);
        records = rest.get(bytes..)?;
    }
    found
}

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const HEADER_BYTES: usize = 5;
const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// RFC 8446 section 5.2.
const SEALED_BYTES_MORE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_no_handshake_has() {
        let check = |kind, bytes, expected| {
            assert_eq!(of_header(kind, bytes), expected, "{kind} {bytes}");
        };
        for kind in [20, 21, 22] {
            check(kind, 0, Some(AlertDescription::UnexpectedMessage));
            check(kind, 1, None);
            check(kind, 16_384, None);
            check(kind, 16_385, Some(AlertDescription::RecordOverflow));
        }
        check(23, 0, None);
        check(23, 16_640, None);
        check(23, 16_641, Some(AlertDescription::RecordOverflow));
    }

    #[test]
    fn records_without_content() {
        let check = |kind, text: &[u8], expected| {
            let record = [&[kind, 3, 3, 0, 0], text, &[7; 16]].concat();
            assert_eq!(is_empty_inside(&record), expected, "{record:?}");
        };
        check(23, &[21], true);
        check(23, &[22, 0, 0], true);
        check(23, &[1, 21], false);
        check(23, &[0, 21], false);
        check(23, &[0, 0], false);
        check(23, &[], false);
        check(22, &[21], false);
        assert!(!is_empty_inside(&[23, 3, 3, 0, 1, 21]));
    }

    #[test]
    fn the_last_record_is_an_alert() {
        let (flight, alert) = ([22, 3, 3, 0, 2, 1, 1], [21, 3, 3, 0, 2, 2, 40]);
        let sealed = [&[23, 3, 3, 0, 19][..], &[7; 19]].concat();
        assert_eq!(last_alert_bytes(&[]), None);
        assert_eq!(last_alert_bytes(&flight), None);
        assert_eq!(last_alert_bytes(&[flight, alert].concat()), Some(7));
        assert_eq!(last_alert_bytes(&[alert, flight].concat()), None);
        assert_eq!(last_alert_bytes(&[&flight, sealed.as_slice()].concat()), Some(24));
        assert_eq!(last_alert_bytes(&alert[..6]), None);
    }
}
