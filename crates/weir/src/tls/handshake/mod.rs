//! The handshake with rustls. Its result is a session of our own record layer.
//!
//! ```text
//!             ┌─────── OutOfCredit: more records, please ◀──────┐
//!             ▼                                             │
//!  waiting ─ClientHello whole─▶ running ─record by record─▶ step ──▶ Established: keys, and rustls is gone
//!                                                           └──────▶ Failed: the alert is in `output`
//! ```
//!
//! rustls gets one record at a time. Bytes that it has seen after the last handshake message could
//! not be moved: it would drop an incomplete record, and after a `KeyUpdate` its keys are not those
//! that the peer uses.
//!
//! A failed handshake ends with an alert, unless the peer has ended it. rustls makes most alerts.
//! It makes none for some failures, and for others not the alert that the RFC names. `alert`
//! decides which, and this module makes it.

use std::mem;
use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{
    AlertDescription, CipherSuite, ConnectionTrafficSecrets, Error, ExtractedSecrets,
    HandshakeKind, ServerConfig,
};
use rustls_pki_types::CertificateDer;
use weir_engine::tls::{Cipher, Keys12, Session, Version};

use super::alert::{self, Ending};
use super::failure::failure_of;
use super::hello::{self, ClientHello, Fault, Look, StoredId};
use super::keylog::{TrafficSecrets, capture};
use crate::base::model::Spoken;
use crate::base::read_buffer::ReadBuffer;
use crate::observe::counters::tls::{HandshakeFailure, Kind};

/// One handshake.
///
/// Shape: before the first step the received bytes; afterwards also the state of rustls, some
/// kilobytes.
/// Limits: [`INPUT_BYTES_MAX`] bytes that rustls cannot use yet. The byte budget is charged for the
/// received bytes until the handshake ends: if clients show certificates, rustls keeps all messages
/// until then.
/// Cost: [`Handshake::step`] computes without a pause for up to a millisecond, or as long as a
/// signer takes.
pub(crate) struct Handshake {
    /// Received bytes that are not used yet.
    pub(crate) input: ReadBuffer,
    /// Bytes to send before anything else.
    pub(crate) output: Vec<u8>,
    /// The protocol after the handshake.
    pub(crate) spoken: Spoken,
    /// Whether `output` ends with an alert.
    pub(crate) has_alert: bool,
    /// The alert's code, if it is encrypted and known.
    pub(crate) alert: Option<u8>,
    conn: Option<UnbufferedServerConnection>,
    /// The start in `input` of the record that rustls gets for the first time.
    latest: Option<usize>,
    /// Bytes at the start of `input` that rustls has seen and must see again: an incomplete
    /// message.
    shown: usize,
    secrets: TrafficSecrets,
    hello: ClientHello,
    /// The connection begins with something else than a ClientHello.
    is_without_hello: bool,
}

/// The result of a step.
pub(crate) enum Step {
    /// More records are needed.
    OutOfCredit,
    /// The handshake is done.
    Established(Box<Established>),
    /// The handshake has failed; `output` may contain an alert.
    Failed(HandshakeFailure),
}

/// The result of a handshake, apart from bytes.
pub(crate) struct Established {
    /// The session, ready for use.
    pub(crate) session: Session,
    /// The agreed properties.
    pub(crate) info: Info,
}

/// The agreed properties of a handshake.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) version: Version,
    pub(crate) suite: CipherSuite,
    pub(crate) kind: Kind,
    /// The host that the client asked for.
    pub(crate) server_name: Option<Box<str>>,
    /// The agreed protocol.
    pub(crate) alpn: Option<Box<[u8]>>,
    /// The client's certificates, its own first. A resumed session has those of its first
    /// handshake.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

impl Handshake {
    /// `received` holds the bytes so far.
    pub(crate) fn new(spoken: Spoken, received: ReadBuffer) -> Self {
        Self {
            spoken,
            input: received,
            output: Vec::new(),
            has_alert: false,
            alert: None,
            conn: None,
            latest: None,
            shown: 0,
            secrets: TrafficSecrets::default(),
            hello: ClientHello::default(),
            is_without_hello: false,
        }
    }

    /// The bytes after the handshake.
    pub(crate) fn into_input(mut self) -> ReadBuffer {
        if self.input.bytes.is_empty() {
            self.input.consume(0);
        }
        self.input
    }

    /// Whether a step has been made.
    pub(crate) fn has_begun(&self) -> bool {
        self.conn.is_some()
    }

    /// Whether the next step begins with a ClientHello: the first one, or the second one of a
    /// client that was asked for another key share. Such a step signs.
    pub(crate) fn is_with_hello(&self) -> bool {
        if !self.has_begun() {
            return !self.is_without_hello;
        }
        let mut rest = &self.input.bytes[self.shown..];
        // A change_cipher_spec without a meaning may stand in front of the second one (RFC 8446
        // section 5).
        while rest.first() == Some(&CHANGE_CIPHER_SPEC)
            && let Ok(Some(bytes)) = record_bytes(rest)
            && let Some(next) = rest.get(bytes..)
        {
            rest = next;
        }
        matches!(rest, [HANDSHAKE, _, _, _, _, CLIENT_HELLO, ..])
    }

    /// Whether it claims to resume a session.
    pub(crate) fn is_resumption(&self) -> bool {
        self.hello.is_resumption()
    }

    /// The id of the session that the client wants to resume, if a server may have stored it.
    pub(crate) fn stored_session(&self) -> Option<StoredId> {
        self.hello.stored_session()
    }

    /// Nobody has stored that session: the handshake will be a full one.
    pub(crate) fn set_session_unknown(&mut self) {
        self.hello.set_session_unknown();
    }

    /// Whether a step has enough input: first a complete ClientHello, later a complete record, or
    /// something invalid.
    pub(crate) fn is_ready(&mut self) -> bool {
        if self.has_begun() {
            let rest = self.input.bytes.len() - self.shown;
            return match self.next_record() {
                Ok(bytes) => bytes.is_some_and(|bytes| bytes <= rest),
                Err(_) => true,
            } || self.input.bytes.len() >= INPUT_BYTES_MAX;
        }
        match hello::look(&self.input.bytes) {
            Look::ReadBuffer => false,
            Look::Whole(hello) => {
                self.hello = hello;
                true
            }
            Look::Other => {
                self.is_without_hello = true;
                true
            }
        }
    }

    /// Continues with the received bytes. The first step calls `config` with the client's offer.
    pub(crate) fn step(&mut self, config: impl FnOnce(&ClientHello) -> Arc<ServerConfig>) -> Step {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => match UnbufferedServerConnection::new(config(&self.hello)) {
                Ok(conn) => conn,
                Err(error) => return Step::Failed(failure_of(&error)),
            },
        };
        match self.progress(&mut conn) {
            Ok(Progress::OutOfCredit) if self.input.bytes.len() >= INPUT_BYTES_MAX => {
                let too_long = (HandshakeFailure::TooLong, AlertDescription::DecodeError);
                Step::Failed(self.end(&mut conn, Failure::Guarded(too_long)))
            }
            Ok(Progress::OutOfCredit) => {
                self.conn = Some(conn);
                Step::OutOfCredit
            }
            Ok(Progress::Done) => match self.establish(conn) {
                Ok(established) => Step::Established(Box::new(established)),
                Err(failure) => Step::Failed(failure),
            },
            Err(failure) => Step::Failed(self.end(&mut conn, failure)),
        }
    }

    /// Gives rustls record after record until none is left or the handshake is done.
    fn progress(&mut self, conn: &mut UnbufferedServerConnection) -> Result<Progress, Failure> {
        if let Some(fault) = self.hello.fault {
            let (misbehaved, incompatible) =
                (HandshakeFailure::Misbehaved, HandshakeFailure::Incompatible);
            return Err(Failure::Guarded(match fault {
                Fault::LacksGroups => (incompatible, AlertDescription::MissingExtension),
                Fault::FallenBack => (incompatible, AlertDescription::InappropriateFallback),
                Fault::Renegotiates => (misbehaved, AlertDescription::HandshakeFailure),
            }));
        }
        loop {
            let seen = &mut self.input.bytes[..self.shown];
            let status = capture(&mut self.secrets, || conn.process_tls_records(seen));
            let UnbufferedStatus { discard, state } = status;
            let next = match state {
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    encode(data, &mut self.output).map(|()| Next::Again)
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    Ok(Next::Again)
                }
                Ok(ConnectionState::BlockedHandshake) => Ok(Next::Record),
                Ok(ConnectionState::WriteTraffic(_)) => Ok(Next::Done),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    Err(Failure::Silent(HandshakeFailure::Closed))
                }
                // rustls never gets early data, or data after the handshake.
                Ok(_) => {
                    let early = (HandshakeFailure::Misbehaved, AlertDescription::UnexpectedMessage);
                    Err(Failure::Guarded(early))
                }
                Err(error) => Err(Failure::Rustls(error)),
            };
            let is_empty = self.is_latest_empty();
            self.input.hand_on(discard);
            self.shown -= discard;
            match next {
                Ok(_) | Err(Failure::Rustls(_)) if is_empty => {
                    let empty = (HandshakeFailure::Malformed, AlertDescription::UnexpectedMessage);
                    return Err(Failure::Guarded(empty));
                }
                Ok(Next::Again) => {}
                Ok(Next::Record) => {
                    let rest = self.input.bytes.len() - self.shown;
                    match self.next_record().map_err(Failure::Guarded)? {
                        Some(bytes) if bytes <= rest => {
                            self.latest = Some(self.shown);
                            self.shown += bytes;
                        }
                        Some(_) | None => return Ok(Progress::OutOfCredit),
                    }
                }
                Ok(Next::Done) => return Ok(Progress::Done),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Length of the next record for rustls, once its header is there.
    fn next_record(&self) -> Result<Option<usize>, Guarded> {
        let rest = &self.input.bytes[self.shown..];
        // rustls would report both as records that do not open: a message in plaintext, and a
        // change_cipher_spec within one.
        let is_stray = match rest.first() {
            Some(&HANDSHAKE) => true,
            Some(&CHANGE_CIPHER_SPEC) => self.shown > 0,
            Some(_) | None => false,
        };
        if is_stray && self.is_sealed() {
            return Err((HandshakeFailure::Misbehaved, AlertDescription::UnexpectedMessage));
        }
        record_bytes(rest)
    }

    /// Whether this is TLS 1.3 and the server has answered the ClientHello. From then on all
    /// messages are sealed.
    fn is_sealed(&self) -> bool {
        !self.secrets.server.bytes().is_empty()
    }

    /// Whether the record that rustls has just seen for the first time is sealed and empty.
    fn is_latest_empty(&mut self) -> bool {
        let Some(start) = self.latest.take() else { return false };
        self.is_sealed() && alert::is_empty_inside(&self.input.bytes[start..self.shown])
    }

    /// Appends the alert of a failed handshake to the output.
    fn end(&mut self, conn: &mut UnbufferedServerConnection, failure: Failure) -> HandshakeFailure {
        let (cause, ending) = match failure {
            Failure::Silent(cause) => return cause,
            // An incomplete answer is not sent, so the client still reads plaintext.
            Failure::Rustls(error) if failure_of(&error) == HandshakeFailure::Signer => {
                self.say(conn, AlertDescription::InternalError, 0);
                return HandshakeFailure::Signer;
            }
            Failure::Rustls(error) => (failure_of(&error), Ending::of(&error, &self.hello)),
            Failure::Guarded((cause, alert)) => (cause, Ending::Instead(alert)),
        };
        let start = self.output.len();
        self.take_rest(conn);
        let said = alert::last_alert_bytes(&self.output[start..]);
        self.has_alert = said.is_some();
        match (ending, said) {
            (Ending::Silent, _) => {}
            (Ending::Usual(alert), Some(_)) => {
                // rustls has the same error for a wrong record and a wrong `Finished`, but an alert
                // for each.
                let is_known = alert != AlertDescription::BadRecordMac;
                self.alert = is_known.then_some(alert.into());
            }
            (Ending::Usual(alert), None) => self.say(conn, alert, 0),
            (Ending::Instead(alert), said) => self.say(conn, alert, said.unwrap_or_default()),
        }
        cause
    }

    /// Takes the last output of rustls after a failed handshake.
    fn take_rest(&mut self, conn: &mut UnbufferedServerConnection) {
        while conn.wants_write() {
            let seen = &mut self.input.bytes[..self.shown];
            match conn.process_tls_records(seen).state {
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    if encode(data, &mut self.output).is_err() {
                        return;
                    }
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Appends an alert of ours, in the place of the last `instead_of` bytes of the output.
    ///
    /// In a resumed session of TLS 1.2 the keys are unknown before the end; there the output stays
    /// as it is.
    fn say(
        &mut self,
        conn: &UnbufferedServerConnection,
        alert: AlertDescription,
        instead_of: usize,
    ) {
        let code = u8::from(alert);
        let secret = self.secrets.server.bytes();
        let mut record = Vec::new();
        if self.is_sealed() {
            // The server has sent its `Finished`, and since then at most an alert, which is not
            // sent.
            let cipher = conn.negotiated_cipher_suite().and_then(|suite| cipher_of(suite.suite()));
            let session =
                cipher.and_then(|cipher| Session::tls13(cipher, (secret, 0), (secret, 0)));
            let Some(mut session) = session else { return };
            session.seal_fatal(code, &mut record);
        } else if conn.handshake_kind() == Some(HandshakeKind::Resumed) {
            return;
        } else {
            record.extend([ALERT, 3, 3, 0, 2, 2, code]);
        }
        self.output.truncate(self.output.len() - instead_of);
        self.output.extend(record);
        (self.has_alert, self.alert) = (true, Some(code));
    }

    /// Takes the keys out of rustls and drops the rest.
    fn establish(
        &mut self,
        conn: UnbufferedServerConnection,
    ) -> Result<Established, HandshakeFailure> {
        let secrets = mem::take(&mut self.secrets);
        if self.shown != 0 || conn.is_handshaking() {
            return Err(HandshakeFailure::NotMovable);
        }
        let Some(suite) = conn.negotiated_cipher_suite() else {
            return Err(HandshakeFailure::NotMovable);
        };
        let version = if suite.tls13().is_some() { Version::Tls13 } else { Version::Tls12 };
        let info = Info {
            version,
            suite: suite.suite(),
            kind: self.kind(version, conn.handshake_kind()),
            server_name: self.hello.server_name.take(),
            alpn: conn.alpn_protocol().map(Box::from),
            certificates: conn.peer_certificates().unwrap_or_default().to_vec(),
        };
        let extracted = conn.dangerous_into_kernel_connection();
        let (extracted, _) = extracted.map_err(|_| HandshakeFailure::NotMovable)?;
        let session = session(version, &extracted, &secrets);
        Ok(Established { session: session.ok_or(HandshakeFailure::NotMovable)?, info })
    }

    fn kind(&self, version: Version, kind: Option<HandshakeKind>) -> Kind {
        match (kind, version) {
            (Some(HandshakeKind::Resumed), Version::Tls13) => Kind::Ticket,
            (Some(HandshakeKind::Resumed), Version::Tls12) if self.hello.has_ticket => Kind::Ticket,
            (Some(HandshakeKind::Resumed), Version::Tls12) => Kind::SessionId,
            (Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None, _) => {
                Kind::Full
            }
        }
    }
}

/// The reason why a handshake cannot go on.
enum Failure {
    /// An error that rustls finds.
    Rustls(Error),
    /// An error that rustls does not find, or does not see.
    Guarded(Guarded),
    /// An end that needs no alert.
    Silent(HandshakeFailure),
}

/// The cause, and the alert.
type Guarded = (HandshakeFailure, AlertDescription);

enum Progress {
    OutOfCredit,
    Done,
}

enum Next {
    Again,
    Record,
    Done,
}

/// Length of the record at the start of `bytes`, once its header is there. For anything that is no
/// record of a handshake: all bytes, so that rustls reports the error.
fn record_bytes(bytes: &[u8]) -> Result<Option<usize>, Guarded> {
    let Some(([kind, major, _, high, low], _)) = bytes.split_first_chunk::<5>() else {
        return Ok(None);
    };
    if !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(kind) || *major != 3 {
        return Ok(Some(bytes.len()));
    }
    let content = usize::from(u16::from_be_bytes([*high, *low]));
    match alert::of_header(*kind, content) {
        Some(alert) => Err((HandshakeFailure::Malformed, alert)),
        None => Ok(Some(5 + content)),
    }
}

fn encode<T>(mut data: EncodeTlsData<'_, T>, output: &mut Vec<u8>) -> Result<(), Failure> {
    let Err(EncodeError::InsufficientSize(missing)) = data.encode(&mut []) else { return Ok(()) };
    let start = output.len();
    output.resize(start + missing.required_size, 0);
    match data.encode(&mut output[start..]) {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::Silent(HandshakeFailure::Internal)),
    }
}

/// The session that continues where rustls stopped; `None` if the extracted parts do not match.
fn session(
    version: Version,
    extracted: &ExtractedSecrets,
    secrets: &TrafficSecrets,
) -> Option<Session> {
    let (send_sequence, ref send) = extracted.tx;
    let (receive_sequence, ref receive) = extracted.rx;
    let (send_cipher, send) = keys(send)?;
    let (receive_cipher, receive) = keys(receive)?;
    if send_cipher != receive_cipher {
        return None;
    }
    match version {
        Version::Tls12 => {
            Session::tls12(send_cipher, (send, send_sequence), (receive, receive_sequence))
        }
        Version::Tls13 => {
            let is_same = secrets.server.makes(send.key, send.iv)
                && secrets.client.makes(receive.key, receive.iv);
            if !is_same {
                return None;
            }
            let send = (secrets.server.bytes(), send_sequence);
            Session::tls13(send_cipher, send, (secrets.client.bytes(), receive_sequence))
        }
    }
}

/// Of TLS 1.3.
fn cipher_of(suite: CipherSuite) -> Option<Cipher> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "suites of other versions")]
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Cipher::Aes128Gcm),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Cipher::Aes256Gcm),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Cipher::ChaCha20Poly1305),
        _ => None,
    }
}

fn keys(secrets: &ConnectionTrafficSecrets) -> Option<(Cipher, Keys12<'_>)> {
    let (cipher, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Cipher::ChaCha20Poly1305, key, iv)
        }
        _ => return None,
    };
    Some((cipher, Keys12 { key: key.as_ref(), iv: iv.as_ref() }))
}

/// For long client certificates rustls accepts messages of up to 64 KiB. Their records have headers
/// in addition.
const INPUT_BYTES_MAX: usize = 80 * 1024;
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const CLIENT_HELLO: u8 = 1;

#[cfg(test)]
mod tests;
