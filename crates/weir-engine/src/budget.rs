//! The byte budget of the process: what waits for sockets, counted as what it occupies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What a part of the byte budget is for.
///
/// Each kind has a limit of its own, and all limits together are the budget: so no kind can take the room of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Messages on their way, in running ticks and in rings.
    Messages,
    /// What waits for slow connections: messages in their queues, the queues, and frames for one of them alone.
    Waiting,
    /// Beginnings of frames and of records from settled connections.
    Incoming,
    /// What peers have sent that are not settled: beginnings of a PROXY header, a handshake or a `Hello`.
    Unsettled,
    /// Requests, answers and relays of HTTP.
    Http,
}

impl Share {
    /// How many kinds there are.
    pub const COUNT: usize = 5;

    /// Every kind.
    pub const ALL: [Share; Share::COUNT] =
        [Share::Messages, Share::Waiting, Share::Incoming, Share::Unsettled, Share::Http];

    /// The word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Share::Messages => "messages",
            Share::Waiting => "waiting",
            Share::Incoming => "incoming",
            Share::Unsettled => "unsettled",
            Share::Http => "http",
        }
    }

    /// Its limit; `rest` is what messages leave. Half of it is for waiting: many healthy clients are slow for a moment.
    const fn bytes_max(self, budget_bytes: usize, rest: usize) -> usize {
        match self {
            Share::Messages => budget_bytes - rest / 16 * 16,
            Share::Waiting => rest / 16 * 8,
            Share::Incoming => rest / 16 * 2,
            Share::Unsettled => rest / 16,
            Share::Http => rest / 16 * 5,
        }
    }
}

/// All bytes that may wait in this process: messages on their way, remainders, partial frames, queue nodes, and the
/// positions that events name.
///
/// Shape: a counter for each [`Share`], common to all shards, which lease pieces of 64 KiB so that it stays out of their
/// way. Messages have what may be retained and a quarter of the budget; the other shares divide the rest.
/// Limits: `take` refuses beyond the share's limit; what happens then is the caller's: a shard closes the connections
/// that hold the most, the router refuses the message. Only what replaces or completes bytes that were taken before may
/// pass a limit: the batch of a tick ([`crate::Message::of_tick`]), and encodings that shards make.
/// Cost: one atomic operation a message, and one a piece.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    parts: [Part; Share::COUNT],
    peak: AtomicUsize,
    #[cfg(any(test, feature = "sim"))]
    overdrawn: AtomicUsize,
}

/// What one share has.
#[derive(Debug, Default)]
struct Part {
    used: AtomicUsize,
    bytes_max: usize,
    refused: AtomicU64,
}

/// A shard takes and returns budget in pieces of this size: 64 KiB is some hundreds of stalled deliveries, and little
/// beside any sensible budget.
pub(crate) const LEASE_BYTES: usize = 64 * 1024;

impl Budget {
    /// A budget of `bytes_max` bytes, a quarter of which may be retained.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Self::with_retention(bytes_max, bytes_max / 4)
    }

    /// A budget of `bytes_max` bytes, of which topics may retain `retention_bytes`, at most half.
    pub fn with_retention(bytes_max: usize, retention_bytes: usize) -> Arc<Self> {
        let rest = (bytes_max - bytes_max / 4).saturating_sub(retention_bytes);
        let part =
            |share: Share| Part { bytes_max: share.bytes_max(bytes_max, rest), ..Part::default() };
        Arc::new(Self {
            bytes_max,
            parts: Share::ALL.map(part),
            peak: AtomicUsize::new(0),
            #[cfg(any(test, feature = "sim"))]
            overdrawn: AtomicUsize::new(0),
        })
    }

    /// The limit of all shares together.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The limit of a share.
    pub fn bytes_max_of(&self, share: Share) -> usize {
        self.part(share).bytes_max
    }

    /// Bytes taken now, leases included.
    pub fn used(&self) -> usize {
        self.parts.iter().map(|part| part.used.load(Ordering::Relaxed)).sum()
    }

    /// Bytes of a share that are taken now.
    pub fn used_of(&self, share: Share) -> usize {
        self.part(share).used.load(Ordering::Relaxed)
    }

    /// The most that was ever taken, to a few takings at the same moment.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// How often bytes were refused.
    pub fn refused(&self) -> u64 {
        self.parts.iter().map(|part| part.refused.load(Ordering::Relaxed)).sum()
    }

    /// How often bytes of a share were refused.
    pub fn refused_of(&self, share: Share) -> u64 {
        self.part(share).refused.load(Ordering::Relaxed)
    }

    /// Whether so little is left of a share that those should give way who hold the most of it: seven eighths are used.
    pub fn is_tight(&self, share: Share) -> bool {
        let part = self.part(share);
        part.used.load(Ordering::Relaxed) > part.bytes_max / 8 * 7
    }

    /// Takes `bytes` of a share, or nothing, which is counted.
    pub fn take(&self, share: Share, bytes: usize) -> bool {
        self.take_within(share, bytes, usize::MAX)
    }

    /// The same, as long as no more than `bytes_max` of the share are taken, which may be less than its limit: the rest is
    /// for takers that ask for less.
    pub fn take_within(&self, share: Share, bytes: usize, bytes_max: usize) -> bool {
        let bytes_max = bytes_max.min(self.bytes_max_of(share));
        let taken = self.try_take_within(share, bytes, bytes_max);
        if !taken {
            self.part(share).refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Takes `bytes`, or nothing.
    fn try_take(&self, share: Share, bytes: usize) -> bool {
        self.try_take_within(share, bytes, self.bytes_max_of(share))
    }

    fn try_take_within(&self, share: Share, bytes: usize, bytes_max: usize) -> bool {
        let part = self.part(share);
        let taken = part.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= bytes_max)
        });
        if taken.is_ok() {
            self.note_peak();
        }
        taken.is_ok()
    }

    /// Takes `bytes`, also beyond the limit: for what replaces or completes bytes that were taken before it.
    fn overdraw(&self, share: Share, bytes: usize) {
        self.part(share).used.fetch_add(bytes, Ordering::Relaxed);
        self.note_peak();
    }

    /// Gives back what was taken of a share.
    pub fn give(&self, share: Share, bytes: usize) {
        let before = self.part(share).used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(
            before >= bytes,
            "more given back than taken: {bytes} of {before} of {share:?}"
        );
    }

    fn part(&self, share: Share) -> &Part {
        &self.parts[share as usize]
    }

    fn note_peak(&self) {
        self.peak.fetch_max(self.used(), Ordering::Relaxed);
    }
}

#[cfg(any(test, feature = "sim"))]
impl Budget {
    /// Bytes that are held whether there was room for them or not.
    pub(crate) fn overdrawn(&self) -> usize {
        self.overdrawn.load(Ordering::Relaxed)
    }
}

/// A part of the messages' share that is held as long as this lives.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
    #[cfg(any(test, feature = "sim"))]
    is_overdrawn: bool,
}

impl Charge {
    pub(crate) fn take(budget: &Arc<Budget>, bytes: usize) -> Option<Charge> {
        budget.take(Share::Messages, bytes).then(|| Self::of(budget, bytes, false))
    }

    /// Takes it in any case.
    pub(crate) fn overdraw(budget: &Arc<Budget>, bytes: usize) -> Charge {
        budget.overdraw(Share::Messages, bytes);
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
        self.budget.give(Share::Messages, self.bytes);
    }
}

/// One shard's piece of a share of the budget.
///
/// Invariant: `held + free` is what this lease has taken from the share.
#[derive(Debug)]
pub(crate) struct Lease {
    budget: Arc<Budget>,
    share: Share,
    held: usize,
    free: usize,
}

impl Lease {
    pub(crate) fn new(budget: Arc<Budget>, share: Share) -> Self {
        Self { budget, share, held: 0, free: 0 }
    }

    /// Bytes held by what waits in the shard.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether little is left of its share.
    pub(crate) fn is_tight(&self) -> bool {
        self.budget.is_tight(self.share)
    }

    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        if bytes > self.free {
            let missing = bytes - self.free;
            let piece = missing.max(LEASE_BYTES);
            let share = self.share;
            if piece <= self.budget.bytes_max_of(share) / 8 && self.budget.try_take(share, piece) {
                self.free += piece;
            } else if self.budget.take(share, missing) {
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
            self.budget.give(self.share, self.free - keep);
            self.free = keep;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.give(self.share, self.held + self.free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Share::{Messages, Waiting};

    #[test]
    fn refuses_beyond_the_limit_of_a_share_and_counts_it() {
        let budget = Budget::new(320);
        assert_eq!(Share::ALL.map(|share| budget.bytes_max_of(share)), [160, 80, 20, 10, 50]);
        assert!(budget.take(Messages, 100));
        assert!(!budget.take(Messages, 61));
        assert!(budget.take(Messages, 60));
        assert_eq!((budget.used(), budget.peak(), budget.refused()), (160, 160, 1));
        let charge = Charge::overdraw(&budget, 20);
        assert_eq!((budget.used(), budget.peak(), budget.refused()), (180, 180, 1));
        assert!(budget.is_tight(Messages) && !budget.take(Messages, 1));
        drop(charge);
        budget.give(Messages, 160);
        assert_eq!(budget.used(), 0);
    }

    /// Fails when a share takes the room of another one, or all together are more than the budget.
    #[test]
    fn no_share_takes_the_room_of_another_one() {
        for (bytes_max, retention_bytes) in [(1, 0), (1000, 0), (1000, 250), (1 << 20, 1 << 19)] {
            let budget = Budget::with_retention(bytes_max, retention_bytes);
            for share in Share::ALL {
                assert!(budget.take(share, budget.bytes_max_of(share)));
                assert!(!budget.take(share, 1));
                assert_eq!(budget.refused_of(share), 1);
            }
            assert_eq!(budget.used(), bytes_max);
            assert!(budget.bytes_max_of(Messages) >= bytes_max / 4 + retention_bytes);
        }
    }

    #[test]
    fn a_taker_can_be_held_to_less_than_the_share() {
        let budget = Budget::new(320);
        assert!(budget.take_within(Waiting, 40, 60));
        assert!(!budget.take_within(Waiting, 21, 60));
        assert!(budget.take_within(Waiting, 40, 1_000));
        assert!(!budget.take_within(Waiting, 1, 1_000));
        assert_eq!((budget.used_of(Waiting), budget.refused_of(Waiting)), (80, 2));
    }

    #[test]
    fn a_lease_takes_pieces_and_returns_them_all_when_nothing_is_held() {
        let budget = Budget::new(64 * LEASE_BYTES);
        let mut lease = Lease::new(Arc::clone(&budget), Waiting);
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
        let budget = Budget::new(32 * LEASE_BYTES + 4096);
        let most = budget.bytes_max_of(Waiting) - 1000;
        assert!(budget.take(Waiting, most));
        let mut lease = Lease::new(Arc::clone(&budget), Waiting);
        assert!(lease.take(1000));
        assert_eq!(budget.refused(), 0, "a piece that is too large is no refusal");
        assert!(!lease.take(1));
        assert_eq!(budget.refused(), 1);
        drop(lease);
        assert_eq!(budget.used(), most);
    }

    #[test]
    fn a_charge_is_returned_on_drop() {
        let budget = Budget::new(20);
        let charge = Charge::take(&budget, 12);
        assert!(charge.is_some());
        assert!(Charge::take(&budget, 12).is_none());
        drop(charge);
        assert_eq!(budget.used(), 0);
    }
}
