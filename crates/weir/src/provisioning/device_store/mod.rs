//! The store of devices as the gateway uses it: with batches, and with the secrets of its hashes.

mod seen;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use serde::Serialize;
use utoipa::ToSchema;
use weir_engine::{Footprint, rounded};
use weir_store::{
    Answer, BatchCounts, BatchLimits, Batches, Breaker, BreakerCounts, CacheCounts, Cached, Device,
    Holder, Secrets, Serial, State, Store, StoreMemory,
};

use crate::auth::TokenSource;
use crate::base::clock::unix_millis;
use seen::Seen;

/// A store of devices, the batches in front of it, and the secrets of its hashes.
///
/// The program that starts a gateway opens the store and passes it to
/// [`crate::GatewayBuilder::devices`].
pub struct DeviceStore {
    batches: Batches,
    secrets: Secrets,
    breaker: Option<Arc<Breaker>>,
    cache: Option<Arc<Cached>>,
    seen: Seen,
    device_count: AtomicU64,
    key_file: Option<PathBuf>,
}

/// A device's record, without the hashes of its key and tokens.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StoredDevice {
    /// Its serial number.
    pub device: String,
    /// `new`, `active` or `revoked`.
    pub state: &'static str,
    /// The labels from its import, by name.
    pub labels: BTreeMap<String, String>,
    /// The first import, in milliseconds since 1970. The other times have the same unit.
    pub created_ms: u64,
    /// The first activation.
    #[schema(required)]
    pub activated_ms: Option<u64>,
    /// The last known connect with a token of its own.
    #[schema(required)]
    pub seen_ms: Option<u64>,
    /// The end of its token.
    #[schema(required)]
    pub token_expires_ms: Option<u64>,
    /// Counts the changes of its valid tokens.
    pub generation: u64,
}

impl DeviceStore {
    /// Puts batches in front of a store. `secrets` must be the ones with which its content was
    /// hashed.
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

    /// Shows the store's circuit breaker in the metrics.
    pub fn breaker(mut self, breaker: Arc<Breaker>) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// Shows the store's cache in the metrics.
    pub fn cache(mut self, cache: Arc<Cached>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Lets readiness watch the file of the secrets. Without it, no start can open the store again.
    pub fn key_file(mut self, path: PathBuf) -> Self {
        self.key_file = Some(path);
        self
    }

    /// The file of the secrets, if it is missing.
    pub(crate) fn missing_key_file(&self) -> Option<&Path> {
        let is_gone = |path: &&Path| {
            fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        self.key_file.as_deref().filter(is_gone)
    }

    /// The store itself, for all requests except issues and checks.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.batches.store()
    }

    /// Tells the store of the last connects, and closes it in order, so that its files are complete.
    /// Call it after [`crate::Gateway::shutdown`], or after [`crate::Gateway::hand_over`].
    ///
    /// # Errors Those of the store. It keeps all accepted writes nevertheless.
    pub async fn close(&self) -> Result<(), weir_store::Error> {
        let told = self.tell_seen().await;
        self.store().close().await.and(told)
    }

    /// The secrets of the hashes of keys and tokens.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Counts of the batches so far.
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

    /// The last error of a batch; damage goes before other errors.
    pub(crate) fn last_error(&self) -> Option<weir_store::Error> {
        let errors = self.batches.last_errors();
        let damage = |error: &weir_store::Error| matches!(error, weir_store::Error::Damaged(_));
        let mut all = errors.into_iter().flatten();
        let first = all.next()?;
        if damage(&first) { Some(first) } else { Some(all.find(damage).unwrap_or(first)) }
    }

    /// Asks the store whether it accepts writes, and for the number of its devices.
    pub(crate) async fn probe(&self) -> Result<u64, weir_store::Error> {
        self.store().probe().await?;
        let devices = self.store().count().await?;
        self.device_count.store(devices, Ordering::Relaxed);
        Ok(devices)
    }

    /// Asks the cache, if there is one, for a sign of life.
    pub(crate) async fn ping_cache(&self) -> Option<Result<(), weir_store::Error>> {
        match &self.cache {
            Some(cache) => Some(cache.ping().await),
            None => None,
        }
    }

    /// The tables that the store keeps in memory, and the last connects that it was not told of.
    pub(crate) fn footprint(&self) -> Footprint {
        let StoreMemory { entries, bytes } = self.store().memory();
        let mut sum = Footprint::new(entries, rounded(bytes));
        sum += self.seen.footprint();
        sum
    }

    /// The number of devices at the last probe.
    pub(crate) fn device_count(&self) -> u64 {
        self.device_count.load(Ordering::Relaxed)
    }

    /// Tells the store which devices have connected.
    pub(crate) async fn tell_seen(&self) -> Result<(), weir_store::Error> {
        self.seen.tell(&**self.store()).await
    }

    /// Connects that the store was not told of.
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
                // No store can contain such a name.
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
