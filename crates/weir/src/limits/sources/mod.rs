//! Sources of connections: the connections of each address, and their rate.

mod handover;

use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashTable;
use weir_engine::{Footprint, rounded};

use crate::base::config::LimitsConfig;
use crate::base::hash_key::HashKey;
use crate::base::slab::Slab;

/// One source: an IPv4 address, or a /64 of IPv6, which is what one customer gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    V4(u32),
    V6(u64),
}

/// The known sources.
///
/// Shape: [`STRIPES`] tables, each behind its own lock, with an index of slots by source and
/// entries of [`ENTRY_BYTES`] in chunks. A source stays known while it has connections, or until
/// its bucket is full again.
/// Limits: at most [`RECENT_MAX`] sources without connections for each stripe, 64 Ki in all. A
/// storm of addresses costs some 3 MiB. Beyond that, sources are forgotten early and regain their
/// burst. Strangers choose their addresses, so the index hashes with a random key from the start.
/// Cost: enter and leave are O(1) under one lock. [`Sources::sweep`] looks at every entry.
pub(crate) struct Sources {
    hasher: HashKey,
    rules: SharedRules,
    stripes: Box<[Mutex<Stripe>]>,
}

/// A reference to a source that a shard carries with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SourceRef(NonZeroU32);

/// The reason why a source may not have one more connection now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceFull {
    /// It has `limits.connections_per_source_max`.
    Connections,
    /// It connects faster than `limits.connects_per_source_per_second`.
    Rate,
}

/// The rules, which can change. Readers may see parts of old and new rules together for a moment.
struct SharedRules {
    connections_max: AtomicU32,
    interval: AtomicU64,
    burst: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
struct Rules {
    connections_max: u32,
    /// Nanoseconds in which a bucket gains one connect; 0: connects are not limited.
    interval: u64,
    /// Nanoseconds in which an empty bucket becomes full.
    burst: u64,
}

#[derive(Default)]
struct Stripe {
    index: HashTable<u32>,
    entries: Slab<Entry>,
    /// Entries without connections.
    recent: usize,
    /// The place where the next search for an entry to forget begins.
    hand: u32,
    /// Entries that were forgotten before their buckets were full again.
    forgotten: u64,
}

struct Entry {
    source: Source,
    connections: u32,
    /// The bucket of connects, as the time at which it will be full (the "theoretical arrival time"
    /// of GCRA).
    full_at: u64,
}

impl Source {
    pub(crate) fn of(addr: IpAddr) -> Source {
        match addr.to_canonical() {
            IpAddr::V4(addr) => Source::V4(addr.to_bits()),
            IpAddr::V6(addr) => Source::V6((addr.to_bits() >> 64) as u64),
        }
    }
}

/// Written as `192.0.2.7` or `2001:db8:0:1::/64`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::V4(bits) => Ipv4Addr::from_bits(*bits).fmt(f),
            Source::V6(bits) => write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(*bits) << 64)),
        }
    }
}

impl Sources {
    /// A table for these limits. Without limits it only counts.
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        Self {
            hasher: HashKey::random(),
            rules: Rules::new(limits).into(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
        }
    }

    /// A table of failures instead of connects: `per_minute` failures of each source are forgiven
    /// in a minute, and `burst` at once. See [`Sources::wait`] and [`Sources::strike`].
    pub(crate) fn of_failures(per_minute: u32, burst: u32) -> Self {
        Self::of_interval(60 * SECOND / u64::from(per_minute.max(1)), burst)
    }

    /// A table of attempts. Successful ones are given back: see [`Sources::take`] and
    /// [`Sources::give_back`].
    pub(crate) fn of_attempts(per_second: u32, burst: u32) -> Self {
        Self::of_interval(SECOND / u64::from(per_second.max(1)), burst)
    }

    /// Changes the limits.
    pub(crate) fn limit(&self, limits: &LimitsConfig) {
        self.rules.set(Rules::new(limits));
    }

    /// Changes the limits of a table of failures.
    pub(crate) fn limit_failures(&self, per_minute: u32, burst: u32) {
        self.rules.set(Rules::of_interval(60 * SECOND / u64::from(per_minute.max(1)), burst));
    }

    /// Changes the limits of a table of attempts.
    pub(crate) fn limit_attempts(&self, per_second: u32, burst: u32) {
        self.rules.set(Rules::of_interval(SECOND / u64::from(per_second.max(1)), burst));
    }

    fn of_interval(interval: u64, burst: u32) -> Self {
        Self {
            hasher: HashKey::random(),
            rules: Rules::of_interval(interval, burst).into(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
        }
    }

    /// The time until a source's bucket has one again; `None` if it has one now.
    pub(crate) fn wait(&self, source: Source, now: Duration) -> Option<Duration> {
        let hash = self.hasher.hash_one(source);
        let stripe = self.lock(stripe_of(hash));
        stripe.entries.get(stripe.find(hash, source)?)?.wait(&self.rules.now(), nanoseconds(now))
    }

    /// Takes one from a source's bucket, and returns the time that it would have had to wait. An
    /// empty bucket goes into debt, up to [`DEBT_MAX`]. Simultaneous attempts of one source all saw
    /// the bucket before any of them, so they pay their excess back afterwards.
    pub(crate) fn strike(&self, source: Source, now: Duration) -> Option<Duration> {
        let hash = self.hasher.hash_one(source);
        let mut stripe = self.lock(stripe_of(hash));
        let slot = stripe.find_or_insert(hash, source, &self.hasher);
        let now = nanoseconds(now);
        let entry = stripe.entries.get_mut(slot).expect("the index names slots in use");
        let rules = self.rules.now();
        let wait = entry.wait(&rules, now);
        let full_at = entry.full_at.max(now).saturating_add(rules.interval);
        entry.full_at = full_at.min(now + rules.burst + DEBT_MAX);
        if stripe.recent > RECENT_MAX {
            stripe.forget_one(&self.hasher);
        }
        wait
    }

    /// Takes one from a source's bucket. The error is the time to wait if the bucket is empty.
    pub(crate) fn take(&self, source: Source, now: Duration) -> Result<(), Duration> {
        let hash = self.hasher.hash_one(source);
        let mut stripe = self.lock(stripe_of(hash));
        let slot = stripe.find_or_insert(hash, source, &self.hasher);
        let now = nanoseconds(now);
        let entry = stripe.entries.get_mut(slot).expect("the index names slots in use");
        let rules = self.rules.now();
        if let Some(wait) = entry.wait(&rules, now) {
            return Err(wait);
        }
        entry.full_at = entry.full_at.max(now).saturating_add(rules.interval);
        if stripe.recent > RECENT_MAX {
            stripe.forget_one(&self.hasher);
        }
        Ok(())
    }

    /// Gives one back.
    pub(crate) fn give_back(&self, source: Source, now: Duration) {
        let hash = self.hasher.hash_one(source);
        let mut stripe = self.lock(stripe_of(hash));
        let Some(slot) = stripe.find(hash, source) else { return };
        let entry = stripe.entries.get_mut(slot).expect("the index names slots in use");
        entry.full_at = entry.full_at.saturating_sub(self.rules.now().interval);
        if entry.is_idle(nanoseconds(now)) {
            stripe.forget(slot, &self.hasher);
        }
    }

    /// Whether `limits` need a table at all.
    pub(crate) fn are_limited(limits: &LimitsConfig) -> bool {
        limits.connections_per_source_max > 0 || limits.connects_per_source_per_second > 0
    }

    /// Counts one more connection of `source`; `now` is the time since some start. A refusal uses
    /// nothing up.
    pub(crate) fn enter(&self, source: Source, now: Duration) -> Result<SourceRef, SourceFull> {
        let hash = self.hasher.hash_one(source);
        let index = stripe_of(hash);
        let mut stripe = self.lock(index);
        let slot = stripe.find_or_insert(hash, source, &self.hasher);
        let entry = stripe.entries.get_mut(slot).expect("the index names slots in use");
        let was_recent = entry.connections == 0;
        entry.enter(&self.rules.now(), nanoseconds(now))?;
        stripe.recent -= usize::from(was_recent);
        Ok(SourceRef::new(index, slot))
    }

    /// Counts one connection less. Call it once for each connection.
    pub(crate) fn leave(&self, source: SourceRef, now: Duration) {
        let (index, slot) = source.parts();
        let mut stripe = self.lock(index);
        let Some(entry) = stripe.entries.get_mut(slot).filter(|entry| entry.connections > 0) else {
            debug_assert!(false, "a source is left as often as it was entered");
            return;
        };
        entry.connections -= 1;
        if entry.connections > 0 {
            return;
        }
        let is_full = entry.full_at <= nanoseconds(now);
        stripe.recent += 1;
        if is_full {
            stripe.forget(slot, &self.hasher);
        } else if stripe.recent > RECENT_MAX {
            stripe.forget_one(&self.hasher);
        }
    }

    /// The source behind a reference, while one of its connections exists.
    pub(crate) fn source(&self, source: SourceRef) -> Option<Source> {
        let (index, slot) = source.parts();
        self.lock(index).entries.get(slot).map(|entry| entry.source)
    }

    /// Forgets sources without connections whose buckets are full again.
    pub(crate) fn sweep(&self, now: Duration) {
        for index in 0..STRIPES {
            let mut stripe = self.lock(index);
            for slot in 0..stripe.entries.places() {
                if stripe.recent == 0 {
                    break;
                }
                let entry = stripe.entries.get(slot);
                if entry.is_some_and(|entry| entry.is_idle(nanoseconds(now))) {
                    stripe.forget(slot, &self.hasher);
                }
            }
        }
    }

    /// The entries, with their index.
    pub(crate) fn footprint(&self) -> Footprint {
        let mut sum = Footprint::new(0, rounded(size_of_val(&*self.stripes)));
        for index in 0..STRIPES {
            let Stripe { index, entries, .. } = &*self.lock(index);
            let bytes = rounded(index.allocation_size()) + entries.occupied();
            sum += Footprint::new(index.len(), bytes);
        }
        sum
    }

    /// Number of entries.
    pub(crate) fn count(&self) -> usize {
        (0..STRIPES).map(|index| self.lock(index).index.len()).sum()
    }

    /// Sources that were forgotten early, because there were too many.
    pub(crate) fn forgotten(&self) -> u64 {
        (0..STRIPES).map(|index| self.lock(index).forgotten).sum()
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Stripe> {
        self.stripes[index].lock().expect("no panic happens under the sources' locks")
    }
}

impl SourceRef {
    /// The source that a shard returns; `None` for a connection that is not counted.
    pub(crate) fn from_origin(number: u32) -> Option<SourceRef> {
        NonZeroU32::new(number).map(SourceRef)
    }

    /// The number that a shard carries.
    pub(crate) fn to_origin(source: Option<SourceRef>) -> u32 {
        source.map_or(0, |source| source.0.get())
    }

    fn new(stripe: usize, slot: u32) -> SourceRef {
        let stripe = u32::try_from(stripe).expect("there are 16 stripes");
        debug_assert!(slot < u32::MAX >> STRIPE_BITS, "a stripe never holds 268 million sources");
        let number = (slot << STRIPE_BITS | stripe).saturating_add(1);
        SourceRef(NonZeroU32::new(number).expect("one was added"))
    }

    fn parts(self) -> (usize, u32) {
        let number = self.0.get() - 1;
        (number as usize % STRIPES, number >> STRIPE_BITS)
    }
}

impl SharedRules {
    fn now(&self) -> Rules {
        Rules {
            connections_max: self.connections_max.load(Ordering::Relaxed),
            interval: self.interval.load(Ordering::Relaxed),
            burst: self.burst.load(Ordering::Relaxed),
        }
    }

    fn set(&self, Rules { connections_max, interval, burst }: Rules) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
        self.interval.store(interval, Ordering::Relaxed);
        self.burst.store(burst, Ordering::Relaxed);
    }
}

impl From<Rules> for SharedRules {
    fn from(Rules { connections_max, interval, burst }: Rules) -> SharedRules {
        SharedRules {
            connections_max: connections_max.into(),
            interval: interval.into(),
            burst: burst.into(),
        }
    }
}

impl Rules {
    fn of_interval(interval: u64, burst: u32) -> Rules {
        let burst = interval.saturating_mul(u64::from(burst.max(1)));
        Rules { connections_max: u32::MAX, interval, burst }
    }

    fn new(limits: &LimitsConfig) -> Rules {
        let interval = match limits.connects_per_source_per_second {
            0 => 0,
            rate => SECOND / u64::from(rate),
        };
        let connections_max = match limits.connections_per_source_max {
            0 => u32::MAX,
            max => u32::try_from(max).unwrap_or(u32::MAX),
        };
        // A bucket for less than one connect would never admit one.
        let burst = u64::from(limits.connects_per_source_burst.max(1));
        Rules { connections_max, interval, burst: interval.saturating_mul(burst) }
    }
}

impl Entry {
    fn enter(&mut self, rules: &Rules, now: u64) -> Result<(), SourceFull> {
        if self.connections >= rules.connections_max {
            return Err(SourceFull::Connections);
        }
        let full_at = self.full_at.max(now).saturating_add(rules.interval);
        if full_at - now > rules.burst {
            return Err(SourceFull::Rate);
        }
        self.full_at = full_at;
        self.connections += 1;
        Ok(())
    }

    /// The time until its bucket has one again; `None` if it has one now.
    fn wait(&self, rules: &Rules, now: u64) -> Option<Duration> {
        let has_one_at = self.full_at.saturating_add(rules.interval).saturating_sub(rules.burst);
        let wait = has_one_at.saturating_sub(now);
        (wait > 0).then(|| Duration::from_nanos(wait))
    }

    fn is_idle(&self, now: u64) -> bool {
        self.connections == 0 && self.full_at <= now
    }
}

impl Stripe {
    fn find(&self, hash: u64, source: Source) -> Option<u32> {
        let entries = &self.entries;
        let is_it = |slot: &u32| entries.get(*slot).is_some_and(|entry| entry.source == source);
        self.index.find(hash, is_it).copied()
    }

    fn find_or_insert(&mut self, hash: u64, source: Source, hasher: &HashKey) -> u32 {
        self.find(hash, source).unwrap_or_else(|| self.insert(hash, source, hasher))
    }

    fn insert(&mut self, hash: u64, source: Source, hasher: &HashKey) -> u32 {
        let slot = self.entries.insert(Entry { source, connections: 0, full_at: 0 });
        self.recent += 1;
        let entries = &self.entries;
        let rehash = |slot: &u32| {
            let entry = entries.get(*slot).expect("the index names slots in use");
            hasher.hash_one(entry.source)
        };
        self.index.insert_unique(hash, slot, rehash);
        slot
    }

    fn forget(&mut self, slot: u32, hasher: &HashKey) {
        let Some(entry) = self.entries.get(slot) else { return };
        debug_assert!(entry.connections == 0, "a source with connections is known");
        let hash = hasher.hash_one(entry.source);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.entries.remove(slot);
        self.recent -= 1;
    }

    /// Forgets the next entry without connections, from the current place on.
    fn forget_one(&mut self, hasher: &HashKey) {
        for _ in 0..self.entries.places() {
            let slot = self.hand;
            self.hand = if slot + 1 < self.entries.places() { slot + 1 } else { 0 };
            if self.entries.get(slot).is_some_and(|entry| entry.connections == 0) {
                self.forget(slot, hasher);
                self.forgotten += 1;
                return;
            }
        }
    }
}

fn nanoseconds(now: Duration) -> u64 {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn stripe_of(hash: u64) -> usize {
    // The table uses the lower bits for the place and the upper seven for the tag.
    (hash >> 48) as usize % STRIPES
}

const SECOND: u64 = 1_000_000_000;
/// Long enough that a storm of simultaneous attempts gains little. Short enough that others who
/// share the address with an attacker are not kept out for long.
const DEBT_MAX: u64 = 600 * SECOND;
/// Enough that listeners and dispatchers seldom meet at one lock.
const STRIPES: usize = 1 << STRIPE_BITS;
const STRIPE_BITS: u32 = 4;
/// Per stripe.
const RECENT_MAX: usize = 4096;
const ENTRY_BYTES: usize = 32;
const _: () = assert!(size_of::<Entry>() <= ENTRY_BYTES);

#[cfg(test)]
mod tests;
