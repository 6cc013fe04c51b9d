//! The handshake, by rustls; what it leaves is a session of our own record layer.
//!
//! ```text
//!             ┌─────── Starved: more records, please ◀──────┐
//!             ▼                                             │
//!  waiting ─ClientHello whole─▶ running ─record by record─▶ step ──▶ Established: keys, and rustls is gone
//!                                                           └──────▶ Failed: the alert is in `output`
//! ```
//!
//! rustls is shown one record at a time, for what it has seen behind the last handshake message cannot be moved: it
//! would throw a partial record away, and after a `KeyUpdate` its keys are not those that the peer uses.

use std::mem;
use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{
    CipherSuite, ConnectionTrafficSecrets, ExtractedSecrets, HandshakeKind, ServerConfig,
};
use rustls_pki_types::CertificateDer;
use weir_engine::tls::{Cipher, Keys12, Session, Version};

use super::counts::{self, HandshakeFailure, Kind};
use super::hello::{self, ClientHello, Look};
use super::keylog::{TrafficSecrets, capture};
use crate::listener::Spoken;
use crate::partial::Partial;

/// One handshake.
///
/// Shape: before the first step the bytes received, afterwards rustls' state besides, some kilobytes.
/// Limits: [`INPUT_BYTES_MAX`] bytes that rustls cannot use yet. The budget is charged for as many as there have been,
/// until it ends: where clients show certificates, rustls keeps all messages until then.
/// Cost: [`Handshake::step`] computes for up to a millisecond, or as long as a signer takes, without a pause.
pub(crate) struct Handshake {
    /// Received, and not used yet.
    pub(crate) input: Partial,
    /// To be sent, before anything else.
    pub(crate) output: Vec<u8>,
    /// What is spoken behind it.
    pub(crate) spoken: Spoken,
    /// Whether `output` ends with an alert.
    pub(crate) has_alert: bool,
    /// Its code, where it is encrypted and known.
    pub(crate) alert: Option<u8>,
    conn: Option<UnbufferedServerConnection>,
    /// Bytes at the beginning of `input` that rustls has seen and wants to see again: a message that is not whole.
    shown: usize,
    secrets: TrafficSecrets,
    hello: ClientHello,
    /// It begins with something else.
    is_without_hello: bool,
}

/// What a step has led to.
pub(crate) enum Step {
    /// Records are missing.
    Starved,
    /// It is done.
    Established(Box<Established>),
    /// It is over; `output` may hold an alert.
    Failed(HandshakeFailure),
}

/// What a handshake leaves besides bytes.
pub(crate) struct Established {
    /// Ready to go on.
    pub(crate) session: Session,
    /// What was agreed.
    pub(crate) info: Info,
}

/// What was agreed in a handshake.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) version: Version,
    pub(crate) suite: CipherSuite,
    pub(crate) kind: Kind,
    /// The host that the client asked for.
    pub(crate) server_name: Option<Box<str>>,
    /// The protocol agreed on.
    pub(crate) alpn: Option<Box<[u8]>>,
    /// The client's, the end entity's first; in a resumed session those of the first handshake.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

impl Handshake {
    /// `received`: what has come so far.
    pub(crate) fn new(spoken: Spoken, received: Partial) -> Self {
        Self {
            spoken,
            input: received,
            output: Vec::new(),
            has_alert: false,
            alert: None,
            conn: None,
            shown: 0,
            secrets: TrafficSecrets::default(),
            hello: ClientHello::default(),
            is_without_hello: false,
        }
    }

    /// What has come behind it.
    pub(crate) fn into_input(mut self) -> Partial {
        if self.input.bytes.is_empty() {
            self.input.consume(0);
        }
        self.input
    }

    /// Whether a step has been made.
    pub(crate) fn has_begun(&self) -> bool {
        self.conn.is_some()
    }

    /// Whether the next step begins with a ClientHello: the first one, or the second of a client that was asked for another
    /// key share. It is the step that signs.
    pub(crate) fn is_with_hello(&self) -> bool {
        if !self.has_begun() {
            return !self.is_without_hello;
        }
        let mut rest = &self.input.bytes[self.shown..];
        // In front of a second one there may be a change_cipher_spec without meaning (RFC 8446 section 5).
        while rest.first() == Some(&CHANGE_CIPHER_SPEC)
            && let Some(next) = record_bytes(rest).and_then(|bytes| rest.get(bytes..))
        {
            rest = next;
        }
        matches!(rest, [HANDSHAKE, _, _, _, _, CLIENT_HELLO, ..])
    }

    /// Whether it comes back with a session.
    pub(crate) fn is_resumption(&self) -> bool {
        self.hello.is_resumption()
    }

    /// Whether a step would lead anywhere: a whole ClientHello at first, a whole record later, or what is no such.
    pub(crate) fn is_ready(&mut self) -> bool {
        if self.has_begun() {
            let rest = &self.input.bytes[self.shown..];
            return record_bytes(rest).is_some_and(|bytes| bytes <= rest.len())
                || self.input.bytes.len() >= INPUT_BYTES_MAX;
        }
        match hello::look(&self.input.bytes) {
            Look::Partial => false,
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

    /// Goes on with what has been received. `config` is asked in the first step, with what the client offers.
    pub(crate) fn step(&mut self, config: impl FnOnce(&ClientHello) -> Arc<ServerConfig>) -> Step {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => match UnbufferedServerConnection::new(config(&self.hello)) {
                Ok(conn) => conn,
                Err(error) => return Step::Failed(HandshakeFailure::of(&error)),
            },
        };
        let mut secrets = mem::take(&mut self.secrets);
        let progress = capture(&mut secrets, || self.progress(&mut conn));
        self.secrets = secrets;
        match progress {
            Ok(Progress::Starved) if self.input.bytes.len() >= INPUT_BYTES_MAX => {
                Step::Failed(HandshakeFailure::TooLong)
            }
            Ok(Progress::Starved) => {
                self.conn = Some(conn);
                Step::Starved
            }
            Ok(Progress::Done) => match self.establish(conn) {
                Ok(established) => Step::Established(Box::new(established)),
                Err(failure) => Step::Failed(failure),
            },
            Err(failure) => Step::Failed(failure),
        }
    }

    /// Shows rustls record after record until none is left or it is done.
    fn progress(
        &mut self,
        conn: &mut UnbufferedServerConnection,
    ) -> Result<Progress, HandshakeFailure> {
        loop {
            let seen = &mut self.input.bytes[..self.shown];
            let UnbufferedStatus { discard, state } = conn.process_tls_records(seen);
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
                    Err(HandshakeFailure::Closed)
                }
                // Neither early data nor any behind the handshake is ever shown to it.
                Ok(_) => Err(HandshakeFailure::Misbehaved),
                Err(error) => {
                    self.alert = counts::alert_of(&error);
                    Err(HandshakeFailure::of(&error))
                }
            };
            self.input.hand_on(discard);
            self.shown -= discard;
            match next {
                Ok(Next::Again) => {}
                Ok(Next::Record) => {
                    let rest = &self.input.bytes[self.shown..];
                    match record_bytes(rest) {
                        Some(bytes) if bytes <= rest.len() => self.shown += bytes,
                        Some(_) | None => return Ok(Progress::Starved),
                    }
                }
                Ok(Next::Done) => return Ok(Progress::Done),
                Err(HandshakeFailure::Signer) => {
                    // Of an answer that is half made nothing is sent, so the client still hears plaintext.
                    self.output.extend(INTERNAL_ERROR);
                    self.has_alert = true;
                    return Err(HandshakeFailure::Signer);
                }
                Err(failure) => {
                    self.take_alert(conn);
                    return Err(failure);
                }
            }
        }
    }

    /// Takes over what rustls says at the end of a failed handshake.
    fn take_alert(&mut self, conn: &mut UnbufferedServerConnection) {
        while conn.wants_write() {
            let seen = &mut self.input.bytes[..self.shown];
            match conn.process_tls_records(seen).state {
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    if encode(data, &mut self.output).is_err() {
                        return;
                    }
                    self.has_alert = true;
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Takes the keys out of rustls and drops the rest of it.
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

enum Progress {
    Starved,
    Done,
}

enum Next {
    Again,
    Record,
    Done,
}

/// Length of the record at the beginning of `bytes`, once its header is there; of what is no record of a handshake, all
/// there is, for rustls to say what is wrong.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let ([kind, major, _, high, low], _) = bytes.split_first_chunk::<5>()?;
    let content = usize::from(u16::from_be_bytes([*high, *low]));
    let is_record = (20..=23).contains(kind) && *major == 3 && content <= SEALED_BYTES_MAX;
    Some(if is_record { 5 + content } else { bytes.len() })
}

fn encode<T>(mut data: EncodeTlsData<'_, T>, output: &mut Vec<u8>) -> Result<(), HandshakeFailure> {
    let Err(EncodeError::InsufficientSize(missing)) = data.encode(&mut []) else { return Ok(()) };
    let start = output.len();
    output.resize(start + missing.required_size, 0);
    match data.encode(&mut output[start..]) {
        Ok(_) => Ok(()),
        Err(_) => Err(HandshakeFailure::Internal),
    }
}

/// The session that goes on where rustls stopped; `None` if what it gave up does not fit together.
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

/// Where a client's certificates are long, rustls takes messages of up to 64 KiB; the records that they come in have
/// headers.
const INPUT_BYTES_MAX: usize = 80 * 1024;
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// The record of an alert that rustls does not send (RFC 8446 section 6.2).
const INTERNAL_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];
/// What TLS 1.2 permits (RFC 5246 section 6.2.3).
const SEALED_BYTES_MAX: usize = 16 * 1024 + 2048;

#[cfg(test)]
mod tests;
