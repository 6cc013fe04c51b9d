//! Handshakes that no client makes: each ends with the alert that the RFC names, and one failure is counted.

use std::io::Write;
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use rustls::CipherSuite;
use weir_tests::{
    Authority, Forger, HalfHandshake, Metrics, PATIENCE, client_hello, edited_hello, read_record,
};

use crate::House;
use crate::attacks::{
    Alert, DECODE_ERROR, ILLEGAL_PARAMETER, KEY_UPDATE, RECORD_OVERFLOW, UNEXPECTED_MESSAGE,
};

const HANDSHAKE_FAILURE: Alert = (40, "handshake_failure");
/// rustls has one error for this and for a record that does not open, so the metrics do not tell them apart.
const DECRYPT_ERROR: Alert = (51, "other");
const DOES_NOT_OPEN: Alert = (20, "other");
const MISSING_EXTENSION: Alert = (109, "missing_extension");

const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const PADDING: u16 = 21;
const KEY_SHARE: u16 = 51;

/// What a client sends in plaintext, the alert that answers it, and the cause in the metrics.
type Opening = (&'static str, fn(&Authority) -> Result<Vec<u8>>, Alert, &'static str);

const OPENINGS: &[Opening] = &[
    (
        "a plaintext record of 16,385 bytes",
        |by| Ok(record(&padded_hello(by, 16_385)?)),
        RECORD_OVERFLOW,
        "malformed",
    ),
    (
        "the header of a plaintext record of 16,385 bytes",
        |_| Ok(vec![22, 3, 1, 0x40, 1]),
        RECORD_OVERFLOW,
        "malformed",
    ),
    (
        "the header of an alert of 16,385 bytes",
        |_| Ok(vec![21, 3, 1, 0x40, 1]),
        RECORD_OVERFLOW,
        "malformed",
    ),
    ("an empty alert", |_| Ok(vec![21, 3, 1, 0, 0]), UNEXPECTED_MESSAGE, "malformed"),
    (
        "an empty alert behind half a ClientHello",
        |by| amid_hello(by, &[21, 3, 3, 0, 0]),
        UNEXPECTED_MESSAGE,
        "malformed",
    ),
    ("an empty handshake record", |_| Ok(vec![22, 3, 1, 0, 0]), UNEXPECTED_MESSAGE, "malformed"),
    ("an empty change of ciphers", |_| Ok(vec![20, 3, 1, 0, 0]), UNEXPECTED_MESSAGE, "malformed"),
    (
        "a warning amid a ClientHello",
        |by| amid_hello(by, &[21, 3, 3, 0, 2, 1, 90]),
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
    (
        "data amid a ClientHello",
        |by| amid_hello(by, &[23, 3, 3, 0, 1, 0]),
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
    (
        "a change of ciphers amid a ClientHello",
        |by| amid_hello(by, &[20, 3, 3, 0, 1, 1]),
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
    (
        "TLS 1.3 without key_share",
        |by| Ok(record(&edited_hello(&client_hello(by, true)?, KEY_SHARE, &[]))),
        MISSING_EXTENSION,
        "incompatible",
    ),
    (
        "TLS 1.3 without supported_groups",
        |by| Ok(record(&edited_hello(&client_hello(by, true)?, SUPPORTED_GROUPS, &[]))),
        MISSING_EXTENSION,
        "incompatible",
    ),
    (
        "TLS 1.3 without signature_algorithms",
        |by| Ok(record(&edited_hello(&client_hello(by, true)?, SIGNATURE_ALGORITHMS, &[]))),
        MISSING_EXTENSION,
        "incompatible",
    ),
    (
        "TLS 1.2 without signature_algorithms",
        |by| Ok(record(&edited_hello(&client_hello(by, false)?, SIGNATURE_ALGORITHMS, &[]))),
        HANDSHAKE_FAILURE,
        "incompatible",
    ),
    (
        "an empty share in TLS 1.3",
        |by| key_share(by, &[0, 4, 0, 29, 0, 0]),
        DECODE_ERROR,
        "malformed",
    ),
    (
        "a share of one byte in TLS 1.3",
        |by| key_share(by, &[0, 5, 0, 29, 0, 1, 9]),
        ILLEGAL_PARAMETER,
        "misbehaved",
    ),
    (
        "another server's name in the second ClientHello",
        |by| {
            let hello = client_hello(by, true)?;
            let first = edited_hello(&hello, KEY_SHARE, &[(KEY_SHARE, &[0, 0])]);
            let name = b"\0\x08\0\0\x05other";
            let second = edited_hello(&hello, SERVER_NAME, &[(SERVER_NAME, name)]);
            Ok([record(&first), record(&second)].concat())
        },
        ILLEGAL_PARAMETER,
        "misbehaved",
    ),
    ("an empty share in TLS 1.2", |by| client_key_exchange(by, &[]), DECODE_ERROR, "malformed"),
    (
        "a share of no bytes in TLS 1.2",
        |by| client_key_exchange(by, &[0]),
        DECODE_ERROR,
        "malformed",
    ),
    (
        "a share that is cut in TLS 1.2",
        |by| client_key_exchange(by, &[32, 1, 2]),
        DECODE_ERROR,
        "malformed",
    ),
    (
        "a share of one byte in TLS 1.2",
        |by| client_key_exchange(by, &[1, 9]),
        ILLEGAL_PARAMETER,
        "misbehaved",
    ),
    (
        "a ClientHello of 16 MB",
        |_| Ok(vec![22, 3, 1, 0, 4, 1, 255, 0, 0]),
        DECODE_ERROR,
        "malformed",
    ),
    (
        "warnings without end",
        |_| Ok([21, 3, 1, 0, 2, 1, 90].repeat(1_000)),
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
];

#[test]
fn a_handshake_that_fails_in_plaintext_ends_with_its_alert() -> Result<()> {
    let mut house = House::new("")?;
    for (name, bytes, alert, cause) in OPENINGS {
        let before = house.server.metrics()?;
        let mut socket = TcpStream::connect(house.tls)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        // Who is not listened to any more cannot send everything.
        let _ = socket.write_all(&bytes(&house.authority)?);
        let last = last_alert(&mut socket).with_context(|| (*name).to_owned())?;
        assert_eq!(last, Some(alert.0), "{name}");
        check_counts(&house, &before, *alert, cause).with_context(|| (*name).to_owned())?;
        house.check_witnesses()?;
    }
    house.check_end()
}

#[test]
fn the_longest_plaintext_record_is_read() -> Result<()> {
    let house = House::new("")?;
    let mut socket = TcpStream::connect(house.tls)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(&record(&padded_hello(&house.authority, 16_384)?))?;
    let answer = read_record(&mut socket)?.context("an answer")?;
    assert_eq!((answer[0], answer[5]), (22, 2), "a ServerHello");
    drop(socket);
    house.check_end()
}

/// What a client says instead of its `Finished`, under the keys of the handshake.
type Second = (&'static str, fn(&mut HalfHandshake) -> Result<()>, Alert, &'static str);

const SECONDS: &[Second] = &[
    ("zeros alone", |c| c.say(0, &[0; 100]), UNEXPECTED_MESSAGE, "misbehaved"),
    ("one zero", |c| c.say(0, &[]), UNEXPECTED_MESSAGE, "misbehaved"),
    (
        "data amid a Finished",
        |c| {
            c.say(Forger::HANDSHAKE, &FINISHED[..9])?;
            c.say(Forger::DATA, b"x")
        },
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
    (
        "a warning amid a Finished",
        |c| {
            c.say(Forger::HANDSHAKE, &FINISHED[..9])?;
            c.say(Forger::ALERT, &[1, 90])
        },
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
    ("an empty alert", |c| c.say(Forger::ALERT, &[]), UNEXPECTED_MESSAGE, "malformed"),
    ("half an alert", |c| c.say(Forger::ALERT, &[2]), DECODE_ERROR, "malformed"),
    (
        "an empty handshake record",
        |c| c.say(Forger::HANDSHAKE, &[]),
        UNEXPECTED_MESSAGE,
        "malformed",
    ),
    (
        "an empty handshake record that is padded",
        |c| c.say(0, &[Forger::HANDSHAKE, 0, 0, 0]),
        UNEXPECTED_MESSAGE,
        "malformed",
    ),
    (
        "an empty record amid a Finished",
        |c| {
            c.say(Forger::HANDSHAKE, &FINISHED[..9])?;
            c.say(Forger::HANDSHAKE, &[])
        },
        UNEXPECTED_MESSAGE,
        "malformed",
    ),
    (
        "warnings without end",
        |c| (0..100).try_for_each(|_| c.say(Forger::ALERT, &[1, 90]).or(Ok(()))),
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
    (
        "changes of ciphers without end",
        |c| c.send(&[20, 3, 3, 0, 1, 1].repeat(100)),
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
    ("data", |c| c.say(Forger::DATA, b"x"), UNEXPECTED_MESSAGE, "misbehaved"),
    ("a Finished in plaintext", |c| c.send(&record(&FINISHED)), UNEXPECTED_MESSAGE, "misbehaved"),
    ("a wrong Finished", |c| c.say(Forger::HANDSHAKE, &FINISHED), DECRYPT_ERROR, "decrypt"),
    (
        "a Finished of 16 MB",
        |c| c.say(Forger::HANDSHAKE, &[20, 255, 255, 255]),
        DECODE_ERROR,
        "malformed",
    ),
    (
        "a change of keys",
        |c| c.say(Forger::HANDSHAKE, &KEY_UPDATE),
        UNEXPECTED_MESSAGE,
        "misbehaved",
    ),
    ("16,385 bytes", |c| c.say(Forger::HANDSHAKE, &[0; 16_385]), RECORD_OVERFLOW, "malformed"),
    ("a header of 16,641 bytes", |c| c.send(&[23, 3, 3, 0x41, 1]), RECORD_OVERFLOW, "malformed"),
    (
        "a record that does not open",
        |c| c.send(&[[23, 3, 3, 0, 40].as_slice(), &[7; 40]].concat()),
        DOES_NOT_OPEN,
        "decrypt",
    ),
];

const FINISHED: [u8; 52] = {
    let mut message = [7; 52];
    (message[0], message[1], message[2], message[3]) = (20, 0, 0, 48);
    message
};

#[test]
fn a_handshake_that_fails_under_its_keys_ends_with_its_alert() -> Result<()> {
    let mut house = House::new("")?;
    for (name, say, alert, cause) in SECONDS {
        let before = house.server.metrics()?;
        let suite = CipherSuite::TLS13_AES_256_GCM_SHA384;
        let mut client = HalfHandshake::begin(house.tls, &house.authority, suite)?;
        say(&mut client).with_context(|| (*name).to_owned())?;
        let heard = client.alert().with_context(|| (*name).to_owned())?;
        assert_eq!(heard, Some(alert.0), "{name}");
        check_counts(&house, &before, *alert, cause).with_context(|| (*name).to_owned())?;
        house.check_witnesses()?;
    }
    house.check_end()
}

/// One failure more of that cause, and one alert more of that name.
fn check_counts(house: &House, before: &Metrics, alert: Alert, cause: &str) -> Result<()> {
    let counts = |metrics: &Metrics| {
        [
            metrics.sum_of("weir_tls_handshakes_failed_total", &[("cause", cause)]),
            metrics.sum("weir_tls_handshakes_failed_total", ""),
            metrics.sum_of("weir_tls_alerts_sent_total", &[("alert", alert.1)]),
            metrics.sum("weir_tls_alerts_sent_total", ""),
        ]
    };
    let expected = counts(before).map(|count| count + 1.0);
    let is_counted = |metrics: &Metrics| counts(metrics) == expected;
    house.server.await_metrics("one failure and one alert more", is_counted)?;
    Ok(())
}

/// The fatal alert that the server ends with, in plaintext; `None` if it ends without one.
fn last_alert(socket: &mut TcpStream) -> Result<Option<u8>> {
    while let Some(record) = read_record(socket)? {
        match *record.as_slice() {
            [21, 3, 3, 0, 2, 2, code] => {
                ensure!(read_record(socket)?.is_none(), "something follows the alert");
                return Ok(Some(code));
            }
            [20 | 22, ..] => {}
            _ => bail!("a record of type {}", record[0]),
        }
    }
    Ok(None)
}

/// One record that holds a handshake message, however long.
fn record(message: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(message.len()).expect("a record's length").to_be_bytes();
    [[22, 3, 1, high, low].as_slice(), message].concat()
}

/// A `ClientHello` of so many bytes.
fn padded_hello(by: &Authority, bytes: usize) -> Result<Vec<u8>> {
    let hello = client_hello(by, true)?;
    let without = edited_hello(&hello, PADDING, &[(PADDING, &[])]).len();
    let padding = vec![0; bytes - without];
    Ok(edited_hello(&hello, PADDING, &[(PADDING, &padding)]))
}

/// A `ClientHello` in two records, and between them this.
fn amid_hello(by: &Authority, between: &[u8]) -> Result<Vec<u8>> {
    let hello = client_hello(by, true)?;
    let (first, second) = hello.split_at(50);
    Ok([record(first).as_slice(), between, &record(second)].concat())
}

/// A `ClientHello` with this as its `key_share`.
fn key_share(by: &Authority, content: &[u8]) -> Result<Vec<u8>> {
    Ok(record(&edited_hello(&client_hello(by, true)?, KEY_SHARE, &[(KEY_SHARE, content)])))
}

/// A handshake of TLS 1.2 up to the `ClientKeyExchange` with this content.
fn client_key_exchange(by: &Authority, content: &[u8]) -> Result<Vec<u8>> {
    let mut message = vec![16, 0, 0, u8::try_from(content.len())?];
    message.extend_from_slice(content);
    Ok([record(&client_hello(by, false)?), record(&message)].concat())
}
