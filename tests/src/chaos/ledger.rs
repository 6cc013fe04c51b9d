//! What was published, as far as publishers were answered and clients have seen it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_client::Position;

/// The messages of all topics. Each has a number of its own.
pub(super) struct Ledger {
    topics: Vec<Mutex<Topic>>,
}

#[derive(Default)]
struct Topic {
    /// Which message stands at a position, by the first who said so.
    numbers: HashMap<Position2, u64>,
    /// The position in each epoch of each message.
    positions: HashMap<u64, Vec<Position>>,
    /// Messages whose publishers were told that they are accepted, in the order of the answers.
    answered: Vec<(u64, Position)>,
}

/// [`Position`] as a key.
type Position2 = (u64, u64);

impl Ledger {
    pub(super) fn new(topics: usize) -> Ledger {
        Ledger { topics: (0..topics).map(|_| Mutex::default()).collect() }
    }

    /// Errors: another message stands there, or this one stands twice in its epoch.
    pub(super) fn note_seen(&self, topic: usize, at: Position, number: u64) -> Result<(), String> {
        self.lock(topic).note(at, number)
    }

    /// A publisher was told where its message stands. Errors: as of [`Ledger::note_seen`].
    pub(super) fn note_answered(
        &self,
        topic: usize,
        at: Position,
        number: u64,
    ) -> Result<(), String> {
        let mut topic = self.lock(topic);
        topic.answered.push((number, at));
        topic.note(at, number)
    }

    /// The last answered message of a topic that is not older than `number`.
    pub(super) fn newest(&self, topic: usize, number: u64) -> Option<Position> {
        let topic = self.lock(topic);
        let mut answered = topic.answered.iter().rev();
        answered.find(|(of, _)| *of >= number).map(|(_, at)| *at)
    }

    /// The first answered message in the epoch of the newest that is not older than `number`.
    pub(super) fn first_fresh(&self, topic: usize, number: u64) -> Option<Position> {
        let newest = self.newest(topic, number)?;
        let topic = self.lock(topic);
        let mut answered = topic.answered.iter();
        let is_fresh = |(of, at): &&(u64, Position)| *of >= number && at.epoch == newest.epoch;
        answered.find(is_fresh).map(|(_, at)| *at)
    }

    /// Positions of the messages that were answered.
    pub(super) fn answered(&self, topic: usize) -> Vec<Position> {
        self.lock(topic).answered.iter().map(|(_, at)| *at).collect()
    }

    /// Messages that stand in several epochs.
    pub(super) fn repeated(&self) -> usize {
        let repeated = |topic: usize| {
            self.lock(topic).positions.values().filter(|positions| positions.len() > 1).count()
        };
        (0..self.topics.len()).map(repeated).sum()
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        for topic in 0..self.topics.len() {
            *self.lock(topic) = Topic::default();
        }
    }

    fn lock(&self, topic: usize) -> MutexGuard<'_, Topic> {
        self.topics[topic].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Topic {
    fn note(&mut self, at: Position, number: u64) -> Result<(), String> {
        let known = *self.numbers.entry((at.epoch, at.offset)).or_insert(number);
        if known != number {
            return Err(format!("messages {known} and {number} stand both at {at:?}"));
        }
        let positions = self.positions.entry(number).or_default();
        if positions.contains(&at) {
            return Ok(());
        }
        let twice = positions.iter().find(|other| other.epoch == at.epoch).copied();
        positions.push(at);
        match twice {
            Some(other) => Err(format!("message {number} stands at {other:?} and at {at:?}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(epoch: u64, offset: u64) -> Position {
        Position { epoch, offset }
    }

    #[test]
    fn a_place_has_one_message_and_a_message_one_place_in_an_epoch() {
        let ledger = Ledger::new(1);
        assert_eq!(ledger.note_seen(0, at(1, 1), 7), Ok(()));
        assert_eq!(ledger.note_answered(0, at(1, 1), 7), Ok(()));
        assert_eq!(ledger.note_seen(0, at(2, 1), 7), Ok(()));
        assert_eq!(ledger.repeated(), 1);
        assert!(ledger.note_seen(0, at(1, 1), 8).is_err());
        assert!(ledger.note_answered(0, at(2, 2), 7).is_err());
    }

    #[test]
    fn fresh_is_what_was_answered_since_in_the_newest_epoch() {
        let ledger = Ledger::new(1);
        for (number, position) in [(1, at(1, 1)), (2, at(1, 2)), (4, at(2, 1)), (3, at(2, 2))] {
            ledger.note_answered(0, position, number).unwrap();
        }
        assert_eq!(ledger.first_fresh(0, 2), Some(at(2, 1)));
        assert_eq!(ledger.first_fresh(0, 5), None);
        assert_eq!(ledger.newest(0, 0), Some(at(2, 2)));
    }
}
