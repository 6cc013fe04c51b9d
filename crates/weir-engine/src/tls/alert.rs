//! Alerts: the messages by which one side ends a TLS connection, or asks for something.

use super::protocol::Version;

/// A violation by a peer. It ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct Violation {
    /// The alert for the peer (RFC 8446 section 6); `None` if the peer has sent a fatal alert
    /// itself.
    pub alert: Option<Alert>,
    /// The action of the peer.
    pub cause: &'static str,
}

/// The alerts that we send (RFC 8446 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Alert {
    /// The sender will send nothing more.
    CloseNotify = 0,
    /// A record or message that is not allowed at this point.
    UnexpectedMessage = 10,
    /// A record that does not open.
    BadRecordMac = 20,
    /// A record longer than the limit.
    RecordOverflow = 22,
    /// A handshake message that cannot be read.
    DecodeError = 50,
    /// A value that is not allowed.
    IllegalParameter = 47,
    /// A fault of our own.
    InternalError = 80,
    /// TLS 1.2: no second handshake. This is a warning, and the connection continues.
    NoRenegotiation = 100,
}

impl Alert {
    /// Whether nothing may follow the alert.
    pub(super) fn is_last(self) -> bool {
        self != Alert::NoRenegotiation
    }

    /// The bytes of the alert: level and description.
    pub(super) fn encode(self) -> [u8; ALERT_BYTES] {
        let level = match self {
            Alert::CloseNotify | Alert::NoRenegotiation => WARNING,
            Alert::UnexpectedMessage
            | Alert::BadRecordMac
            | Alert::RecordOverflow
            | Alert::DecodeError
            | Alert::IllegalParameter
            | Alert::InternalError => FATAL,
        };
        [level, self as u8]
    }
}

impl Violation {
    pub(super) fn new(alert: Alert, cause: &'static str) -> Violation {
        Violation { alert: Some(alert), cause }
    }

    pub(super) fn unexpected(cause: &'static str) -> Violation {
        Violation::new(Alert::UnexpectedMessage, cause)
    }
}

/// The meaning of an alert from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// The peer will send nothing more.
    End,
    /// Nothing. The connection continues.
    Nothing,
}

/// Reads the content of an alert record.
pub(super) fn read(version: Version, content: &[u8]) -> Result<Heard, Violation> {
    let &[level, description] = content else {
        // RFC 8446 section 5.1: alerts are neither cut nor several in one record. TLS 1.2 permits
        // that, but no implementation does it.
        return Err(Violation::new(Alert::DecodeError, "an alert that is not of two bytes"));
    };
    let fatal = Violation { alert: None, cause: "the peer has sent a fatal alert" };
    match (description, version) {
        (CLOSE_NOTIFY, _) => Ok(Heard::End),
        (USER_CANCELED, Version::Tls13) => Ok(Heard::Nothing),
        // RFC 8446 section 6: all other alerts are errors, whatever their level.
        (_, Version::Tls13) => Err(fatal),
        (_, Version::Tls12) => match level {
            WARNING => Ok(Heard::Nothing),
            FATAL => Err(fatal),
            _ => Err(Violation::new(Alert::IllegalParameter, "an alert of no level")),
        },
    }
}

/// Bytes of an alert.
pub(super) const ALERT_BYTES: usize = 2;

const WARNING: u8 = 1;
pub(super) const FATAL: u8 = 2;

const CLOSE_NOTIFY: u8 = Alert::CloseNotify as u8;
const USER_CANCELED: u8 = 90;
