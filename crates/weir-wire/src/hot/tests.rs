//! Single rules, each by its bytes. tests/twin.rs compares many messages with prost.

use super::*;

const HELLO: &[u8] = &[0x0a, 0x00];
const PING: &[u8] = &[0x12, 0x03, 0x0a, 0x01, b'd'];
const PUBLISH: &[u8] = &[0x2a, 0x06, 0x0a, 0x01, b't', 0x12, 0x01, b'x'];

#[track_caller]
fn check(parts: &[&[u8]], expected: Result<FromDevice<'_>, WireError>) {
    assert_eq!(FromDevice::decode(&parts.concat()), expected);
}

#[track_caller]
fn check_malformed(parts: &[&[u8]], why: &'static str) {
    check(parts, Err(WireError::MessageMalformed(why)));
}

/// `inner` inside `depth` groups of number 9.
fn groups(depth: usize, inner: &[u8]) -> Vec<u8> {
    [&[0x5b].repeat(depth), inner, &[0x5c].repeat(depth)].concat()
}

#[test]
fn the_kind_is_found() {
    check(&[PING], Ok(FromDevice::Ping { data: b"d" }));
    check(&[&[0x12, 0x00]], Ok(FromDevice::Ping { data: b"" }));
    check(&[PUBLISH], Ok(FromDevice::Publish));
    for other in [1, 3, 4, 6, 8, 9, 10] {
        check(&[&[other << 3 | 2, 0]], Ok(FromDevice::Other));
    }
    check(&[], Ok(FromDevice::Unknown));
    for unknown in [7, 11, 15] {
        check(&[&[unknown << 3 | 2, 0]], Ok(FromDevice::Unknown));
    }
}

#[test]
fn ping_data_is_bounded() {
    for (bytes, is_taken) in [(PING_BYTES_MAX, true), (PING_BYTES_MAX + 1, false)] {
        let mut frame = Vec::new();
        encode_ping_frame(&vec![7; bytes], &mut frame);
        let (body, _) = frame::decode(&frame, 1024).unwrap().unwrap();
        let expected = if is_taken {
            Ok(FromDevice::Ping { data: &[7; PING_BYTES_MAX] })
        } else {
            Err(WireError::PingTooLarge(bytes))
        };
        assert_eq!(FromDevice::decode(body), expected);
    }
}

#[test]
fn the_last_kind_wins_unless_what_is_before_it_is_not_looked_at() {
    check(&[PUBLISH, PING], Ok(FromDevice::Ping { data: b"d" }));
    check(&[PING, PUBLISH], Ok(FromDevice::Publish));
    check(&[PING, HELLO], Ok(FromDevice::Other));
    check_malformed(&[HELLO, PING], "a second kind in one message");
    check_malformed(&[HELLO, PUBLISH], "a second kind in one message");
    check_malformed(&[&[0x2a, 0x03, 0x0a, 0x01, 0xff], PING], "text is not UTF-8");
}

#[test]
fn occurrences_of_one_kind_merge() {
    check(&[PING, &[0x12, 0x00]], Ok(FromDevice::Ping { data: b"d" }));
    check(&[PING, PUBLISH, &[0x12, 0x00]], Ok(FromDevice::Ping { data: b"" }));
    let merged = [PUBLISH, &[0x2a, 0x02, 0x30, 0x05]].concat();
    let expected =
        Publish { topic: "t", payload: Payload::Text("x"), content_type: "", key: "", request: 5 };
    assert_eq!(Publish::decode(&merged), Ok(expected));
}

#[test]
fn unknown_fields_are_skipped_by_their_wire_type() {
    for unknown in [
        &[0x58, 0xff, 0x01][..],
        &[0x59, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x5a, 0x02, 0xff, 0xff],
        &[0x5d, 1, 2, 3, 4],
        &[0x5b, 0x58, 0x01, 0x63, 0x64, 0x5c],
    ] {
        check(&[unknown, PING, unknown], Ok(FromDevice::Ping { data: b"d" }));
        for end in 1..unknown.len() {
            assert!(FromDevice::decode(&[PING, &unknown[..end]].concat()).is_err(), "cut at {end}");
        }
    }
}

#[test]
fn groups_nest_as_deep_as_prost_allows() {
    check(&[&groups(100, &[])], Ok(FromDevice::Unknown));
    check_malformed(&[&groups(101, &[])], "groups nested too deeply");
    check_malformed(&[&[0x5b].repeat(60_000)], "groups nested too deeply");
    check(&[&groups(99, &[0x58, 0x00])], Ok(FromDevice::Unknown));
    check_malformed(&[&groups(100, &[0x58, 0x00])], "groups nested too deeply");
    check_malformed(&[&[0x5b, 0x54]], "end of another group");
    check_malformed(&[&[0x5c]], "end of a group that did not begin");
}

#[test]
fn what_is_no_field_is_malformed() {
    check_malformed(&[&[0x02, 0x00]], "field number 0");
    check_malformed(&[&[0x5e]], "unknown wire type");
    check_malformed(&[&[0x5f]], "unknown wire type");
    check_malformed(&[&[0x80, 0x80, 0x80, 0x80, 0x10]], "field key over 32 bits");
    check_malformed(&[&[0x10, 0x01]], "field of another wire type");
    check_malformed(&[&[0x12, 0x02, 0x08, 0x01]], "field of another wire type");
    check_malformed(&[&[0x12, 0x05, 0x0a]], "truncated");
    check_malformed(&[&[0x12, 0x02, 0x0a, 0x01, b'd']], "truncated");
    check_malformed(&[&[0x58], &[0xff; 10]], "varint over 64 bits");
    check_malformed(&[&[0x58], &[0xff; 9], &[0x02]], "varint over 64 bits");
    check(&[&[0x58], &[0xff; 9], &[0x01]], Ok(FromDevice::Unknown));
}

#[test]
fn a_push_is_told_from_other_kinds() {
    let push = Push { topic: "t", payload: Payload::Data(b"x"), sender: 3, ..Push::default() };
    let mut frame = Vec::new();
    push.encode_frame(&mut frame);
    assert_eq!(frame.len(), push.frame_bytes());
    let body = &frame[1..];
    assert_eq!(Push::decode(body), Ok(Some(push)));
    for other in [1, 2, 4, 5, 6, 7, 8, 9, 10] {
        let is_looked_at = other == SERVER_PONG;
        let other = [other << 3 | 2, 0];
        assert_eq!(Push::decode(&other), Ok(None));
        assert_eq!(Push::decode(&[body, &other].concat()), Ok(None));
        let behind = if is_looked_at { Ok(Some(push)) } else { Err(BEHIND_ANOTHER_KIND) };
        assert_eq!(Push::decode(&[&other, body].concat()), behind);
    }
    assert_eq!(Push::decode(&[]), Ok(None));
    assert_eq!(Push::decode(&[15 << 3 | 2, 0]), Ok(None));
}

#[test]
fn what_the_server_sends_is_told_apart() {
    for (kind, expected) in [
        (SERVER_PUSH, FromServer::Push(Push::default())),
        (SERVER_PONG, FromServer::Pong { data: b"" }),
        (SERVER_GOODBYE, FromServer::Other),
        (SERVER_CANCEL, FromServer::Other),
    ] {
        assert_eq!(FromServer::decode(&[kind << 3 | 2, 0]), Ok(expected));
    }
    let batch = [SERVER_BATCH << 3 | 2, 0];
    assert!(matches!(FromServer::decode(&batch), Ok(FromServer::Batch(_))));
    assert_eq!(FromServer::decode(&[]), Ok(FromServer::Unknown));
    assert_eq!(FromServer::decode(&[0x82, 0x01, 0]), Ok(FromServer::Unknown));
}

#[test]
fn a_key_is_found_in_its_frame() {
    for key in ["", "k", "wind"] {
        let mut out = b"what stood there".to_vec();
        let push = Push { topic: "t", key, message_id: 9, offset: 1, ..Push::default() };
        let range = push.encode_frame(&mut out);
        assert_eq!(&out[range], key.as_bytes());
    }
}

#[test]
fn varints_take_the_bytes_they_are_said_to() {
    for shift in 0..64 {
        for value in [1 << shift, (1 << shift) - 1, u64::MAX >> shift] {
            let mut out = Vec::new();
            fields::put_varint(value, &mut out);
            assert_eq!(out.len(), fields::varint_bytes(value), "{value}");
        }
    }
}
