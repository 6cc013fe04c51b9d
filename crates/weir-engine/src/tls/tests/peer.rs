//! Sessions against rustls, which makes the handshake and keeps one end.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, Connection, ConnectionTrafficSecrets, KeyLog,
    RootCertStore, ServerConfig, ServerConnection, SupportedCipherSuite,
};

use super::*;

/// The end that a session takes over after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Client,
    Server,
}

/// Traffic secrets of TLS 1.3.
#[derive(Debug, Default)]
struct Secrets {
    client: Mutex<Vec<u8>>,
    server: Mutex<Vec<u8>>,
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => *self.client.lock().unwrap() = secret.to_vec(),
            "SERVER_TRAFFIC_SECRET_0" => *self.server.lock().unwrap() = secret.to_vec(),
            _ => {}
        }
    }
}

/// A connection with rustls at one end.
struct Held {
    rustls: Connection,
    session: Session,
}

impl Held {
    fn new(suite: SupportedCipherSuite, end: End) -> Held {
        let secrets = Arc::new(Secrets::default());
        let (mut client, mut server) = connections(suite, &secrets);
        while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
            carry(&mut client, &mut server);
            carry(&mut server, &mut client);
        }
        let (taken, rustls) = match end {
            End::Client => (client, server),
            End::Server => (server, client),
        };
        Held { session: take_over(taken, end, &secrets), rustls }
    }

    /// Passes bytes from rustls to the session in pieces of `piece` bytes. Returns the plaintext.
    fn session_hears(&mut self, piece: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        while self.rustls.wants_write() {
            self.rustls.write_tls(&mut sent).unwrap();
        }
        let (mut waiting, mut got) = (Vec::new(), Vec::new());
        for piece in sent.chunks(piece) {
            waiting.extend_from_slice(piece);
            let opened = self.session.open(&mut waiting).unwrap();
            got.extend_from_slice(&waiting[..opened.plaintext]);
            waiting.drain(..opened.used);
        }
        assert!(waiting.is_empty());
        got
    }

    fn rustls_hears(&mut self, mut sealed: &[u8]) -> Vec<u8> {
        let mut got = Vec::new();
        while !sealed.is_empty() {
            self.rustls.read_tls(&mut sealed).unwrap();
            self.rustls.process_new_packets().unwrap();
            let mut buf = [0; 4096];
            while let Ok(bytes @ 1..) = self.rustls.reader().read(&mut buf) {
                got.extend_from_slice(&buf[..bytes]);
            }
        }
        got
    }

    /// Sends data of many sizes in both directions.
    fn talk(&mut self) {
        for (bytes, piece) in [(1, 1), (100, 7), (16_384, 1000), (40_000, 100_000)] {
            let data: Vec<u8> = (0_u8..=255).cycle().take(bytes).collect();
            let mut left = data.as_slice();
            let mut got = Vec::new();
            while !left.is_empty() {
                let written = self.rustls.writer().write(left).unwrap();
                left = &left[written..];
                got.extend(self.session_hears(piece));
            }
            assert!(got == data, "{bytes} bytes from rustls");
            let mut left = data.as_slice();
            let mut sealed = Vec::new();
            while !left.is_empty() {
                let (early, late) = left.split_at(left.len() / 3);
                let parts = [IoSlice::new(early), IoSlice::new(late)];
                left = &left[self.session.seal(&parts, &mut sealed).unwrap()..];
            }
            assert!(self.rustls_hears(&sealed) == data, "{bytes} bytes to rustls");
        }
    }
}

fn connections(suite: SupportedCipherSuite, secrets: &Arc<Secrets>) -> (Connection, Connection) {
    let provider = aws_lc_rs::default_provider();
    let provider =
        Arc::new(rustls::crypto::CryptoProvider { cipher_suites: vec![suite], ..provider });
    let names = vec!["localhost".to_owned()];
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[suite.version()])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.enable_secret_extraction = true;
    client.key_log = Arc::clone(secrets) as Arc<dyn KeyLog>;
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[suite.version()])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    server.enable_secret_extraction = true;
    let name = ServerName::try_from("localhost").unwrap();
    (
        ClientConnection::new(Arc::new(client), name).unwrap().into(),
        ServerConnection::new(Arc::new(server)).unwrap().into(),
    )
}

fn carry(from: &mut Connection, to: &mut Connection) {
    let mut sent = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut sent).unwrap();
    }
    let mut sent = sent.as_slice();
    while !sent.is_empty() {
        to.read_tls(&mut sent).unwrap();
        to.process_new_packets().unwrap();
    }
}

fn take_over(taken: Connection, end: End, secrets: &Secrets) -> Session {
    let suite = taken.negotiated_cipher_suite().unwrap();
    let extracted = taken.dangerous_extract_secrets().unwrap();
    let ((sent, send), (received, receive)) = (extracted.tx, extracted.rx);
    let ((cipher, send_key, send_iv), (_, receive_key, receive_iv)) =
        (parts(&send), parts(&receive));
    if suite.tls13().is_none() {
        let send = Keys12 { key: send_key, iv: send_iv };
        let receive = Keys12 { key: receive_key, iv: receive_iv };
        return Session::tls12(cipher, (send, sent), (receive, received)).unwrap();
    }
    let (client, server) = (secrets.client.lock().unwrap(), secrets.server.lock().unwrap());
    let (ours, theirs) = match end {
        End::Client => (client, server),
        End::Server => (server, client),
    };
    assert!(are_derived(cipher, &ours, send_key, send_iv));
    assert!(are_derived(cipher, &theirs, receive_key, receive_iv));
    Session::tls13(cipher, (&ours, sent), (&theirs, received)).unwrap()
}

fn parts(secrets: &ConnectionTrafficSecrets) -> (Cipher, &[u8], &[u8]) {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
            (Cipher::Aes128Gcm, key.as_ref(), iv.as_ref())
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
            (Cipher::Aes256Gcm, key.as_ref(), iv.as_ref())
        }
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Cipher::ChaCha20Poly1305, key.as_ref(), iv.as_ref())
        }
        _ => panic!("a cipher that is not ours"),
    }
}

/// All suites of both versions that a certificate on P-256 allows, with either end.
fn every_held() -> impl Iterator<Item = Held> {
    let suites: Vec<_> = aws_lc_rs::ALL_CIPHER_SUITES
        .iter()
        .filter(|suite| !format!("{:?}", suite.suite()).contains("ECDHE_RSA"))
        .collect();
    assert_eq!(suites.len(), 6);
    suites.into_iter().flat_map(|suite| {
        [End::Client, End::Server].map(|end| {
            println!("{:?}, {end:?} taken over", suite.suite());
            Held::new(*suite, end)
        })
    })
}

#[test]
fn every_suite_both_ways() {
    for mut held in every_held() {
        held.talk();
    }
}

#[test]
fn the_end_is_understood() {
    for mut held in every_held() {
        let mut sealed = Vec::new();
        held.session.seal_alert(Alert::CloseNotify, &mut sealed).unwrap();
        assert!(held.rustls_hears(&sealed).is_empty());
        assert!(matches!(held.rustls.reader().read(&mut [0]), Ok(0)), "its reader is at the end");
        held.rustls.send_close_notify();
        let mut sent = Vec::new();
        held.rustls.write_tls(&mut sent).unwrap();
        assert!(held.session.open(&mut sent).unwrap().is_end);
    }
}

#[test]
fn rustls_updates_its_keys() {
    for mut held in every_held().filter(|held| held.session.version() == Version::Tls13) {
        for _ in 0..5 {
            held.rustls.refresh_traffic_keys().unwrap();
            held.rustls.writer().write_all(b"under new keys").unwrap();
            assert_eq!(held.session_hears(3), b"under new keys");
            assert!(held.session.is_due(), "rustls wants an answer");
            held.talk();
            assert!(!held.session.is_due());
            assert_eq!(held.session.take_key_changes(), 2);
            held.rustls.refresh_traffic_keys().unwrap();
            assert!(held.session_hears(100).is_empty());
            let mut answer = Vec::new();
            held.session.seal_due(&mut answer).unwrap();
            assert!(held.rustls_hears(&answer).is_empty());
            assert_eq!(held.session.take_key_changes(), 2);
            held.talk();
        }
    }
}

#[test]
fn we_update_our_keys() {
    for mut held in every_held().filter(|held| held.session.version() == Version::Tls13) {
        held.session.set_records_log2(5);
        for round in 0..100_u8 {
            let mut sealed = Vec::new();
            held.session.seal(&[IoSlice::new(&[round])], &mut sealed).unwrap();
            assert_eq!(held.rustls_hears(&sealed), [round]);
        }
        assert_eq!(held.session.take_key_changes(), 3);
        held.talk();
    }
}

#[test]
fn a_refusal_to_renegotiate_does_not_end_the_connection() {
    for mut held in every_held().filter(|held| held.session.version() == Version::Tls12) {
        let mut sealed = Vec::new();
        held.session.seal_alert(Alert::NoRenegotiation, &mut sealed).unwrap();
        assert!(held.rustls_hears(&sealed).is_empty());
        held.talk();
    }
}

/// The suites of an RSA certificate have the same records.
#[test]
fn rsa_suites_have_twins() {
    for suite in aws_lc_rs::ALL_CIPHER_SUITES {
        let name = format!("{:?}", suite.suite());
        let twin = name.replace("ECDHE_RSA", "ECDHE_ECDSA");
        let is_there = |suite: CipherSuite| format!("{suite:?}") == twin;
        assert!(aws_lc_rs::ALL_CIPHER_SUITES.iter().any(|suite| is_there(suite.suite())), "{name}");
    }
}
