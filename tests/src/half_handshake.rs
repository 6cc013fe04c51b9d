//! A TLS 1.3 client that stops before its last message: what it says instead is made by hand.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::crypto::tls13::OkmBlock;
use rustls::pki_types::ServerName;
use rustls::unbuffered::ConnectionState;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, ClientConfig, ContentType, KeyLog, ProtocolVersion, RootCertStore,
    SupportedCipherSuite, Tls13CipherSuite,
};

use crate::authority::Authority;
use crate::forger::read_record;
use crate::wait::PATIENCE;

/// A client that has the server's flight and owes its own.
pub struct HalfHandshake {
    socket: TcpStream,
    sealer: Box<dyn MessageEncrypter>,
    sealed: u64,
    /// Opens what the server seals behind its `Finished`.
    opener: Box<dyn MessageDecrypter>,
}

impl HalfHandshake {
    /// Hears all that the server says up to its `Finished`, and answers nothing.
    pub fn begin(addr: SocketAddr, by: &Authority, suite: CipherSuite) -> Result<HalfHandshake> {
        let secrets = Arc::new(Secrets::default());
        let mut provider: CryptoProvider = default_provider();
        provider.cipher_suites.retain(|known| known.suite() == suite);
        let &[SupportedCipherSuite::Tls13(suite)] = provider.cipher_suites.as_slice() else {
            bail!("{suite:?} is no suite of TLS 1.3")
        };
        let mut config = config(provider, by, true)?;
        config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        let name = ServerName::try_from("localhost")?;
        let mut conn = UnbufferedClientConnection::new(Arc::new(config), name)?;
        let mut socket = connect(addr)?;
        socket.write_all(&first_flight(&mut conn)?)?;
        let mut input = Vec::new();
        while secrets.of("SERVER_TRAFFIC_SECRET_0").is_none() {
            let status = conn.process_tls_records(&mut input);
            let discard = status.discard;
            #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that grows")]
            let is_starved = match status.state? {
                ConnectionState::BlockedHandshake => true,
                // Made, since it would be offered again and again, and not sent.
                ConnectionState::EncodeTlsData(mut data) => {
                    data.encode(&mut [0; 1 << 14])?;
                    false
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    false
                }
                other => bail!("amid the handshake: {other:?}"),
            };
            input.drain(..discard);
            if is_starved {
                input.extend(read_record(&mut socket)?.context("the server has ended")?);
            }
        }
        let (key, iv) = secrets.keys(suite, "CLIENT_HANDSHAKE_TRAFFIC_SECRET")?;
        let sealer = suite.aead_alg.encrypter(key, iv);
        let (key, iv) = secrets.keys(suite, "SERVER_TRAFFIC_SECRET_0")?;
        let opener = suite.aead_alg.decrypter(key, iv);
        Ok(HalfHandshake { socket, sealer, sealed: 0, opener })
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.socket.write_all(bytes)?)
    }

    /// Sends a record of this type and content under the keys of the handshake.
    pub fn say(&mut self, kind: u8, content: &[u8]) -> Result<()> {
        let plain = OutboundPlainMessage {
            typ: ContentType::from(kind),
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(content),
        };
        let record = self.sealer.encrypt(plain, self.sealed)?.encode();
        self.sealed += 1;
        self.send(&record)
    }

    /// The alert that the server ends with; `None` if it ends without one.
    pub fn alert(&mut self) -> Result<Option<u8>> {
        let Some(mut record) = read_record(&mut self.socket)? else { return Ok(None) };
        let kind = ContentType::from(record[0]);
        let sealed = InboundOpaqueMessage::new(kind, ProtocolVersion::TLSv1_2, &mut record[5..]);
        let opened = self.opener.decrypt(sealed, 0)?;
        let (ContentType::Alert, &[2, code]) = (opened.typ, opened.payload) else {
            bail!("no fatal alert: {opened:?}")
        };
        ensure!(read_record(&mut self.socket)?.is_none(), "something follows the alert");
        Ok(Some(code))
    }
}

/// A `ClientHello` as rustls makes it, without the header of its record.
pub fn client_hello(by: &Authority, is_tls13: bool) -> Result<Vec<u8>> {
    let config = config(default_provider(), by, is_tls13)?;
    let name = ServerName::try_from("localhost")?;
    let mut conn = UnbufferedClientConnection::new(Arc::new(config), name)?;
    Ok(first_flight(&mut conn)?.split_off(5))
}

/// `hello` without the extension `left_out`, and with `added` behind the others.
pub fn edited_hello(hello: &[u8], left_out: u16, added: &[(u16, &[u8])]) -> Vec<u8> {
    let number = |at: usize| usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    // Type and length, version and random, session id, suites, methods of compression.
    let session_id = 4 + 2 + 32;
    let suites = session_id + 1 + usize::from(hello[session_id]);
    let methods = suites + 2 + number(suites);
    let start = methods + 1 + usize::from(hello[methods]);
    let mut extensions = Vec::new();
    let mut at = start + 2;
    while at < hello.len() {
        let end = at + 4 + number(at + 2);
        if number(at) != usize::from(left_out) {
            extensions.extend_from_slice(&hello[at..end]);
        }
        at = end;
    }
    for (kind, content) in added {
        extensions.extend(kind.to_be_bytes());
        extensions.extend(small(content.len()).to_be_bytes());
        extensions.extend_from_slice(content);
    }
    let mut edited = hello[..start].to_vec();
    edited.extend(small(extensions.len()).to_be_bytes());
    edited.extend(extensions);
    let [_, high, low] = small3(edited.len() - 4);
    edited[2..4].copy_from_slice(&[high, low]);
    edited
}

fn small(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a length of two bytes")
}

fn small3(bytes: usize) -> [u8; 3] {
    let [high, low] = small(bytes).to_be_bytes();
    [0, high, low]
}

fn connect(addr: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&addr, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn config(provider: CryptoProvider, by: &Authority, is_tls13: bool) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(by.der())?;
    Ok(ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[if is_tls13 { &TLS13 } else { &TLS12 }])?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// The record with the `ClientHello`.
fn first_flight(conn: &mut UnbufferedClientConnection) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 1 << 14];
    let state = conn.process_tls_records(&mut []).state?;
    let ConnectionState::EncodeTlsData(mut data) = state else { bail!("no ClientHello") };
    let used = data.encode(&mut bytes)?;
    bytes.truncate(used);
    Ok(bytes)
}

/// The secrets of a handshake by their names.
#[derive(Debug, Default)]
struct Secrets(Mutex<HashMap<String, Vec<u8>>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().expect("no panic").insert(label.to_owned(), secret.to_vec());
    }
}

impl Secrets {
    fn of(&self, label: &str) -> Option<Vec<u8>> {
        self.0.lock().expect("no panic").get(label).cloned()
    }

    /// Key and IV of the secret (RFC 8446 section 7.3).
    fn keys(&self, suite: &Tls13CipherSuite, label: &str) -> Result<(AeadKey, Iv)> {
        let secret = self.of(label).context("the secret is known")?;
        let expander = suite.hkdf_provider.expander_for_okm(&OkmBlock::new(&secret));
        let expand = |label: &[u8], out: &mut [u8]| -> Result<()> {
            let lengths = [small(out.len()).to_be_bytes(), [0, u8::try_from(label.len() + 6)?]];
            let info = [&lengths[0], &lengths[1][1..], b"tls13 ", label, &[0]];
            expander.expand_slice(&info, out).ok().context("a key's length")
        };
        let (mut key, mut iv) = ([0; 32], [0; 12]);
        let bytes = suite.aead_alg.key_len();
        expand(b"key", &mut key[..bytes])?;
        expand(b"iv", &mut iv)?;
        ensure!(bytes == key.len(), "only suites with keys of 32 bytes are made here");
        Ok((AeadKey::from(key), Iv::from(iv)))
    }
}
