//! Requests that have been made before: a retry must not activate or publish twice.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

use weir_engine::Nanos;
use weir_engine::datagrams::Peer;

/// What was asked within the window, and how it was answered.
///
/// Shape: answers by a hash of 128 bits under keys drawn at the start, and the order in which they end.
/// Limits: `max` answers, the oldest goes first; what is in progress is bounded by the queue to the front.
pub(super) struct Duplicates {
    hashers: [RandomState; 2],
    window: Duration,
    max: usize,
    known: HashMap<Key, Option<Box<[u8]>>>,
    ends: VecDeque<(Nanos, Key)>,
}

/// A request from one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u64; 2]);

/// Whether a request was made before.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Before<'a> {
    /// It was not, and is in progress from now on.
    Never,
    /// It is being answered.
    InProgress,
    /// It was answered so.
    Answered(&'a [u8]),
}

impl Duplicates {
    pub(super) fn new(max: usize, window: Duration) -> Duplicates {
        Duplicates {
            hashers: [RandomState::new(), RandomState::new()],
            window,
            max,
            known: HashMap::new(),
            ends: VecDeque::new(),
        }
    }

    /// The key of a request: `what` is all by which two of one peer are told apart.
    pub(super) fn key(&self, peer: &Peer, what: impl Hash) -> Key {
        Key(self.hashers.each_ref().map(|hasher| hasher.hash_one((peer, &what))))
    }

    /// Whether it was made before. If not it has to be [`Duplicates::end`]ed.
    pub(super) fn begin(&mut self, key: Key, now: Nanos) -> Before<'_> {
        while self.ends.front().is_some_and(|(end, _)| *end <= now) {
            self.forget_oldest();
        }
        match self.known.entry(key) {
            Entry::Vacant(place) => {
                place.insert(None);
                Before::Never
            }
            Entry::Occupied(known) => match known.into_mut() {
                Some(answer) => Before::Answered(answer),
                None => Before::InProgress,
            },
        }
    }

    /// It has been answered so; `None`: in a way that is not to be remembered, since another attempt may do better.
    ///
    /// Whether another answer was forgotten for it before its time.
    pub(super) fn end(&mut self, key: Key, answer: Option<&[u8]>, now: Nanos) -> bool {
        let Some(answer) = answer else {
            self.known.remove(&key);
            return false;
        };
        let is_full = self.ends.len() >= self.max;
        let forgets = is_full && self.ends.front().is_some_and(|(end, _)| *end > now);
        if is_full {
            self.forget_oldest();
        }
        self.known.insert(key, Some(answer.into()));
        self.ends.push_back((now.after(self.window), key));
        forgets
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.ends.pop_front() {
            self.known.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(number: u64) -> Key {
        Key([number, 0])
    }

    #[test]
    fn a_request_is_new_in_progress_or_answered() {
        let mut duplicates = Duplicates::new(10, SECOND);
        let now = Nanos(5);
        assert_eq!(duplicates.begin(key(1), now), Before::Never);
        assert_eq!(duplicates.begin(key(1), now), Before::InProgress);
        assert_eq!(duplicates.begin(key(2), now), Before::Never);
        duplicates.end(key(1), Some(b"one"), now);
        duplicates.end(key(2), None, now);
        assert_eq!(duplicates.begin(key(1), now), Before::Answered(b"one"));
        assert_eq!(duplicates.begin(key(2), now), Before::Never);
        assert_eq!(duplicates.begin(key(1), now.after(SECOND)), Before::Never);
        assert_eq!(duplicates.begin(key(2), now.after(SECOND * 100)), Before::InProgress);
    }

    #[test]
    fn the_oldest_answers_go_first() {
        let mut duplicates = Duplicates::new(3, SECOND);
        let now = Nanos(5);
        for number in 0..10 {
            assert_eq!(duplicates.begin(key(number), now), Before::Never);
            assert_eq!(duplicates.end(key(number), Some(b"x"), now), number >= 3);
            assert!(duplicates.known.len() <= 3 && duplicates.ends.len() <= 3);
        }
        assert_eq!(duplicates.begin(key(9), now), Before::Answered(b"x"));
        assert_eq!(duplicates.begin(key(6), now), Before::Never);
        // What has had its time is no loss.
        assert!(!duplicates.end(key(6), Some(b"x"), now.after(SECOND)));
    }
}
