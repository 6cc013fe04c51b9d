//! Activation: a device shows its serial number and its key, and gets a token.
//!
//! ```text
//!  source over its failures? ─▶ fields possible? ─▶ hash, new token ─▶ store, in a batch ─▶ still not over them? ─▶ token
//!          429                       400                                 401      503              429
//! ```
//!
//! A refusal does not show its reason. An unknown serial number, a wrong key and a revoked device
//! get the same answer, after the same computations and the same request to the store. The
//! operator's counters show the reason.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_engine::Nanos;
use weir_engine::handover::NotUnderstood;
use weir_store::{Error, Issue, Millis, Proof, Refusal, Serial, Token};
use weir_wire::handover::v1;

use crate::base::clock::{millis, unix_millis, unix_time};
use crate::base::config::ActivationConfig;
use crate::limits::sources::{Source, Sources};
use crate::observe::counters::Counters;
use crate::provisioning::device_store::DeviceStore;
use crate::provisioning::import::{check_key, check_serial};

use crate::observe::counters::activation::ActivationOutcome;
pub(crate) use maintenance::{maintain, tell_seen};

/// Gives devices their tokens.
///
/// Limits: failures by source address (`activation.failures_per_source_*`), never by serial number,
/// since a stranger could then lock a device out. Failures by datagram count separately, because
/// their addresses can be forged. [`DeviceStore`] limits the requests that wait for the store.
/// Cost: two hashes, 16 random bytes, and a part of a batch.
pub(crate) struct Activator {
    devices: Arc<DeviceStore>,
    counters: Arc<Counters>,
    failures: Failures,
    gateways: Arc<[String]>,
    token_ttl: Millis,
    grace: Millis,
    /// The time of the last log line about a failing store, in seconds since 1970.
    told: AtomicU64,
}

/// Attempts that have failed, by source.
struct Failures {
    /// Otherwise there is no limit.
    are_limited: AtomicBool,
    of_connections: Sources,
    of_datagrams: Sources,
}

/// The origin of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RequestOrigin {
    /// A connection. All connections without a known address count as one source.
    Connection(Option<IpAddr>),
    /// A datagram, whose address may be forged.
    Datagram(IpAddr),
}

/// A new token of a device.
#[derive(Debug)]
pub(crate) struct Activated {
    pub(crate) serial: Serial,
    pub(crate) token: Token,
    /// The end of the token.
    pub(crate) expires_at: Millis,
    /// The addresses for devices, as configured.
    pub(crate) gateways: Arc<[String]>,
}

/// The reason why an activation or a refresh gives no token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ActivationError {
    /// A field has an invalid value.
    Field {
        /// The field's name in the request.
        field: &'static str,
        /// The error in it.
        detail: String,
    },
    /// The credentials are not valid.
    Unauthorized,
    /// Too many attempts from this source have failed.
    Limited(Duration),
    /// The store does not answer.
    Unavailable(Duration),
}

impl Activator {
    pub(crate) fn new(
        config: &ActivationConfig,
        devices: Arc<DeviceStore>,
        counters: Arc<Counters>,
    ) -> Self {
        let (per_minute, burst) =
            (config.failures_per_source_per_minute, config.failures_per_source_burst);
        Self {
            devices,
            counters,
            failures: Failures {
                are_limited: AtomicBool::new(per_minute > 0),
                of_connections: Sources::of_failures(per_minute, burst),
                of_datagrams: Sources::of_failures(per_minute, burst),
            },
            gateways: config.gateways.clone().into(),
            token_ttl: millis(config.token_ttl),
            grace: millis(config.grace),
            told: AtomicU64::new(0),
        }
    }

    /// Sources whose failures were forgotten too early: of connections, and of datagrams.
    pub(crate) fn sources_forgotten(&self) -> [u64; 2] {
        let Failures { of_connections, of_datagrams, .. } = &self.failures;
        [of_connections.forgotten(), of_datagrams.forgotten()]
    }

    /// The sources of failures, for another process.
    pub(crate) fn export(&self) -> v1::ActivationFailures {
        let Failures { of_connections, of_datagrams, .. } = &self.failures;
        v1::ActivationFailures {
            of_connections: Some(of_connections.export()),
            of_datagrams: Some(of_datagrams.export()),
        }
    }

    /// Goes on with the failures of another process. There were none here so far.
    pub(crate) fn import(&self, failures: v1::ActivationFailures) -> Result<(), NotUnderstood> {
        let tables = [
            (&self.failures.of_connections, failures.of_connections),
            (&self.failures.of_datagrams, failures.of_datagrams),
        ];
        let mut given = tables.into_iter().filter_map(|(table, given)| Some((table, given?)));
        given.try_for_each(|(table, given)| table.import(given))
    }

    /// Changes the limits on failures.
    pub(crate) fn limit(&self, config: &ActivationConfig) {
        let (per_minute, burst) =
            (config.failures_per_source_per_minute, config.failures_per_source_burst);
        for table in [&self.failures.of_connections, &self.failures.of_datagrams] {
            table.limit_failures(per_minute, burst);
        }
        self.failures.are_limited.store(per_minute > 0, Ordering::Relaxed);
    }

    /// Gives a token to a caller with the key of a device.
    ///
    /// Simultaneous attempts of one source all pass the first check. So the source is checked again
    /// after the store's answer. Beyond its limit of failures, a source does not learn whether a
    /// key was right.
    pub(crate) async fn activate(
        &self,
        origin: RequestOrigin,
        serial: &str,
        key: &str,
    ) -> Result<Activated, ActivationError> {
        let counts = &self.counters.activation;
        self.check_origin(origin)?;
        let impossible = |field, detail| {
            counts.count(ActivationOutcome::Invalid);
            ActivationError::Field { field, detail }
        };
        let serial = check_serial(serial).map_err(|detail| impossible("devSn", detail))?;
        check_key(key).map_err(|detail| impossible("devKey", detail))?;
        let key = self.devices.secrets().key_hash(&serial, key);
        match self.issue(Proof::Key { serial, key }).await? {
            Ok((activated, is_first)) => {
                self.check_origin(origin)?;
                counts.count(if is_first {
                    ActivationOutcome::First
                } else {
                    ActivationOutcome::Again
                });
                Ok(activated)
            }
            Err(refusal) => Err(self.strike(origin, refusal)),
        }
    }

    /// Gives a new token for a valid one.
    pub(crate) async fn refresh(
        &self,
        origin: RequestOrigin,
        token: &str,
    ) -> Result<Activated, ActivationError> {
        self.check_origin(origin)?;
        let issued = match self.devices.secrets().token_hash(token) {
            Some(hash) => self.issue(Proof::Token(hash)).await?,
            None => Err(Refusal::InvalidToken),
        };
        // Tokens cannot be guessed, so the source is not checked again. A device that did not get
        // its new token would have none.
        if let Ok((activated, _)) = issued {
            self.counters.activation.count(ActivationOutcome::Refreshed);
            return Ok(activated);
        }
        Err(self.strike(origin, Refusal::InvalidToken))
    }

    /// Asks the store to issue a token. The flag says whether it is the device's first.
    async fn issue(
        &self,
        proof: Proof,
    ) -> Result<Result<(Activated, bool), Refusal>, ActivationError> {
        let (token, hash) =
            self.devices.secrets().new_token().map_err(|error| self.fail(&error))?;
        let now = unix_millis();
        let expires = now.saturating_add(self.token_ttl);
        let grace_until = now.saturating_add(self.grace);
        let issue = Issue { proof, token: hash, now, expires, grace_until };
        let issued = self.devices.batches().issue(issue).await;
        let issued = issued.map_err(|error| self.unavailable(&error))?;
        Ok(issued.map(|issued| {
            let gateways = Arc::clone(&self.gateways);
            let activated =
                Activated { serial: issued.serial, token, expires_at: expires, gateways };
            (activated, issued.is_first)
        }))
    }

    fn check_origin(&self, origin: RequestOrigin) -> Result<(), ActivationError> {
        let Some((failures, source)) = self.failures.of(origin) else { return Ok(()) };
        failures.wait(source, now()).map_or(Ok(()), |wait| Err(self.limited(wait)))
    }

    /// Counts a failure and returns the answer for its source.
    fn strike(&self, origin: RequestOrigin, refusal: Refusal) -> ActivationError {
        let of_source = self.failures.of(origin);
        let before = of_source.and_then(|(failures, source)| failures.strike(source, now()));
        match before {
            Some(wait) => self.limited(wait),
            None => {
                self.counters.activation.count(ActivationOutcome::of(refusal));
                ActivationError::Unauthorized
            }
        }
    }

    fn limited(&self, wait: Duration) -> ActivationError {
        self.counters.activation.count(ActivationOutcome::Limited);
        ActivationError::Limited(wait)
    }

    fn unavailable(&self, error: &Error) -> ActivationError {
        match error {
            // The store works as fast as it can; its own metric shows the overload.
            Error::Overloaded(_) => {
                self.counters.activation.count(ActivationOutcome::Unavailable);
                ActivationError::Unavailable(RETRY_AFTER)
            }
            Error::Unavailable(_)
            | Error::TimedOut(_)
            | Error::Lost(_)
            | Error::Damaged(_)
            | Error::OtherSecrets => self.fail(error),
        }
    }

    /// Logs the error, but not for every request.
    fn fail(&self, error: &dyn std::error::Error) -> ActivationError {
        self.counters.activation.count(ActivationOutcome::Unavailable);
        let (now, told) = (unix_time().as_secs(), self.told.load(Ordering::Relaxed));
        let is_due = now >= told.saturating_add(TELL_SECONDS);
        let order = Ordering::Relaxed;
        if is_due && self.told.compare_exchange(told, now, order, order).is_ok() {
            tracing::error!(%error, "devices cannot be activated");
        }
        ActivationError::Unavailable(RETRY_AFTER)
    }
}

impl Failures {
    /// The table and the source of an attempt; `None` without a limit.
    fn of(&self, origin: RequestOrigin) -> Option<(&Sources, Source)> {
        let of_source = match origin {
            RequestOrigin::Connection(addr) => {
                let addr = addr.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
                (&self.of_connections, Source::of(addr))
            }
            RequestOrigin::Datagram(addr) => (&self.of_datagrams, Source::of(addr)),
        };
        Some(of_source).filter(|_| self.are_limited.load(Ordering::Relaxed))
    }

    fn sweep(&self, now: Duration) {
        self.of_connections.sweep(now);
        self.of_datagrams.sweep(now);
    }
}

fn now() -> Duration {
    Duration::from_nanos(Nanos::now().0)
}

/// Clients notice a recovered store about as soon.
const RETRY_AFTER: Duration = Duration::from_secs(2);
const TELL_SECONDS: u64 = 10;

mod maintenance;
#[cfg(test)]
mod tests;
