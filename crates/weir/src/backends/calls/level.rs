//! Levels with bounds: calls at the same time, and bytes of payloads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much is in use of something.
#[derive(Debug, Default)]
pub(crate) struct Level(AtomicUsize);

/// A part of a level, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    level: Arc<Level>,
    amount: usize,
}

impl Level {
    /// Takes a part; `None`: more than `max` would then be in use.
    pub(crate) fn take(self: &Arc<Level>, amount: usize, max: usize) -> Option<Share> {
        let mut share = Share { level: Arc::clone(self), amount: 0 };
        share.grow(amount, max).then_some(share)
    }

    pub(crate) fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Share {
    /// Takes more; `false`: there is no more, and nothing has changed.
    pub(crate) fn grow(&mut self, amount: usize, max: usize) -> bool {
        let grown = |used: usize| used.checked_add(amount).filter(|used| *used <= max);
        let is_taken =
            self.level.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        self.amount += if is_taken { amount } else { 0 };
        is_taken
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.level.0.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_and_all_is_given_back() {
        let level = Arc::<Level>::default();
        let mut first = level.take(3, 5).unwrap();
        assert!(level.take(3, 5).is_none() && !first.grow(usize::MAX, usize::MAX));
        assert!(first.grow(2, 5) && !first.grow(1, 5));
        assert_eq!(level.used(), 5);
        drop(first);
        assert_eq!(level.used(), 0);
        assert!(level.take(5, 5).is_some());
    }
}
