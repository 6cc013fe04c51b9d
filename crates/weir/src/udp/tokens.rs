//! Recently checked tokens, so that most calls need no request to the front.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::time::Duration;

use hashbrown::HashTable;
use subtle::ConstantTimeEq;
use weir_engine::Nanos;

/// The results of token checks, kept for a short time.
///
/// Shape: two tables under a key drawn at the start. New and used entries go to the young one. When
/// it is full, it becomes the old one, and the entries of the previous old one are gone. Invalid
/// tokens have separate tables, so that unknown peers push out no token of a device; only their
/// hashes are kept.
/// Limits: `max` valid tokens, and an eighth as many invalid ones; none is kept longer than its
/// time to live.
/// Cost: one hash, and one comparison in constant time if a table has an entry at that place. A
/// used token moves to the young table now and then.
pub(super) struct Tokens {
    hasher: RandomState,
    young: HashTable<Entry>,
    old: HashTable<Entry>,
    generation_max: usize,
    ttl: Duration,
    invalid: Invalid,
}

/// The known state of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Unknown: it must be looked up.
    Nothing,
    /// Valid. `is_stale`: it should be looked up again, but the call need not wait for that.
    Valid { is_stale: bool },
    /// It was invalid a moment ago.
    Invalid,
}

/// The result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenState {
    /// Valid for at most `ends_in`.
    Valid {
        ends_in: Option<Duration>,
        is_configured: bool,
    },
    Invalid,
}

struct Entry {
    token: Box<[u8]>,
    is_configured: bool,
    stale_from: Nanos,
    until: Nanos,
}

/// Invalid tokens, by hashes of 128 bits, each with the end of its time.
struct Invalid {
    hasher: RandomState,
    young: HashMap<[u64; 2], Nanos>,
    old: HashMap<[u64; 2], Nanos>,
    generation_max: usize,
}

impl Tokens {
    pub(super) fn new(max: usize, ttl: Duration) -> Tokens {
        Tokens {
            hasher: RandomState::new(),
            young: HashTable::new(),
            old: HashTable::new(),
            generation_max: (max / 2).max(1),
            ttl,
            invalid: Invalid {
                hasher: RandomState::new(),
                young: HashMap::new(),
                old: HashMap::new(),
                generation_max: (max / 16).max(1),
            },
        }
    }

    pub(super) fn find(&mut self, token: &[u8], now: Nanos) -> Known {
        let hash = self.hasher.hash_one(token);
        let is_same = |entry: &Entry| bool::from(entry.token.ct_eq(token));
        if let Some(entry) = self.young.find(hash, is_same) {
            return entry.known(now);
        }
        let Ok(entry) = self.old.find_entry(hash, is_same) else {
            let is_invalid = self.invalid.has(hash, token, now);
            return if is_invalid { Known::Invalid } else { Known::Nothing };
        };
        let (entry, _) = entry.remove();
        let known = entry.known(now);
        if known != Known::Nothing {
            self.insert(hash, entry);
        }
        known
    }

    /// Notes the result of a look-up.
    pub(super) fn put(&mut self, token: &[u8], state: TokenState, now: Nanos) {
        let hash = self.hasher.hash_one(token);
        self.forget(hash, token);
        let TokenState::Valid { ends_in, is_configured } = state else {
            self.invalid.put(hash, token, now.after(self.ttl.min(INVALID_TTL)));
            return;
        };
        let ttl = ends_in.map_or(self.ttl, |ends_in| self.ttl.min(ends_in));
        let (stale_from, until) = (now.after(stale_after(ttl, hash)), now.after(ttl));
        let token = token.into();
        self.insert(hash, Entry { token, is_configured, stale_from, until });
    }

    /// Forgets the tokens of the configuration, and which tokens are invalid.
    pub(super) fn forget_configured(&mut self) {
        for table in [&mut self.young, &mut self.old] {
            table.retain(|entry| !entry.is_configured);
        }
        self.invalid.young.clear();
        self.invalid.old.clear();
    }

    fn forget(&mut self, hash: u64, token: &[u8]) {
        for table in [&mut self.young, &mut self.old] {
            if let Ok(known) = table.find_entry(hash, |entry| *entry.token == *token) {
                known.remove();
            }
        }
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
        if now < self.until {
            Known::Valid { is_stale: now >= self.stale_from }
        } else {
            Known::Nothing
        }
    }
}

impl Invalid {
    fn has(&self, hash: u64, token: &[u8], now: Nanos) -> bool {
        let key = [hash, self.hasher.hash_one(token)];
        let until = self.young.get(&key).or_else(|| self.old.get(&key));
        until.is_some_and(|until| now < *until)
    }

    fn put(&mut self, hash: u64, token: &[u8], until: Nanos) {
        if self.young.len() >= self.generation_max {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert([hash, self.hasher.hash_one(token)], until);
    }
}

/// The time after which a valid token should be looked up again: from a half to three quarters of
/// its time to live. Tokens that were looked up together are spread over the quarter by their
/// hashes. Otherwise they would all become stale together, and while the front looked them up, the
/// socket's buffer would fill.
fn stale_after(ttl: Duration, hash: u64) -> Duration {
    let [part, ..] = hash.to_le_bytes();
    ttl / 2 + ttl / 4 * u32::from(part) / 256
}

/// An invalid token may become valid, and honest devices seldom repeat an invalid one.
const INVALID_TTL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const VALID: TokenState = TokenState::Valid { ends_in: None, is_configured: false };

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn what_was_found_holds_for_a_time() {
        let mut tokens = Tokens::new(8, SECOND * 4);
        tokens.put(b"valid", VALID, at(10));
        tokens.put(
            b"ends",
            TokenState::Valid { ends_in: Some(SECOND), is_configured: false },
            at(10),
        );
        tokens.put(b"wrong", TokenState::Invalid, at(10));
        let mut known = |token: &str, seconds| tokens.find(token.as_bytes(), at(seconds));
        assert_eq!(known("valid", 11), Known::Valid { is_stale: false });
        assert_eq!(known("valid", 13), Known::Valid { is_stale: true });
        assert_eq!(known("valid", 14), Known::Nothing);
        assert_eq!(known("ends", 10), Known::Valid { is_stale: false });
        assert_eq!(known("ends", 11), Known::Nothing);
        assert_eq!(known("wrong", 10), Known::Invalid);
        assert_eq!(known("wrong", 11), Known::Nothing);
        assert_eq!(known("vali", 10), Known::Nothing);
        assert_eq!(known("validx", 10), Known::Nothing);
    }

    #[test]
    fn tokens_that_were_looked_up_together_become_stale_one_after_another() {
        let mut tokens = Tokens::new(2048, SECOND * 4);
        let names: Vec<[u8; 4]> = (0..1024_u32).map(u32::to_ne_bytes).collect();
        names.iter().for_each(|name| tokens.put(name, VALID, at(10)));
        let mut stale_at = |quarters: u64| {
            let now = Nanos(at(12).0 + quarters * 250_000_000);
            let is_stale =
                |name: &&[u8; 4]| tokens.find(&name[..], now) == Known::Valid { is_stale: true };
            names.iter().filter(is_stale).count()
        };
        let counts = [0, 1, 2, 3, 4].map(&mut stale_at);
        assert_eq!(counts[4], 1024);
        // A hash puts 256 of them, give or take 14, into each quarter of a second.
        assert!(counts.windows(2).all(|pair| pair[1] - pair[0] > 100), "{counts:?}");
    }

    #[test]
    fn a_reload_forgets_what_the_configuration_may_have_changed() {
        let mut tokens = Tokens::new(8, SECOND * 4);
        tokens.put(b"stored", VALID, at(1));
        let configured = TokenState::Valid { ends_in: None, is_configured: true };
        tokens.put(b"configured", configured, at(1));
        tokens.put(b"wrong", TokenState::Invalid, at(1));
        tokens.forget_configured();
        assert_eq!(tokens.find(b"stored", at(1)), Known::Valid { is_stale: false });
        assert_eq!(tokens.find(b"configured", at(1)), Known::Nothing);
        assert_eq!(tokens.find(b"wrong", at(1)), Known::Nothing);
    }

    #[test]
    fn the_last_word_counts() {
        let mut tokens = Tokens::new(8, SECOND);
        tokens.put(b"a", VALID, at(1));
        tokens.put(b"a", TokenState::Invalid, at(1));
        assert_eq!(tokens.find(b"a", at(1)), Known::Invalid);
        assert_eq!(tokens.young.len() + tokens.old.len(), 0);
        tokens.put(b"a", VALID, at(1));
        assert_eq!(tokens.find(b"a", at(1)), Known::Valid { is_stale: false });
    }

    #[test]
    fn there_are_never_more_than_allowed_and_those_in_use_stay() {
        let mut tokens = Tokens::new(100, SECOND * 4);
        tokens.put(b"used", VALID, at(1));
        for number in 0..10_000_u32 {
            tokens.put(&number.to_ne_bytes(), VALID, at(1));
            assert_ne!(tokens.find(b"used", at(1)), Known::Nothing);
            assert!(tokens.young.len() + tokens.old.len() <= 100);
        }
        assert_eq!(tokens.find(&0_u32.to_ne_bytes(), at(1)), Known::Nothing);
        assert_ne!(tokens.find(&9_999_u32.to_ne_bytes(), at(1)), Known::Nothing);
    }

    #[test]
    fn strangers_push_out_no_token_of_a_device() {
        let mut tokens = Tokens::new(100, SECOND * 4);
        tokens.put(b"device's", VALID, at(1));
        for number in 0..10_000_u32 {
            tokens.put(&number.to_ne_bytes(), TokenState::Invalid, at(1));
            assert!(tokens.invalid.young.len() + tokens.invalid.old.len() <= 13);
        }
        assert_eq!(tokens.find(b"device's", at(1)), Known::Valid { is_stale: false });
        assert_eq!(tokens.find(&9_999_u32.to_ne_bytes(), at(1)), Known::Invalid);
        assert_eq!(tokens.find(&0_u32.to_ne_bytes(), at(1)), Known::Nothing);
    }
}
