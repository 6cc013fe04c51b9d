//! What goes over a channel.
//!
//! Each message begins with a byte that tells its version and kind. A node counts and ignores what it does not know, so
//! that nodes of two versions work together.
//!
//! Messages of a topic are a line of decimal numbers, then the payloads: epoch, offset of the first, and the length of
//! each. The script that publishes writes them.
//!
//! A change of presence is such a line, too: how many members have entered, and the length of each member, those that have
//! left behind the others. A member is 16 hexadecimal digits of its connection, then its device.

use std::num::ParseIntError;

use crate::records::{ConnectionNumber, Member, Received};

/// The first byte of messages of a topic, as `scripts/publish.lua` writes it.
const MESSAGES: u8 = 1;
/// The first byte of a message without an offset.
const PLAIN: u8 = 2;
/// The first byte of an eviction, as `scripts/claim.lua` writes it.
const EVICTED: u8 = 3;
/// The first byte of a revocation, as `scripts/revoke.lua` writes it.
const REVOKED: u8 = 4;

/// The first byte of a change of presence, as `scripts/presence.lua` writes it.
const PRESENCE: u8 = 5;

/// What came over a channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Of a topic, in order.
    Messages { epoch: u64, messages: Vec<Received> },
    /// To a device, a node or all.
    Plain(Vec<u8>),
    /// A connection of that node gives way.
    Evicted { connection: u64, node: String },
    /// A device was revoked.
    Revoked { id: (u64, u64), device: String },
    /// Members have entered a topic, and others have left it before.
    Presence { joined: Vec<Member>, left: Vec<Member> },
}

impl Message {
    /// `None`: another version wrote it.
    pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            MESSAGES => Self::decode_messages(rest),
            PLAIN => Some(Message::Plain(rest.to_vec())),
            EVICTED => {
                let (connection, node) = str::from_utf8(rest).ok()?.split_once(' ')?;
                let connection = u64::from_str_radix(connection, 16).ok()?;
                Some(Message::Evicted { connection, node: node.to_owned() })
            }
            REVOKED => {
                let (id, device) = str::from_utf8(rest).ok()?.split_once(' ')?;
                Some(Message::Revoked { id: stream_id(id)?, device: device.to_owned() })
            }
            PRESENCE => Self::decode_presence(rest),
            _ => None,
        }
    }

    fn decode_messages(bytes: &[u8]) -> Option<Message> {
        let (mut numbers, mut rest) = line(bytes)?;
        let epoch = numbers.next()?.ok()?;
        let first = numbers.next()?.ok()?;
        let mut messages = Vec::new();
        for (offset, length) in (first..).zip(numbers) {
            let (payload, behind) = rest.split_at_checked(usize::try_from(length.ok()?).ok()?)?;
            messages.push(Received { offset, payload: payload.to_vec() });
            rest = behind;
        }
        rest.is_empty().then_some(Message::Messages { epoch, messages })
    }

    fn decode_presence(bytes: &[u8]) -> Option<Message> {
        let (mut numbers, mut rest) = line(bytes)?;
        let joined_count = usize::try_from(numbers.next()?.ok()?).ok()?;
        let mut joined = Vec::new();
        for length in numbers {
            let (text, behind) = rest.split_at_checked(usize::try_from(length.ok()?).ok()?)?;
            let (connection, device) = member(str::from_utf8(text).ok()?)?;
            joined.push(Member { connection, device: device.into() });
            rest = behind;
        }
        let is_whole = rest.is_empty() && joined_count <= joined.len();
        let left = is_whole.then(|| joined.split_off(joined_count))?;
        Some(Message::Presence { joined, left })
    }
}

/// The numbers of the first line, and what is behind it.
fn line(bytes: &[u8]) -> Option<(impl Iterator<Item = Result<u64, ParseIntError>>, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let numbers = str::from_utf8(&bytes[..end]).ok()?.split(' ').map(str::parse);
    Some((numbers, &bytes[end + 1..]))
}

/// Connection and device of a member, as Redis has them.
pub(super) fn member(text: &str) -> Option<(ConnectionNumber, &str)> {
    let (connection, device) = text.split_at_checked(16)?;
    Some((ConnectionNumber(u64::from_str_radix(connection, 16).ok()?), device))
}

/// A message without an offset, as it goes over a channel.
pub(super) fn plain(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + 1);
    bytes.push(PLAIN);
    bytes.extend_from_slice(payload);
    bytes
}

/// The two numbers of an id in a stream.
pub(super) fn stream_id(text: &str) -> Option<(u64, u64)> {
    let (first, second) = text.split_once('-')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_the_scripts_write_them() {
        let received = |offset, payload: &str| Received { offset, payload: payload.into() };
        let messages = vec![received(5, "ab"), received(6, ""), received(7, "\nx y")];
        let expected = Message::Messages { epoch: u64::MAX, messages };
        let bytes = b"\x0118446744073709551615 5 2 0 4\nab\nx y";
        assert_eq!(Message::decode(bytes), Some(expected));
        let expected = Message::Evicted { connection: 0xfff0_0000_0000_0001, node: "7a".into() };
        assert_eq!(Message::decode(b"\x03fff0000000000001 7a"), Some(expected));
        let expected = Message::Revoked { id: (17, 2), device: "a b".into() };
        assert_eq!(Message::decode(b"\x0417-2 a b"), Some(expected));
        assert_eq!(Message::decode(&plain(b"x")), Some(Message::Plain(b"x".to_vec())));
        let member = |connection, device: &str| Member {
            connection: ConnectionNumber(connection),
            device: device.into(),
        };
        let (joined, left) = (vec![member(1, "a b"), member(u64::MAX, "ü\n")], vec![member(2, "")]);
        let expected = Message::Presence { joined, left };
        let bytes = "\x052 19 19 16\n0000000000000001a bffffffffffffffffü\n0000000000000002";
        assert_eq!(Message::decode(bytes.as_bytes()), Some(expected));
    }

    #[test]
    fn what_is_cut_or_unknown_is_nothing() {
        for bytes in [&b"\x017 5 2 3\nabcde"[..], b"\x051 17 16\n0000000000000001a0000000000000002"]
        {
            for end in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..end]), None, "{bytes:?} {end}");
            }
        }
        let wrong = [
            &b"\x017 5 2\nabc"[..],
            b"\x01a 5\n",
            b"\x09abc",
            b"\x03xyz 3",
            b"\x0417 a",
            b"\x052 16\n0000000000000001",
            b"\x051 16\n000000000000000x",
            b"\x051 15\n000000000000000",
            b"\x050 16\n0000000000000001x",
        ];
        for bytes in wrong {
            assert_eq!(Message::decode(bytes), None, "{bytes:?}");
        }
    }
}
