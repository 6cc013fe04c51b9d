//! Recent revocations, for connections whose device becomes known only after a wait.

use std::collections::VecDeque;

use weir_engine::rounded;

/// The latest revocations among the devices of one lock.
///
/// Shape: 16 bytes each, numbered in their order over all locks.
/// Limits: [`KEPT`]; earlier ones are unknown.
#[derive(Default)]
pub(super) struct Revocations {
    /// The number, and the hash of the device's id.
    latest: VecDeque<(u64, u64)>,
    /// The number of the last forgotten one.
    forgotten: u64,
}

impl Revocations {
    /// The bytes that the list occupies.
    pub(super) fn occupied(&self) -> usize {
        rounded(self.latest.capacity() * size_of::<(u64, u64)>())
    }

    pub(super) fn note(&mut self, number: u64, hash: u64) {
        if self.latest.len() == KEPT
            && let Some((oldest, _)) = self.latest.pop_front()
        {
            self.forgotten = oldest;
        }
        self.latest.push_back((number, hash));
    }

    /// The numbers and the hashes, and the number of the last forgotten one.
    pub(super) fn export(&self) -> (Vec<u64>, Vec<u64>, u64) {
        let (numbers, hashes) = self.latest.iter().copied().unzip();
        (numbers, hashes, self.forgotten)
    }

    /// `None`: the numbers do not grow, or there are too many.
    pub(super) fn restore(numbers: &[u64], hashes: Vec<u64>, forgotten: u64) -> Option<Self> {
        let grow = numbers.is_sorted_by(|one, other| one < other)
            && numbers.first().is_none_or(|first| *first > forgotten);
        let latest = numbers.iter().copied().zip(hashes).collect();
        (grow && numbers.len() <= KEPT).then_some(Self { latest, forgotten })
    }

    /// Whether a device was revoked after `mark`; `None` if that is no longer known.
    pub(super) fn has_since(&self, mark: u64, hash: u64) -> Option<bool> {
        let mut since = self.latest.iter().rev().take_while(|(number, _)| *number > mark);
        if since.any(|(_, revoked)| *revoked == hash) {
            return Some(true);
        }
        (self.forgotten <= mark).then_some(false)
    }
}

/// With 64 locks, at least a second of the fastest revocations while one token is looked up.
const KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_revoked_is_known_for_a_while_and_doubted_afterwards() {
        let mut revocations = Revocations::default();
        assert_eq!(revocations.has_since(0, 7), Some(false));
        revocations.note(3, 7);
        revocations.note(5, 8);
        for (mark, hash, expected) in
            [(0, 7, true), (2, 7, true), (3, 7, false), (4, 8, true), (5, 8, false), (0, 9, false)]
        {
            assert_eq!(revocations.has_since(mark, hash), Some(expected), "{hash} since {mark}");
        }
        for number in 0..KEPT as u64 {
            revocations.note(10 + number, 1);
        }
        assert_eq!(revocations.has_since(4, 9), None, "it may have been forgotten");
        assert_eq!(revocations.has_since(4, 1), Some(true));
        assert_eq!(revocations.has_since(5, 9), Some(false));
    }
}
