//! Tokens in memory, in place of a store: they are asked for, they end, and they are withdrawn.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Semaphore;
use weir::TokenSource;
use weir_store::{Answer, Error, Holder, Serial, State};

/// Tokens in memory, in place of a store.
pub(crate) struct Tokens {
    holders: Mutex<HashMap<String, Holder>>,
    asked: AtomicUsize,
    /// How often an id was.
    pub(crate) looked_up: AtomicUsize,
    /// A permit for each question that may be answered.
    pub(crate) gate: Semaphore,
    pub(crate) is_down: AtomicBool,
    /// Devices that are known, for claims of their ids.
    pub(crate) known: Mutex<HashMap<String, State>>,
}

impl Tokens {
    pub(crate) fn new() -> Arc<Tokens> {
        Arc::new(Tokens {
            holders: Mutex::default(),
            asked: AtomicUsize::new(0),
            looked_up: AtomicUsize::new(0),
            gate: Semaphore::new(1_000),
            is_down: false.into(),
            known: Mutex::default(),
        })
    }

    /// Adds a token of a device that holds for so long.
    pub(crate) fn add(&self, token: &str, device: &str, holds: Duration) {
        let labels = BTreeMap::from([("role".to_owned(), "driver".to_owned())]);
        let serial = Serial::new(device).unwrap();
        let expires = now_ms() + u64::try_from(holds.as_millis()).unwrap();
        let holder = Holder { serial, labels, generation: 1, expires };
        self.holders.lock().unwrap().insert(name(token), holder);
    }

    pub(crate) fn remove(&self, token: &str) {
        self.holders.lock().unwrap().remove(&name(token));
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl TokenSource for Tokens {
    fn check<'a>(&'a self, token: &'a str) -> Answer<'a, Option<Holder>> {
        Box::pin(async move {
            // Read before the gate: the answer may be old when it comes.
            let holder = self.holders.lock().unwrap().get(token).cloned();
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            if self.is_down.load(Ordering::SeqCst) {
                return Err(Error::Unavailable("it is down".to_owned()));
            }
            Ok(holder)
        })
    }

    fn state<'a>(&'a self, device: &'a str) -> Answer<'a, Option<State>> {
        Box::pin(async move {
            self.looked_up.fetch_add(1, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            if self.is_down.load(Ordering::SeqCst) {
                return Err(Error::Unavailable("it is down".to_owned()));
            }
            Ok(self.known.lock().unwrap().get(device).copied())
        })
    }
}

pub(crate) fn now_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "credentials end by the wall clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// A token of the right form.
pub(crate) fn name(token: &str) -> String {
    format!("{token:-<22}")
}
