//! Tokens that were looked up lately, so that a call costs no trip to anybody.

use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::time::Duration;

use hashbrown::HashTable;
use subtle::ConstantTimeEq;
use weir_engine::Nanos;

/// What was found of tokens, for a short time.
///
/// Shape: two tables under a key drawn at the start. What is entered or used goes to the young one; when that is full it
/// becomes the old one, whose entries are gone.
/// Limits: `max` tokens, and each no longer than its time to live.
/// Cost: one hash, and where a table has something in that place one comparison in constant time. A token in use is
/// copied once in a while.
pub(super) struct Tokens {
    hasher: RandomState,
    young: HashTable<Entry>,
    old: HashTable<Entry>,
    generation_max: usize,
    ttl: Duration,
}

/// What is known of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// It has to be looked up.
    Nothing,
    /// It is somebody's; `is_stale`: it should be looked up again, but nobody has to wait for that.
    Valid { is_stale: bool },
    /// It was nobody's a moment ago.
    Invalid,
}

struct Entry {
    token: Box<[u8]>,
    is_valid: bool,
    stale_from: Nanos,
    until: Nanos,
}

impl Tokens {
    pub(super) fn new(max: usize, ttl: Duration) -> Tokens {
        Tokens {
            hasher: RandomState::new(),
            young: HashTable::new(),
            old: HashTable::new(),
            generation_max: (max / 2).max(1),
            ttl,
        }
    }

    pub(super) fn find(&mut self, token: &[u8], now: Nanos) -> Known {
        let hash = self.hasher.hash_one(token);
        let is_same = |entry: &Entry| bool::from(entry.token.ct_eq(token));
        if let Some(entry) = self.young.find(hash, is_same) {
            return entry.known(now);
        }
        let Ok(entry) = self.old.find_entry(hash, is_same) else { return Known::Nothing };
        let (entry, _) = entry.remove();
        let known = entry.known(now);
        if known != Known::Nothing {
            self.insert(hash, entry);
        }
        known
    }

    /// Notes what was found: nothing is taken for valid for longer than `ends_in`.
    pub(super) fn put(
        &mut self,
        token: &[u8],
        is_valid: bool,
        ends_in: Option<Duration>,
        now: Nanos,
    ) {
        let ttl = if is_valid { self.ttl } else { self.ttl.min(INVALID_TTL) };
        let ttl = ends_in.map_or(ttl, |ends_in| ttl.min(ends_in));
        let (stale_from, until) = (now.after(ttl / 2), now.after(ttl));
        let hash = self.hasher.hash_one(token);
        let entry = Entry { token: token.into(), is_valid, stale_from, until };
        let is_same = |other: &Entry| other.token == entry.token;
        if let Some(known) = self.young.find_mut(hash, is_same) {
            *known = entry;
            return;
        }
        if let Ok(old) = self.old.find_entry(hash, is_same) {
            old.remove();
        }
        self.insert(hash, entry);
    }

    fn insert(&mut self, hash: u64, entry: Entry) {
        if self.young.len() >= self.generation_max {
            self.old = mem::take(&mut self.young);
        }
        let rehash = |entry: &Entry| self.hasher.hash_one(&*entry.token);
        self.young.insert_unique(hash, entry, rehash);
    }
}

impl Entry {
    fn known(&self, now: Nanos) -> Known {
        match (now < self.until, self.is_valid) {
            (false, _) => Known::Nothing,
            (true, true) => Known::Valid { is_stale: now >= self.stale_from },
            (true, false) => Known::Invalid,
        }
    }
}

/// What is nobody's may become somebody's, and is asked for seldom by those who mean well.
const INVALID_TTL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn what_was_found_holds_for_a_time() {
        let mut tokens = Tokens::new(8, SECOND * 4);
        tokens.put(b"valid", true, None, at(10));
        tokens.put(b"ends", true, Some(SECOND), at(10));
        tokens.put(b"wrong", false, None, at(10));
        let mut known = |token: &str, seconds| tokens.find(token.as_bytes(), at(seconds));
        assert_eq!(known("valid", 11), Known::Valid { is_stale: false });
        assert_eq!(known("valid", 12), Known::Valid { is_stale: true });
        assert_eq!(known("valid", 14), Known::Nothing);
        assert_eq!(known("ends", 10), Known::Valid { is_stale: false });
        assert_eq!(known("ends", 11), Known::Nothing);
        assert_eq!(known("wrong", 10), Known::Invalid);
        assert_eq!(known("wrong", 11), Known::Nothing);
        assert_eq!(known("vali", 10), Known::Nothing);
        assert_eq!(known("validx", 10), Known::Nothing);
    }

    #[test]
    fn the_last_word_counts() {
        let mut tokens = Tokens::new(8, SECOND);
        tokens.put(b"a", true, None, at(1));
        tokens.put(b"a", false, None, at(1));
        assert_eq!(tokens.find(b"a", at(1)), Known::Invalid);
        assert_eq!(tokens.young.len() + tokens.old.len(), 1);
    }

    #[test]
    fn there_are_never_more_than_allowed_and_those_in_use_stay() {
        let mut tokens = Tokens::new(100, SECOND * 4);
        tokens.put(b"used", true, None, at(1));
        for number in 0..10_000_u32 {
            tokens.put(&number.to_ne_bytes(), true, None, at(1));
            assert_ne!(tokens.find(b"used", at(1)), Known::Nothing);
            assert!(tokens.young.len() + tokens.old.len() <= 100);
        }
        assert_eq!(tokens.find(&0_u32.to_ne_bytes(), at(1)), Known::Nothing);
        assert_ne!(tokens.find(&9_999_u32.to_ne_bytes(), at(1)), Known::Nothing);
    }
}
