//! Answers that are kept for the time that they name.

use std::collections::{HashMap, VecDeque};

use weir_engine::{Footprint, Nanos};

use super::answer::Answer;
use super::question::Key;

/// Kept answers, by their questions.
///
/// Limits: a number of bytes. The answer that came first is removed first.
/// Cost: one look-up.
#[derive(Default)]
pub(super) struct Cache {
    answers: HashMap<Key, Kept>,
    /// The questions about tokens, by the devices that have them.
    tokens: HashMap<Box<str>, Vec<Key>>,
    /// The keys in the order of their answers. Replaced and forgotten ones are still in it.
    order: VecDeque<(Key, u64)>,
    count: u64,
    bytes: usize,
    bytes_max: usize,
}

struct Kept {
    answer: Answer,
    until: Nanos,
    bytes: usize,
    number: u64,
}

impl Cache {
    /// Forgets everything. From now on this limit counts.
    pub(super) fn reset(&mut self, bytes_max: usize) {
        *self = Cache { bytes_max, ..Cache::default() };
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&mut self, key: &Key, now: Nanos) -> Option<Answer> {
        let kept = self.answers.get(key)?;
        if now < kept.until {
            return Some(kept.answer.clone());
        }
        self.remove(key);
        None
    }

    /// Keeps an answer. One that is longer than all may be together is not kept.
    pub(super) fn put(&mut self, key: Key, answer: Answer, until: Nanos) {
        self.remove(&key);
        let owner = owner(&answer);
        let bytes =
            ENTRY_BYTES + answer.bytes() + owner.map_or(0, |owner| TOKEN_BYTES + owner.len());
        if bytes > self.bytes_max {
            return;
        }
        self.count += 1;
        let number = self.count;
        if let Some(owner) = owner {
            self.tokens.entry(owner.into()).or_default().push(key);
        }
        self.answers.insert(key, Kept { answer, until, bytes, number });
        self.order.push_back((key, number));
        self.bytes += bytes;
        while self.bytes > self.bytes_max || self.order.len() > 2 * self.answers.len() + SLACK {
            let Some((oldest, number)) = self.order.pop_front() else { break };
            if self.answers.get(&oldest).is_some_and(|kept| kept.number == number) {
                self.remove_if_over(&oldest, number);
            }
        }
    }

    /// Removes the oldest answer if there are too many bytes; otherwise it moves to the end of the
    /// order, so that the stale keys before it are gone.
    fn remove_if_over(&mut self, key: &Key, number: u64) {
        if self.bytes > self.bytes_max {
            self.remove(key);
        } else {
            self.order.push_back((*key, number));
        }
    }

    fn remove(&mut self, key: &Key) {
        let Some(kept) = self.answers.remove(key) else { return };
        self.bytes -= kept.bytes;
        if let Some(owner) = owner(&kept.answer)
            && let Some(keys) = self.tokens.get_mut(owner)
        {
            keys.retain(|of_owner| of_owner != key);
            if keys.is_empty() {
                self.tokens.remove(owner);
            }
        }
    }

    /// Forgets the tokens of a device.
    pub(super) fn forget(&mut self, device: &str) {
        for key in self.tokens.remove(device).unwrap_or_default() {
            self.remove(&key);
        }
    }

    pub(super) fn footprint(&self) -> Footprint {
        Footprint::new(self.answers.len(), self.bytes)
    }
}

/// The device that a token belongs to, by the answer.
fn owner(answer: &Answer) -> Option<&str> {
    match answer {
        Answer::Identity(identity) => identity.device.as_deref(),
        Answer::Refused(_) | Answer::Allowed | Answer::Changed(_) => None,
    }
}

/// A key twice, an entry, and the slack of the tables.
const ENTRY_BYTES: usize = 256;
/// An entry in the table of tokens.
const TOKEN_BYTES: usize = 192;
/// Stale keys that the order may hold beside as many as there are answers.
const SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_engine::Priority;

    use super::*;
    use crate::backends::questions::answer::Identity;

    fn key(number: u32) -> Key {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_ne_bytes());
        Key(key)
    }

    fn cache(bytes_max: usize) -> Cache {
        let mut cache = Cache::default();
        cache.reset(bytes_max);
        cache
    }

    #[test]
    fn an_answer_is_kept_for_its_time() {
        let mut cache = cache(10_000);
        cache.put(key(1), Answer::Allowed, Nanos(10));
        assert!(matches!(cache.get(&key(1), Nanos(9)), Some(Answer::Allowed)));
        assert!(cache.get(&key(2), Nanos(9)).is_none());
        assert!(cache.get(&key(1), Nanos(10)).is_none());
        assert_eq!(cache.bytes(), 0);
        cache.put(key(1), Answer::Allowed, Nanos(10));
        cache.put(key(1), Answer::Refused("no".into()), Nanos(20));
        assert!(matches!(cache.get(&key(1), Nanos(15)), Some(Answer::Refused(_))));
        cache.reset(10_000);
        assert!(cache.get(&key(1), Nanos(0)).is_none());
    }

    fn token_of(device: &str) -> Answer {
        Answer::Identity(Arc::new(Identity {
            device: Some(device.to_owned()),
            labels: Vec::new(),
            topics: None,
            priority: Priority::Normal,
            ends: 0,
        }))
    }

    #[test]
    fn the_tokens_of_one_device_are_forgotten() {
        let mut cache = cache(10_000);
        cache.put(key(1), token_of("van-7"), Nanos(10));
        cache.put(key(2), token_of("van-7"), Nanos(10));
        cache.put(key(3), token_of("van-8"), Nanos(10));
        cache.put(key(4), Answer::Allowed, Nanos(10));
        assert_eq!(cache.footprint().count, 4);
        cache.forget("van-9");
        cache.forget("van-7");
        for (number, is_kept) in [(1, false), (2, false), (3, true), (4, true)] {
            assert_eq!(cache.get(&key(number), Nanos(0)).is_some(), is_kept, "{number}");
        }
        // What is replaced, out of date or too much leaves nothing behind.
        cache.put(key(3), token_of("van-7"), Nanos(10));
        assert!(cache.get(&key(3), Nanos(10)).is_none());
        for number in 0..1_000 {
            cache.put(key(number), token_of("van-8"), Nanos(10));
        }
        assert!(cache.tokens["van-8"].len() == cache.answers.len() && cache.tokens.len() == 1);
        cache.forget("van-8");
        assert!(cache.bytes() == 0 && cache.tokens.is_empty());
    }

    #[test]
    fn no_more_bytes_are_kept_than_allowed_and_the_oldest_go_first() {
        let mut cache = cache(100 * ENTRY_BYTES);
        for number in 0..1_000 {
            cache.put(key(number), Answer::Allowed, Nanos(10));
            assert!(cache.bytes() <= 100 * ENTRY_BYTES && cache.answers.len() <= 100);
        }
        assert!(cache.get(&key(899), Nanos(0)).is_none());
        assert!(cache.get(&key(900), Nanos(0)).is_some());
        let long = Answer::Refused("x".repeat(100 * ENTRY_BYTES).into());
        cache.put(key(900), long, Nanos(10));
        assert!(cache.get(&key(900), Nanos(0)).is_none(), "it is longer than all may be");
        cache.put(key(1_000), Answer::Refused("x".repeat(50 * ENTRY_BYTES).into()), Nanos(10));
        assert!(cache.bytes() <= 100 * ENTRY_BYTES);
    }

    #[test]
    fn the_order_does_not_grow_with_answers_that_replace_each_other() {
        let mut cache = cache(100 * ENTRY_BYTES);
        for _ in 0..10_000 {
            cache.put(key(1), Answer::Allowed, Nanos(10));
            cache.put(key(2), Answer::Allowed, Nanos(0));
            assert!(cache.get(&key(2), Nanos(0)).is_none());
            assert!(cache.order.len() <= 2 * 2 + SLACK + 2);
        }
        assert!(cache.get(&key(1), Nanos(0)).is_some());
        cache.reset(0);
        cache.put(key(1), Answer::Allowed, Nanos(10));
        assert!(cache.get(&key(1), Nanos(0)).is_none(), "0 keeps none");
    }
}
