//! A circuit breaker, and a store behind one. It spares a failing service, and the callers who
//! would wait for it.
//!
//! ```text
//!             failures in a row                 pause over
//!   Closed ───────────────────────► Open ◄──────────────────► Probing
//!     ▲                               refuses     failed, and      │  one passes
//!     └───────────────────────────────────────── twice as long ────┘  succeeded
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

use crate::contract::{Answer, Error, Store, StoreMemory};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Put, Refusal, Revoked, Serial,
};

/// The conditions under which a circuit opens, and for how long.
#[derive(Debug, Clone)]
pub struct BreakerLimits {
    /// This many failures in a row open it.
    pub failures_max: u32,
    /// How long it stays open at first. Each failed probe doubles the time. A random part of up to
    /// a quarter is taken off, so that many gateways do not come back at the same moment.
    pub pause_min: Duration,
    /// The longest time that it stays open before it probes again.
    pub pause_max: Duration,
}

impl Default for BreakerLimits {
    fn default() -> Self {
        BreakerLimits {
            failures_max: 5,
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
        }
    }
}

/// The state of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Circuit {
    /// All requests pass.
    #[default]
    Closed,
    /// No request passes.
    Open,
    /// One request passes, as a probe.
    Probing,
}

/// The counts of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BreakerCounts {
    /// Its state now.
    pub circuit: Circuit,
    /// How often it opened, including after failed probes.
    pub opened: u64,
    /// Requests that passed and succeeded.
    pub succeeded: u64,
    /// Requests that passed and failed.
    pub failed: u64,
    /// Requests that it refused.
    pub refused: u64,
}

/// A circuit breaker.
///
/// It logs each change of its state once.
pub struct Breaker {
    /// The name in logs of the service behind it.
    name: &'static str,
    limits: BreakerLimits,
    state: Mutex<State>,
    opened: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

#[derive(Clone, Copy)]
enum State {
    Closed {
        /// Failures in a row.
        failures: u32,
    },
    Open {
        until: Instant,
        /// The pause without the random part.
        pause: Duration,
    },
    Probing {
        pause: Duration,
    },
}

impl Breaker {
    /// A breaker in the closed state.
    pub fn new(name: &'static str, limits: &BreakerLimits) -> Breaker {
        Breaker {
            name,
            limits: limits.clone(),
            state: Mutex::new(State::Closed { failures: 0 }),
            opened: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Runs a call if the circuit lets it pass.
    ///
    /// # Errors
    /// Those of `call`; [`Error::Unavailable`] at once while the circuit is open. Of the errors
    /// only [`Error::Unavailable`] and [`Error::TimedOut`] are failures: a service that refuses for
    /// another reason is up.
    pub async fn run<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut pass = self.admit()?;
        let result = call.await;
        let failure = match &result {
            Err(error @ (Error::Unavailable(_) | Error::TimedOut(_))) => Some(error),
            Ok(_)
            | Err(
                Error::Overloaded(_) | Error::Lost(_) | Error::Damaged(_) | Error::OtherSecrets,
            ) => None,
        };
        pass.is_decided = true;
        self.settle(pass.is_probe, failure);
        result
    }

    /// Its counts so far.
    pub fn counts(&self) -> BreakerCounts {
        let circuit = match *self.lock() {
            State::Closed { .. } => Circuit::Closed,
            State::Open { .. } => Circuit::Open,
            State::Probing { .. } => Circuit::Probing,
        };
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        BreakerCounts {
            circuit,
            opened: read(&self.opened),
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            refused: read(&self.refused),
        }
    }

    fn admit(&self) -> Result<Pass<'_>, Error> {
        let mut state = self.lock();
        let is_probe = match *state {
            State::Closed { .. } => false,
            State::Open { until, pause } if until <= Instant::now() => {
                *state = State::Probing { pause };
                tracing::debug!(what = self.name, "circuit half-open: one request passes");
                true
            }
            State::Open { .. } | State::Probing { .. } => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(Error::Unavailable(format!("the circuit of {} is open", self.name)));
            }
        };
        Ok(Pass { breaker: self, is_probe, is_decided: false })
    }

    /// Notes how a request ended. A request that began before the circuit opened says nothing about
    /// now.
    fn settle(&self, is_probe: bool, failure: Option<&Error>) {
        let count = if failure.is_some() { &self.failed } else { &self.succeeded };
        count.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        match (*state, failure) {
            (State::Closed { failures }, Some(error)) => {
                let failures = failures + 1;
                *state = State::Closed { failures };
                if failures >= self.limits.failures_max {
                    self.open(&mut state, self.limits.pause_min, error);
                }
            }
            (State::Closed { .. }, None) => *state = State::Closed { failures: 0 },
            (State::Probing { pause }, Some(error)) if is_probe => {
                self.open(&mut state, (pause * 2).min(self.limits.pause_max), error);
            }
            (State::Probing { .. }, None) if is_probe => {
                *state = State::Closed { failures: 0 };
                tracing::info!(what = self.name, "circuit closed: requests succeed again");
            }
            (State::Probing { .. } | State::Open { .. }, _) => {}
        }
    }

    fn open(&self, state: &mut State, pause: Duration, error: &Error) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let taken_off = rand::rng().random_range(0.0..0.25);
        let until = Instant::now() + pause.mul_f64(1.0 - taken_off);
        *state = State::Open { until, pause };
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(what = self.name, pause_ms, %error, "circuit open: requests are refused");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that passed.
struct Pass<'a> {
    breaker: &'a Breaker,
    is_probe: bool,
    is_decided: bool,
}

impl Drop for Pass<'_> {
    /// A probe that was broken off has shown nothing. The next request becomes the probe.
    fn drop(&mut self) {
        if self.is_probe && !self.is_decided {
            let mut state = self.breaker.lock();
            if let State::Probing { pause } = *state {
                *state = State::Open { until: Instant::now(), pause };
            }
        }
    }
}

/// A store behind a circuit breaker.
pub struct Guarded {
    store: Arc<dyn Store>,
    breaker: Arc<Breaker>,
}

impl Guarded {
    /// Puts a circuit breaker in front of a store.
    pub fn new(store: Arc<dyn Store>, limits: &BreakerLimits) -> Guarded {
        let breaker = Arc::new(Breaker::new(store.name(), limits));
        Guarded { store, breaker }
    }

    /// Its circuit breaker.
    pub fn breaker(&self) -> &Arc<Breaker> {
        &self.breaker
    }

    fn run<'a, T: Send + 'a>(&'a self, call: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(self.breaker.run(call))
    }
}

impl Store for Guarded {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>> {
        self.run(self.store.put(entries, now))
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        self.run(self.store.issue(issues))
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        self.run(self.store.check(tokens, now))
    }

    fn recall(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        self.store.recall(tokens, now)
    }

    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        self.run(self.store.revoke(serials))
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        self.run(self.store.find(serials))
    }

    fn list(&self, page: Page) -> Answer<'_, Vec<Device>> {
        self.run(self.store.list(page))
    }

    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        self.run(self.store.seen(seen))
    }

    fn sweep(&self, now: Millis, limit: usize) -> Answer<'_, usize> {
        self.run(self.store.sweep(now, limit))
    }

    fn count(&self) -> Answer<'_, u64> {
        self.run(self.store.count())
    }

    fn probe(&self) -> Answer<'_, ()> {
        self.run(self.store.probe())
    }

    fn memory(&self) -> StoreMemory {
        self.store.memory()
    }

    fn close(&self) -> Answer<'_, ()> {
        self.store.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No pause ends by itself while a test runs.
    const LIMITS: BreakerLimits = BreakerLimits {
        failures_max: 3,
        pause_min: Duration::from_secs(3600),
        pause_max: Duration::from_secs(7200),
    };

    fn down() -> Result<(), Error> {
        Err(Error::Unavailable("down".into()))
    }

    async fn run(breaker: &Breaker, result: Result<(), Error>) -> Result<(), Error> {
        breaker.run(async { result }).await
    }

    fn refused() -> Result<(), Error> {
        Err(Error::Unavailable("the circuit of it is open".into()))
    }

    async fn opened() -> Breaker {
        let breaker = Breaker::new("it", &LIMITS);
        for _ in 0..3 {
            assert_eq!(run(&breaker, down()).await, down());
        }
        breaker
    }

    /// Returns the pause of an open circuit, and ends the pause.
    fn end_pause(breaker: &Breaker) -> Duration {
        let mut state = breaker.lock();
        let State::Open { until, pause } = *state else {
            panic!("it is not open");
        };
        let left = until - Instant::now();
        assert!(pause / 2 < left && left <= pause, "{left:?} of {pause:?}");
        *state = State::Open { until: Instant::now(), pause };
        pause
    }

    #[tokio::test]
    async fn failures_in_a_row_open_it_and_a_success_closes_it() {
        let breaker = opened().await;
        assert_eq!(breaker.counts().circuit, Circuit::Open);
        assert_eq!(run(&breaker, Ok(())).await, refused());
        end_pause(&breaker);
        assert_eq!(run(&breaker, Ok(())).await, Ok(()));
        let expected = BreakerCounts {
            circuit: Circuit::Closed,
            opened: 1,
            succeeded: 1,
            failed: 3,
            refused: 1,
        };
        assert_eq!(breaker.counts(), expected);
    }

    #[tokio::test]
    async fn only_failures_in_a_row_and_of_the_kind_count() {
        let breaker = Breaker::new("it", &LIMITS);
        let others = [Ok(()), Err(Error::Overloaded(1)), Err(Error::Damaged("so".into()))];
        for other in others {
            for result in [down(), down(), other] {
                assert_eq!(run(&breaker, result.clone()).await, result);
            }
        }
        assert_eq!(breaker.counts().circuit, Circuit::Closed);
        for _ in 0..3 {
            let _ = run(&breaker, Err(Error::TimedOut(1))).await;
        }
        assert_eq!(breaker.counts().circuit, Circuit::Open);
    }

    #[tokio::test]
    async fn each_probe_that_fails_doubles_the_pause_up_to_the_limit() {
        let breaker = opened().await;
        let mut pauses = Vec::new();
        for _ in 0..4 {
            pauses.push(end_pause(&breaker).as_secs());
            assert_eq!(run(&breaker, down()).await, down());
        }
        assert_eq!(pauses, [3600, 7200, 7200, 7200]);
    }

    #[tokio::test]
    async fn one_probes_alone_and_a_broken_off_probe_leaves_it_to_the_next() {
        let breaker = opened().await;
        end_pause(&breaker);
        {
            let pass = breaker.admit().expect("the probe");
            assert_eq!(breaker.counts().circuit, Circuit::Probing);
            assert_eq!(run(&breaker, Ok(())).await, refused());
            // An earlier request ends now. It decides nothing.
            breaker.settle(false, None);
            assert_eq!(breaker.counts().circuit, Circuit::Probing);
            drop(pass);
        }
        assert_eq!(run(&breaker, Ok(())).await, Ok(()));
        assert_eq!(breaker.counts().circuit, Circuit::Closed);
    }
}
