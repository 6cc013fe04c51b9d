//! The names of keys and channels, and where in a Redis Cluster they belong.
//!
//! A key is `prefix:{tag}kind:name`. Redis Cluster places a key by what stands between the first pair of braces. The tag
//! is made from a hash of the name, so that all keys and the channel of one topic lie together, and braces in the name
//! mean nothing.

use std::fmt::Write as _;

use crate::records::{Name, NodeNumber};

/// One of the parts of the key space that a Redis Cluster divides among its primaries.
pub(super) type Slot = u16;

/// Slots of a Redis Cluster.
pub(super) const SLOTS: usize = 16_384;

/// What messages come for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Interest {
    /// Those of a topic.
    Topic(Name),
    /// Those to a device, and what becomes of its claims.
    Device(Name),
    /// Those to a node.
    Node(NodeNumber),
    /// Those to all nodes.
    All,
    /// That a device was revoked.
    Revocations,
}

/// Names keys and channels.
#[derive(Clone)]
pub(super) struct Keys {
    prefix: String,
}

/// What one name's keys begin with.
pub(super) struct Place {
    pub(super) slot: Slot,
    /// Prefix and tag.
    base: String,
    name: Name,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Keys {
        Keys { prefix: prefix.to_owned() }
    }

    /// Where the keys of a name lie.
    pub(super) fn place(&self, name: &Name) -> Place {
        let tag = crc16(name.as_bytes()).to_string();
        let base = format!("{}:{{{tag}}}", self.prefix);
        Place { slot: slot_of(&tag), base, name: name.clone() }
    }

    /// Where what belongs to the whole cluster lies.
    pub(super) fn shared(&self) -> Place {
        self.place(&Name::from(self.prefix.as_str()))
    }

    /// The channel on which messages for an interest come, and its slot.
    pub(super) fn channel(&self, interest: &Interest) -> (Slot, String) {
        let (place, kind) = match interest {
            Interest::Topic(name) => (self.place(name), 'c'),
            Interest::Device(name) => (self.place(name), 'd'),
            Interest::Node(number) => (self.place(&Name::from(number.0.to_string())), 'n'),
            Interest::All => (self.shared(), 'a'),
            Interest::Revocations => (self.shared(), 'r'),
        };
        (place.slot, place.key(kind))
    }

    /// What comes on a channel: the reverse of [`Keys::channel`].
    pub(super) fn interest(&self, channel: &[u8]) -> Option<Interest> {
        let rest = channel.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b":{")?;
        let end = rest.iter().position(|&byte| byte == b'}')?;
        let (kind, rest) = rest[end + 1..].split_first()?;
        let name = str::from_utf8(rest.strip_prefix(b":")?).ok()?;
        match kind {
            b'c' => Some(Interest::Topic(Name::from(name))),
            b'd' => Some(Interest::Device(Name::from(name))),
            b'n' => Some(Interest::Node(NodeNumber(name.parse().ok()?))),
            b'a' => Some(Interest::All),
            b'r' => Some(Interest::Revocations),
            _ => None,
        }
    }

    /// A channel in one of the slots of a Redis node, on which a connection hears itself.
    pub(super) fn probe(&self, slot: Slot, id: u64) -> String {
        format!("{}:{{{}}}p:{id:x}", self.prefix, tag_in(slot))
    }
}

impl Place {
    /// The key of a kind.
    pub(super) fn key(&self, kind: char) -> String {
        format!("{}{kind}:{}", self.base, self.name)
    }

    /// The key of a kind for a part of what the name stands for. No name has a NUL.
    pub(super) fn part(&self, kind: char, part: &str) -> String {
        let mut key = self.key(kind);
        let _ = write!(key, "\0{part}");
        key
    }
}

/// Whether a key is that of a topic itself, not of something that belongs to it.
pub(super) fn is_topic(key: &[u8]) -> bool {
    // Neither prefix nor tag have a brace.
    let end = key.iter().position(|&byte| byte == b'}');
    end.is_some_and(|end| key[end..].starts_with(b"}t:"))
}

/// The slot of a tag.
fn slot_of(tag: &str) -> Slot {
    crc16(tag.as_bytes()) % 16_384
}

/// Some tag whose slot is this one.
fn tag_in(slot: Slot) -> String {
    // About one in 16,384 numbers has the slot, so that this ends soon. It runs once a connection.
    (0u32..).map(|number| number.to_string()).find(|tag| slot_of(tag) == slot).unwrap_or_default()
}

/// CRC-16/XMODEM, by which Redis Cluster places keys.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // Of the specification of Redis Cluster.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // CLUSTER KEYSLOT foo
        assert_eq!(slot_of("foo"), 12_182);
        for slot in [0, 1, 5_460, 16_383] {
            assert_eq!(slot_of(&tag_in(slot)), slot);
        }
    }

    #[test]
    fn a_channel_leads_back_to_what_it_is_for() {
        let keys = Keys::new("weir");
        let names = ["news", "a{b}c", "{}", "}{", "x:y", "ü"];
        let mut interests =
            vec![Interest::All, Interest::Revocations, Interest::Node(NodeNumber(7))];
        for name in names {
            interests.push(Interest::Topic(name.into()));
            interests.push(Interest::Device(name.into()));
        }
        for interest in interests {
            let (slot, channel) = keys.channel(&interest);
            assert_eq!(keys.interest(channel.as_bytes()), Some(interest));
            let open = channel.find('{').expect("a brace");
            let close = channel.find('}').expect("a brace");
            assert_eq!(slot_of(&channel[open + 1..close]), slot);
        }
        assert_eq!(keys.interest(b"other:{1}c:news"), None);
        assert_eq!(keys.interest(b"weir:{1}z:news"), None);
        assert_eq!(keys.interest(b"weir:{1"), None);
    }

    #[test]
    fn keys_of_one_name_lie_together() {
        let keys = Keys::new("weir");
        let place = keys.place(&"a{b}c".into());
        assert!(place.key('t').starts_with(&place.base));
        assert!(place.part('i', "key").ends_with("i:a{b}c\0key"));
    }
}
