//! What a hostile device sends behind the handshake, and the alert that answers it.

use anyhow::Result;
use weir_tests::{Forger, framed};
use weir_wire::v1::{self, client_message};

/// A fatal alert: its code, and its name in the metrics.
pub(crate) type Alert = (u8, &'static str);

pub(crate) const UNEXPECTED_MESSAGE: Alert = (10, "unexpected_message");
pub(crate) const BAD_RECORD_MAC: Alert = (20, "bad_record_mac");
pub(crate) const RECORD_OVERFLOW: Alert = (22, "record_overflow");
pub(crate) const ILLEGAL_PARAMETER: Alert = (47, "illegal_parameter");
pub(crate) const DECODE_ERROR: Alert = (50, "decode_error");

/// What an attack sends, and the alert that answers it.
pub(crate) type Attack = (&'static str, fn(&mut Forger) -> Result<Vec<u8>>, Alert);

/// What brings no application data may come so often in a row.
pub(crate) const IDLE_MAX: usize = 32;

/// In either version.
pub(crate) const IN_BOTH: &[Attack] = &[
    ("a bit of the text changed", |f| flipped(f, 14), BAD_RECORD_MAC),
    ("a bit of the tag changed", |f| flipped(f, usize::MAX), BAD_RECORD_MAC),
    ("a bit of the version changed", |f| flipped(f, 1), BAD_RECORD_MAC),
    (
        "a record that has lost its last byte",
        |f| {
            let mut record = f.seal(Forger::DATA, &ping())?;
            record.pop();
            Ok(relabelled(record))
        },
        BAD_RECORD_MAC,
    ),
    ("a record too short for a tag", |_| Ok([23, 3, 3, 0, 15].repeat(4)), BAD_RECORD_MAC),
    ("an empty record that is not sealed", |_| Ok(vec![23, 3, 3, 0, 0]), BAD_RECORD_MAC),
    ("a record that comes twice", |f| Ok(f.seal(Forger::DATA, b"")?.repeat(2)), BAD_RECORD_MAC),
    (
        "a record left out",
        |f| {
            f.seal(Forger::DATA, b"")?;
            f.seal(Forger::DATA, &ping())
        },
        BAD_RECORD_MAC,
    ),
    ("a header of 16,641 bytes", |_| Ok(vec![23, 3, 3, 0x41, 1]), RECORD_OVERFLOW),
    ("a header of 65,535 bytes", |_| Ok(vec![23, 3, 3, 0xff, 0xff]), RECORD_OVERFLOW),
    ("16,385 bytes in a record", |f| f.seal(Forger::DATA, &[0; 16_385]), RECORD_OVERFLOW),
    ("a heartbeat", |_| Ok(vec![24, 3, 3, 0, 20, 1, 2, 3]), UNEXPECTED_MESSAGE),
    ("a record of type 0", |_| Ok(vec![0; 64]), UNEXPECTED_MESSAGE),
    ("a change of ciphers", |_| Ok(vec![20, 3, 3, 0, 1, 1]), UNEXPECTED_MESSAGE),
    ("HTTP in plaintext", |_| Ok(b"GET / HTTP/1.1\r\n\r\n".to_vec()), UNEXPECTED_MESSAGE),
    ("a frame in plaintext", |_| Ok(ping()), UNEXPECTED_MESSAGE),
    (
        "a frame in a plaintext record",
        |_| Ok([[23, 3, 3, 0, 32].as_slice(), &[b'x'; 32]].concat()),
        BAD_RECORD_MAC,
    ),
    (
        "empty records without end",
        |f| many(f, 10 * IDLE_MAX, Forger::DATA, b""),
        UNEXPECTED_MESSAGE,
    ),
    ("one empty record too many", |f| many(f, IDLE_MAX + 1, Forger::DATA, b""), UNEXPECTED_MESSAGE),
    (
        "warnings without end",
        |f| many(f, 10 * IDLE_MAX, Forger::ALERT, &[1, 90]),
        UNEXPECTED_MESSAGE,
    ),
    ("half an alert", |f| f.seal(Forger::ALERT, &[2]), DECODE_ERROR),
    ("two alerts in a record", |f| f.seal(Forger::ALERT, &[1, 90, 1, 90]), DECODE_ERROR),
    ("an alert without content", |f| f.seal(Forger::ALERT, b""), UNEXPECTED_MESSAGE),
    ("a Finished", |f| f.seal(Forger::HANDSHAKE, &[20, 0, 0, 1, 0]), UNEXPECTED_MESSAGE),
    ("a handshake record without content", |f| f.seal(Forger::HANDSHAKE, b""), UNEXPECTED_MESSAGE),
];

/// In TLS 1.3.
pub(crate) const IN_13: &[Attack] = &[
    ("an alert in plaintext", |_| Ok(vec![21, 3, 3, 0, 2, 2, 40]), UNEXPECTED_MESSAGE),
    ("a sealed change of ciphers", |f| f.seal(20, &[1]), UNEXPECTED_MESSAGE),
    ("a sealed record of type 99", |f| f.seal(99, b"x"), UNEXPECTED_MESSAGE),
    ("nothing but padding", |f| f.seal(0, &[0; 100]), UNEXPECTED_MESSAGE),
    ("padding above the limit", |f| padded(f, b"x", 1 << 14), RECORD_OVERFLOW),
    ("a ClientHello", |f| f.seal(Forger::HANDSHAKE, &RENEGOTIATION), UNEXPECTED_MESSAGE),
    ("a ticket", |f| f.seal(Forger::HANDSHAKE, &[4, 0, 0, 1, 0]), UNEXPECTED_MESSAGE),
    (
        "changes of keys without end",
        |f| key_updates(f, 10 * IDLE_MAX, KEY_UPDATE),
        UNEXPECTED_MESSAGE,
    ),
    (
        "changes of keys without end, each to be answered",
        |f| key_updates(f, 10 * IDLE_MAX, KEY_UPDATE_REQUESTED),
        UNEXPECTED_MESSAGE,
    ),
    (
        "one change of keys too many",
        |f| key_updates(f, IDLE_MAX + 1, KEY_UPDATE),
        UNEXPECTED_MESSAGE,
    ),
    (
        "a change of keys that goes on",
        |f| f.seal(Forger::HANDSHAKE, &[24, 0, 0, 1, 0, 24]),
        UNEXPECTED_MESSAGE,
    ),
    (
        "a change of keys of no kind",
        |f| f.seal(Forger::HANDSHAKE, &[24, 0, 0, 1, 2]),
        ILLEGAL_PARAMETER,
    ),
    (
        "a change of keys of two bytes",
        |f| f.seal(Forger::HANDSHAKE, &[24, 0, 0, 2, 0, 0]),
        DECODE_ERROR,
    ),
    (
        "data amid a change of keys",
        |f| {
            let mut sent = f.seal(Forger::HANDSHAKE, &KEY_UPDATE[..3])?;
            sent.extend(f.seal(Forger::DATA, &ping())?);
            Ok(sent)
        },
        UNEXPECTED_MESSAGE,
    ),
    (
        "the old keys behind a change",
        |f| {
            let mut sent = f.seal(Forger::HANDSHAKE, &KEY_UPDATE)?;
            sent.extend(f.seal(Forger::DATA, &ping())?);
            Ok(sent)
        },
        BAD_RECORD_MAC,
    ),
];

/// In TLS 1.2.
pub(crate) const IN_12: &[Attack] = &[
    ("an alert in plaintext", |_| Ok(vec![21, 3, 3, 0, 2, 2, 40]), BAD_RECORD_MAC),
    (
        "a ClientHello in plaintext",
        |_| Ok([[22, 3, 1, 0, 40].as_slice(), &[1; 40]].concat()),
        BAD_RECORD_MAC,
    ),
    ("an alert of no level", |f| f.seal(Forger::ALERT, &[3, 90]), ILLEGAL_PARAMETER),
    (
        "wishes to renegotiate without end",
        |f| many(f, 10 * IDLE_MAX, Forger::HANDSHAKE, &RENEGOTIATION),
        UNEXPECTED_MESSAGE,
    ),
    (
        "wishes to renegotiate without end in one record",
        |f| f.seal(Forger::HANDSHAKE, &RENEGOTIATION.repeat(4_000)),
        UNEXPECTED_MESSAGE,
    ),
    ("a ClientHello of 16 MB", |f| f.seal(Forger::HANDSHAKE, &[1, 255, 0, 0]), DECODE_ERROR),
    ("a change of keys", |f| f.seal(Forger::HANDSHAKE, &KEY_UPDATE), UNEXPECTED_MESSAGE),
];

/// A frame with a `Ping`.
pub(crate) fn ping() -> Vec<u8> {
    framed(client_message::Kind::Ping(v1::Ping { data: b"ping".to_vec() }))
}

/// `record` with the length in its header that it has.
fn relabelled(mut record: Vec<u8>) -> Vec<u8> {
    let bytes = u16::try_from(record.len() - 5).expect("a record is no longer");
    record[3..5].copy_from_slice(&bytes.to_be_bytes());
    record
}

/// So many records of a type and a content.
pub(crate) fn many(forger: &mut Forger, count: usize, kind: u8, content: &[u8]) -> Result<Vec<u8>> {
    let mut sent = Vec::new();
    for _ in 0..count {
        sent.extend(forger.seal(kind, content)?);
    }
    Ok(sent)
}

pub(crate) const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
pub(crate) const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

/// So many changes of keys, each whole and under the keys of its time.
pub(crate) fn key_updates(forger: &mut Forger, count: usize, content: [u8; 5]) -> Result<Vec<u8>> {
    let mut sent = Vec::new();
    for _ in 0..count {
        sent.extend(forger.seal(Forger::HANDSHAKE, &content)?);
        forger.change_keys()?;
    }
    Ok(sent)
}

/// A `ClientHello` of no content, which is enough of a wish to renegotiate.
pub(crate) const RENEGOTIATION: [u8; 4] = [1, 0, 0, 0];

fn flipped(forger: &mut Forger, at: usize) -> Result<Vec<u8>> {
    let mut record = forger.seal(Forger::DATA, &ping())?;
    let at = at.min(record.len() - 1);
    record[at] ^= 1;
    Ok(record)
}

/// TLS 1.3: padding is zeros behind the type, and the record's own type zero like them.
pub(crate) fn padded(forger: &mut Forger, content: &[u8], padding: usize) -> Result<Vec<u8>> {
    let zeros = vec![0; padding - 1];
    forger.seal(0, &[content, &[Forger::DATA], &zeros].concat())
}
