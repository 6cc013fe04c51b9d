//! A device that makes each TLS record by hand: those, too, that no library makes.
//!
//! rustls makes the handshake, seen record by record, and gives its keys away; what comes behind it is sealed and opened
//! by rustls' ciphers under them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{ConnectionState, EncodeError};
use rustls::{
    CipherSuite, ClientConfig, ConnectionTrafficSecrets, ContentType, ProtocolVersion,
    RootCertStore, SupportedCipherSuite,
};
use weir_wire::v1::{self, client_message, server_message};
use weir_wire::{ProstMessage, frame};

use crate::authority::Authority;
use crate::wait::PATIENCE;

/// One connection of such a device.
pub struct Forger {
    socket: TcpStream,
    kernel: KernelConnection<ClientConnectionData>,
    sealer: Box<dyn MessageEncrypter>,
    opener: Box<dyn MessageDecrypter>,
    /// Records sealed and opened under these keys.
    sealed: u64,
    opened: u64,
    /// Content of opened records that is no whole frame yet.
    content: Vec<u8>,
}

/// What the server says.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// A message.
    Message(server_message::Kind),
    /// An alert: level and description.
    Alert(u8, u8),
    /// Its keys have changed.
    KeyUpdate,
    /// The end of the stream.
    End,
}

impl Forger {
    /// Type of a record with an alert.
    pub const ALERT: u8 = 21;
    /// Type of a record with a handshake message.
    pub const HANDSHAKE: u8 = 22;
    /// Type of a record with application data.
    pub const DATA: u8 = 23;

    /// Makes a handshake with "localhost", with no suite but this one.
    pub fn connect(addr: SocketAddr, by: &Authority, suite: CipherSuite) -> Result<Forger> {
        let mut socket = TcpStream::connect_timeout(&addr, PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        let config = config(by, suite)?;
        let mut conn = UnbufferedClientConnection::new(config, ServerName::try_from("localhost")?)?;
        shake_hands(&mut conn, &mut socket)?;
        let (secrets, kernel) = conn.dangerous_into_kernel_connection()?;
        let suite = kernel.negotiated_cipher_suite();
        let (sealed, opened) = (secrets.tx.0, secrets.rx.0);
        let mut sealer = sealer(suite, secrets.tx.1)?;
        if sealed > 0 {
            // It takes the first number that it sees for the beginning, and counts from there.
            sealer.encrypt(plain(Self::DATA, &[]), 0)?;
        }
        let opener = opener(suite, secrets.rx.1)?;
        Ok(Forger { socket, kernel, sealer, opener, sealed, opened, content: Vec::new() })
    }

    /// Greets as `device_id` and waits for `Welcome`.
    pub fn greet(&mut self, device_id: &str) -> Result<()> {
        let hello = v1::Hello { device_id: device_id.into(), ..v1::Hello::default() };
        self.say(client_message::Kind::Hello(hello))?;
        let heard = self.hear()?;
        let is_welcome = matches!(heard, Heard::Message(server_message::Kind::Welcome(_)));
        ensure!(is_welcome, "expected Welcome, got {heard:?}");
        Ok(())
    }

    /// Says one message, as any device does.
    pub fn say(&mut self, kind: client_message::Kind) -> Result<()> {
        let record = self.seal(Self::DATA, &framed(kind))?;
        self.send(&record)
    }

    /// Pings, and waits for the answer.
    pub fn ping(&mut self, word: &str) -> Result<()> {
        let data = word.as_bytes().to_vec();
        self.say(client_message::Kind::Ping(v1::Ping { data: data.clone() }))?;
        let pong = self.hear()?;
        ensure!(
            pong == Heard::Message(server_message::Kind::Pong(v1::Pong { data })),
            "expected Pong {word:?}, got {pong:?}"
        );
        Ok(())
    }

    /// The version agreed on.
    pub fn is_tls13(&self) -> bool {
        self.kernel.protocol_version() == ProtocolVersion::TLSv1_3
    }

    /// The next record of this type and content, however long. Not sent: see [`Forger::send`].
    pub fn seal(&mut self, kind: u8, content: &[u8]) -> Result<Vec<u8>> {
        self.sealed += 1;
        Ok(self.sealer.encrypt(plain(kind, content), self.sealed - 1)?.encode())
    }

    /// What is sealed from here on is sealed under the next keys, as behind a `KeyUpdate`.
    pub fn change_keys(&mut self) -> Result<()> {
        let (sealed, secrets) = self.kernel.update_tx_secret()?;
        self.sealer = sealer(self.kernel.negotiated_cipher_suite(), secrets)?;
        self.sealed = sealed;
        Ok(())
    }

    /// Sends bytes as they are. Whoever is shown the door cannot send everything: what the server has said tells more.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        match self.socket.write_all(bytes) {
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                Ok(())
            }
            outcome => Ok(outcome?),
        }
    }

    /// Ends its side of the socket, without a word.
    pub fn end(&mut self) -> Result<()> {
        Ok(self.socket.shutdown(Shutdown::Write)?)
    }

    /// What comes next. Tickets are passed over.
    pub fn hear(&mut self) -> Result<Heard> {
        loop {
            if let Some((body, used)) = frame::decode(&self.content, 1 << 20)? {
                let message = v1::ServerMessage::decode(body)?;
                self.content.drain(..used);
                return Ok(Heard::Message(message.kind.context("a message has a kind")?));
            }
            let Some((kind, content)) = self.open()? else {
                ensure!(self.content.is_empty(), "the stream ended within a frame");
                return Ok(Heard::End);
            };
            match (kind, content.as_slice()) {
                (Self::DATA, content) => self.content.extend_from_slice(content),
                (Self::ALERT, &[level, description]) => {
                    return Ok(Heard::Alert(level, description));
                }
                (Self::HANDSHAKE, &[24, 0, 0, 1, 0]) => {
                    let (opened, secrets) = self.kernel.update_rx_secret()?;
                    self.opener = opener(self.kernel.negotiated_cipher_suite(), secrets)?;
                    self.opened = opened;
                    return Ok(Heard::KeyUpdate);
                }
                (Self::HANDSHAKE, &[4, ..]) => {}
                (kind, content) => bail!("a record of type {kind}: {content:?}"),
            }
        }
    }

    /// The next record, opened; `None` at the end of the stream.
    fn open(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let Some(mut record) = read_record(&mut self.socket)? else { return Ok(None) };
        let kind = ContentType::from(record[0]);
        let message =
            InboundOpaqueMessage::new(kind, ProtocolVersion::TLSv1_2, &mut record[HEADER_BYTES..]);
        let opened = self.opener.decrypt(message, self.opened)?;
        self.opened += 1;
        Ok(Some((opened.typ.into(), opened.payload.to_vec())))
    }
}

/// A message of a device as bytes.
pub fn framed(kind: client_message::Kind) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&v1::ClientMessage { kind: Some(kind) }, &mut out);
    out
}

fn config(by: &Authority, suite: CipherSuite) -> Result<Arc<ClientConfig>> {
    let mut provider: CryptoProvider = default_provider();
    provider.cipher_suites.retain(|known| known.suite() == suite);
    let mut roots = RootCertStore::empty();
    roots.add(by.der())?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Shows the client one record at a time, so that it never holds one that comes behind the handshake.
fn shake_hands(conn: &mut UnbufferedClientConnection, socket: &mut TcpStream) -> Result<()> {
    let mut input = Vec::new();
    loop {
        let status = conn.process_tls_records(&mut input);
        let discard = status.discard;
        #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that grows")]
        match status.state? {
            ConnectionState::EncodeTlsData(mut data) => {
                let mut record = vec![0; 1 << 15];
                let bytes = match data.encode(&mut record) {
                    Ok(bytes) => bytes,
                    Err(EncodeError::InsufficientSize(missing)) => bail!("{missing:?}"),
                    Err(error) => return Err(error.into()),
                };
                socket.write_all(&record[..bytes])?;
            }
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::BlockedHandshake => {
                input.drain(..discard);
                let record = read_record(socket)?.context("the server ends amid the handshake")?;
                input.extend(record);
                continue;
            }
            ConnectionState::WriteTraffic(_) => {
                ensure!(discard == input.len(), "something behind the handshake was read");
                return Ok(());
            }
            other => bail!("amid the handshake: {other:?}"),
        }
        input.drain(..discard);
    }
}

/// A record as it comes, its header included; `None` at the end of the stream.
pub fn read_record(socket: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let mut record = vec![0; HEADER_BYTES];
    if socket.read(&mut record[..1])? == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut record[1..]).context("a record without a header")?;
    let bytes = usize::from(u16::from_be_bytes([record[3], record[4]]));
    record.resize(HEADER_BYTES + bytes, 0);
    socket.read_exact(&mut record[HEADER_BYTES..]).context("a record that is cut")?;
    Ok(Some(record))
}

fn plain(kind: u8, content: &[u8]) -> OutboundPlainMessage<'_> {
    OutboundPlainMessage {
        typ: ContentType::from(kind),
        version: ProtocolVersion::TLSv1_2,
        payload: OutboundChunks::Single(content),
    }
}

fn sealer(
    suite: SupportedCipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageEncrypter>> {
    let (key, iv) = key_and_iv(secrets)?;
    Ok(match suite {
        SupportedCipherSuite::Tls13(suite) => suite.aead_alg.encrypter(key, iv),
        SupportedCipherSuite::Tls12(suite) => {
            let fixed = suite.aead_alg.key_block_shape().fixed_iv_len;
            let (fixed, explicit) = iv.as_ref().split_at(fixed);
            suite.aead_alg.encrypter(key, fixed, explicit)
        }
    })
}

fn opener(
    suite: SupportedCipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageDecrypter>> {
    let (key, iv) = key_and_iv(secrets)?;
    Ok(match suite {
        SupportedCipherSuite::Tls13(suite) => suite.aead_alg.decrypter(key, iv),
        SupportedCipherSuite::Tls12(suite) => {
            let fixed = suite.aead_alg.key_block_shape().fixed_iv_len;
            suite.aead_alg.decrypter(key, &iv.as_ref()[..fixed])
        }
    })
}

fn key_and_iv(secrets: ConnectionTrafficSecrets) -> Result<(AeadKey, Iv)> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => bail!("secrets of a cipher that is not known here"),
    }
}

const HEADER_BYTES: usize = 5;
