//! The timer wheel. Each connection has one deadline, linked through its table entry.

use crate::slot::Slot;
use crate::time::Tick;

/// How the wheel reaches the links of an entry.
pub(crate) trait Timed {
    /// The links of the entry at `slot`.
    fn timer(&mut self, slot: Slot) -> &mut Timer;
}

/// The place of an entry in the wheel.
///
/// Shape: 12 bytes; a doubly linked list through the entries of one bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer {
    previous: Slot,
    next: Slot,
    /// When it fires; `NOT_ARMED` if it is in no bucket.
    at: Tick,
}

/// A hashed wheel of deadlines.
///
/// Shape: [`BUCKETS`] list heads. An entry whose deadline is more than a turn of the wheel ahead is
/// skipped until its turn comes. A deadline that moves later stays in place: its owner is woken
/// early, looks, and arms it again. So a sign of life costs only a store.
/// Cost: arm and disarm are O(1). A poll visits the entries of the buckets that time has passed.
#[derive(Debug)]
pub(crate) struct Wheel {
    heads: Box<[Slot]>,
    /// All ticks up to this one have been polled.
    polled: Tick,
    armed: usize,
}

/// 102 seconds a turn.
const BUCKETS: usize = 1024;
const NOT_ARMED: Tick = Tick(u32::MAX);

impl Timer {
    pub(crate) const IDLE: Timer = Timer { previous: Slot::NONE, next: Slot::NONE, at: NOT_ARMED };

    /// When it fires.
    pub(crate) fn at(&self) -> Tick {
        self.at
    }

    /// Whether the entry is in the wheel.
    pub(crate) fn is_armed(&self) -> bool {
        self.at != NOT_ARMED
    }
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self { heads: vec![Slot::NONE; BUCKETS].into_boxed_slice(), polled: Tick(0), armed: 0 }
    }

    /// Counts all ticks up to this one as polled. Nothing is armed yet.
    pub(crate) fn begin_at(&mut self, now: Tick) {
        self.polled = now;
    }

    /// Whether nothing is armed.
    pub(crate) fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// The bytes of the list heads.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.heads)
    }

    /// Makes the entry fire at `at` or before.
    pub(crate) fn arm(&mut self, entries: &mut impl Timed, slot: Slot, at: Tick) {
        let at = Tick(at.0.clamp(self.polled.0 + 1, NOT_ARMED.0 - 1));
        let timer = *entries.timer(slot);
        if timer.is_armed() {
            if timer.at <= at {
                return;
            }
            self.disarm(entries, slot);
        }
        let head = &mut self.heads[at.0 as usize % BUCKETS];
        let next = std::mem::replace(head, slot);
        if next != Slot::NONE {
            entries.timer(next).previous = slot;
        }
        *entries.timer(slot) = Timer { previous: Slot::NONE, next, at };
        self.armed += 1;
    }

    /// Takes the entry out of the wheel.
    pub(crate) fn disarm(&mut self, entries: &mut impl Timed, slot: Slot) {
        let timer = std::mem::replace(entries.timer(slot), Timer::IDLE);
        if !timer.is_armed() {
            return;
        }
        if timer.previous == Slot::NONE {
            self.heads[timer.at.0 as usize % BUCKETS] = timer.next;
        } else {
            entries.timer(timer.previous).next = timer.next;
        }
        if timer.next != Slot::NONE {
            entries.timer(timer.next).previous = timer.previous;
        }
        self.armed -= 1;
    }

    /// Takes out all entries due at `now` and appends them to `due`.
    pub(crate) fn poll(&mut self, entries: &mut impl Timed, now: Tick, due: &mut Vec<Slot>) {
        let passed = now.since(self.polled) as usize;
        for step in 1..=passed.min(BUCKETS) {
            let bucket = (self.polled.0 as usize + step) % BUCKETS;
            let mut slot = self.heads[bucket];
            while slot != Slot::NONE {
                let timer = *entries.timer(slot);
                if timer.at <= now {
                    self.disarm(entries, slot);
                    due.push(slot);
                }
                slot = timer.next;
            }
        }
        self.polled = self.polled.max(now);
    }
}

#[cfg(any(test, feature = "sim"))]
impl Wheel {
    /// Entries in the wheel.
    pub(crate) fn armed(&self) -> usize {
        self.armed
    }

    /// Looks for contradictions between the timer of `slot` and its neighbours.
    pub(crate) fn check_timer(
        &self,
        timer_of: impl Fn(Slot) -> Timer,
        slot: Slot,
    ) -> Result<(), String> {
        let timer = timer_of(slot);
        if !timer.is_armed() {
            return Ok(());
        }
        let is_linked = if timer.previous == Slot::NONE {
            self.heads[timer.at.0 as usize % BUCKETS] == slot
        } else {
            timer_of(timer.previous).next == slot
        };
        let is_followed = timer.next == Slot::NONE || timer_of(timer.next).previous == slot;
        if is_linked && is_followed && timer.at > self.polled {
            return Ok(());
        }
        Err(format!("the wheel is broken, polled to {:?}", self.polled))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl Timed for Vec<Timer> {
        fn timer(&mut self, slot: Slot) -> &mut Timer {
            &mut self[slot.index() as usize]
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arm(Slot, u32),
        Disarm(Slot),
        Pass(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..20u32, 0..3000u32).prop_map(|(slot, ahead)| Step::Arm(Slot::at(slot), ahead)),
            1 => (0..20u32).prop_map(|slot| Step::Disarm(Slot::at(slot))),
            3 => (0..700u32).prop_map(Step::Pass),
            1 => (0..5000u32).prop_map(Step::Pass),
        ];
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn fires_what_an_ordered_map_fires(steps in steps()) {
            let mut timers = vec![Timer::IDLE; 20];
            let mut wheel = Wheel::new();
            let mut model: BTreeMap<Slot, u32> = BTreeMap::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Arm(slot, ahead) => {
                        wheel.arm(&mut timers, slot, Tick(now + ahead));
                        let at = (now + ahead).max(now + 1);
                        let earliest = model.get(&slot).map_or(at, |armed| at.min(*armed));
                        model.insert(slot, earliest);
                    }
                    Step::Disarm(slot) => {
                        wheel.disarm(&mut timers, slot);
                        model.remove(&slot);
                    }
                    Step::Pass(ticks) => {
                        now += ticks;
                        let mut due = Vec::new();
                        wheel.poll(&mut timers, Tick(now), &mut due);
                        due.sort_unstable();
                        let expected: Vec<Slot> =
                            model.iter().filter(|(_, at)| **at <= now).map(|(slot, _)| *slot).collect();
                        model.retain(|_, at| *at > now);
                        prop_assert_eq!(due, expected);
                    }
                }
                prop_assert_eq!(wheel.armed, model.len());
            }
        }
    }
}
