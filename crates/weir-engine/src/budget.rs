//! The byte budget of the process: what waits for sockets, counted as what it occupies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// All bytes that may wait in this process: messages on their way, remainders, partial frames, queue nodes, and the
/// positions that events name.
///
/// Shape: one counter for all shards, which lease it in pieces of 64 KiB so that it stays out of their way.
/// Limits: `take` refuses beyond the limit; what happens then is the caller's: a shard closes its longest-stalled
/// connection, the router refuses the message. Only the batch of a tick may pass it ([`crate::Message::of_tick`]), by no
/// more than the messages in it have taken.
/// Cost: one atomic operation a message, and one a piece.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    refused: AtomicU64,
    #[cfg(any(test, feature = "sim"))]
    overdrawn: AtomicUsize,
}

/// A shard takes and returns budget in pieces of this size: 64 KiB is some hundreds of stalled deliveries, and little
/// beside any sensible budget.
pub(crate) const LEASE_BYTES: usize = 64 * 1024;

impl Budget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            #[cfg(any(test, feature = "sim"))]
            overdrawn: AtomicUsize::new(0),
        })
    }

    /// The limit.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes taken now, leases included.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The most that was ever taken.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// How often bytes were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether so little is left that the longest-stalled connections should give way: seven eighths are used. The
    /// last eighth keeps new messages acceptable while they go.
    pub fn is_tight(&self) -> bool {
        self.used() > self.bytes_max / 8 * 7
    }

    /// Takes `bytes`, or nothing, which is counted.
    pub fn take(&self, bytes: usize) -> bool {
        let taken = self.try_take(bytes);
        if !taken {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Takes `bytes`, or nothing.
    fn try_take(&self, bytes: usize) -> bool {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max)
        });
        match taken {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes `bytes`, also beyond the limit: for what replaces bytes that were taken before it.
    fn overdraw(&self, bytes: usize) {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
    }

    /// Gives back what was taken.
    pub fn give(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more given back than taken: {bytes} of {before}");
    }
}

#[cfg(any(test, feature = "sim"))]
impl Budget {
    /// Bytes that are held whether there was room for them or not.
    pub(crate) fn overdrawn(&self) -> usize {
        self.overdrawn.load(Ordering::Relaxed)
    }
}

/// A part of the budget that is held as long as this lives.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
    #[cfg(any(test, feature = "sim"))]
    is_overdrawn: bool,
}

impl Charge {
    pub(crate) fn take(budget: &Arc<Budget>, bytes: usize) -> Option<Charge> {
        budget.take(bytes).then(|| Self::of(budget, bytes, false))
    }

    /// Takes it in any case.
    pub(crate) fn overdraw(budget: &Arc<Budget>, bytes: usize) -> Charge {
        budget.overdraw(bytes);
        Self::of(budget, bytes, true)
    }

    /// Where it was taken.
    #[cfg_attr(
        not(any(test, feature = "sim")),
        expect(unused_variables, reason = "only the simulator asks how much is overdrawn")
    )]
    fn of(budget: &Arc<Budget>, bytes: usize, is_overdrawn: bool) -> Charge {
        #[cfg(any(test, feature = "sim"))]
        if is_overdrawn {
            budget.overdrawn.fetch_add(bytes, Ordering::Relaxed);
        }
        Charge {
            budget: Arc::clone(budget),
            bytes,
            #[cfg(any(test, feature = "sim"))]
            is_overdrawn,
        }
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        #[cfg(any(test, feature = "sim"))]
        if self.is_overdrawn {
            self.budget.overdrawn.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.budget.give(self.bytes);
    }
}

/// One shard's piece of the budget.
///
/// Invariant: `held + free` is what this lease has taken from the budget.
#[derive(Debug)]
pub(crate) struct Lease {
    budget: Arc<Budget>,
    held: usize,
    free: usize,
}

impl Lease {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held: 0, free: 0 }
    }

    /// Bytes held by what waits in the shard.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        if bytes > self.free {
            let missing = bytes - self.free;
            let piece = missing.max(LEASE_BYTES);
            if piece <= self.budget.bytes_max() / 8 && self.budget.try_take(piece) {
                self.free += piece;
            } else if self.budget.take(missing) {
                self.free += missing;
            } else {
                return false;
            }
        }
        self.free -= bytes;
        self.held += bytes;
        true
    }

    pub(crate) fn give(&mut self, bytes: usize) {
        debug_assert!(
            self.held >= bytes,
            "a lease gets back what it gave: {bytes} of {}",
            self.held
        );
        self.held -= bytes;
        self.free += bytes;
        let keep = if self.held == 0 { 0 } else { LEASE_BYTES };
        if self.free > keep + LEASE_BYTES || self.held == 0 {
            self.budget.give(self.free - keep);
            self.free = keep;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.give(self.held + self.free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_beyond_the_limit_and_counts_it() {
        let budget = Budget::new(100);
        assert!(budget.take(60));
        assert!(!budget.take(41));
        assert!(budget.take(40));
        assert_eq!((budget.used(), budget.peak(), budget.refused()), (100, 100, 1));
        let charge = Charge::overdraw(&budget, 20);
        assert_eq!((budget.used(), budget.peak(), budget.refused()), (120, 120, 1));
        assert!(budget.is_tight() && !budget.take(1));
        drop(charge);
        budget.give(100);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_lease_takes_pieces_and_returns_them_all_when_nothing_is_held() {
        let budget = Budget::new(64 * LEASE_BYTES);
        let mut lease = Lease::new(Arc::clone(&budget));
        assert!(lease.take(10));
        assert_eq!(budget.used(), LEASE_BYTES);
        assert!(lease.take(3 * LEASE_BYTES));
        lease.give(3 * LEASE_BYTES);
        assert!(budget.used() <= 2 * LEASE_BYTES);
        lease.give(10);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_lease_uses_the_last_bytes_exactly() {
        let budget = Budget::new(8 * LEASE_BYTES + 1000);
        assert!(budget.take(8 * LEASE_BYTES));
        let mut lease = Lease::new(Arc::clone(&budget));
        assert!(lease.take(1000));
        assert_eq!(budget.refused(), 0, "a piece that is too large is no refusal");
        assert!(!lease.take(1));
        assert_eq!(budget.refused(), 1);
        drop(lease);
        assert_eq!(budget.used(), 8 * LEASE_BYTES);
    }

    #[test]
    fn a_charge_is_returned_on_drop() {
        let budget = Budget::new(10);
        let charge = Charge::take(&budget, 8);
        assert!(charge.is_some());
        assert!(Charge::take(&budget, 8).is_none());
        drop(charge);
        assert_eq!(budget.used(), 0);
    }
}
