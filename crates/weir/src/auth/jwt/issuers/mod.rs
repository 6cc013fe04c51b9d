//! Issuers whose keys the gateway fetches from an upstream.
//!
//! ```text
//!             first fetch succeeds            fetches fail until refresh + keys_kept
//!  no keys ─────────────────────────▶ keys ────────────────────────────────────────▶ no keys
//!                                     │  ▲
//!  a token with an unknown kid waits  └──┘  refresh, max-age, or a token with an unknown kid
//!  for one fetch
//! ```

mod fetch;
mod keep;
mod key_set;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use jsonwebtoken::{Header, decode};
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use weir_engine::Nanos;

use super::keys::{Demands, Key};
use crate::base::config::{JwtConfig, JwtIssuerConfig};
pub(super) use keep::keep_all;
use key_set::KeySet;

/// The issuers of the configuration in use. A reload replaces those that change.
pub(crate) struct Issuers {
    list: ArcSwap<Vec<Arc<Issuer>>>,
    /// The list has changed.
    changed: Notify,
}

/// One issuer, with its keys as they were last fetched.
///
/// Limits: see [`key_set`] for the number and the sizes of keys. One fetch at a time.
pub(crate) struct Issuer {
    config: JwtIssuerConfig,
    audience: String,
    leeway: Duration,
    /// `None`: none were fetched, or they are too old.
    keys: ArcSwapOption<KeySet>,
    state: Mutex<State>,
    /// The number of fetches that have ended.
    ended: watch::Sender<u64>,
    /// A token wants a fetch.
    wanted: Notify,
    fetches: [AtomicU64; FetchOutcome::ALL.len()],
    unknown_keys: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The number of fetches that have begun. At most one has not ended.
    begun: u64,
    ended: u64,
    /// A token wants a fetch that has not begun.
    is_wanted: bool,
    wanted_at: Option<Nanos>,
    fetched_at: Option<Nanos>,
    /// Why the last fetch has failed.
    trouble: Option<String>,
}

weir_wire::named_enum! {
    /// The outcome of fetching an issuer's keys.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum FetchOutcome {
        /// The keys are in use.
        Fetched = "fetched",
        /// There was no answer from the upstream.
        Unreachable = "unreachable",
        /// It took longer than `fetch_timeout`.
        TimedOut = "timed_out",
        /// The status of the answer was not 200.
        Status = "status",
        /// The answer was too long, or had too many keys.
        TooLarge = "too_large",
        /// The answer was no key set.
        Invalid = "invalid",
    }
}

/// Why a token of an issuer is not verified.
#[derive(Debug)]
pub(super) enum NotVerified {
    /// It is not valid.
    Refused(String),
    /// There are no keys of its issuer.
    NoKeys,
    /// Its issuer's keys do not contain the one that it names.
    UnknownKey,
}

/// Why there are no newer keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::auth) enum NoNews {
    /// The last fetch has failed.
    Unavailable,
    /// They were fetched for another token a moment ago. They may be again after this time.
    Limited(Duration),
}

/// An issuer's figures.
pub(crate) struct IssuerStatus {
    pub(crate) fetches: [(FetchOutcome, u64); FetchOutcome::ALL.len()],
    pub(crate) keys: usize,
    /// The time since the last fetch that has succeeded.
    pub(crate) age: Option<Duration>,
    pub(crate) unknown_keys: u64,
}

impl Issuers {
    pub(super) fn new(jwt: &JwtConfig) -> Issuers {
        let list = jwt.issuers.iter().map(|issuer| Issuer::new(issuer, jwt)).collect();
        Issuers { list: ArcSwap::from_pointee(list), changed: Notify::new() }
    }

    /// Uses other issuers. Those that do not change keep their keys. Returns whether tokens that
    /// were verified may no longer be valid.
    pub(super) fn replace(&self, jwt: &JwtConfig) -> bool {
        let before = self.list.load_full();
        let issuer = |config: &JwtIssuerConfig| {
            let kept = before.iter().find(|issuer| issuer.config == *config);
            kept.cloned().unwrap_or_else(|| Issuer::new(config, jwt))
        };
        let list: Vec<Arc<Issuer>> = jwt.issuers.iter().map(issuer).collect();
        let stays = |issuer: &Arc<Issuer>| list.iter().any(|other| Arc::ptr_eq(issuer, other));
        let ends = !before.iter().all(stays);
        self.list.store(Arc::new(list));
        self.changed.notify_one();
        ends
    }

    /// The issuer of tokens with this claim `iss`.
    pub(super) fn find(&self, iss: &str) -> Option<Arc<Issuer>> {
        self.list.load().iter().find(|issuer| issuer.config.issuer == iss).cloned()
    }

    /// All of them.
    pub(crate) fn list(&self) -> Guard<Arc<Vec<Arc<Issuer>>>> {
        self.list.load()
    }
}

impl Issuer {
    fn new(config: &JwtIssuerConfig, jwt: &JwtConfig) -> Arc<Issuer> {
        let own = Some(&config.audience).filter(|audience| !audience.is_empty());
        Arc::new(Issuer {
            config: config.clone(),
            audience: own.unwrap_or(&jwt.audience).clone(),
            leeway: jwt.leeway,
            keys: ArcSwapOption::empty(),
            state: Mutex::default(),
            ended: watch::Sender::new(0),
            wanted: Notify::new(),
            fetches: Default::default(),
            unknown_keys: AtomicU64::new(0),
        })
    }

    /// The claim `iss` of its tokens.
    pub(crate) fn name(&self) -> &str {
        &self.config.issuer
    }

    /// The claims of a token, if one of the keys has signed it.
    ///
    /// Cost: one verification. A token without a `kid` may need one for each key of its algorithm.
    pub(super) fn claims(
        &self,
        token: &str,
        header: &Header,
    ) -> Result<Map<String, Value>, NotVerified> {
        let set = self.keys.load();
        let KeySet { keys, .. } = &**set.as_ref().ok_or(NotVerified::NoKeys)?;
        let kid = header.kid.as_deref();
        // Issuers with one key often name it in the set, and not in tokens.
        let is_called = |key: &&Key| kid.is_none() || key.may_be(kid);
        if kid.is_some() && !keys.iter().any(|key| is_called(&key)) {
            return Err(NotVerified::UnknownKey);
        }
        let mut why = "no key of its issuer fits its algorithm".to_owned();
        let fits = |key: &&Key| key.validation.algorithms.contains(&header.alg);
        for key in keys.iter().filter(is_called).filter(fits) {
            match decode(token, &key.decoding, &key.validation) {
                Ok(data) => return Ok(data.claims),
                Err(error) => why = error.to_string(),
            }
        }
        Err(NotVerified::Refused(why))
    }

    /// Waits for the first keys, if they are being fetched.
    pub(in crate::auth) async fn first_keys(&self) -> Result<(), NoNews> {
        let fetch = self.lock().begun.max(1);
        self.end_of(fetch).await
    }

    /// Waits for keys that are fetched after this call, or are being fetched. Tokens that wait at
    /// the same time share a fetch.
    pub(in crate::auth) async fn newer_keys(&self, now: Nanos) -> Result<(), NoNews> {
        self.unknown_keys.fetch_add(1, Ordering::Relaxed);
        let fetch = self.lock().want(now, self.config.fetch_interval).map_err(NoNews::Limited)?;
        self.wanted.notify_one();
        self.end_of(fetch).await
    }

    async fn end_of(&self, fetch: u64) -> Result<(), NoNews> {
        let mut ended = self.ended.subscribe();
        // This issuer holds the sender.
        let _ = ended.wait_for(|ended| *ended >= fetch).await;
        match &self.lock().trouble {
            None => Ok(()),
            Some(_) => Err(NoNews::Unavailable),
        }
    }

    pub(crate) fn status(&self) -> IssuerStatus {
        let count = |outcome| self.fetches[outcome as usize].load(Ordering::Relaxed);
        IssuerStatus {
            fetches: FetchOutcome::ALL.map(|outcome| (outcome, count(outcome))),
            keys: self.keys.load().as_ref().map_or(0, |set| set.keys.len()),
            age: self.lock().fetched_at.map(|at| Nanos::now().since(at)),
            unknown_keys: self.unknown_keys.load(Ordering::Relaxed),
        }
    }

    fn demands(&self) -> Demands<'_> {
        let (issuer, audience) = (&self.config.issuer, &self.audience);
        Demands { issuer, audience, leeway: self.leeway }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The number of the fetch that a token with an unknown key waits for, or the time until it may
    /// have one.
    fn want(&mut self, now: Nanos, interval: Duration) -> Result<u64, Duration> {
        if self.begun > self.ended {
            return Ok(self.begun);
        }
        if !self.is_wanted {
            let earliest = self.wanted_at.map_or(now, |at| at.after(interval));
            if now < earliest {
                return Err(earliest.since(now));
            }
            (self.is_wanted, self.wanted_at) = (true, Some(now));
        }
        Ok(self.begun + 1)
    }
}

#[cfg(test)]
mod tests;
