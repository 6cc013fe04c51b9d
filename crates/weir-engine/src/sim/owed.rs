//! Types for what a device must get: frames for it alone, answers, and the time of a look.

use std::collections::VecDeque;

use super::book::Book;
use crate::time::Nanos;

/// An item for one connection alone, in the order of the queue.
#[derive(Debug, Clone)]
pub(crate) struct Direct {
    pub(crate) what: DirectWhat,
    pub(crate) position: u64,
    /// The topic that the connection has left when it reads this.
    pub(crate) left: Option<usize>,
}

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectWhat {
    /// A frame by its number.
    Frame(u32),
    /// A missed message, by its number.
    Missed(u32),
    /// The error for one topic too many.
    TooMany,
    /// The error for a topic that is being resumed.
    Busy,
}

impl Direct {
    /// Whether it may be dropped because it expired.
    pub(super) fn may_expire(&self, book: &Book, now: Nanos) -> bool {
        match self.what {
            DirectWhat::Frame(number) | DirectWhat::Missed(number) => book.is_expired(number, now),
            DirectWhat::TooMany | DirectWhat::Busy => false,
        }
    }
}

/// An answer of the shard itself, due once the shard has read to `end`.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) end: u64,
    pub(crate) reply: Reply,
}

/// The kind of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// `Pong`, with its data.
    Pong(Vec<u8>),
    /// The same in a control frame of WebSocket.
    Control(Vec<u8>),
    /// The error for a message that the shard does not understand.
    Error,
}

/// Turns in which a condition held, as intervals.
///
/// Limits: the last [`INTERVALS_MAX`] of them. Older ones count as one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    intervals: VecDeque<(u64, u64)>,
}

const INTERVALS_MAX: usize = 64;

impl Turns {
    /// Notes that the condition held in `turn`, which is not before the last one noted.
    pub(crate) fn note(&mut self, turn: u64) {
        match self.intervals.back_mut() {
            Some((_, last)) if turn <= *last + 1 => *last = turn,
            Some(_) | None => self.intervals.push_back((turn, turn)),
        }
        if self.intervals.len() > INTERVALS_MAX
            && let Some((first, _)) = self.intervals.pop_front()
            && let Some(oldest) = self.intervals.front_mut()
        {
            oldest.0 = first;
        }
    }

    /// Whether the condition held in `turn`, which is the last one.
    pub(crate) fn is_last(&self, turn: u64) -> bool {
        self.intervals.back().is_some_and(|(_, last)| *last == turn)
    }

    /// Whether the condition held in any turn from `first` to `last`.
    pub(super) fn holds_within(&self, first: u64, last: u64) -> bool {
        self.intervals.iter().rev().any(|interval| interval.0 <= last && first <= interval.1)
    }
}

/// Facts about the frames of one look.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) delivered: u64,
    pub(crate) expired: u64,
}

/// When and how a look is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) now: Nanos,
    /// Bytes that the shard has read from the device.
    pub(crate) consumed: u64,
    /// Whether the look is at the queue, which may still have expired messages.
    pub(crate) is_queue: bool,
    /// When, and in which turn, the bytes were sealed, if that was earlier.
    pub(crate) sealed_in: Option<(Nanos, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_intervals_the_oldest_count_as_one() {
        let mut turns = Turns::default();
        (0..200).for_each(|turn| turns.note(turn * 2));
        assert_eq!(turns.intervals.len(), INTERVALS_MAX);
        assert!(turns.holds_within(1, 1) && turns.holds_within(398, 500));
        assert!(!turns.holds_within(397, 397) && !turns.holds_within(399, 500));
    }
}
