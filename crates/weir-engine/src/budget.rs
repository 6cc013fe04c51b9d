//! The byte budget of the process. It counts the bytes that wait for sockets, by the memory that
//! they occupy.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::memory::{Footprint, Levels, MessagePlace};

weir_wire::named_enum! {
    /// A share of the byte budget.
    ///
    /// Each share has a limit of its own, and the limits add up to the budget. So no share can take
    /// the room of another.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Share {
        /// Messages on their way, in running ticks and in rings.
        Messages = "messages",
        /// Waiting data of slow connections: messages in their queues, the queues, and frames for
        /// one connection alone.
        Waiting = "waiting",
        /// Begun frames and records of settled connections.
        Incoming = "incoming",
        /// Bytes of connections that are not settled: a begun PROXY header, handshake or `Hello`.
        Unsettled = "unsettled",
        /// Requests, answers and relays of HTTP.
        Http = "http",
    }
}

impl Share {
    /// The number of shares.
    pub const COUNT: usize = Self::ALL.len();

    /// The limit of the share; `rest` is what messages leave. Half of it is for waiting, because
    /// many healthy clients are slow for a moment.
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

/// All bytes that may wait in this process: messages, bytes that sockets have refused, begun
/// frames, queue nodes, and the positions of events.
///
/// Shape: a counter for each [`Share`], common to all shards. A shard leases pieces of 64 KiB, so
/// it rarely touches the counter. Messages have the bytes that may be retained and a quarter of the
/// budget; the other shares divide the rest.
/// Limits: `take` refuses beyond the share's limit. Then a shard closes the connections that hold
/// the most, or the router refuses the message. Bytes that replace or complete bytes taken before
/// may pass a limit: the batch of a tick ([`crate::Message::of_tick`]), encodings that shards make,
/// and a retained message that has left the last queue.
/// Cost: one atomic operation a message, and one a piece.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    parts: [Part; Share::COUNT],
    /// Bytes of waiting messages by [`Holder`]. Holders that fall into the same place count
    /// together.
    held: Box<[AtomicUsize]>,
    /// All messages, by the number of their class.
    levels: Box<[Levels]>,
    /// Drawn at the start, so that a peer cannot choose the holders with which it shares a place.
    seed: u64,
    peak: AtomicUsize,
    #[cfg(any(test, feature = "sim"))]
    overdrawn: AtomicUsize,
}

/// The state of one share.
#[derive(Debug, Default)]
struct Part {
    used: AtomicUsize,
    bytes_max: usize,
    refused: AtomicU64,
}

/// Places in the table of holders: 32 KiB. Of some thousand topics with waiting messages, a few
/// share each place. A topic that holds much still stands out.
const HOLDERS: usize = 4096;

/// A shard takes and returns budget in pieces of this size. 64 KiB is some hundreds of stalled
/// deliveries, and little beside any sensible budget.
pub(crate) const LEASE_BYTES: usize = 64 * 1024;

impl Budget {
    /// A budget of `bytes_max` bytes, a quarter of which may be retained.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Self::with_retention(bytes_max, bytes_max / 4)
    }

    /// A budget of `bytes_max` bytes, of which topics may retain `retention_bytes`, at most half.
    pub fn with_retention(bytes_max: usize, retention_bytes: usize) -> Arc<Self> {
        Self::with_classes(bytes_max, retention_bytes, 1)
    }

    /// The same for messages whose [`crate::TopicMessage::class`] is below `classes`. Others count
    /// for class 0.
    pub fn with_classes(bytes_max: usize, retention_bytes: usize, classes: usize) -> Arc<Self> {
        let rest = (bytes_max - bytes_max / 4).saturating_sub(retention_bytes);
        let part =
            |share: Share| Part { bytes_max: share.bytes_max(bytes_max, rest), ..Part::default() };
        Arc::new(Self {
            bytes_max,
            parts: Share::ALL.map(part),
            held: (0..HOLDERS).map(|_| AtomicUsize::new(0)).collect(),
            levels: (0..classes.max(1)).map(|_| Levels::default()).collect(),
            seed: RandomState::new().hash_one(bytes_max),
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

    /// The bytes that are taken now, leases included.
    pub fn used(&self) -> usize {
        self.parts.iter().map(|part| part.used.load(Ordering::Relaxed)).sum()
    }

    /// The bytes of a share that are taken now.
    pub fn used_of(&self, share: Share) -> usize {
        self.part(share).used.load(Ordering::Relaxed)
    }

    /// The highest number of bytes ever taken. Takings at the same moment may escape it.
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

    /// Whether more than seven eighths of a share are used. Then its largest holders should give
    /// way.
    pub fn is_tight(&self, share: Share) -> bool {
        let part = self.part(share);
        part.used.load(Ordering::Relaxed) > part.bytes_max / 8 * 7
    }

    /// Takes `bytes` of a share. If there is no room, it takes nothing and counts a refusal.
    pub fn take(&self, share: Share, bytes: usize) -> bool {
        self.take_within(share, bytes, usize::MAX)
    }

    /// Like [`Budget::take`], with a lower limit: `bytes_max` of the share. The rest is left to
    /// other callers.
    pub fn take_within(&self, share: Share, bytes: usize, bytes_max: usize) -> bool {
        let taken = self.try_take(share, bytes, bytes_max);
        if !taken {
            self.part(share).refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Takes `bytes`, or nothing.
    fn try_take(&self, share: Share, bytes: usize, bytes_max: usize) -> bool {
        let part = self.part(share);
        if !part.try_take(bytes, bytes_max) {
            return false;
        }
        // Messages may have passed their limit by the bytes that rings keep and queues held before.
        if share != Share::Messages && self.used() > self.bytes_max {
            part.give(bytes);
            return false;
        }
        self.note_peak();
        true
    }

    /// Takes `bytes` of `Waiting`. The caller then gives the same bytes back to `Messages`, so the
    /// sum does not grow.
    fn move_to_waiting(&self, bytes: usize) -> bool {
        let part = self.part(Share::Waiting);
        let is_taken = part.try_take(bytes, usize::MAX);
        part.refused.fetch_add(u64::from(!is_taken), Ordering::Relaxed);
        is_taken
    }

    /// Takes `bytes` of `Messages`. The caller then gives the same bytes back to `Waiting`.
    fn move_to_messages(&self, bytes: usize) {
        self.part(Share::Messages).used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes`, even beyond the limit, for something that replaces or completes bytes taken
    /// before, or that was accepted by another process.
    pub fn overdraw(&self, share: Share, bytes: usize) {
        self.part(share).used.fetch_add(bytes, Ordering::Relaxed);
        self.note_peak();
    }

    /// Gives back bytes of a share.
    pub fn give(&self, share: Share, bytes: usize) {
        self.part(share).give(bytes);
    }

    /// The place of a topic, a device or a sender. `number` is unique among its kind.
    #[expect(clippy::cast_possible_truncation, reason = "some bits of a hash do")]
    pub(crate) fn holder(&self, number: u64) -> Holder {
        let mixed = (number ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Holder((mixed >> (u64::BITS - HOLDERS.trailing_zeros())) as u16)
    }

    /// The bytes of waiting messages in a place.
    pub(crate) fn held_by(&self, holder: Holder) -> usize {
        self.held[usize::from(holder.0)].load(Ordering::Relaxed)
    }

    /// The most bytes in any place.
    ///
    /// Cost: reads all places, in some microseconds. Callers ask only while room is short.
    pub(crate) fn most_held(&self) -> usize {
        self.held.iter().map(|held| held.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// The number of classes of messages.
    pub fn classes(&self) -> usize {
        self.levels.len()
    }

    /// The messages of a class that something of this kind keeps.
    pub fn messages(&self, class: u16, place: MessagePlace) -> Footprint {
        self.levels(class).get(place)
    }

    fn levels(&self, class: u16) -> &Levels {
        self.levels.get(usize::from(class)).unwrap_or(&self.levels[0])
    }

    fn hold_more(&self, holders: Holders, bytes: usize) {
        for Holder(place) in [Some(holders.target), holders.sender].into_iter().flatten() {
            self.held[usize::from(place)].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn hold_less(&self, holders: Holders, bytes: usize) {
        for Holder(place) in [Some(holders.target), holders.sender].into_iter().flatten() {
            self.held[usize::from(place)].fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn part(&self, share: Share) -> &Part {
        &self.parts[share as usize]
    }

    fn note_peak(&self) {
        self.peak.fetch_max(self.used(), Ordering::Relaxed);
    }
}

impl Part {
    /// Takes `bytes` if the sum then exceeds neither `bytes_max` nor the limit.
    fn try_take(&self, bytes: usize, bytes_max: usize) -> bool {
        let most = bytes_max.min(self.bytes_max);
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more given back than taken: {bytes} of {before}");
    }
}

#[cfg(any(test, feature = "sim"))]
impl Budget {
    /// The bytes that messages hold whether there was room for them or not.
    pub(crate) fn overdrawn(&self) -> usize {
        self.overdrawn.load(Ordering::Relaxed)
    }
}

/// The bytes of a message, in the share to which they belong at the moment.
///
/// On its way and in rings the message belongs to [`Share::Messages`]. In the queue of a slow
/// connection it belongs to [`Share::Waiting`].
/// Shape: the number of queues that hold the message, whether a ring keeps it, and the number of its
/// bytes, in one word, so that all change together.
/// Invariant: the bytes are taken from `Waiting` while the count is above zero, and from `Messages`
/// otherwise.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    word: AtomicU64,
    holders: Holders,
    class: u16,
    #[cfg(any(test, feature = "sim"))]
    overdrawn: AtomicUsize,
}

/// The holders for which the bytes of a message count while it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holders {
    /// The topic or the device that the message is for.
    pub(crate) target: Holder,
    /// The connection that has sent the message, if a connection did.
    pub(crate) sender: Option<Holder>,
}

/// A place in the budget's table of holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder(u16);

impl Holders {
    /// The places as numbers, for another process.
    pub(crate) fn export(self) -> (u16, Option<u16>) {
        (self.target.0, self.sender.map(|sender| sender.0))
    }

    /// The places with these numbers. A number that is too large stands for another place.
    #[expect(clippy::cast_possible_truncation, reason = "there are fewer than 2^16 places")]
    pub(crate) fn import((target, sender): (u16, Option<u16>)) -> Holders {
        let place = |number: u16| Holder(number % HOLDERS as u16);
        Holders { target: place(target), sender: sender.map(place) }
    }
}

/// Bits of the word for the bytes: 32 GiB. The next bit tells that a ring keeps the message. The
/// other bits are for the count; they suffice for more queues than there are connections.
const BYTES_BITS: u32 = 35;
const RETAINED: u64 = 1 << BYTES_BITS;
const ONE_QUEUE: u64 = RETAINED << 1;

const fn queues_of(word: u64) -> u64 {
    word / ONE_QUEUE
}

const fn bytes_of(word: u64) -> usize {
    (word & (RETAINED - 1)) as usize
}

const fn place_of(word: u64) -> MessagePlace {
    match (queues_of(word), word & RETAINED) {
        (0, 0) => MessagePlace::Moving,
        (0, _) => MessagePlace::Retained,
        _ => MessagePlace::Waiting,
    }
}

impl Charge {
    /// Takes `bytes` for a message of a class, if messages then have no more than `bytes_max`.
    pub(crate) fn take(
        budget: &Arc<Budget>,
        bytes: usize,
        bytes_max: usize,
        (holders, class): (Holders, u16),
    ) -> Option<Charge> {
        let taken = budget.take_within(Share::Messages, bytes, bytes_max);
        taken.then(|| Self::of(budget, bytes, (holders, class)))
    }

    /// Takes `bytes` in any case.
    pub(crate) fn overdraw(budget: &Arc<Budget>, bytes: usize, whose: (Holders, u16)) -> Charge {
        budget.overdraw(Share::Messages, bytes);
        let charge = Self::of(budget, bytes, whose);
        charge.note_overdrawn(bytes);
        charge
    }

    fn of(budget: &Arc<Budget>, bytes: usize, (holders, class): (Holders, u16)) -> Charge {
        budget.levels(class).enter(MessagePlace::Moving, bytes);
        Charge {
            budget: Arc::clone(budget),
            word: AtomicU64::new(bytes as u64),
            holders,
            class,
            #[cfg(any(test, feature = "sim"))]
            overdrawn: AtomicUsize::new(0),
        }
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(crate) fn holders(&self) -> Holders {
        self.holders
    }

    pub(crate) fn class(&self) -> u16 {
        self.class
    }

    fn levels(&self) -> &Levels {
        self.budget.levels(self.class)
    }

    /// The word has changed.
    fn note_place(&self, before: u64, now: u64) {
        let (from, to) = (place_of(before), place_of(now));
        if from != to {
            self.levels().leave(from, bytes_of(before));
            self.levels().enter(to, bytes_of(now));
        }
    }

    /// Notes that a ring begins to keep the message, or ceases to.
    pub(crate) fn retain(&self, is_retained: bool) {
        let change = |word| if is_retained { word | RETAINED } else { word & !RETAINED };
        let changed =
            self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(change(word)));
        if let Ok(before) = changed {
            self.note_place(before, change(before));
        }
    }

    /// The bytes of the message.
    pub(crate) fn bytes(&self) -> usize {
        bytes_of(self.word.load(Ordering::Acquire))
    }

    /// Adds `bytes`, if there is room for them.
    pub(crate) fn try_add(&self, bytes: usize) -> bool {
        self.add_with(bytes, |share| self.budget.take(share, bytes))
    }

    /// Adds `bytes` in any case.
    pub(crate) fn add(&self, bytes: usize) {
        self.note_overdrawn(bytes);
        self.add_with(bytes, |share| {
            self.budget.overdraw(share, bytes);
            true
        });
    }

    fn add_with(&self, bytes: usize, take: impl Fn(Share) -> bool) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let is_waiting = queues_of(word) > 0;
            let share = if is_waiting { Share::Waiting } else { Share::Messages };
            if !take(share) {
                return false;
            }
            if is_waiting {
                self.budget.hold_more(self.holders, bytes);
            }
            match self.exchange(word, word + bytes as u64) {
                Ok(()) => {
                    self.levels().grow(place_of(word), bytes);
                    return true;
                }
                Err(now) => word = now,
            }
            if is_waiting {
                self.budget.hold_less(self.holders, bytes);
            }
            self.budget.give(share, bytes);
        }
    }

    /// Counts one more queue of a slow connection that holds the message. `false` if it is the
    /// first queue, and the share for waiting has no room.
    pub(crate) fn hold(&self) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let bytes = bytes_of(word);
            let is_first = queues_of(word) == 0;
            if is_first {
                if !self.budget.move_to_waiting(bytes) {
                    return false;
                }
                self.budget.hold_more(self.holders, bytes);
            }
            match self.exchange(word, word + ONE_QUEUE) {
                Ok(()) => {
                    if is_first {
                        self.budget.give(Share::Messages, bytes);
                        self.note_place(word, word + ONE_QUEUE);
                    }
                    return true;
                }
                Err(now) => word = now,
            }
            if is_first {
                self.budget.hold_less(self.holders, bytes);
                self.budget.give(Share::Waiting, bytes);
            }
        }
    }

    /// Counts one more queue, even beyond the limit of the share for waiting: the message waited
    /// before it was handed over.
    pub(crate) fn hold_anyway(&self) {
        if self.hold() {
            return;
        }
        let bytes = self.bytes();
        self.note_overdrawn(bytes);
        self.budget.overdraw(Share::Waiting, bytes);
        self.budget.hold_more(self.holders, bytes);
        let held = self.word.fetch_add(ONE_QUEUE, Ordering::AcqRel);
        debug_assert!(queues_of(held) == 0, "a message that is being imported has one owner");
        self.budget.give(Share::Messages, bytes);
        self.note_place(held, held + ONE_QUEUE);
    }

    /// Counts one queue less.
    ///
    /// With the last queue the bytes return to the share for messages, beyond its limit if
    /// necessary: the message may be in a ring, which has a bound of its own.
    pub(crate) fn release(&self) {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            debug_assert!(queues_of(word) > 0, "no queue holds it");
            let (bytes, is_last) = (bytes_of(word), queues_of(word) == 1);
            // The next queue that holds the message may give them back at once.
            if is_last {
                self.budget.move_to_messages(bytes);
            }
            match self.exchange(word, word - ONE_QUEUE) {
                Ok(()) => {
                    if is_last {
                        self.budget.hold_less(self.holders, bytes);
                        self.budget.give(Share::Waiting, bytes);
                        self.note_place(word, word - ONE_QUEUE);
                    }
                    return;
                }
                Err(now) => word = now,
            }
            if is_last {
                self.budget.give(Share::Messages, bytes);
            }
        }
    }

    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }

    #[cfg(any(test, feature = "sim"))]
    fn note_overdrawn(&self, bytes: usize) {
        self.overdrawn.fetch_add(bytes, Ordering::Relaxed);
        self.budget.overdrawn.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cfg(not(any(test, feature = "sim")))]
    fn note_overdrawn(&self, _bytes: usize) {}

    /// The number of queues that hold the message.
    pub(crate) fn queues(&self) -> u64 {
        queues_of(self.word.load(Ordering::Acquire))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        #[cfg(any(test, feature = "sim"))]
        self.budget.overdrawn.fetch_sub(*self.overdrawn.get_mut(), Ordering::Relaxed);
        let word = *self.word.get_mut();
        let bytes = bytes_of(word);
        self.levels().leave(place_of(word), bytes);
        if queues_of(word) > 0 {
            self.budget.hold_less(self.holders, bytes);
            self.budget.give(Share::Waiting, bytes);
        } else {
            self.budget.give(Share::Messages, bytes);
        }
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

    /// The bytes that waiting items in the shard hold.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Gives everything back.
    pub(crate) fn begin_anew(&mut self) {
        self.budget.give(self.share, self.held + self.free);
        (self.held, self.free) = (0, 0);
    }

    /// The bytes that the lease has taken.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn taken(&self) -> usize {
        self.held + self.free
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
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
            if piece <= self.budget.bytes_max_of(share) / 8
                && self.budget.try_take(share, piece, usize::MAX)
            {
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

    /// Takes bytes even beyond the limit of the share: they were there before a handover.
    pub(crate) fn take_anyway(&mut self, bytes: usize) {
        if !self.take(bytes) {
            self.budget.overdraw(self.share, bytes);
            self.held += bytes;
        }
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
        let charge = Charge::overdraw(&budget, 20, holders(&budget, 1, 0));
        assert_eq!((budget.used(), budget.peak(), budget.refused()), (180, 180, 1));
        assert!(budget.is_tight(Messages) && !budget.take(Messages, 1));
        drop(charge);
        budget.give(Messages, 160);
        assert_eq!(budget.used(), 0);
    }

    /// Fails if a share takes the room of another one, or if the sum exceeds the budget.
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
        let budget = Budget::new(32);
        let holders = holders(&budget, 1, 0);
        let charge = Charge::take(&budget, 16, usize::MAX, holders);
        assert!(charge.is_some());
        assert!(Charge::take(&budget, 16, usize::MAX, holders).is_none());
        drop(charge);
        assert!(Charge::take(&budget, 16, 9, holders).is_none(), "some is left to others");
        assert_eq!(budget.used(), 0);
    }

    fn holders(budget: &Budget, target: u64, sender: u64) -> (Holders, u16) {
        let sender = (sender != 0).then(|| budget.holder(sender));
        (Holders { target: budget.holder(target), sender }, 0)
    }

    /// The shares in which a message counts, and the bytes that its target and its sender hold.
    fn counts(budget: &Budget, charge: &Charge) -> [usize; 4] {
        let holders = charge.holders();
        let of_sender = holders.sender.map_or(0, |sender| budget.held_by(sender));
        let used = [Messages, Waiting].map(|share| budget.used_of(share));
        [used[0], used[1], budget.held_by(holders.target), of_sender]
    }

    /// Fails if a waiting message keeps the room of new ones, or counts once for each queue.
    #[test]
    fn what_waits_leaves_the_room_of_new_messages() {
        let budget = Budget::new(1600);
        assert_eq!(budget.bytes_max_of(Waiting), 400);
        let charge =
            Charge::take(&budget, 300, usize::MAX, holders(&budget, 7, 8)).expect("there is room");
        assert_eq!(counts(&budget, &charge), [300, 0, 0, 0]);
        assert!(charge.hold() && charge.hold());
        assert_eq!(counts(&budget, &charge), [0, 300, 300, 300]);
        charge.add(50);
        assert!(charge.try_add(10) && !charge.try_add(100), "waiting bytes have a limit");
        assert_eq!(counts(&budget, &charge), [0, 360, 360, 360]);
        let other =
            Charge::take(&budget, 60, usize::MAX, holders(&budget, 9, 0)).expect("there is room");
        assert!(!other.hold());
        assert_eq!(counts(&budget, &other), [60, 360, 0, 0]);
        charge.release();
        assert_eq!(counts(&budget, &charge), [60, 360, 360, 360]);
        charge.release();
        assert_eq!(counts(&budget, &charge), [420, 0, 0, 0]);
        assert!(other.hold() && !charge.hold());
        drop(charge);
        assert_eq!((counts(&budget, &other), budget.most_held()), ([0, 60, 60, 0], 60));
        drop(other);
        assert_eq!((budget.used(), budget.most_held()), (0, 0));
    }

    /// Fails if a retained message that has left the last queue brings the sum above the budget.
    #[test]
    fn what_comes_back_from_a_queue_is_within_the_budget() {
        let budget = Budget::new(1600);
        let kept =
            Charge::take(&budget, 300, usize::MAX, holders(&budget, 7, 0)).expect("there is room");
        assert!(kept.hold());
        assert!(budget.take(Messages, budget.bytes_max_of(Messages)));
        kept.release();
        assert_eq!(budget.used_of(Messages), budget.bytes_max_of(Messages) + 300);
        assert!(!budget.take(Messages, 1) && budget.take(Waiting, 400));
        assert!(!budget.take(Share::Http, 101) && budget.take(Share::Http, 100));
        assert_eq!((budget.used(), budget.peak()), (1600, 1600));
    }

    /// Fails if two threads that hold and release one message lose count of it.
    #[test]
    fn threads_agree_on_where_a_message_is_counted() {
        let budget = Budget::new(16_000);
        let charge =
            Charge::take(&budget, 300, usize::MAX, holders(&budget, 7, 8)).expect("there is room");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let charge = &charge;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        assert!(charge.hold());
                        if round % 1000 == 0 {
                            charge.add(1);
                        }
                        if thread == 0 {
                            charge.retain(round % 2 == 0);
                        }
                        charge.release();
                    }
                });
            }
        });
        assert_eq!((charge.queues(), counts(&budget, &charge)), (0, [380, 0, 0, 0]));
        assert_eq!(levels(&budget, 0), [(1, 380), (0, 0), (0, 0)]);
        drop(charge);
        assert_eq!((budget.used(), levels(&budget, 0)), (0, [(0, 0); 3]));
    }

    /// The number of messages of a class and their bytes: moving, retained, waiting.
    fn levels(budget: &Budget, class: u16) -> [(usize, usize); 3] {
        MessagePlace::ALL.map(|place| {
            let Footprint { count, bytes } = budget.messages(class, place);
            (count, bytes)
        })
    }

    #[test]
    fn a_message_counts_for_its_class_and_for_what_keeps_it() {
        let budget = Budget::with_classes(16_000, 4_000, 2);
        let (whose, _) = holders(&budget, 7, 0);
        let charge = Charge::take(&budget, 300, usize::MAX, (whose, 1)).expect("there is room");
        assert_eq!(levels(&budget, 1), [(1, 300), (0, 0), (0, 0)]);
        charge.retain(true);
        charge.add(20);
        assert_eq!(levels(&budget, 1), [(0, 0), (1, 320), (0, 0)]);
        assert!(charge.hold());
        charge.retain(true);
        assert_eq!(levels(&budget, 1), [(0, 0), (0, 0), (1, 320)]);
        charge.release();
        assert_eq!(levels(&budget, 1), [(0, 0), (1, 320), (0, 0)]);
        let other = Charge::overdraw(&budget, 8, (whose, 7));
        assert_eq!(levels(&budget, 0), [(1, 8), (0, 0), (0, 0)], "there is no such class");
        drop((charge, other));
        assert_eq!((levels(&budget, 0), levels(&budget, 1)), ([(0, 0); 3], [(0, 0); 3]));
    }
}
