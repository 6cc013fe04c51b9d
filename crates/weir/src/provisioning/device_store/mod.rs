//! The store of devices as the gateway uses it: in batches, and with the secrets that keys and tokens are hashed by.

mod seen;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use serde::Serialize;
use utoipa::ToSchema;
use weir_store::{
    Answer, BatchCounts, BatchLimits, Batches, Breaker, BreakerCounts, CacheCounts, Cached, Device,
    Holder, Secrets, Serial, State, Store,
};

use crate::auth::TokenSource;
use crate::base::clock::unix_millis;
use seen::Seen;

/// A store of devices, what gathers requests before it, and the secrets that belong to it.
///
/// Whoever starts a gateway opens the store and gives it over by [`crate::GatewayBuilder::devices`].
pub struct DeviceStore {
    batches: Batches,
    secrets: Secrets,
    breaker: Option<Arc<Breaker>>,
    cache: Option<Arc<Cached>>,
    seen: Seen,
    device_count: AtomicU64,
    key_file: Option<PathBuf>,
}

/// A device as it is kept; hashes of keys and tokens are never shown.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StoredDevice {
    /// Its serial number.
    pub device: String,
    /// `new`, `active` or `revoked`.
    pub state: &'static str,
    /// What was imported with it, by name.
    pub labels: BTreeMap<String, String>,
    /// When it was imported first, in milliseconds since 1970; so are the others.
    pub created_ms: u64,
    /// When it was activated first.
    #[schema(required)]
    pub activated_ms: Option<u64>,
    /// When it connected last with a token of its own, as far as that is known.
    #[schema(required)]
    pub seen_ms: Option<u64>,
    /// When its token ends.
    #[schema(required)]
    pub token_expires_ms: Option<u64>,
    /// Counts what changed which tokens are valid.
    pub generation: u64,
}

impl DeviceStore {
    /// Puts batches before a store. `secrets` are those that all in it was hashed with.
    pub fn new(store: Arc<dyn Store>, limits: &BatchLimits, secrets: Secrets) -> Self {
        let batches = Batches::new(store, limits);
        Self {
            batches,
            secrets,
            breaker: None,
            cache: None,
            seen: Seen::default(),
            device_count: AtomicU64::new(0),
            key_file: None,
        }
    }

    /// Has the metrics show what a circuit breaker before the store does.
    pub fn breaker(mut self, breaker: Arc<Breaker>) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// Has them show what a cache before it does.
    pub fn cache(mut self, cache: Arc<Cached>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Has readiness look after the file of the secrets, without which no start opens the store again.
    pub fn key_file(mut self, path: PathBuf) -> Self {
        self.key_file = Some(path);
        self
    }

    /// The file of the secrets, if it is gone.
    pub(crate) fn missing_key_file(&self) -> Option<&Path> {
        let is_gone = |path: &&Path| {
            fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        self.key_file.as_deref().filter(is_gone)
    }

    /// The store itself, for all but issues and checks.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.batches.store()
    }

    /// Ends the store in order: what it has been told is in its files. To be called behind [`crate::Gateway::shutdown`].
    ///
    /// # Errors
    /// Those of the store; what it was told is kept nevertheless.
    pub async fn close(&self) -> Result<(), weir_store::Error> {
        self.store().close().await
    }

    /// What keys and tokens are hashed by.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// What has been asked in batches so far.
    pub fn counts(&self) -> BatchCounts {
        self.batches.counts()
    }

    pub(crate) fn circuits(&self) -> impl Iterator<Item = (&'static str, BreakerCounts)> {
        let store = self.breaker.as_ref().map(|breaker| ("store", breaker.counts()));
        let cache = self.cache_counts().map(|cache| ("cache", cache.breaker));
        store.into_iter().chain(cache)
    }

    pub(crate) fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    pub(crate) fn cache_counts(&self) -> Option<CacheCounts> {
        self.cache.as_ref().map(|cache| cache.counts())
    }

    /// Notes that a device has connected.
    pub(crate) fn note_seen(&self, serial: &str) {
        self.seen.note(serial, unix_millis());
    }

    /// Why a batch failed last by damage, or else for any reason.
    pub(crate) fn last_error(&self) -> Option<weir_store::Error> {
        let errors = self.batches.last_errors();
        let damage = |error: &weir_store::Error| matches!(error, weir_store::Error::Damaged(_));
        let mut all = errors.into_iter().flatten();
        let first = all.next()?;
        if damage(&first) { Some(first) } else { Some(all.find(damage).unwrap_or(first)) }
    }

    /// Asks the store whether it takes writes, and how many devices it has.
    pub(crate) async fn probe(&self) -> Result<u64, weir_store::Error> {
        self.store().probe().await?;
        let devices = self.store().count().await?;
        self.device_count.store(devices, Ordering::Relaxed);
        Ok(devices)
    }

    /// Asks the cache, if there is one, whether it answers.
    pub(crate) async fn ping_cache(&self) -> Option<Result<(), weir_store::Error>> {
        match &self.cache {
            Some(cache) => Some(cache.ping().await),
            None => None,
        }
    }

    /// Devices that the store had when it was asked last.
    pub(crate) fn device_count(&self) -> u64 {
        self.device_count.load(Ordering::Relaxed)
    }

    /// Tells the store which devices have connected.
    pub(crate) async fn tell_seen(&self) -> Result<(), weir_store::Error> {
        self.seen.tell(&**self.store()).await
    }

    /// Connects of which the store was not told.
    pub(crate) fn seen_dropped(&self) -> u64 {
        self.seen.dropped()
    }

    pub(crate) fn batches(&self) -> &Batches {
        &self.batches
    }
}

impl TokenSource for DeviceStore {
    fn check<'a>(&'a self, token: &'a str) -> Answer<'a, Option<Holder>> {
        Box::pin(async move {
            match self.secrets.token_hash(token) {
                Some(hash) => self.batches.check(hash, unix_millis()).await,
                None => Ok(None),
            }
        })
    }

    fn state<'a>(&'a self, device: &'a str) -> Answer<'a, Option<State>> {
        Box::pin(async move {
            match Serial::new(device) {
                Ok(serial) => self.batches.state(serial).await,
                // No store has such a name.
                Err(_) => Ok(None),
            }
        })
    }
}

impl From<Device> for StoredDevice {
    fn from(device: Device) -> Self {
        Self {
            device: device.serial.to_string(),
            state: match device.state {
                State::New => "new",
                State::Active => "active",
                State::Revoked => "revoked",
            },
            labels: device.labels,
            created_ms: device.created,
            activated_ms: device.activated,
            seen_ms: device.seen,
            token_expires_ms: device.token.map(|(_, expires)| expires),
            generation: device.generation,
        }
    }
}
