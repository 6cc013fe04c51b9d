//! Which endpoint gets a request: the lighter of two that chance picks.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::time::Instant;

use crate::endpoint::{Flight, Look, Rules, Standing, Taken, Target};
use crate::names::Endpoint;

/// The endpoints of an upstream, and the choice between them.
pub(crate) struct Balance {
    set: ArcSwap<Set>,
    /// Held while the set changes.
    changing: Mutex<()>,
    chance: Chance,
    rules: Arc<Rules>,
}

/// Random numbers that are good enough to spread load, and cheap.
pub(crate) struct Chance(AtomicU64);

/// The endpoints of one answer of the names.
struct Set {
    endpoints: Arc<[Endpoint]>,
    targets: Box<[Arc<Target>]>,
}

impl Balance {
    pub(crate) fn new(rules: Arc<Rules>, seed: Option<u64>) -> Balance {
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        let set = Set { endpoints: Arc::default(), targets: Box::default() };
        Balance {
            set: ArcSwap::from_pointee(set),
            changing: Mutex::new(()),
            chance: Chance(AtomicU64::new(seed)),
            rules,
        }
    }

    pub(crate) fn chance(&self) -> &Chance {
        &self.chance
    }

    /// From now on these are the endpoints. Those that stay keep their connections and their health.
    pub(crate) fn update(&self, endpoints: &Arc<[Endpoint]>) {
        if Arc::ptr_eq(&self.set.load().endpoints, endpoints) {
            return;
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.set.load_full();
        let targets: Box<[_]> = endpoints
            .iter()
            .filter_map(|endpoint| {
                let same = old.targets.iter().find(|target| target.endpoint == *endpoint);
                same.cloned().or_else(|| Some(Arc::new(Target::new(endpoint, &self.rules)?)))
            })
            .collect();
        self.rules.set_count(targets.len());
        let set = Arc::new(Set { endpoints: Arc::clone(endpoints), targets });
        self.set.store(Arc::clone(&set));
        let stays = |old: &&Arc<Target>| set.targets.iter().any(|new| Arc::ptr_eq(old, new));
        old.targets.iter().filter(|old| !stays(old)).for_each(|old| old.leave());
        self.rules.schedule_probes(&set.targets);
        self.rules.queue.changed();
    }

    /// A connection for a request that these endpoints have failed before. `None`: all places of the
    /// endpoints in question are taken.
    pub(crate) fn take(&self, now: Instant, tried: &[Arc<Target>]) -> Option<(Flight, Taken)> {
        let targets = &self.set.load().targets;
        if self.rules.is_probe_due(now)
            && let Some(target) = self.due(targets, now, tried)
        {
            let flight = Flight::new(Arc::clone(&target), true);
            if let Some(taken) = target.take(now) {
                return Some((flight, taken));
            }
        }
        for _ in 0..TRIES_AGAINST_RACES {
            let target = self.choose(targets, now, tried)?;
            let flight = Flight::new(Arc::clone(target), false);
            if let Some(taken) = target.take(now) {
                return Some((flight, taken));
            }
        }
        None
    }

    pub(crate) fn targets(&self) -> Vec<Arc<Target>> {
        self.set.load().targets.to_vec()
    }

    fn due(
        &self,
        targets: &[Arc<Target>],
        now: Instant,
        tried: &[Arc<Target>],
    ) -> Option<Arc<Target>> {
        let mut untried = targets.iter().filter(|target| !has(tried, target));
        let due = untried.find(|target| target.probe(now)).cloned();
        self.rules.schedule_probes(targets);
        due
    }

    fn choose<'a>(
        &self,
        targets: &'a [Arc<Target>],
        now: Instant,
        tried: &[Arc<Target>],
    ) -> Option<&'a Arc<Target>> {
        let [first, second] = self.chance.two(targets.len())?.map(|index| &targets[index]);
        let (one, other) = (first.look(now), second.look(now));
        let is_good = |target: &Arc<Target>, look: &Look| {
            look.standing == Standing::Available && look.has_room && !has(tried, target)
        };
        if is_good(first, &one) && is_good(second, &other) {
            return Some(if is_lighter(&one, &other) { first } else { second });
        }
        // Chance met one that is not good. So it may only choose among the good ones; if there are
        // none, among those that have failed this request; else among all.
        let all = || targets.iter().map(|target| (target, target.look(now)));
        let available = || all().filter(|(_, look)| look.standing == Standing::Available);
        let mut candidates: Vec<_> = available().filter(|(it, _)| !has(tried, it)).collect();
        if candidates.is_empty() {
            candidates = available().collect();
        }
        if candidates.is_empty() {
            candidates = all().collect();
        }
        candidates.retain(|(_, look)| look.has_room);
        let two = self.chance.two(candidates.len())?;
        let [(first, one), (second, other)] = two.map(|index| &candidates[index]);
        Some(if is_lighter(one, other) { first } else { second })
    }
}

impl Chance {
    /// SplitMix64 over a counter.
    pub(crate) fn next(&self) -> u64 {
        let mut mixed = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Two different numbers below `count`; the same one twice if `count` is 1.
    fn two(&self, count: usize) -> Option<[usize; 2]> {
        if count < 2 {
            return (count == 1).then_some([0, 0]);
        }
        let random = self.next();
        let below = |random: u64, bound: usize| {
            usize::try_from(((random & 0xffff_ffff) * bound as u64) >> 32).unwrap_or(0)
        };
        let first = below(random, count);
        let second = below(random >> 32, count - 1);
        Some([first, if second < first { second } else { second + 1 }])
    }
}

fn has(tried: &[Arc<Target>], target: &Arc<Target>) -> bool {
    tried.iter().any(|it| Arc::ptr_eq(it, target))
}

/// Compares latency times requests. An endpoint that was never measured counts as fast as the other.
fn is_lighter(one: &Look, other: &Look) -> bool {
    let latency = |this: &Look, that: &Look| this.latency.or(that.latency).unwrap_or(1.0).max(1.0);
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^52 requests")]
    let load = |look: &Look, latency: f64| latency * (look.in_flight + 1) as f64;
    load(one, latency(one, other)) <= load(other, latency(other, one))
}

/// Another request may take the place that was seen a moment ago.
const TRIES_AGAINST_RACES: usize = 3;
