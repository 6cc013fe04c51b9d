//! Devices that speak TLS: a client of rustls, whose server's part is handed to a shard after the handshake.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, ConnectionTrafficSecrets,
    DigitallySignedStruct, ExtractedSecrets, KeyLog, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned, SupportedProtocolVersion,
};
use weir_engine::tls::{Cipher, Keys12, Session};
use weir_engine::{ConnId, TlsAdoption};
use weir_wire::v1::server_message::Kind;
use weir_wire::{CloseReason, ProstMessage, frame, v1};

use crate::rig::{Heard, Rest, Rig, ping, tcp_pair};

/// The device's end.
pub(crate) struct SecurePeer {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
    buf: Vec<u8>,
}

/// What both ends have agreed on, before there is a socket.
pub(crate) struct Agreed {
    pub(crate) client: ClientConnection,
    pub(crate) session: Session,
}

/// A handshake in memory. The client sends records of at most `fragment` bytes.
pub(crate) fn shake_hands(
    version: &'static SupportedProtocolVersion,
    fragment: Option<usize>,
) -> Agreed {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let secrets = Arc::new(Secrets::default());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[version]).expect("the version is built in");
    let mut config =
        builder.with_no_client_auth().with_cert_resolver(Arc::new(OneKey(key(&provider))));
    config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
    config.enable_secret_extraction = true;
    let mut server = ServerConnection::new(Arc::new(config)).expect("the configuration is whole");

    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[version]).expect("the version is built in");
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustsAll(provider)))
        .with_no_client_auth();
    config.max_fragment_size = fragment;
    let name = ServerName::try_from("weir.test").expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client can be made");

    while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
        pass(|bytes| client.write_tls(bytes), |bytes| server.read_tls(bytes));
        server.process_new_packets().expect("the client's part is right");
        pass(|bytes| server.write_tls(bytes), |bytes| client.read_tls(bytes));
        client.process_new_packets().expect("the server's part is right");
    }
    let extracted = server.dangerous_extract_secrets().expect("extraction is enabled");
    Agreed { client, session: secrets.session(version, &extracted) }
}

fn pass(
    mut write: impl FnMut(&mut Vec<u8>) -> std::io::Result<usize>,
    mut read: impl FnMut(&mut &[u8]) -> std::io::Result<usize>,
) {
    let mut bytes = Vec::new();
    while write(&mut bytes).expect("a vector takes all") > 0 {}
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        read(&mut rest).expect("a slice is read");
    }
}

impl Rig {
    /// A device over TCP with TLS, held by `shard`.
    pub(crate) fn secure_device(
        &mut self,
        shard: usize,
        version: &'static SupportedProtocolVersion,
    ) -> (SecurePeer, ConnId) {
        self.secure_device_of(shard, shake_hands(version, None), Rest::default(), Vec::new())
    }

    /// The same of what has been agreed on, with bytes read ahead.
    pub(crate) fn secure_device_of(
        &mut self,
        shard: usize,
        agreed: Agreed,
        rest: Rest<'_>,
        sealed_ahead: Vec<u8>,
    ) -> (SecurePeer, ConnId) {
        let (peer, socket) = tcp_pair();
        let tls = TlsAdoption { session: agreed.session, sealed_ahead };
        let ticket = self.offer_with(shard, socket, rest, Some(Box::new(tls)));
        let conn = self.adopted(ticket);
        let stream = StreamOwned::new(agreed.client, peer.stream);
        (SecurePeer { stream, buf: Vec::new() }, conn)
    }
}

impl SecurePeer {
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
        self.stream.flush().expect("the server reads");
    }

    pub(crate) fn ping(&mut self, data: &[u8]) {
        self.write(&ping(data));
        assert_eq!(self.hear(), Heard::Message(Kind::Pong(v1::Pong { data: data.to_vec() })));
    }

    /// What comes next; the end must have been said with `close_notify`.
    pub(crate) fn hear(&mut self) -> Heard {
        self.try_hear().expect("the server keeps to TLS")
    }

    /// The same; an alert or a cut stream is an error.
    pub(crate) fn try_hear(&mut self) -> Result<Heard, rustls::Error> {
        loop {
            if let Some((body, used)) =
                frame::decode(&self.buf, usize::MAX).expect("frames are whole")
            {
                let message = v1::ServerMessage::decode(body).expect("the server writes weir.v1");
                self.buf.drain(..used);
                return Ok(Heard::Message(message.kind.expect("every message has a kind")));
            }
            let mut bytes = [0; 16 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(Heard::End),
                Ok(count) => self.buf.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(Heard::Reset);
                }
                Err(error) => {
                    // What came before it is there all the same.
                    let before = self.buf.len();
                    let _ = self.stream.conn.reader().read_to_end(&mut self.buf);
                    if self.buf.len() == before {
                        let kind = error.kind();
                        let inner = error.into_inner().and_then(|inner| inner.downcast().ok());
                        return Err(*inner.unwrap_or_else(|| panic!("nothing came: {kind}")));
                    }
                }
            }
        }
    }

    pub(crate) fn hear_push(&mut self) -> v1::Push {
        let Heard::Message(Kind::Push(push)) = self.hear() else { panic!("not a push") };
        push
    }

    /// `Goodbye` with `reason`, then `close_notify`.
    pub(crate) fn hear_goodbye(&mut self, reason: CloseReason) {
        let Heard::Message(Kind::Goodbye(goodbye)) = self.hear() else { panic!("not a Goodbye") };
        assert_eq!(goodbye.code, u32::from(reason.code()));
        assert_eq!(self.hear(), Heard::End);
    }

    /// `Goodbye` with `reason`, then a fatal alert.
    pub(crate) fn hear_alert(&mut self, reason: CloseReason, alert: AlertDescription) {
        let Heard::Message(Kind::Goodbye(goodbye)) = self.hear() else { panic!("not a Goodbye") };
        assert_eq!(goodbye.code, u32::from(reason.code()));
        assert_eq!(self.try_hear(), Err(rustls::Error::AlertReceived(alert)));
    }
}

/// The traffic secrets of TLS 1.3: the client's and the server's.
#[derive(Debug, Default)]
struct Secrets(Mutex<[Vec<u8>; 2]>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().expect("nobody panicked");
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => secrets[0] = secret.to_vec(),
            "SERVER_TRAFFIC_SECRET_0" => secrets[1] = secret.to_vec(),
            _ => {}
        }
    }
}

impl Secrets {
    fn session(
        &self,
        version: &'static SupportedProtocolVersion,
        extracted: &ExtractedSecrets,
    ) -> Session {
        let (cipher, send) = keys_of(&extracted.tx.1);
        let (_, receive) = keys_of(&extracted.rx.1);
        let (sent, received) = (extracted.tx.0, extracted.rx.0);
        let session = if *version == rustls::version::TLS13 {
            let [client, server] = &*self.0.lock().expect("nobody panicked");
            Session::tls13(cipher, (server, sent), (client, received))
        } else {
            Session::tls12(cipher, (send, sent), (receive, received))
        };
        session.expect("keys as long as they should be")
    }
}

fn keys_of(secrets: &ConnectionTrafficSecrets) -> (Cipher, Keys12<'_>) {
    let (cipher, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Cipher::ChaCha20Poly1305, key, iv)
        }
        _ => panic!("a cipher that shards do not know"),
    };
    (cipher, Keys12 { key: key.as_ref(), iv: iv.as_ref() })
}

/// A key of nobody's, Ed25519 in PKCS #8, and a certificate that nobody looks at.
fn key(provider: &CryptoProvider) -> Arc<CertifiedKey> {
    let mut pkcs8 = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    pkcs8.extend([7; 32]);
    let key = PrivatePkcs8KeyDer::from(pkcs8).into();
    let key = provider.key_provider.load_private_key(key).expect("a key of Ed25519");
    Arc::new(CertifiedKey::new(vec![CertificateDer::from(vec![0])], key))
}

#[derive(Debug)]
struct OneKey(Arc<CertifiedKey>);

impl ResolvesServerCert for OneKey {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// It is not certificates that are tested here.
#[derive(Debug)]
struct TrustsAll(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustsAll {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
