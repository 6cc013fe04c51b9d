//! Opening the store that the configuration names, with what stands before it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use weir::{BenchStage, DeviceStore, make_private_directory, warn_if_exposed};
use weir_store::{
    BatchLimits, Breaker, BreakerLimits, CacheOptions, Cached, Embedded, EmbeddedOptions, Error,
    Guarded, Mongo, MongoOptions, OpenError, Secrets, Store,
};

use crate::config::{CacheSettings, Settings, StoreKind, StoreSettings};

mod unchecked;

use unchecked::Unchecked;

/// What keeps devices.
pub(crate) enum Opened {
    /// Nothing does.
    Nothing,
    Store(Arc<DeviceStore>),
    /// Another process holds the file.
    Held(String),
}

/// Opens the store as a gateway does.
pub(crate) async fn open(settings: &Settings) -> Result<Opened> {
    let (activation, mut cache) = (&settings.gateway.activation, settings.cache.clone());
    if !activation.has_stage(BenchStage::Redis) {
        cache.redis.clear();
    }
    let (settings, timeout) = (&settings.store, settings.store.timeout);
    if activation.has_stage(BenchStage::Store) {
        return open_with(settings, &cache, timeout).await;
    }
    let (store, secrets) = (Arc::new(Unchecked::default()), Key::read(settings)?.secrets);
    Ok(Opened::Store(Arc::new(devices(settings, &cache, (store, None), secrets, timeout)?)))
}

/// Opens the store for a command, which can wait longer.
pub(crate) async fn open_patiently(settings: &Settings) -> Result<Opened> {
    // Redis is told of what a command ends too.
    open_with(&settings.store, &settings.cache, COMMAND_TIMEOUT).await
}

async fn open_with(
    settings: &StoreSettings,
    cache: &CacheSettings,
    timeout: Duration,
) -> Result<Opened> {
    match settings.kind {
        StoreKind::None => return Ok(Opened::Nothing),
        // The key file lies there too, unless it says otherwise.
        StoreKind::Embedded => make_directory(&settings.path()?)?,
        StoreKind::Mongodb => {}
    }
    let key = Key::read(settings)?;
    let (store, breaker): (Arc<dyn Store>, _) = match settings.kind {
        StoreKind::None => return Ok(Opened::Nothing),
        StoreKind::Embedded => match embedded(settings, &key, timeout)? {
            Ok(store) => (Arc::new(store), None),
            Err(held) => return Ok(Opened::Held(held)),
        },
        StoreKind::Mongodb => {
            let guarded = mongodb(settings, &key, timeout).await?;
            let breaker = Arc::clone(guarded.breaker());
            (Arc::new(guarded), Some(breaker))
        }
    };
    Ok(Opened::Store(Arc::new(devices(settings, cache, (store, breaker), key.secrets, timeout)?)))
}

/// Puts before a store, and its circuit breaker if it has one, what stands before it.
fn devices(
    settings: &StoreSettings,
    cache: &CacheSettings,
    (store, breaker): (Arc<dyn Store>, Option<Arc<Breaker>>),
    secrets: Secrets,
    timeout: Duration,
) -> Result<DeviceStore> {
    let in_flight_max = match settings.kind {
        // It has one writer.
        StoreKind::Embedded => 1,
        // Of none, in a measurement, the cache alone is asked.
        StoreKind::None | StoreKind::Mongodb => REMOTE_BATCHES_MAX,
    };
    let limits = BatchLimits {
        queue_max: settings.queue_max,
        batch_max: settings.batch_max,
        batch_wait: settings.batch_wait,
        in_flight_max,
        timeout,
    };
    let cached = redis(cache, &store)?;
    let store = cached.as_ref().map_or(store, |cached| Arc::clone(cached) as Arc<dyn Store>);
    let mut devices = DeviceStore::new(store, &limits, secrets);
    if let Some(breaker) = breaker {
        devices = devices.breaker(breaker);
    }
    if let Some(cached) = cached {
        devices = devices.cache(cached);
    }
    Ok(devices)
}

/// Makes the place of the store's file, for its owner alone, and says so if it is open to others.
fn make_directory(path: &Path) -> Result<()> {
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_private_directory(directory)
            .with_context(|| format!("store.path: cannot make {}", directory.display()))?;
        warn_if_exposed("store.path", directory);
    }
    warn_if_exposed("store.path", path);
    Ok(())
}

/// The embedded store, or who holds it.
fn embedded(
    settings: &StoreSettings,
    key: &Key,
    timeout: Duration,
) -> Result<std::result::Result<Embedded, String>> {
    let path = settings.path()?;
    let (queue_max, fingerprint) = (settings.queue_max, key.secrets.fingerprint());
    match Embedded::open(EmbeddedOptions { path, timeout, queue_max, fingerprint }) {
        Ok(store) => Ok(Ok(store)),
        Err(error @ OpenError::Held { .. }) => Ok(Err(error.to_string())),
        Err(error @ OpenError::OtherSecrets(_)) => Err(key.refused(error)),
        Err(error) => Err(error).context("store.path"),
    }
}

async fn mongodb(settings: &StoreSettings, key: &Key, timeout: Duration) -> Result<Guarded> {
    let mongodb = &settings.mongodb;
    let options = MongoOptions {
        uri: mongodb.uri.clone(),
        database: mongodb.database.clone(),
        write_concern: mongodb.write_concern.clone(),
        connections_max: mongodb.connections_max,
        // Who waits for it then has time left to be told what the cache knows.
        timeout: timeout * 3 / 4,
        fingerprint: key.secrets.fingerprint(),
        ..MongoOptions::default()
    };
    let store = Mongo::new(&options).await.context("[store.mongodb]")?;
    // While the database is down a gateway starts: then whoever uses it first is told.
    let prepared = tokio::time::timeout(PREPARE_TIMEOUT, store.prepare()).await;
    if let Ok(Err(error @ Error::OtherSecrets)) = prepared {
        return Err(key.refused(error));
    }
    Ok(Guarded::new(Arc::new(store), &BreakerLimits::default()))
}

fn redis(settings: &CacheSettings, store: &Arc<dyn Store>) -> Result<Option<Arc<Cached>>> {
    if settings.redis.is_empty() {
        return Ok(None);
    }
    let options = CacheOptions {
        redis: settings.redis.clone(),
        prefix: settings.prefix.clone(),
        ttl: settings.ttl,
        timeout: settings.timeout,
        ..CacheOptions::default()
    };
    let cached = Cached::new(Arc::clone(store), &options).context("cache.redis")?;
    Ok(Some(Arc::new(cached)))
}

/// What keys and tokens are hashed by.
struct Key {
    secrets: Secrets,
    /// Their file, if it was not there before.
    made: Option<PathBuf>,
}

impl Key {
    fn read(settings: &StoreSettings) -> Result<Key> {
        let path = settings.hash_key()?;
        let was_there = path.exists();
        let secrets = Secrets::load_or_create(&path).context("store.hash_key")?;
        Ok(Key { secrets, made: (!was_there).then_some(path) })
    }

    /// What to say where a store was hashed by others. A file that was made for it goes again: it would look like the one
    /// that is missing.
    fn refused(&self, error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
        let context = match &self.made {
            None => "store.hash_key".to_owned(),
            Some(path) => {
                let _ = std::fs::remove_file(path);
                format!("store.hash_key: {} is not there", path.display())
            }
        };
        anyhow::Error::new(error).context(context)
    }
}

/// A start waits so long for a database, and goes on without.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(2);
/// Somebody watches it, and would rather wait.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// A round trip is what a batch takes: meanwhile others can go.
const REMOTE_BATCHES_MAX: usize = 8;
