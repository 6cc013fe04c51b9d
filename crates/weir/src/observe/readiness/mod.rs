//! The readiness of a gateway: of each part, with the time of the last change and the cause.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::{error, info, warn};
use weir_store::Millis;

use crate::base::clock::unix_millis;

/// The readiness of a gateway, as [`crate::Handle::readiness`] returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// The parts that the gateway has.
    pub parts: Vec<PartReadiness>,
}

/// The readiness of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartReadiness {
    /// The part.
    pub part: Part,
    /// Its state.
    pub state: PartState,
    /// The time of the last change of the state, in milliseconds since 1970.
    pub since_ms: Millis,
    /// The reason why the state is not [`PartState::Ok`].
    pub cause: Option<String>,
}

weir_wire::named_enum! {
    /// A part of a gateway.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Part {
        /// The listeners for connections and datagrams.
        Listeners = "listeners",
        /// The threads that hold connections.
        Shards = "shards",
        /// Failed while the gateway closes its connections, or has been emptied.
        Drain = "drain",
        /// The store of devices and tokens, if there is one.
        Store = "store",
        /// The Redis cache in front of the store, if there is one.
        Cache = "cache",
        /// The issuers of signed tokens whose keys are fetched, if there are any.
        Issuers = "issuers",
    }
}

weir_wire::named_enum! {
    /// The state of a part.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PartState {
        /// The part works.
        Ok = "ok",
        /// The part works with losses. The gateway is still ready.
        Degraded = "degraded",
        /// The part does not work, so the gateway is not ready.
        Failed = "failed",
    }
}

/// The state of all parts.
///
/// Cost: a short lock at each change and each query; never for a connection or a message.
pub(crate) struct Board {
    state: Mutex<State>,
}

struct State {
    /// The parts that the gateway has.
    parts: BTreeMap<Part, PartReadiness>,
    /// Parts whose state has not been set yet.
    fresh: BTreeSet<Part>,
    /// Listeners that cannot accept at the moment, and listeners that have ended.
    troubles: BTreeMap<SocketAddr, Trouble>,
    is_listening: bool,
    /// Threads for datagrams that have ended by themselves.
    threads_ended: u64,
}

struct Trouble {
    cause: String,
    has_ended: bool,
}

impl Readiness {
    /// Whether no part has failed, apart from those in `left_out`.
    pub fn is_ready_without(&self, left_out: &[Part]) -> bool {
        let counting = self.parts.iter().filter(|part| !left_out.contains(&part.part));
        counting.into_iter().all(|part| part.state != PartState::Failed)
    }
}

impl Board {
    /// The board of a gateway that starts.
    pub(crate) fn new(has_store: bool, has_cache: bool) -> Board {
        let since_ms = unix_millis();
        let row = |part, starts: Option<&str>| {
            let state = starts.map_or(PartState::Ok, |_| PartState::Failed);
            (part, PartReadiness { part, state, since_ms, cause: starts.map(str::to_owned) })
        };
        let mut parts = BTreeMap::from([
            row(Part::Listeners, Some("the gateway starts")),
            row(Part::Shards, None),
            row(Part::Drain, None),
        ]);
        parts.extend(has_store.then(|| row(Part::Store, Some("it has not answered yet"))));
        parts.extend(has_cache.then(|| row(Part::Cache, None)));
        let fresh = parts.keys().copied().collect();
        let (troubles, is_listening, threads_ended) = (BTreeMap::new(), false, 0);
        Board { state: Mutex::new(State { parts, fresh, troubles, is_listening, threads_ended }) }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.lock().parts.values().all(|part| part.state != PartState::Failed)
    }

    pub(crate) fn read(&self) -> Readiness {
        Readiness { parts: self.lock().parts.values().cloned().collect() }
    }

    /// Sets the state of a part and logs a change.
    pub(crate) fn set(&self, part: Part, state: PartState, cause: Option<String>) {
        self.lock().set(part, state, cause);
    }

    /// All listeners are open.
    pub(crate) fn set_listening(&self) {
        let mut state = self.lock();
        state.is_listening = true;
        state.judge_listeners();
    }

    /// A listener cannot accept, or can accept again.
    pub(crate) fn set_listener(&self, addr: SocketAddr, cause: Option<String>) {
        let mut state = self.lock();
        match cause {
            Some(cause) => {
                state.troubles.insert(addr, Trouble { cause, has_ended: false });
            }
            None => {
                state.troubles.remove(&addr);
            }
        }
        state.judge_listeners();
    }

    /// A listener has ended by itself.
    pub(crate) fn end_listener(&self, addr: SocketAddr) {
        let cause = "its task has ended by itself".to_owned();
        let mut state = self.lock();
        state.troubles.insert(addr, Trouble { cause, has_ended: true });
        state.judge_listeners();
    }

    /// Sets the issuers whose keys cannot be fetched, with the causes; `None`: there are none whose
    /// keys are fetched.
    pub(crate) fn set_issuers(&self, troubles: Option<Vec<String>>) {
        let mut state = self.lock();
        let Some(troubles) = troubles else {
            state.parts.remove(&Part::Issuers);
            return;
        };
        let (part, since_ms) = (Part::Issuers, unix_millis());
        let fresh = PartReadiness { part, state: PartState::Ok, since_ms, cause: None };
        state.parts.entry(part).or_insert(fresh);
        let cause = (!troubles.is_empty()).then(|| troubles.join("; "));
        let part_state = cause.as_ref().map_or(PartState::Ok, |_| PartState::Degraded);
        state.set(part, part_state, cause);
    }

    /// Sets the number of threads for datagrams that have ended by themselves.
    pub(crate) fn set_threads_ended(&self, count: u64) {
        let mut state = self.lock();
        if state.threads_ended != count {
            state.threads_ended = count;
            state.judge_listeners();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn judge_listeners(&mut self) {
        if !self.is_listening {
            return;
        }
        let ended = self.troubles.values().any(|trouble| trouble.has_ended);
        let troubles = self.troubles.iter();
        let mut causes: Vec<String> =
            troubles.map(|(addr, trouble)| format!("{addr}: {}", trouble.cause)).collect();
        if self.threads_ended > 0 {
            causes.push(format!("{} threads for datagrams have ended", self.threads_ended));
        }
        let state = match (causes.is_empty(), ended || self.threads_ended > 0) {
            (true, _) => PartState::Ok,
            (false, false) => PartState::Degraded,
            (false, true) => PartState::Failed,
        };
        self.set(Part::Listeners, state, (!causes.is_empty()).then(|| causes.join("; ")));
    }

    fn set(&mut self, part: Part, state: PartState, cause: Option<String>) {
        let Some(known) = self.parts.get_mut(&part) else { return };
        let before = std::mem::replace(&mut known.state, state);
        known.cause = cause;
        let is_fresh = self.fresh.remove(&part);
        if before == state {
            return;
        }
        known.since_ms = unix_millis();
        // Starts and drains have their own log lines.
        if part == Part::Drain || is_fresh && state == PartState::Ok {
            return;
        }
        let (part, cause) = (part.name(), known.cause.as_deref());
        match state {
            PartState::Ok => info!(part, "ready"),
            PartState::Degraded => warn!(part, cause, "ready, with losses"),
            PartState::Failed => error!(part, cause, "not ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(board: &Board) -> Vec<(&'static str, &'static str, Option<String>)> {
        let parts = board.read().parts.into_iter();
        parts.map(|part| (part.part.name(), part.state.name(), part.cause)).collect()
    }

    #[test]
    fn a_gateway_is_ready_when_no_part_has_failed() {
        let board = Board::new(true, true);
        assert!(!board.is_ready());
        board.set_listening();
        assert!(!board.is_ready() && board.read().is_ready_without(&[Part::Store]));
        board.set(Part::Store, PartState::Ok, None);
        board.set(Part::Cache, PartState::Degraded, Some("gone".to_owned()));
        assert!(board.is_ready());
        assert_eq!(states(&board)[4], ("cache", "degraded", Some("gone".to_owned())));
        board.set(Part::Drain, PartState::Failed, None);
        assert!(!board.is_ready());
        assert_eq!(Board::new(false, false).read().parts.len(), 3, "what there is not is not told");
    }

    #[test]
    fn issuers_are_a_part_while_there_are_some() {
        let board = Board::new(false, false);
        board.set_listening();
        board.set_issuers(Some(vec![]));
        assert_eq!(states(&board)[3], ("issuers", "ok", None));
        board.set_issuers(Some(vec!["a: gone".to_owned(), "b: gone".to_owned()]));
        let cause = Some("a: gone; b: gone".to_owned());
        assert_eq!(states(&board)[3], ("issuers", "degraded", cause));
        assert!(board.is_ready(), "who is connected stays");
        board.set_issuers(None);
        assert_eq!(states(&board).len(), 3);
    }

    #[test]
    fn a_listener_in_trouble_is_named_until_it_accepts_again() {
        let board = Board::new(false, false);
        let addr: SocketAddr = "127.0.0.1:7".parse().unwrap();
        board.set_listening();
        board.set_listener(addr, Some("EMFILE".to_owned()));
        let expected = ("listeners", "degraded", Some("127.0.0.1:7: EMFILE".to_owned()));
        assert_eq!(states(&board)[0], expected);
        assert!(board.is_ready());
        board.set_listener(addr, None);
        assert_eq!(states(&board)[0], ("listeners", "ok", None));
        board.end_listener(addr);
        assert!(!board.is_ready());
    }
}
