//! Handshakes in memory with rustls as the client: whatever comes together with the last message of the handshake.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::ServerName;
use weir_engine::Budget;
use weir_engine::tls::Opened;

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
            server: Box::new(Handshake::new(Partial::new(&Budget::new(1 << 20)))),
            config: Arc::clone(server),
            client: ClientConnection::new(Arc::clone(client), name).unwrap(),
        }
    }

    /// Lets both speak until the client has done its part; what it says last is not received yet.
    fn until_last_flight(&mut self) -> Vec<u8> {
        for _ in 0..4 {
            let said = said(&mut self.client);
            if !self.client.is_handshaking() {
                return said;
            }
            // TLS 1.2 without a session: the server has the last word.
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
        let mut step = Step::Starved;
        while matches!(step, Step::Starved) && self.server.is_ready() {
            step = self.server.step(|_| Arc::clone(&self.config));
        }
        step
    }

    /// What the server has said reaches the client.
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
                Step::Starved => {}
                Step::Failed(failure) => panic!("{failure:?}"),
            }
        }
        panic!("no end")
    }
}

/// All that the client has to say.
fn said(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Opens all that is left of the input.
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
        for suite in rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES {
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

/// Only in TLS 1.3, and in a resumed session of 1.2, has the client the last word.
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
    };
    check(b"GET / HTTP/1.1\r\n\r\n", HandshakeFailure::Malformed, Some(50));
    check(&[22, 3, 1, 0xff, 0xff, 1], HandshakeFailure::Malformed, Some(50));
    check(&[22, 3, 1, 0, 0, 1], HandshakeFailure::Malformed, Some(50));
    check(&[23, 3, 3, 0, 1, 0], HandshakeFailure::Misbehaved, Some(10));
    check(&[21, 3, 3, 0, 2, 2, 40], HandshakeFailure::AlertReceived, None);
    // No suite in common.
    let hello = [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3][..], &[7; 32], &[0, 0, 2, 0, 4, 1, 0]];
    check(&hello.concat(), HandshakeFailure::Incompatible, Some(40));
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

/// Keeps sessions instead.
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
