//! The sessions of TLS 1.2 that this node has stored.
//!
//! rustls has such a store, but that one does not tell what it holds, so it could not move to
//! another process.

use std::collections::{HashMap, VecDeque};
use std::hash::RandomState;
use std::sync::{Arc, Mutex, MutexGuard};

use weir_engine::{Footprint, rounded, rounded_table};

/// Sessions by id.
///
/// Shape: a table, and the ids in the order of their age.
/// Limits: `max` sessions; one more takes the place of the oldest. With 0 none is stored. The ids
/// are ours, so that nobody can choose places in the table.
/// Cost: a short lock. To take a session out of the middle is O(1), too: its place in the order is
/// passed over later.
pub(super) struct SessionCache {
    max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    sessions: HashMap<Arc<[u8]>, Session, RandomState>,
    /// With the numbers of the sessions. A session with another number has come later.
    order: VecDeque<(u64, Arc<[u8]>)>,
    next: u64,
    /// Of the ids and states.
    bytes: usize,
}

struct Session {
    number: u64,
    state: Vec<u8>,
}

impl SessionCache {
    pub(super) fn new(max: usize) -> SessionCache {
        SessionCache { max, inner: Mutex::default() }
    }

    /// Stores a session; `false`: none is stored here.
    pub(super) fn put(&self, id: &[u8], state: Vec<u8>) -> bool {
        if self.max == 0 {
            return false;
        }
        let mut inner = self.lock();
        inner.remove(id);
        while inner.sessions.len() >= self.max {
            inner.remove_oldest();
        }
        inner.insert(id.into(), state);
        // Places of sessions that were taken out.
        if inner.order.len() > 2 * self.max {
            inner.compact();
        }
        true
    }

    pub(super) fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.lock().sessions.get(id).map(|session| session.state.clone())
    }

    pub(super) fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.lock().remove(id)
    }

    pub(super) fn can_cache(&self) -> bool {
        self.max > 0
    }

    /// Calls `each` for all sessions, the oldest first.
    pub(super) fn for_each(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let inner = self.lock();
        for (number, id) in &inner.order {
            if let Some(session) = inner.sessions.get(id).filter(|one| one.number == *number) {
                each(id, &session.state);
            }
        }
    }

    pub(super) fn footprint(&self) -> Footprint {
        let inner = self.lock();
        let table = rounded_table(inner.sessions.capacity(), size_of::<(Arc<[u8]>, Session)>());
        let order = rounded(inner.order.capacity() * size_of::<(u64, Arc<[u8]>)>());
        Footprint::new(inner.sessions.len(), table + order + inner.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic happens under the lock of the sessions")
    }
}

impl Inner {
    fn insert(&mut self, id: Arc<[u8]>, state: Vec<u8>) {
        self.bytes += occupied(&id, &state);
        self.order.push_back((self.next, Arc::clone(&id)));
        self.sessions.insert(id, Session { number: self.next, state });
        self.next += 1;
    }

    fn remove(&mut self, id: &[u8]) -> Option<Vec<u8>> {
        let (id, Session { state, .. }) = self.sessions.remove_entry(id)?;
        self.bytes -= occupied(&id, &state);
        Some(state)
    }

    fn remove_oldest(&mut self) {
        while let Some((number, id)) = self.order.pop_front() {
            if self.sessions.get(&id).is_some_and(|session| session.number == number) {
                self.remove(&id);
                return;
            }
        }
    }

    fn compact(&mut self) {
        let Inner { order, sessions, .. } = self;
        order.retain(|(number, id)| {
            sessions.get(id).is_some_and(|session| session.number == *number)
        });
    }
}

fn occupied(id: &[u8], state: &Vec<u8>) -> usize {
    rounded(id.len() + 2 * size_of::<usize>()) + rounded(state.capacity())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a list in the order of age.
        #[test]
        fn the_newest_sessions_are_there(
            max in 0usize..6,
            steps in proptest::collection::vec((0u8..4, 0u8..9), 0..200),
        ) {
            let (cache, mut twin) = (SessionCache::new(max), Vec::<(u8, Vec<u8>)>::new());
            for (time, (what, id)) in (0_u32..).zip(steps) {
                let state = time.to_be_bytes().to_vec();
                let at = twin.iter().position(|(known, _)| *known == id);
                match what {
                    0 | 1 => {
                        prop_assert_eq!(cache.put(&[id], state.clone()), max > 0);
                        at.map(|at| twin.remove(at));
                        twin.push((id, state));
                        if twin.len() > max {
                            twin.remove(0);
                        }
                    }
                    2 => prop_assert_eq!(cache.take(&[id]), at.map(|at| twin.remove(at).1)),
                    _ => prop_assert_eq!(cache.get(&[id]), at.map(|at| twin[at].1.clone())),
                }
                let mut shown = Vec::new();
                cache.for_each(|id, state| shown.push((id[0], state.to_vec())));
                prop_assert_eq!(&shown, &twin);
                let inner = cache.lock();
                prop_assert!(inner.order.len() <= 2 * max.max(1) + 1);
                let each = inner.sessions.iter();
                let bytes = each.map(|(id, session)| occupied(id, &session.state)).sum::<usize>();
                prop_assert_eq!(inner.bytes, bytes);
            }
        }
    }
}
