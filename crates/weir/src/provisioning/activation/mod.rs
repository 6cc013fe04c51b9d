//! Activation: a device shows its serial number and its key, and gets a token.
//!
//! ```text
//!  source over its failures? ─▶ fields possible? ─▶ hash, new token ─▶ store, in a batch ─▶ still not over them? ─▶ token
//!          429                       400                                 401      503              429
//! ```
//!
//! Who shows what is wrong learns nothing of what it was: an unknown serial number, a wrong key and a device that is shut
//! out are one refusal, for which the same was computed and asked. What it was the operator's counters tell.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_engine::Nanos;
use weir_store::{Error, Issue, Millis, Proof, Refusal, Serial, Token};

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
/// Limits: failures by source address (`activation.failures_per_source_*`), never by serial number, or a stranger could
/// lock a device out; those by datagrams apart from the others, since anybody can send them in another one's name; what
/// waits for the store, by [`DeviceStore`].
/// Cost: two hashes, 16 random bytes, and a part of a batch.
pub(crate) struct Activator {
    devices: Arc<DeviceStore>,
    counters: Arc<Counters>,
    /// `None`: as many as like.
    failures: Option<Failures>,
    gateways: Arc<[String]>,
    token_ttl: Millis,
    grace: Millis,
    /// When the log was last told that the store fails, in seconds since 1970.
    told: AtomicU64,
}

/// Attempts that have failed, by source.
struct Failures {
    of_connections: Sources,
    of_datagrams: Sources,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RequestOrigin {
    /// A connection. All whose address is not known are one source.
    Connection(Option<IpAddr>),
    /// A datagram, whose address may be forged.
    Datagram(IpAddr),
}

/// A device has a new token.
#[derive(Debug)]
pub(crate) struct Activated {
    pub(crate) serial: Serial,
    pub(crate) token: Token,
    /// When that ends.
    pub(crate) expires_at: Millis,
    /// Where to connect, as configured.
    pub(crate) gateways: Arc<[String]>,
}

/// Why an activation or a refresh gives no token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ActivationError {
    /// A field cannot be what it should.
    Field {
        /// Its name, as it was asked.
        field: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// These are nobody's credentials.
    Unauthorized,
    /// Too many have failed from there.
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
            failures: (per_minute > 0).then(|| Failures {
                of_connections: Sources::of_failures(per_minute, burst),
                of_datagrams: Sources::of_failures(per_minute, burst),
            }),
            gateways: config.gateways.clone().into(),
            token_ttl: millis(config.token_ttl),
            grace: millis(config.grace),
            told: AtomicU64::new(0),
        }
    }

    /// Sources whose failures were forgotten before their time: of connections, and of datagrams.
    pub(crate) fn sources_forgotten(&self) -> [u64; 2] {
        let failures = self.failures.as_ref();
        failures.map_or([0; 2], |failures| {
            [failures.of_connections.forgotten(), failures.of_datagrams.forgotten()]
        })
    }

    /// Gives a token to who shows the key of a device.
    ///
    /// Attempts that are under way together have all found their source as it was before any of them. So each is looked
    /// at again when its answer is there: beyond the failures that a source may have nobody learns whether he was right.
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

    /// Gives a new token for one that is valid.
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
        // Nobody guesses a token; and whoever had one, and was not told the next, would be left without any.
        if let Ok((activated, _)) = issued {
            self.counters.activation.count(ActivationOutcome::Refreshed);
            return Ok(activated);
        }
        Err(self.strike(origin, Refusal::InvalidToken))
    }

    /// Has the store issue a token; with it whether it is the device's first.
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
        let Some(failures) = &self.failures else { return Ok(()) };
        let (failures, source) = failures.of(origin);
        failures.wait(source, now()).map_or(Ok(()), |wait| Err(self.limited(wait)))
    }

    /// Counts a failure; what its source may know of it.
    fn strike(&self, origin: RequestOrigin, refusal: Refusal) -> ActivationError {
        let before = self.failures.as_ref().and_then(|failures| {
            let (failures, source) = failures.of(origin);
            failures.strike(source, now())
        });
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
            // It works as fast as it can, and says so by a metric.
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

    /// Has the log told, but not for every request.
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
    fn of(&self, origin: RequestOrigin) -> (&Sources, Source) {
        match origin {
            RequestOrigin::Connection(addr) => {
                let addr = addr.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
                (&self.of_connections, Source::of(addr))
            }
            RequestOrigin::Datagram(addr) => (&self.of_datagrams, Source::of(addr)),
        }
    }

    fn sweep(&self, now: Duration) {
        self.of_connections.sweep(now);
        self.of_datagrams.sweep(now);
    }
}

fn now() -> Duration {
    Duration::from_nanos(Nanos::now().0)
}

/// A store that is there again is noticed about as soon.
const RETRY_AFTER: Duration = Duration::from_secs(2);
const TELL_SECONDS: u64 = 10;

mod maintenance;
#[cfg(test)]
mod tests;
