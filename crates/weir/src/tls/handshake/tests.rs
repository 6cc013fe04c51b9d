//! Handshakes in memory with rustls as the client, and any bytes together with the last handshake
//! message.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedProtocolVersion,
};
use rustls_pki_types::ServerName;
use weir_engine::Budget;
use weir_engine::tls::Opened;

use super::super::keylog::Capture;
use super::super::testing::Certificate;
use super::*;

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// A handshake and its client.
struct Pair {
    server: Box<Handshake>,
    config: Arc<ServerConfig>,
    client: ClientConnection,
}

impl Pair {
    fn new(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) -> Pair {
        let name = ServerName::try_from("localhost").unwrap();
        Pair {
            server: Box::new(Handshake::new(
                Spoken::Frames,
                ReadBuffer::new(&Budget::new(32 << 20)),
            )),
            config: Arc::clone(server),
            client: ClientConnection::new(Arc::clone(client), name).unwrap(),
        }
    }

    /// Lets both sides talk until the client has finished; its last message is not received yet.
    fn until_last_flight(&mut self) -> Vec<u8> {
        for _ in 0..4 {
            let said = said(&mut self.client);
            if !self.client.is_handshaking() {
                return said;
            }
            // TLS 1.2 without a session: the server sends the last message.
            let step = self.receive(&said);
            self.hear();
            if let Step::Established(_) = step {
                panic!("the server was done first");
            }
        }
        panic!("no end")
    }

    fn receive(&mut self, bytes: &[u8]) -> Step {
        self.server.input.extend(bytes).unwrap();
        let mut step = Step::OutOfCredit;
        while matches!(step, Step::OutOfCredit) && self.server.is_ready() {
            step = self.server.step(|_| Arc::clone(&self.config));
        }
        step
    }

    /// Passes the server's output to the client.
    fn hear(&mut self) {
        let output = mem::take(&mut self.server.output);
        let mut output = output.as_slice();
        while !output.is_empty() {
            self.client.read_tls(&mut output).unwrap();
            self.client.process_new_packets().unwrap();
        }
    }

    fn establish(&mut self) -> Box<Established> {
        for _ in 0..4 {
            let said = said(&mut self.client);
            let step = self.receive(&said);
            self.hear();
            match step {
                Step::Established(established) => return established,
                Step::OutOfCredit => {}
                Step::Failed(failure) => panic!("{failure:?}"),
            }
        }
        panic!("no end")
    }
}

/// All output of the client.
fn said(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Opens the rest of the input.
fn opened(established: &mut Established, server: Box<Handshake>) -> (Vec<u8>, usize) {
    let mut input = mem::take(&mut server.into_input().bytes);
    let Opened { plaintext, used, .. } = established.session.open(&mut input).unwrap();
    (input[..plaintext].to_vec(), input.len() - used)
}

fn check_answer(pair: &mut ClientConnection, established: &mut Established) {
    let mut sealed = Vec::new();
    established.session.seal(&[std::io::IoSlice::new(b"answer")], &mut sealed).unwrap();
    let mut sealed = sealed.as_slice();
    while !sealed.is_empty() {
        pair.read_tls(&mut sealed).unwrap();
        pair.process_new_packets().unwrap();
    }
    let mut answer = [0; 6];
    pair.reader().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
}

#[test]
fn both_sides_understand_each_other() {
    let certificate = Certificate::new();
    let server = Arc::new(certificate.server());
    for version in VERSIONS {
        for suite in aws_lc_rs::ALL_CIPHER_SUITES {
            let is_rsa = format!("{:?}", suite.suite()).contains("_RSA_");
            if suite.version() != version || is_rsa {
                continue;
            }
            let client = Arc::new(certificate.client_with(version, &[*suite]));
            let mut pair = Pair::new(&server, &client);
            let mut established = pair.establish();
            assert_eq!(established.info.suite, suite.suite());
            assert_eq!(established.info.kind, Kind::Full);
            assert_eq!(established.info.server_name.as_deref(), Some("localhost"));
            for round in 0..3 {
                pair.client.writer().write_all(b"question").unwrap();
                let said = said(&mut pair.client);
                let mut input = said.clone();
                let opened = established.session.open(&mut input).unwrap();
                assert_eq!(&input[..opened.plaintext], b"question", "{suite:?} {round}");
                check_answer(&mut pair.client, &mut established);
            }
        }
    }
}

/// The client sends the last message only in TLS 1.3, and in a resumed session of 1.2.
fn last_flights() -> Vec<(Pair, &'static str)> {
    let certificate = Certificate::new();
    let server = Arc::new(certificate.server());
    let mut without_tickets = certificate.server();
    without_tickets.send_tls13_tickets = 0;
    let client = Arc::new(certificate.client(&TLS13));
    let mut resuming = Vec::new();
    for version in VERSIONS {
        let client = Arc::new(certificate.client(version));
        Pair::new(&server, &client).establish();
        resuming.push(Pair::new(&server, &client));
    }
    let mut flights = vec![
        (Pair::new(&server, &client), "full 1.3"),
        (Pair::new(&Arc::new(without_tickets), &client), "full 1.3 without tickets"),
    ];
    flights.extend(resuming.into_iter().zip(["resumed 1.3", "resumed 1.2"]));
    flights
}

#[test]
fn records_that_come_with_the_last_message_are_left_alone() {
    for (mut pair, name) in last_flights() {
        let mut bytes = pair.until_last_flight();
        for text in ["first ", "second ", "third"] {
            pair.client.writer().write_all(text.as_bytes()).unwrap();
            bytes.extend(said(&mut pair.client));
        }
        let Step::Established(mut established) = pair.receive(&bytes) else {
            panic!("{name}: not established")
        };
        let output = mem::take(&mut pair.server.output);
        let has_tickets = !name.contains("without") && name.contains("1.3");
        assert_eq!(has_tickets, !output.is_empty() && !name.contains("1.2"), "{name}");
        pair.server.output = output;
        pair.hear();
        let (text, left) = opened(&mut established, pair.server);
        assert_eq!((text.as_slice(), left), (&b"first second third"[..], 0), "{name}");
        check_answer(&mut pair.client, &mut established);
    }
}

#[test]
fn a_record_that_has_only_begun_is_kept() {
    for (mut pair, name) in last_flights() {
        let mut bytes = pair.until_last_flight();
        pair.client.writer().write_all(b"a question").unwrap();
        let record = said(&mut pair.client);
        bytes.extend(&record[..record.len() - 3]);
        let Step::Established(mut established) = pair.receive(&bytes) else {
            panic!("{name}: not established")
        };
        pair.hear();
        let mut input = mem::take(&mut pair.server.into_input().bytes);
        assert_eq!(established.session.open(&mut input).unwrap().used, 0, "{name}");
        input.extend(&record[record.len() - 3..]);
        let opened = established.session.open(&mut input).unwrap();
        assert_eq!(&input[..opened.plaintext], b"a question", "{name}");
    }
}

#[test]
fn a_key_update_directly_behind_finished_is_ours() {
    for (mut pair, name) in last_flights() {
        if name.contains("1.2") {
            continue;
        }
        let mut bytes = pair.until_last_flight();
        pair.client.refresh_traffic_keys().unwrap();
        pair.client.writer().write_all(b"under new keys").unwrap();
        bytes.extend(said(&mut pair.client));
        let Step::Established(mut established) = pair.receive(&bytes) else {
            panic!("{name}: not established")
        };
        pair.hear();
        let (text, left) = opened(&mut established, pair.server);
        assert_eq!((text.as_slice(), left), (&b"under new keys"[..], 0), "{name}");
        assert!(established.session.is_due(), "{name}: an answer");
        check_answer(&mut pair.client, &mut established);
    }
}

#[test]
fn it_does_not_matter_how_bytes_arrive() {
    let certificate = Certificate::new();
    let server = Arc::new(certificate.server());
    for version in VERSIONS {
        let client = Arc::new(certificate.client(version));
        let mut pair = Pair::new(&server, &client);
        let mut established = None;
        for _ in 0..4 {
            for byte in said(&mut pair.client) {
                if let Step::Established(done) = pair.receive(&[byte]) {
                    established = Some(done);
                }
            }
            pair.hear();
        }
        check_answer(&mut pair.client, &mut established.expect("an end"));
    }
}

/// A client with a long chain that cuts everything into small records, `Finished` too, and sends a
/// request at once.
#[test]
fn messages_in_many_records_and_a_question_behind_them() {
    const QUESTION: &[u8] = b"a question that takes more than a record";
    let certificate = Certificate::new();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der.clone()).unwrap();
    let roots = Arc::new(roots);
    let mut provider = aws_lc_rs::default_provider();
    // The client has a key share of another group, and is asked for one of this group.
    provider.kx_groups = vec![aws_lc_rs::kx_group::SECP384R1];
    let provider = Arc::new(provider);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![certificate.der.clone()], certificate.key_der())
        .unwrap();
    server.enable_secret_extraction = true;
    server.key_log = Arc::new(Capture);
    let server = Arc::new(server);
    for (version, fragment) in VERSIONS.iter().flat_map(|it| [32, 61, 300].map(|max| (it, max))) {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[*version])
            .unwrap()
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(vec![certificate.der.clone(); 9], certificate.key_der())
            .unwrap();
        client.max_fragment_size = Some(fragment);
        let mut pair = Pair::new(&server, &Arc::new(client));
        let mut asked = false;
        let established = (0..9).find_map(|_| {
            let mut bytes = said(&mut pair.client);
            if !pair.client.is_handshaking() {
                pair.client.writer().write_all(QUESTION).unwrap();
                asked = true;
                bytes.extend(said(&mut pair.client));
            }
            let step = pair.receive(&bytes);
            pair.hear();
            match step {
                Step::Established(established) => Some(established),
                Step::OutOfCredit => None,
                Step::Failed(failure) => panic!("{version:?} {fragment}: {failure:?}"),
            }
        });
        let mut established = established.expect("an end");
        if !asked {
            // In TLS 1.2 the server sends the last message.
            pair.client.writer().write_all(QUESTION).unwrap();
            pair.server.input.extend(&said(&mut pair.client)).unwrap();
        }
        assert_eq!(established.info.certificates.len(), 9, "{version:?} {fragment}");
        let (text, left) = opened(&mut established, pair.server);
        assert_eq!((text.as_slice(), left), (QUESTION, 0), "{version:?} {fragment}");
        check_answer(&mut pair.client, &mut established);
    }
}

/// Explicit nonces of TLS 1.2 continue those of the handshake.
#[test]
fn the_series_of_nonces_goes_on() {
    let certificate = Certificate::new();
    let server = Arc::new(certificate.server());
    let client =
        Arc::new(certificate.client_with(
            &TLS12,
            &[aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256],
        ));
    // Full, then resumed.
    for _ in 0..2 {
        let mut pair = Pair::new(&server, &client);
        let mut sent = Vec::new();
        let mut established = (0..4).find_map(|_| {
            let bytes = said(&mut pair.client);
            let step = pair.receive(&bytes);
            sent.extend(&pair.server.output);
            pair.hear();
            if let Step::Established(established) = step { Some(established) } else { None }
        });
        let session = &mut established.as_mut().expect("an end").session;
        for _ in 0..3 {
            session.seal(&[std::io::IoSlice::new(b"text")], &mut sent).unwrap();
        }
        // After ChangeCipherSpec.
        let mut nonces = Vec::new();
        let (mut rest, mut is_sealed) = (sent.as_slice(), false);
        while let Some(([kind, _, _, high, low], body)) = rest.split_first_chunk::<5>() {
            let (body, behind) = body.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            if is_sealed {
                nonces.push(u64::from_be_bytes(*body.first_chunk().unwrap()));
            }
            is_sealed |= *kind == 20;
            rest = behind;
        }
        let series: Vec<u64> = nonces.iter().map(|nonce| nonce ^ nonces[0]).collect();
        assert_eq!(series, [0, 1, 2, 3]);
    }
}

#[test]
fn what_a_session_is_resumed_with_is_told() {
    let certificate = Certificate::new();
    for (version, has_tickets, expected) in [
        (&TLS13, true, Kind::Ticket),
        (&TLS12, true, Kind::Ticket),
        (&TLS12, false, Kind::SessionId),
    ] {
        let mut server = certificate.server();
        if !has_tickets {
            server.ticketer = Arc::new(NoTickets);
        }
        let (server, client) = (Arc::new(server), Arc::new(certificate.client(version)));
        for expected in [Kind::Full, expected] {
            let mut pair = Pair::new(&server, &client);
            let established = pair.establish();
            assert_eq!(established.info.kind, expected, "{version:?} {has_tickets}");
            assert_eq!(pair.server.is_resumption(), expected != Kind::Full);
        }
    }
}

#[test]
fn a_failed_handshake_ends_with_an_alert() {
    let certificate = Certificate::new();
    let server = Arc::new(certificate.server());
    let check = |bytes: &[u8], failure: HandshakeFailure, alert: Option<u8>| {
        let client = Arc::new(certificate.client(&TLS13));
        let mut pair = Pair::new(&server, &client);
        let Step::Failed(found) = pair.receive(bytes) else { panic!("no failure: {bytes:?}") };
        let expected = alert.map(|alert| vec![21, 3, 3, 0, 2, 2, alert]).unwrap_or_default();
        assert_eq!((found, &pair.server.output), (failure, &expected), "{bytes:?}");
        assert_eq!(pair.server.has_alert, alert.is_some(), "{bytes:?}");
    };
    check(b"GET / HTTP/1.1\r\n\r\n", HandshakeFailure::Malformed, Some(50));
    check(&[22, 3, 1, 0xff, 0xff, 1], HandshakeFailure::Malformed, Some(22));
    check(&[22, 3, 1, 0, 0, 1], HandshakeFailure::Malformed, Some(10));
    check(&[23, 3, 3, 0, 1, 0], HandshakeFailure::Misbehaved, Some(10));
    check(&[21, 3, 3, 0, 2, 2, 40], HandshakeFailure::AlertReceived, None);
    // No suite in common.
    let hello = [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3][..], &[7; 32], &[0, 0, 2, 0, 4, 1, 0]];
    check(&hello.concat(), HandshakeFailure::Incompatible, Some(40));
}

#[test]
fn an_alert_of_the_client_is_answered_by_none() {
    let certificate = Certificate::new();
    let (server, client) = (certificate.server(), certificate.client(&TLS13));
    let mut pair = Pair::new(&Arc::new(server), &Arc::new(client));
    let mut bytes = said(&mut pair.client);
    bytes.extend([21, 3, 3, 0, 2, 2, 90]);
    let step = pair.receive(&bytes);
    assert!(matches!(step, Step::Failed(HandshakeFailure::AlertReceived)));
    assert!(!pair.server.output.is_empty() && !pair.server.has_alert);
}

#[test]
fn what_rustls_may_keep_stays_counted_until_the_end() {
    let certificate = Certificate::new();
    let (server, client) = (certificate.server(), certificate.client(&TLS13));
    let mut pair = Pair::new(&Arc::new(server), &Arc::new(client));
    let budget = Budget::new(32 << 20);
    pair.server.input = ReadBuffer::new(&budget);
    let hello = said(&mut pair.client);
    assert!(matches!(pair.receive(&hello), Step::OutOfCredit));
    assert!(pair.server.input.bytes.is_empty() && budget.used() >= hello.len());
    pair.hear();
    let finished = said(&mut pair.client);
    assert!(matches!(pair.receive(&finished), Step::Established(_)));
    let _input = pair.server.into_input();
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_never_becomes_a_message_is_not_kept() {
    let certificate = Certificate::new();
    let server = Arc::new(certificate.server());
    let client = Arc::new(certificate.client(&TLS13));
    let mut pair = Pair::new(&server, &client);
    // A ClientHello of nearly 64 KiB, in records of one byte.
    let mut step = pair.receive(&[22, 3, 1, 0, 4, 1, 0, 0xff, 0xf0]);
    for _ in 0..INPUT_BYTES_MAX {
        if let Step::Failed(failure) = step {
            assert_eq!(failure, HandshakeFailure::TooLong);
            return;
        }
        step = pair.receive(&[22, 3, 1, 0, 1, 0].repeat(500));
    }
    panic!("it takes whatever comes");
}

/// Stores sessions instead of tickets.
#[derive(Debug)]
struct NoTickets;

impl rustls::server::ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}
