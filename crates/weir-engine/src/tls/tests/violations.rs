//! Allowed and forbidden acts of a peer, and the alert for each forbidden one.

use super::*;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

/// A record: its type, its content, and its padding.
type Record<'a> = (u8, &'a [u8], usize);

/// The result of these records in a session of each cipher. All ciphers must agree.
fn judge(version: Version, records: &[Record<'_>]) -> Result<Opened, Violation> {
    let judged = CIPHERS.map(|cipher| {
        let (mut a, mut b) = pair(version, cipher);
        let mut sent = Vec::new();
        for (kind, content, padding) in records {
            b.forge(*kind, content, *padding, &mut sent);
        }
        let judged = a.open(&mut sent);
        if judged.is_err() {
            assert!(a.open(&mut sent).unwrap().is_end, "nothing is opened any more");
        }
        judged.map(|opened| Opened { used: sent.len() - opened.used, ..opened })
    });
    assert!(judged.iter().all(|one| *one == judged[0]), "{judged:?}");
    judged[0]
}

#[track_caller]
fn refused(version: Version, records: &[Record<'_>], alert: Alert) {
    let judged = judge(version, records);
    assert_eq!(judged.map_err(|violation| violation.alert), Err(Some(alert)), "{judged:?}");
}

#[track_caller]
fn taken(version: Version, records: &[Record<'_>], plaintext: usize) {
    let opened = Opened { plaintext, used: 0, is_end: false };
    assert_eq!(judge(version, records), Ok(opened));
}

const BOTH: [Version; 2] = [Version::Tls12, Version::Tls13];

#[test]
fn a_record_has_a_longest() {
    let longest = [7; (1 << 14) + 1];
    for version in BOTH {
        taken(version, &[(DATA, &longest[1..], 0)], 1 << 14);
        refused(version, &[(DATA, &longest, 0)], Alert::RecordOverflow);
    }
    // Padding counts as text.
    taken(Version::Tls13, &[(DATA, &longest[101..], 100)], (1 << 14) - 100);
    taken(Version::Tls13, &[(DATA, b"x", (1 << 14) - 1)], 1);
    refused(Version::Tls13, &[(DATA, b"x", 1 << 14)], Alert::RecordOverflow);
    for (version, body_max) in [(Version::Tls13, 16_640), (Version::Tls12, 16_408)] {
        let (a, _) = pair(version, Cipher::Aes128Gcm);
        let head = |body: u16| [&[DATA, 3, 3], body.to_be_bytes().as_slice()].concat();
        assert_eq!(a.record_bytes(&head(body_max)), Ok(Some(5 + usize::from(body_max))));
        let alert = a.record_bytes(&head(body_max + 1)).map_err(|violation| violation.alert);
        assert_eq!(alert, Err(Some(Alert::RecordOverflow)));
        assert_eq!(a.record_bytes(&head(u16::MAX)[..4]), Ok(None));
    }
}

#[test]
fn a_record_has_room_for_its_tag() {
    for (a, _) in every_pair() {
        let explicit = if a.version() == Version::Tls12 && a.cipher().is_gcm() { 8 } else { 0 };
        for bytes in 0..explicit + 16 {
            let alert = a.record_bytes(&[DATA, 3, 3, 0, bytes]).map_err(|refused| refused.alert);
            assert_eq!(alert, Err(Some(Alert::BadRecordMac)));
        }
        let shortest = explicit + 16;
        let whole = Ok(Some(5 + usize::from(shortest)));
        assert_eq!(a.record_bytes(&[DATA, 3, 3, 0, shortest]), whole);
    }
}

#[test]
fn padding_and_empty_records_are_nothing() {
    taken(Version::Tls13, &[(DATA, b"a\0", 3), (DATA, b"", 50), (DATA, b"b", 0)], 3);
    taken(Version::Tls12, &[(DATA, b"a", 0), (DATA, b"", 0), (DATA, b"b", 0)], 2);
    refused(Version::Tls13, &[(0, b"", 10)], Alert::UnexpectedMessage);
    for version in BOTH {
        let mut records = vec![(DATA, b"".as_slice(), 0); 32];
        taken(version, &records, 0);
        records.push((DATA, b"x", 0));
        records.extend([(DATA, b"".as_slice(), 0); 32]);
        taken(version, &records, 1);
        records.push((DATA, b"", 0));
        refused(version, &records, Alert::UnexpectedMessage);
    }
}

#[test]
fn types_that_do_not_belong_here() {
    for version in BOTH {
        for kind in [1, 20, 24, 25, 255] {
            refused(version, &[(kind, b"x", 0)], Alert::UnexpectedMessage);
        }
        for kind in [ALERT, HANDSHAKE] {
            refused(version, &[(kind, b"", 0)], Alert::UnexpectedMessage);
        }
        for kind in [0, 19, 20, 24, 128, 255] {
            let (mut a, _) = pair(version, Cipher::Aes128Gcm);
            let alert = a.open(&mut [kind, 3, 3, 0, 1, 1]).map_err(|violation| violation.alert);
            assert_eq!(alert, Err(Some(Alert::UnexpectedMessage)));
        }
    }
}

#[test]
fn plaintext_after_the_handshake() {
    let cases = [
        (Version::Tls13, [ALERT, 3, 3, 0, 2, 1, 0].as_slice(), Alert::UnexpectedMessage),
        (Version::Tls13, &[HANDSHAKE, 3, 1, 0, 2, 1, 0], Alert::UnexpectedMessage),
        (Version::Tls12, &[ALERT, 3, 3, 0, 2, 1, 0], Alert::BadRecordMac),
        (Version::Tls13, &[DATA, 3, 3, 0, 2, 1, 0], Alert::BadRecordMac),
        (
            Version::Tls12,
            b"\x16\x03\x01\x00\x28a ClientHello as long as it needs to be.",
            Alert::BadRecordMac,
        ),
        (Version::Tls12, b"GET / HTTP/1.1\r\n\r\n", Alert::UnexpectedMessage),
        (Version::Tls13, b"GET / HTTP/1.1\r\n\r\n", Alert::UnexpectedMessage),
    ];
    for (version, bytes, alert) in cases {
        for cipher in CIPHERS {
            let (mut a, _) = pair(version, cipher);
            let judged = a.open(&mut bytes.to_vec()).map_err(|violation| violation.alert);
            assert_eq!(judged, Err(Some(alert)), "{version:?} {bytes:?}");
        }
    }
}

#[test]
fn any_bit_that_is_changed_or_number_that_is_skipped() {
    for (mut a, mut b) in every_pair() {
        let mut sent = Vec::new();
        a.seal(&[IoSlice::new(b"text")], &mut sent).unwrap();
        let b_state = b.take();
        // All bits except those of the length, which would make it another record.
        for bit in (8..24).chain(40..sent.len() * 8) {
            let mut copy = pair(b_state.version(), b_state.cipher()).1;
            let mut bytes = sent.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let alert = copy.open(&mut bytes).map_err(|violation| violation.alert);
            assert_eq!(alert, Err(Some(Alert::BadRecordMac)), "bit {bit}");
        }
        let mut b = b_state;
        a.seal(&[IoSlice::new(b"next")], &mut Vec::new()).unwrap();
        a.seal(&[IoSlice::new(b"last")], &mut sent).unwrap();
        let alert = b.open(&mut sent).map_err(|violation| violation.alert);
        assert_eq!(alert, Err(Some(Alert::BadRecordMac)));
    }
}

#[test]
fn alerts_of_the_peer() {
    for version in BOTH {
        for level in [1, 2] {
            let end = judge(version, &[(DATA, b"x", 0), (ALERT, &[level, 0], 0), (99, b"", 0)]);
            assert_eq!(end, Ok(Opened { plaintext: 1, used: 0, is_end: true }));
        }
        for description in [10, 20, 50, 80, 200] {
            let judged = judge(version, &[(ALERT, &[2, description], 0)]);
            assert_eq!(judged.map_err(|violation| violation.alert), Err(None));
        }
        for content in [[1].as_slice(), &[1, 0, 1], &[1, 90, 1, 90]] {
            refused(version, &[(ALERT, content, 0)], Alert::DecodeError);
        }
        let warning = (ALERT, [1, 90].as_slice(), 0);
        taken(version, &[warning; 32], 0);
        refused(version, &[warning; 33], Alert::UnexpectedMessage);
    }
    taken(Version::Tls12, &[(ALERT, &[1, 100], 0), (DATA, b"x", 0)], 1);
    refused(Version::Tls12, &[(ALERT, &[3, 100], 0)], Alert::IllegalParameter);
    let judged = judge(Version::Tls13, &[(ALERT, &[1, 100], 0)]);
    assert_eq!(judged.map_err(|violation| violation.alert), Err(None), "no warnings there");
}

/// Sends one record. If it ends a `KeyUpdate`, changes the keys for the next record.
fn send(b: &mut Session, record: Record<'_>, is_update: bool, sent: &mut Vec<u8>) {
    b.forge(record.0, record.1, record.2, sent);
    if is_update {
        b.forge_new_keys();
    }
}

#[test]
fn key_updates_whole_and_in_pieces() {
    for cipher in CIPHERS {
        let (mut a, mut b) = pair(Version::Tls13, cipher);
        let mut sent = Vec::new();
        for round in 0..10_u8 {
            let update = if round % 2 == 0 { UPDATE } else { UPDATE_REQUESTED };
            for cut in 1..5 {
                send(&mut b, (HANDSHAKE, &update[..cut], 1), false, &mut sent);
                send(&mut b, (HANDSHAKE, &update[cut..], 0), true, &mut sent);
                b.seal(&[IoSlice::new(&[round])], &mut sent).unwrap();
            }
            for at in 0..5 {
                send(&mut b, (HANDSHAKE, &update[at..=at], 0), at == 4, &mut sent);
            }
            assert_eq!(a.open(&mut sent).unwrap().plaintext, 4);
            assert_eq!(a.take_key_changes(), 5);
            sent.clear();
            // One answer for all updates.
            assert_eq!(a.is_due(), round % 2 == 1);
            a.seal(&[IoSlice::new(b"y")], &mut sent).unwrap();
            assert!(!a.is_due());
            assert_eq!(a.take_key_changes(), u32::from(round % 2));
            assert_eq!(b.open(&mut sent).unwrap().plaintext, 1);
            assert_eq!(b.take_key_changes(), 5 + u32::from(round % 2));
            sent.clear();
        }
    }
}

#[test]
fn an_answer_leaves_without_data_as_well() {
    let (mut a, mut b) = pair(Version::Tls13, Cipher::Aes256Gcm);
    let mut sent = Vec::new();
    send(&mut b, (HANDSHAKE, &UPDATE_REQUESTED, 0), true, &mut sent);
    a.open(&mut sent).unwrap();
    let mut answer = Vec::new();
    a.seal_due(&mut answer).unwrap();
    assert!(!a.is_due());
    let bytes = answer.len();
    a.seal_due(&mut answer).unwrap();
    assert_eq!(answer.len(), bytes);
    assert_eq!(b.open(&mut answer), Ok(Opened { plaintext: 0, used: bytes, is_end: false }));
    assert!(!b.is_due(), "an answer wants no answer");
    a.seal(&[IoSlice::new(b"y")], &mut answer).unwrap();
    assert_eq!(b.open(&mut answer[bytes..]).unwrap().plaintext, 1);
}

#[test]
fn who_asks_for_an_answer_gets_one_though_more_follows() {
    let (mut a, mut b) = pair(Version::Tls13, Cipher::Aes128Gcm);
    let mut sent = Vec::new();
    for update in [UPDATE_REQUESTED, UPDATE] {
        send(&mut b, (HANDSHAKE, &update, 0), true, &mut sent);
    }
    a.open(&mut sent).unwrap();
    assert!(a.is_due());
}

#[test]
fn key_updates_that_are_none() {
    let v = Version::Tls13;
    refused(v, &[(HANDSHAKE, &[UPDATE, UPDATE].concat(), 0)], Alert::UnexpectedMessage);
    refused(v, &[(HANDSHAKE, &[24, 0, 0, 1, 0, 24], 0)], Alert::UnexpectedMessage);
    refused(v, &[(HANDSHAKE, &[24, 0, 0, 1, 2], 0)], Alert::IllegalParameter);
    refused(v, &[(HANDSHAKE, &[24, 0, 0, 0], 0)], Alert::DecodeError);
    refused(v, &[(HANDSHAKE, &[24, 1], 0)], Alert::DecodeError);
    // NewSessionTicket, ClientHello, Finished, and a certificate that nobody has requested.
    for message in [4, 1, 20, 11, 0, 254] {
        refused(v, &[(HANDSHAKE, &[message, 0, 0, 1, 0], 0)], Alert::UnexpectedMessage);
    }
    for amid in [(DATA, b"x".as_slice(), 0), (DATA, b"", 0), (ALERT, &[1, 0], 0)] {
        refused(v, &[(HANDSHAKE, &UPDATE[..3], 0), amid], Alert::UnexpectedMessage);
    }
    // Records under the old key are refused.
    refused(v, &[(HANDSHAKE, &UPDATE, 0), (DATA, b"x", 0)], Alert::BadRecordMac);
}

#[test]
fn too_many_key_updates() {
    for cipher in CIPHERS {
        let (mut a, mut b) = pair(Version::Tls13, cipher);
        let mut updates = |a: &mut Session, count: usize| {
            let mut sent = Vec::new();
            for _ in 0..count {
                send(&mut b, (HANDSHAKE, &UPDATE, 0), true, &mut sent);
            }
            let judged = a.open(&mut sent);
            b.seal(&[IoSlice::new(b"x")], &mut sent).unwrap();
            let used = judged.map(|opened| opened.used)?;
            a.open(&mut sent[used..])
        };
        for _ in 0..3 {
            assert_eq!(updates(&mut a, 32).map(|opened| opened.plaintext), Ok(1));
        }
        let judged = updates(&mut a, 33).map_err(|violation| violation.alert);
        assert_eq!(judged, Err(Some(Alert::UnexpectedMessage)));
    }
}

#[test]
fn wishes_to_renegotiate_are_refused_and_bounded() {
    let hello = [[1, 0, 1, 44].as_slice(), &[7; 300]].concat();
    for cipher in CIPHERS {
        let (mut a, mut b) = pair(Version::Tls12, cipher);
        let mut sent = Vec::new();
        for pieces in [hello.len(), 100, 7, 3, 1] {
            for piece in hello.chunks(pieces) {
                b.forge(HANDSHAKE, piece, 0, &mut sent);
            }
            b.seal(&[IoSlice::new(b"x")], &mut sent).unwrap();
        }
        assert_eq!(a.open(&mut sent).unwrap().plaintext, 5);
        assert!(a.is_due());
        sent.clear();
        assert_eq!(a.seal(&[IoSlice::new(b"y")], &mut sent), Ok(1));
        assert!(!a.is_due());
        let warning = b.record_bytes(&sent).unwrap().unwrap();
        assert_eq!((sent[0], sent[warning]), (ALERT, DATA));
        assert_eq!(b.open(&mut sent).unwrap().plaintext, 1);
    }
    let v = Version::Tls12;
    let several = [hello.as_slice(), &[1, 0, 0, 0], &hello].concat();
    taken(v, &[(HANDSHAKE, &several, 0), (DATA, b"x", 0)], 1);
    taken(v, &[(HANDSHAKE, &[1, 0, 0, 0].repeat(32), 0)], 0);
    refused(v, &[(HANDSHAKE, &[1, 0, 0, 0].repeat(33), 0)], Alert::UnexpectedMessage);
    refused(v, &[(HANDSHAKE, &[1, 1, 0, 0], 0)], Alert::DecodeError);
    for message in [0, 2, 11, 14, 16, 20, 24] {
        refused(v, &[(HANDSHAKE, &[message, 0, 0, 0], 0)], Alert::UnexpectedMessage);
    }
}

#[test]
fn a_refusal_and_data_leave_together_or_not_at_all() {
    let (mut a, mut b) = pair(Version::Tls12, Cipher::Aes128Gcm);
    a.set_records_log2(5);
    let mut out = Vec::new();
    for _ in 3..30 {
        a.seal(&[IoSlice::new(b"x")], &mut out).unwrap();
    }
    let mut hello = Vec::new();
    b.forge(HANDSHAKE, &[1, 0, 0, 0], 0, &mut hello);
    a.open(&mut hello).unwrap();
    let bytes = out.len();
    assert_eq!(a.seal(&[IoSlice::new(b"x")], &mut out), Err(Exhausted));
    assert_eq!(out.len(), bytes);
    assert_eq!(a.seal_due(&mut out), Ok(()));
    assert_eq!(a.seal_alert(Alert::CloseNotify, &mut out), Ok(()));
    let opened = b.open(&mut out).unwrap();
    assert_eq!((opened.plaintext, opened.is_end), (27, true));
}
