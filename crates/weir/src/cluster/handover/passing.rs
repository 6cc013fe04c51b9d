//! What the broker tells the old process of an upgrade while the new one listens, too.

use std::collections::HashSet;
use std::hash::Hasher as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use siphasher::sip::SipHasher13;
use weir_broker::{Event, Scope};
use weir_wire::handover::v1;

/// Whether another process is about to go on as this node, and what was heard since it listens.
///
/// Messages of topics have offsets, so they pass here untouched. Everything else is noted, and is
/// held back while nothing may change any more: the new process hears it itself.
///
/// Limits: [`NOTED_MAX`] events are noted, [`HELD_BYTES_MAX`] of them are held back.
#[derive(Default)]
pub(in crate::cluster) struct Passing {
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    noted: HashSet<u64, foldhash::fast::RandomState>,
    /// Something was carried out that is not noted.
    is_cut: bool,
    holds: bool,
    held: Vec<Event>,
    held_bytes: usize,
    /// Something was not held back, and is lost.
    has_lost: bool,
}

impl Passing {
    /// Carries an event out, now or when nobody has gone on.
    pub(in crate::cluster) fn pass(&self, event: Event, carry_out: impl Fn(Event)) {
        if !self.is_on.load(Ordering::Relaxed) {
            return carry_out(event);
        }
        let Some(digest) = digest(&event) else { return carry_out(event) };
        let mut state = self.lock();
        if state.holds {
            return state.hold(event);
        }
        if self.is_on.load(Ordering::Relaxed) {
            let has_room = state.noted.len() < NOTED_MAX;
            state.is_cut |= !has_room;
            if has_room {
                state.noted.insert(digest);
            }
        }
        // Under the lock: when it is held back from, nothing is under way.
        carry_out(event);
    }

    /// Notes what is heard from here on.
    pub(in crate::cluster) fn note(&self) {
        *self.lock() = State::default();
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Holds back what is heard from here on.
    pub(in crate::cluster) fn hold(&self) {
        self.lock().holds = true;
    }

    /// What was carried out here.
    pub(in crate::cluster) fn heard(&self) -> v1::BrokerHeard {
        let state = self.lock();
        v1::BrokerHeard { digests: state.noted.iter().copied().collect(), is_cut: state.is_cut }
    }

    /// Nothing is held back any more: what was is carried out. Returns whether something was let go
    /// of.
    pub(in crate::cluster) fn release(&self, carry_out: impl Fn(Event)) -> bool {
        let mut state = self.lock();
        state.holds = false;
        state.held_bytes = 0;
        let held = std::mem::take(&mut state.held);
        for event in held {
            state.noted.extend(digest(&event));
            carry_out(event);
        }
        let has_lost = std::mem::take(&mut state.has_lost);
        if has_lost {
            carry_out(Event::Gap(Scope::All));
        }
        has_lost
    }

    /// Nobody listens any more but this process.
    pub(in crate::cluster) fn end(&self, carry_out: impl Fn(Event)) -> bool {
        let has_lost = self.release(carry_out);
        self.is_on.store(false, Ordering::Relaxed);
        *self.lock() = State::default();
        has_lost
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hold(&mut self, event: Event) {
        let bytes = bytes(&event);
        if self.held_bytes + bytes > HELD_BYTES_MAX {
            self.has_lost = true;
            return;
        }
        self.held_bytes += bytes;
        self.held.push(event);
    }
}

/// Tells events apart, in all versions of the program alike; `None`: messages of topics, and what
/// each process hears of its own connection to the broker.
///
/// A message to a device or to all has the number that its node has given it, and a letter that of
/// its question. An occupancy has a number, too. Members may come, leave and come back: two events
/// that are the same are one here.
pub(super) fn digest(event: &Event) -> Option<u64> {
    let mut hasher = SipHasher13::new();
    let mut write = |kind: u8, parts: &[&[u8]]| {
        hasher.write(&[kind]);
        for part in parts {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        }
    };
    match event {
        Event::Messages { .. }
        | Event::Gap(_)
        | Event::Lost(_)
        | Event::Back { .. }
        | Event::Renumbered(_) => return None,
        Event::ToDevice { device, payload } => write(1, &[device.as_bytes(), payload]),
        Event::ToAll(payload) => write(2, &[payload]),
        Event::ToNode(payload) => write(3, &[payload]),
        Event::Evicted { device, connection } => {
            write(4, &[device.as_bytes(), &connection.0.to_le_bytes()]);
        }
        Event::Revoked(revocation) => {
            let (first, second) = (revocation.id.0.to_le_bytes(), revocation.id.1.to_le_bytes());
            write(5, &[revocation.device.as_bytes(), &first, &second]);
        }
        Event::Presence { topic, joined, left } => {
            write(6, &[topic.as_bytes()]);
            for (kind, members) in [(7, joined), (8, left)] {
                for member in members {
                    let connection = member.connection.0.to_le_bytes();
                    write(kind, &[&connection, member.device.as_bytes()]);
                }
            }
        }
        Event::Vacated { topic, occupancy } => {
            write(9, &[topic.as_bytes(), &occupancy.to_le_bytes()]);
        }
    }
    Some(hasher.finish())
}

/// About what an event takes.
pub(super) fn bytes(event: &Event) -> usize {
    let content = match event {
        Event::Messages { messages, .. } => {
            messages.iter().map(|message| message.payload.len() + EACH_BYTES).sum()
        }
        Event::ToDevice { payload, .. } | Event::ToAll(payload) | Event::ToNode(payload) => {
            payload.len()
        }
        Event::Presence { joined, left, .. } => (joined.len() + left.len()) * EACH_BYTES,
        Event::Gap(_)
        | Event::Evicted { .. }
        | Event::Revoked(_)
        | Event::Vacated { .. }
        | Event::Lost(_)
        | Event::Back { .. }
        | Event::Renumbered(_) => 0,
    };
    size_of::<Event>() + EACH_BYTES + content
}

/// The new process listens for some seconds before it goes on.
const NOTED_MAX: usize = 1 << 20;
/// A pause is short.
const HELD_BYTES_MAX: usize = 16 << 20;
/// Of a small value on the heap.
const EACH_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use weir_broker::{ConnectionNumber, Member};

    use super::*;

    fn to_device(text: &str) -> Event {
        Event::ToDevice { device: "d".into(), payload: text.as_bytes().to_vec() }
    }

    #[test]
    fn what_is_heard_is_noted_and_held_back_and_carried_out_once() {
        let (passing, carried) = (Passing::default(), RefCell::new(Vec::new()));
        let carry_out = |event: Event| carried.borrow_mut().push(event);
        passing.pass(to_device("before"), carry_out);
        assert_eq!(passing.heard(), v1::BrokerHeard::default());
        passing.note();
        passing.pass(to_device("noted"), carry_out);
        let mut noted = v1::BrokerHeard { is_cut: false, ..v1::BrokerHeard::default() };
        noted.digests.extend(digest(&to_device("noted")));
        assert_eq!(passing.heard(), noted);
        passing.hold();
        passing.pass(to_device("held"), carry_out);
        passing.pass(Event::ToAll(b"held".to_vec()), carry_out);
        // What each process hears itself is not held back.
        passing.pass(Event::Gap(Scope::Node), carry_out);
        assert_eq!(passing.heard(), noted);
        let before = [to_device("before"), to_device("noted"), Event::Gap(Scope::Node)];
        assert_eq!(*carried.borrow(), before);
        assert!(!passing.release(carry_out));
        assert_eq!(passing.heard().digests.len(), 3);
        passing.pass(to_device("after"), carry_out);
        assert!(!passing.end(carry_out));
        assert_eq!(passing.heard(), v1::BrokerHeard::default());
        let after = [to_device("held"), Event::ToAll(b"held".to_vec()), to_device("after")];
        assert_eq!(carried.borrow()[3..], after);
    }

    #[test]
    fn what_is_not_held_back_for_lack_of_room_counts_as_a_gap() {
        let (passing, carried) = (Passing::default(), RefCell::new(Vec::new()));
        let carry_out = |event: Event| carried.borrow_mut().push(event);
        passing.note();
        passing.hold();
        for _ in 0..3 {
            passing.pass(Event::ToAll(vec![0; HELD_BYTES_MAX / 2]), carry_out);
        }
        assert!(carried.borrow().is_empty());
        assert!(passing.release(carry_out));
        let carried = carried.into_inner();
        assert!(matches!(&carried[..], [Event::ToAll(_), Event::Gap(Scope::All)]));
    }

    #[test]
    fn different_events_have_different_digests() {
        let member = |number, device: &str| Member {
            connection: ConnectionNumber(number),
            device: device.into(),
        };
        let presence = |joined: Vec<Member>, left: Vec<Member>| Event::Presence {
            topic: "t".into(),
            joined,
            left,
        };
        let events = [
            to_device("a"),
            to_device("b"),
            Event::ToDevice { device: "da".into(), payload: Vec::new() },
            Event::ToAll(b"a".to_vec()),
            Event::ToNode(b"a".to_vec()),
            presence(vec![member(1, "d")], Vec::new()),
            presence(Vec::new(), vec![member(1, "d")]),
            presence(vec![member(1, "e")], Vec::new()),
            Event::Vacated { topic: "t".into(), occupancy: 1 },
            Event::Vacated { topic: "t".into(), occupancy: 2 },
        ];
        let digests: HashSet<Option<u64>> = events.iter().map(digest).collect();
        assert_eq!(digests.len(), events.len());
        assert!(!digests.contains(&None));
        assert_eq!(digest(&events[0]), digest(&events[0].clone()));
    }
}
