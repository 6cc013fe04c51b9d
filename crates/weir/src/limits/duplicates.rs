//! Remembers answered requests, so that a retry does not activate or publish twice.
//!
//! Datagrams and messages with an idempotency key use it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use weir_engine::handover::NotUnderstood;
use weir_engine::{Footprint, Nanos, rounded, rounded_table};
use weir_wire::handover::v1;

use crate::base::handover::{check_column, narrow, refused};
use crate::base::hash_key::HashKey;

/// The requests of the last `window` and their answers.
///
/// Shape: answers by a hash of 128 bits under keys drawn at the start. A queue for each of
/// [`SHARES`] shares holds the order in which they end. All answers of one owner are in one share.
/// Limits: `max` answers. Beyond that, the oldest answer of the fullest share is forgotten, so an
/// owner that sends more requests than others pushes out its own answers. The caller bounds the
/// requests in progress.
/// Cost: O(1); when full, a walk through all shares.
pub(crate) struct Duplicates<A> {
    hashers: [HashKey; 2],
    window: Duration,
    max: usize,
    known: HashMap<Key, Option<A>>,
    /// Remembered answers.
    count: usize,
    ends: Box<[VecDeque<(Nanos, Key)>]>,
    /// The share that is next checked for answers whose time has ended.
    hand: usize,
}

/// A request from one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    hash: [u64; 2],
    share: u8,
}

/// The state of a request when it arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Before<'a, A> {
    /// The request is new, and is in progress from now on.
    Never,
    /// The same request is in progress.
    InProgress,
    /// The same request got this answer.
    Answered(&'a A),
}

impl<A> Duplicates<A> {
    pub(crate) fn new(max: usize, window: Duration) -> Duplicates<A> {
        Duplicates {
            hashers: [HashKey::random(), HashKey::random()],
            window,
            max,
            known: HashMap::new(),
            count: 0,
            ends: (0..SHARES).map(|_| VecDeque::new()).collect(),
            hand: 0,
        }
    }

    /// Changes the limit. Answers beyond a lower one are forgotten as others come.
    pub(crate) fn limit(&mut self, max: usize) {
        self.max = max;
    }

    /// The key of a request. `owner` is its token, its serial number or its caller. `what` is
    /// everything that distinguishes two requests of one owner.
    pub(crate) fn key(&self, owner: &str, what: impl Hash) -> Key {
        let hash = self.hashers.each_ref().map(|hasher| hasher.hash_one((owner, &what)));
        let [share, ..] = self.hashers[0].hash_one(owner).to_le_bytes();
        Key { hash, share }
    }

    /// Looks a request up. After [`Before::Never`], the caller must call [`Duplicates::end`].
    pub(crate) fn begin(&mut self, key: Key, now: Nanos) -> Before<'_, A> {
        self.hand = (self.hand + 1) % SHARES;
        self.forget_ended(self.hand, now);
        self.forget_ended(usize::from(key.share), now);
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

    /// Ends a request with its answer. `None`: nothing was done, so nothing is remembered.
    ///
    /// Returns whether another answer was forgotten early to make room.
    pub(crate) fn end(&mut self, key: Key, answer: Option<A>, now: Nanos) -> bool {
        let Some(answer) = answer else {
            self.known.remove(&key);
            return false;
        };
        let forgets = self.count >= self.max && self.make_room(now);
        self.known.insert(key, Some(answer));
        self.ends[usize::from(key.share)].push_back((now.after(self.window), key));
        self.count += 1;
        forgets
    }

    /// The known requests, with the order in which they end.
    pub(crate) fn footprint(&self) -> Footprint {
        let known = rounded_table(self.known.capacity(), size_of::<(Key, Option<A>)>());
        let ends =
            self.ends.iter().map(|ends| rounded(ends.capacity() * size_of::<(Nanos, Key)>()));
        let bytes = known + rounded(size_of_val(&*self.ends)) + ends.sum::<usize>();
        Footprint::new(self.known.len(), bytes)
    }

    /// Requests that are known: remembered ones, and those in progress.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Forgets all answers whose time has ended.
    pub(crate) fn sweep(&mut self, now: Nanos) {
        for share in 0..SHARES {
            self.forget_ended(share, now);
            if self.ends[share].is_empty() {
                self.ends[share] = VecDeque::new();
            }
        }
        if self.known.capacity() > self.known.len().saturating_mul(4) {
            self.known.shrink_to(self.known.len() * 2);
        }
    }

    /// Requests in progress.
    pub(crate) fn in_progress(&self) -> usize {
        self.known.len() - self.count
    }

    /// Requests in progress, for another process.
    pub(crate) fn begun(&self) -> Vec<v1::RequestKey> {
        let begun = self.known.iter().filter(|(_, answer)| answer.is_none());
        begun.map(|(key, _)| key.export()).collect()
    }

    /// Takes a request that is in progress in another process, behind its answers. The caller must
    /// call [`Duplicates::end`].
    pub(crate) fn import_begun(&mut self, key: &v1::RequestKey) -> Result<Key, NotUnderstood> {
        let imported = Key::import(key)?;
        match self.known.insert(imported, None) {
            None => Ok(imported),
            Some(_) => Err(refused("request_key.hash, repeated", key.hash)),
        }
    }

    /// The answers. Requests in progress stay here.
    pub(crate) fn export(&self, encode: impl Fn(&A) -> Vec<u8>) -> v1::Duplicates {
        let hash_keys = self.hashers.iter().flat_map(HashKey::export).collect();
        let mut duplicates = v1::Duplicates { hash_keys, ..Default::default() };
        for (end, key) in self.ends.iter().flatten() {
            let Some(Some(answer)) = self.known.get(key) else { continue };
            let [one, two] = key.hash;
            duplicates.hashes.push(one);
            duplicates.more_hashes.push(two);
            duplicates.shares.push(key.share.into());
            duplicates.ends.push(end.0);
            duplicates.answers.push(encode(answer));
        }
        duplicates
    }

    /// Goes on with the answers of another process. There were no requests here so far.
    pub(crate) fn import(
        &mut self,
        duplicates: v1::Duplicates,
        decode: impl Fn(Vec<u8>) -> Result<A, NotUnderstood>,
    ) -> Result<(), NotUnderstood> {
        let (one, two) = duplicates
            .hash_keys
            .split_at_checked(2)
            .ok_or_else(|| refused("duplicates.hash_keys", duplicates.hash_keys.len() as u64))?;
        self.hashers[0].import(one)?;
        self.hashers[1].import(two)?;
        let count = duplicates.answers.len();
        check_column("duplicates.hashes", duplicates.hashes.len(), count)?;
        check_column("duplicates.more_hashes", duplicates.more_hashes.len(), count)?;
        check_column("duplicates.shares", duplicates.shares.len(), count)?;
        check_column("duplicates.ends", duplicates.ends.len(), count)?;
        let keys = duplicates.hashes.into_iter().zip(duplicates.more_hashes);
        let rest = duplicates.shares.into_iter().zip(duplicates.ends).zip(duplicates.answers);
        for ((one, two), ((share, end), answer)) in keys.zip(rest) {
            let key = Key { hash: [one, two], share: narrow("duplicates.shares", share)? };
            if self.known.insert(key, Some(decode(answer)?)).is_some() {
                return Err(refused("duplicates.hashes, repeated", one));
            }
            self.ends[usize::from(key.share)].push_back((Nanos(end), key));
            self.count += 1;
        }
        Ok(())
    }

    /// Makes room for an answer; returns whether one was forgotten early.
    fn make_room(&mut self, now: Nanos) -> bool {
        for share in 0..SHARES {
            self.forget_ended(share, now);
        }
        if self.count < self.max {
            return false;
        }
        let fullest = (0..SHARES).max_by_key(|share| self.ends[*share].len());
        fullest.is_some_and(|share| self.forget_oldest(share))
    }

    fn forget_ended(&mut self, share: usize, now: Nanos) {
        while self.ends[share].front().is_some_and(|(end, _)| *end <= now) {
            self.forget_oldest(share);
        }
    }

    fn forget_oldest(&mut self, share: usize) -> bool {
        let Some((_, key)) = self.ends[share].pop_front() else { return false };
        self.known.remove(&key);
        self.count -= 1;
        true
    }
}

impl Key {
    pub(crate) fn export(self) -> v1::RequestKey {
        let [hash, more_hash] = self.hash;
        v1::RequestKey { hash, more_hash, share: self.share.into() }
    }

    pub(crate) fn import(key: &v1::RequestKey) -> Result<Key, NotUnderstood> {
        let v1::RequestKey { hash, more_hash, share } = *key;
        Ok(Key { hash: [hash, more_hash], share: narrow("request_key.share", share)? })
    }
}

/// With so many shares a device seldom shares one with a device that floods, and a walk through all
/// is still cheap.
const SHARES: usize = 256;

#[cfg(test)]
mod tests {
    use weir_wire::ProstMessage;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(number: u64) -> Key {
        Key { hash: [number, 0], share: 0 }
    }

    #[test]
    fn a_request_is_new_in_progress_or_answered() {
        let mut duplicates = Duplicates::new(10, SECOND);
        let now = Nanos(5);
        assert_eq!(duplicates.begin(key(1), now), Before::Never);
        assert_eq!(duplicates.begin(key(1), now), Before::InProgress);
        assert_eq!(duplicates.begin(key(2), now), Before::Never);
        duplicates.end(key(1), Some("one"), now);
        duplicates.end(key(2), None, now);
        assert_eq!(duplicates.begin(key(1), now), Before::Answered(&"one"));
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
            assert_eq!(duplicates.end(key(number), Some("x"), now), number >= 3);
            assert!(duplicates.known.len() <= 3 && duplicates.count <= 3);
        }
        assert_eq!(duplicates.begin(key(9), now), Before::Answered(&"x"));
        assert_eq!(duplicates.begin(key(6), now), Before::Never);
        // An answer whose time has ended is no loss.
        assert!(!duplicates.end(key(6), Some("x"), now.after(SECOND)));
    }

    #[test]
    fn a_device_pushes_out_its_own_answers() {
        let mut duplicates = Duplicates::new(100, SECOND);
        let now = Nanos(5);
        let of = |share, number| Key { hash: [number, u64::from(share)], share };
        let mut put = |key, now| {
            assert_eq!(duplicates.begin(key, now), Before::Never);
            duplicates.end(key, Some("x"), now);
            duplicates.count
        };
        for share in 0..10 {
            put(of(share, 0), now);
        }
        for number in 1..10_000 {
            assert!(put(of(20, number), now) <= 100);
        }
        for share in 0..10 {
            assert_eq!(duplicates.begin(of(share, 0), now), Before::Answered(&"x"));
        }
        assert_eq!(duplicates.begin(of(20, 9_999), now), Before::Answered(&"x"));
        assert_eq!(duplicates.begin(of(20, 1), now), Before::Never);
        // Requests of any share remove ended answers.
        for number in 0..300 {
            duplicates.begin(of(30, number), now.after(SECOND));
        }
        assert_eq!((duplicates.count, duplicates.known.len()), (0, 300 + 1));
    }

    fn text(answer: Vec<u8>) -> Result<String, NotUnderstood> {
        String::from_utf8(answer).map_err(|_| refused("a text", 0_u32))
    }

    #[test]
    fn answers_that_move_are_known_as_long() {
        let (mut one, mut other) = (Duplicates::new(100, SECOND), Duplicates::new(100, SECOND));
        let now = |ms: u64| Nanos(ms * 1_000_000);
        let owner = |number: u64| format!("owner-{}", number % 7);
        for number in 0..80 {
            let key = one.key(&owner(number), number);
            assert_eq!(one.begin(key, now(number)), Before::Never);
            if number % 5 > 0 {
                one.end(key, Some(format!("answer-{number}")), now(number));
            }
        }
        assert_eq!(one.in_progress(), 16);
        let bytes = one.export(|answer| answer.clone().into_bytes()).encode_to_vec();
        other.import(v1::Duplicates::decode(&*bytes).unwrap(), text).unwrap();
        assert_eq!((other.in_progress(), other.len()), (0, 64));
        let begun = one.begun();
        for key in &begun {
            let key = other.import_begun(key).ok().unwrap();
            assert_eq!(other.begin(key, now(80)), Before::InProgress);
            other.end(key, None, now(80));
        }
        assert_eq!((begun.len(), other.len()), (16, 64));
        let wrong = v1::RequestKey { share: 256, ..begun[0] };
        assert!(other.import_begun(&wrong).is_err());
        assert!(other.import_begun(&begun[0]).is_ok() && other.import_begun(&begun[0]).is_err());
        other.end(Key::import(&begun[0]).ok().unwrap(), None, now(80));
        for (number, ms) in (0..80).filter(|number| number % 5 > 0).zip(950..) {
            let key = other.key(&owner(number), number);
            assert_eq!(one.key(&owner(number), number), key);
            assert_eq!(one.begin(key, now(ms)), other.begin(key, now(ms)), "{number}");
        }
        one.sweep(now(5_000));
        other.sweep(now(5_000));
        assert_eq!((one.count, other.count), (0, 0));
    }

    #[test]
    fn damaged_answers_are_refused() {
        let mut one = Duplicates::new(100, SECOND);
        for number in 0..3 {
            let key = one.key("owner", number);
            one.begin(key, Nanos(1));
            one.end(key, Some("x".to_owned()), Nanos(1));
        }
        let exported = one.export(|answer| answer.clone().into_bytes());
        let damages: &[fn(&mut v1::Duplicates)] = &[
            |duplicates| duplicates.hash_keys.truncate(3),
            |duplicates| duplicates.hash_keys.push(1),
            |duplicates| duplicates.hash_keys.clear(),
            |duplicates| duplicates.hashes.clear(),
            |duplicates| duplicates.more_hashes.push(1),
            |duplicates| duplicates.shares[0] = 256,
            |duplicates| duplicates.ends.clear(),
            |duplicates| duplicates.answers[0] = vec![0xff],
            |duplicates| {
                duplicates.hashes[0] = duplicates.hashes[1];
                duplicates.more_hashes[0] = duplicates.more_hashes[1];
            },
        ];
        let import = |duplicates| Duplicates::new(100, SECOND).import(duplicates, text);
        assert!(import(exported.clone()).is_ok());
        for (nth, damage) in damages.iter().enumerate() {
            let mut duplicates = exported.clone();
            damage(&mut duplicates);
            assert!(import(duplicates).is_err(), "damage {nth}");
        }
    }
}
