//! Records that no TLS library sends, by a client that makes them by hand: the right alert on the wire, the right reason
//! in the metrics, and nobody else disturbed.

mod attacks;
mod handshakes;

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustls::CipherSuite;
use serde_json::json;
use weir_tests::{Authority, Device, Forger, Heard, Metrics, Server, framed, read_record};
use weir_wire::CloseReason;
use weir_wire::v1::{self, client_message, server_message};

use crate::attacks::{
    Alert, Attack, BAD_RECORD_MAC, DECODE_ERROR, IDLE_MAX, IN_12, IN_13, IN_BOTH, KEY_UPDATE,
    KEY_UPDATE_REQUESTED, RECORD_OVERFLOW, RENEGOTIATION, UNEXPECTED_MESSAGE, key_updates, many,
    padded, ping,
};

const TLS13: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];
const TLS12: [CipherSuite; 3] = [
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// A server with two devices that are well served all the time.
struct House {
    authority: Authority,
    server: Server,
    tls: SocketAddr,
    witnesses: [Device; 2],
}

impl House {
    fn new(extra: &str) -> Result<House> {
        let authority = Authority::new()?;
        let certificate = authority.files("server", "localhost", false)?;
        let server = Server::start_with_tls(&format!("{extra}\n{certificate}"))?;
        let tls = server.tls.context("it listens with TLS")?;
        let mut secure = Device::connect_tls(tls, &authority.client()?)?;
        secure.say_hello("secure", &["news"])?;
        let plain = Device::greet(server.tcp, "plain", &["news"])?;
        Ok(House { authority, server, tls, witnesses: [secure, plain] })
    }

    /// A connection behind its handshake, or behind `Welcome`.
    fn forger(&self, suite: CipherSuite, is_settled: bool) -> Result<Forger> {
        let mut forger = Forger::connect(self.tls, &self.authority, suite)?;
        if is_settled {
            forger.greet("hostile")?;
        }
        Ok(forger)
    }

    /// Whether the witnesses hear what is published.
    fn check_witnesses(&mut self) -> Result<()> {
        let answer = self.server.publish(&json!({"topic": "news", "text": "still here"}))?;
        ensure!(answer["connections"] == 2, "{answer}");
        for witness in &mut self.witnesses {
            ensure!(witness.push()?.topic == "news");
        }
        Ok(())
    }

    /// The end of all, with nothing left behind.
    fn check_end(self) -> Result<()> {
        drop(self.witnesses);
        self.server.await_metrics("an empty house", Metrics::is_empty_house)?;
        ensure!(!self.server.log().contains("panicked"), "{}", self.server.log());
        Ok(())
    }
}

/// How many of each there are: connections closed for a reason, alerts sent of a name, alerts received.
fn counts(metrics: &Metrics, reason: CloseReason, alert: &str) -> [f64; 3] {
    [
        metrics.closed(reason.name()),
        metrics.sum_of("weir_tls_alerts_sent_total", &[("alert", alert)]),
        metrics.sum("weir_tls_alerts_received_total", ""),
    ]
}

/// An attack in all suites of a version, before `Hello` and behind `Welcome`, each on a connection of its own.
fn check(house: &mut House, suites: &[CipherSuite], attack: &Attack) -> Result<()> {
    for suite in suites {
        for is_settled in [false, true] {
            check_one(house, *suite, is_settled, attack)
                .with_context(|| format!("{}, {suite:?}, settled: {is_settled}", attack.0))?;
        }
    }
    Ok(())
}

fn check_one(
    house: &mut House,
    suite: CipherSuite,
    is_settled: bool,
    (_, attack, (code, name)): &Attack,
) -> Result<()> {
    let reason = CloseReason::TlsRecord;
    let before = counts(&house.server.metrics()?, reason, name);
    let mut forger = house.forger(suite, is_settled)?;
    let bytes = attack(&mut forger)?;
    forger.send(&bytes)?;
    // What is due to a renegotiation or a change of keys may leave first.
    let mut heard = forger.hear()?;
    while matches!(heard, Heard::KeyUpdate | Heard::Alert(1, 100)) {
        heard = forger.hear()?;
    }
    if is_settled {
        let Heard::Message(server_message::Kind::Goodbye(goodbye)) = &heard else {
            bail!("expected Goodbye, got {heard:?}")
        };
        assert_eq!(goodbye.code, u32::from(reason.code()), "{goodbye:?}");
        heard = forger.hear()?;
    }
    assert_eq!(heard, Heard::Alert(2, *code));
    assert_eq!(forger.hear()?, Heard::End);
    drop(forger);
    let expected = [before[0] + 1.0, before[1] + 1.0, before[2]];
    let is_counted = |metrics: &Metrics| counts(metrics, reason, name) == expected;
    house.server.await_metrics("one close and one alert more", is_counted)?;
    house.check_witnesses()
}

#[test]
fn hostile_records_of_tls_13_end_with_their_alerts() -> Result<()> {
    let mut house = House::new("")?;
    for attack in IN_BOTH.iter().chain(IN_13) {
        check(&mut house, &TLS13, attack)?;
    }
    house.check_end()
}

#[test]
fn hostile_records_of_tls_12_end_with_their_alerts() -> Result<()> {
    let mut house = House::new("")?;
    for attack in IN_BOTH.iter().chain(IN_12) {
        check(&mut house, &TLS12, attack)?;
    }
    house.check_end()
}

/// Whoever does this is odd, not hostile: it is answered as before, and as often as it likes.
fn check_odd(house: &House, suite: CipherSuite, is_settled: bool) -> Result<()> {
    let mut forger = house.forger(suite, is_settled)?;
    let mut odd = many(&mut forger, IDLE_MAX - 3, Forger::DATA, b"")?;
    odd.extend(forger.seal(Forger::ALERT, &[1, 90])?);
    if forger.is_tls13() {
        odd.extend(padded(&mut forger, b"", 5_000)?);
        odd.extend(key_updates(&mut forger, 1, KEY_UPDATE_REQUESTED)?);
    } else {
        odd.extend(many(&mut forger, 1, Forger::HANDSHAKE, &RENEGOTIATION)?);
    }
    for piece in odd.chunks(7) {
        forger.send(piece)?;
    }
    let expected = if forger.is_tls13() { Heard::KeyUpdate } else { Heard::Alert(1, 100) };
    assert_eq!(forger.hear()?, expected);
    if !is_settled {
        forger.greet("odd")?;
    }
    for round in 0..3 {
        forger.ping(&format!("round {round}"))?;
        let idle = if forger.is_tls13() {
            key_updates(&mut forger, IDLE_MAX, KEY_UPDATE)?
        } else {
            many(&mut forger, IDLE_MAX, Forger::DATA, b"")?
        };
        forger.send(&idle)?;
    }
    forger.ping("still here")?;
    // It may end at any level, and is answered.
    let end = forger.seal(Forger::ALERT, &[2, 0])?;
    forger.send(&end)?;
    assert_eq!(forger.hear()?, Heard::Alert(1, 0));
    assert_eq!(forger.hear()?, Heard::End);
    Ok(())
}

#[test]
fn who_is_odd_is_served() -> Result<()> {
    let house = House::new("")?;
    let suites = [TLS13, TLS12].concat();
    for suite in &suites {
        for is_settled in [false, true] {
            check_odd(&house, *suite, is_settled)
                .with_context(|| format!("{suite:?}, settled: {is_settled}"))?;
        }
    }
    let closed = 2.0 * f64::from(u32::try_from(suites.len())?);
    let is_counted = |metrics: &Metrics| {
        metrics.closed(CloseReason::PeerClosed.name()) == closed
            && metrics.closed(CloseReason::TlsRecord.name()) == 0.0
    };
    house.server.await_metrics("ends of the peers' own", is_counted)?;
    house.check_end()
}

#[test]
fn who_asks_for_new_keys_again_and_again_and_does_not_listen_is_served_in_order() -> Result<()> {
    const ROUNDS: usize = 1_000;
    let mut house = House::new("")?;
    for suite in TLS13 {
        let mut forger = house.forger(suite, true)?;
        let mut sent = Vec::new();
        for round in 0..ROUNDS {
            sent.extend(key_updates(&mut forger, 1, KEY_UPDATE_REQUESTED)?);
            let data = round.to_string().into_bytes();
            let ping = framed(client_message::Kind::Ping(v1::Ping { data }));
            sent.extend(forger.seal(Forger::DATA, &ping)?);
        }
        forger.send(&sent)?;
        let (mut updates, mut pongs) = (0, 0);
        while pongs < ROUNDS {
            let data = pongs.to_string().into_bytes();
            match forger.hear()? {
                Heard::KeyUpdate => updates += 1,
                other @ (Heard::Message(_) | Heard::Alert(..) | Heard::End) => {
                    let pong = server_message::Kind::Pong(v1::Pong { data });
                    assert_eq!(other, Heard::Message(pong));
                    pongs += 1;
                }
            }
        }
        // Several that come together have one answer.
        ensure!((1..=ROUNDS).contains(&updates), "{updates} changes of the server's keys");
        house.check_witnesses()?;
    }
    house.check_end()
}

/// What ends a connection without an alert of the server's.
fn check_quiet_end(
    house: &mut House,
    is_settled: bool,
    reason: CloseReason,
    act: impl Fn(&mut Forger) -> Result<()>,
) -> Result<()> {
    for suite in [TLS13[0], TLS12[0]] {
        let before = house.server.metrics()?;
        let mut forger = house.forger(suite, is_settled)?;
        act(&mut forger)?;
        loop {
            match forger.hear()? {
                Heard::End => break,
                Heard::Message(server_message::Kind::Goodbye(goodbye)) => {
                    assert_eq!(goodbye.code, u32::from(reason.code()));
                }
                Heard::Alert(1, 0) => {}
                other @ (Heard::Message(_) | Heard::Alert(..) | Heard::KeyUpdate) => {
                    bail!("{suite:?}, settled: {is_settled}: {other:?}")
                }
            }
        }
        drop(forger);
        let closed = before.closed(reason.name()) + 1.0;
        let is_counted = |metrics: &Metrics| metrics.closed(reason.name()) == closed;
        let after = house.server.await_metrics("one close more", is_counted)?;
        for alert in [UNEXPECTED_MESSAGE, BAD_RECORD_MAC, RECORD_OVERFLOW, DECODE_ERROR] {
            let sent = |metrics| counts(metrics, reason, alert.1)[1];
            assert_eq!(sent(&after), sent(&before), "{}", alert.1);
        }
        house.check_witnesses()?;
    }
    Ok(())
}

#[test]
fn a_fatal_alert_of_the_peer_ends_it_without_another() -> Result<()> {
    let mut house = House::new("")?;
    for is_settled in [false, true] {
        check_quiet_end(&mut house, is_settled, CloseReason::TlsRecord, |forger| {
            let alert = forger.seal(Forger::ALERT, &[2, 20])?;
            forger.send(&alert)
        })?;
    }
    assert_eq!(house.server.metrics()?.sum("weir_tls_alerts_received_total", ""), 4.0);
    house.check_end()
}

#[test]
fn a_record_that_is_cut_ends_with_its_peer() -> Result<()> {
    let mut house = House::new("")?;
    for is_settled in [false, true] {
        for cut in [1, 5, 20] {
            check_quiet_end(&mut house, is_settled, CloseReason::PeerClosed, |forger| {
                let record = forger.seal(Forger::DATA, &ping())?;
                forger.send(&record[..cut])?;
                forger.end()
            })?;
        }
    }
    house.check_end()
}

#[test]
fn a_record_that_never_becomes_whole_ends_when_its_time_is_over() -> Result<()> {
    let mut house = House::new("[connection]\nhello_timeout = \"2s\"\nframe_timeout = \"2s\"")?;
    for (is_settled, reason) in
        [(false, CloseReason::HelloTimeout), (true, CloseReason::FrameTimeout)]
    {
        check_quiet_end(&mut house, is_settled, reason, |forger| {
            let record = forger.seal(Forger::DATA, &ping())?;
            forger.send(&record[..record.len() - 1])
        })?;
    }
    house.check_end()
}

/// Bytes instead of a handshake, the alert that answers them, if any, and the cause in the metrics.
type Beginning = (&'static str, fn() -> Vec<u8>, Option<Alert>, &'static str);

const BEGINNINGS: &[Beginning] = &[
    ("HTTP", || b"GET / HTTP/1.1\r\n\r\n".to_vec(), Some(DECODE_ERROR), "malformed"),
    ("a frame", ping, Some(DECODE_ERROR), "malformed"),
    ("a record of 65,535 bytes", || vec![22, 3, 1, 255, 255], Some(RECORD_OVERFLOW), "malformed"),
    ("empty records", || [22, 3, 1, 0, 0].repeat(1_000), Some(UNEXPECTED_MESSAGE), "malformed"),
    ("data", || vec![23, 3, 3, 0, 2, 1, 1], Some(UNEXPECTED_MESSAGE), "misbehaved"),
    ("a Finished", || vec![22, 3, 1, 0, 4, 20, 0, 0, 0], Some(UNEXPECTED_MESSAGE), "misbehaved"),
    ("an empty ClientHello", || vec![22, 3, 1, 0, 4, 1, 0, 0, 0], Some(DECODE_ERROR), "malformed"),
    (
        "changes of ciphers",
        || [20, 3, 1, 0, 1, 1].repeat(1_000),
        Some(UNEXPECTED_MESSAGE),
        "misbehaved",
    ),
    ("a fatal alert", || vec![21, 3, 1, 0, 2, 2, 40], None, "alert_received"),
    ("half a header", || vec![22, 3, 1], None, "closed"),
    ("half a ClientHello", || vec![22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3], None, "closed"),
    ("a ClientHello byte by byte", || dripped(65_000), Some(DECODE_ERROR), "too_long"),
];

/// The beginning of a `ClientHello`, each byte in a record.
fn dripped(count: usize) -> Vec<u8> {
    let head = [1, 0, 255, 255].into_iter();
    head.chain(std::iter::repeat_n(0, count)).flat_map(|byte| [22, 3, 1, 0, 1, byte]).collect()
}

#[test]
fn whoever_begins_with_anything_else_is_told_so() -> Result<()> {
    let mut house = House::new("")?;
    for (name, bytes, alert, cause) in BEGINNINGS {
        let labels = [("cause", *cause)];
        let failed =
            |metrics: &Metrics| metrics.sum_of("weir_tls_handshakes_failed_total", &labels);
        let before = house.server.metrics()?;
        let mut socket = TcpStream::connect(house.tls)?;
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        // Who is not listened to any more cannot send everything.
        let _ = socket.write_all(&bytes());
        if alert.is_none() {
            socket.shutdown(Shutdown::Write)?;
        }
        let answer = read_record(&mut socket).with_context(|| (*name).to_owned())?;
        let expected = alert.map(|(code, _)| vec![21, 3, 3, 0, 2, 2, code]);
        assert_eq!(answer, expected, "{name}");
        let is_counted = |metrics: &Metrics| failed(metrics) == failed(&before) + 1.0;
        house.server.await_metrics(name, is_counted)?;
        house.check_witnesses()?;
    }
    house.check_end()
}
