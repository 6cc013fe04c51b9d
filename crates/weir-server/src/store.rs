//! Opening the store that the configuration names, with what stands before it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tracing::{info, warn};
use weir::{DeviceStore, make_private_directory, warn_if_exposed};
use weir_store::{
    BatchLimits, Breaker, BreakerLimits, CacheOptions, Cached, Embedded, EmbeddedOptions,
    EmbeddedReport, Error, Guarded, Mongo, MongoOptions, OpenError, Secrets, Store,
};

use crate::config::{CacheSettings, Settings, StoreKind, StoreSettings};

/// What keeps devices.
pub(crate) enum Opened {
    /// Nothing does.
    Nothing,
    Store(Arc<DeviceStore>),
    /// Another process holds the file.
    Held(String),
}

/// What to do where the store, or its key file, is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Nothing is begun: whoever only looks has named the wrong place.
    Never,
    /// Both are made where neither is there; what one of them misses is lost or elsewhere.
    Both,
    /// What is missing is made (`--new-store`).
    Missing,
}

impl Begin {
    /// Of what begins stores where `--new-store` says how far.
    pub(crate) fn of(new_store: bool) -> Begin {
        if new_store { Begin::Missing } else { Begin::Both }
    }
}

/// Opens the store as a gateway does.
pub(crate) async fn open(settings: &Settings, begin: Begin) -> Result<Opened> {
    open_with(&settings.store, &settings.cache, begin, settings.store.timeout).await
}

/// Opens the store for a command, which can wait longer.
pub(crate) async fn open_patiently(settings: &Settings, begin: Begin) -> Result<Opened> {
    // Redis is told of what a command ends too.
    open_with(&settings.store, &settings.cache, begin, COMMAND_TIMEOUT).await
}

async fn open_with(
    settings: &StoreSettings,
    cache: &CacheSettings,
    begin: Begin,
    timeout: Duration,
) -> Result<Opened> {
    match settings.kind {
        StoreKind::None => return Ok(Opened::Nothing),
        // The key file lies there too, unless it says otherwise.
        StoreKind::Embedded if begin != Begin::Never => make_directory(&settings.path()?)?,
        StoreKind::Embedded | StoreKind::Mongodb => {}
    }
    let key = Key::read(settings, begin)?;
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
    let devices = devices(settings, cache, (store, breaker), key.secrets, timeout)?;
    Ok(Opened::Store(Arc::new(devices.key_file(key.path))))
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
    let options = EmbeddedOptions {
        path: settings.path()?,
        create: key.begins,
        timeout,
        queue_max: settings.queue_max,
        fingerprint: key.secrets.fingerprint(),
    };
    let path = options.path.clone();
    let error = match Embedded::open(options) {
        Ok(store) => {
            tell(&path, &store.opened());
            return Ok(Ok(store));
        }
        Err(error @ OpenError::Held { .. }) => return Ok(Err(error.to_string())),
        Err(error) => error,
    };
    if matches!(error, OpenError::OtherSecrets(_)) {
        return Err(key.refused(error));
    }
    if matches!(error, OpenError::Missing(_)) {
        return Err(key.bereft(error).context("store.path"));
    }
    // Without anything that it has hashed, the key file would look like one whose store is lost.
    if std::fs::metadata(&path).map_or(true, |file| file.len() == 0) {
        key.unmake();
    }
    Err(error).context("store.path")
}

/// Says what was found. An operator who misses devices looks for this line.
fn tell(path: &Path, opened: &EmbeddedReport) {
    let EmbeddedReport { devices, is_new, check, is_checked, is_log_lost } = *opened;
    let (path, check_ms) = (path.display(), millis(check));
    if is_new {
        info!(%path, devices, "a new store of devices was made");
        return;
    }
    info!(%path, devices, check_ms, "the store of devices is open; no damage was found");
    if !is_checked {
        warn!(%path, check_ms, "only a part of the store was looked at for damage in this time");
    }
    if is_log_lost {
        warn!(
            %path,
            "the process before ended without closing the store, and the file that ends in -wal is gone: unless the \
             store was brought back from a copy, its last changes are lost"
        );
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
        create: key.begins,
        ..MongoOptions::default()
    };
    let store = Mongo::new(&options).await.context("[store.mongodb]")?;
    let database = &mongodb.database;
    // While the database is down a gateway starts: then whoever uses it first is told.
    let prepared = async {
        store.prepare().await?;
        store.count().await
    };
    match tokio::time::timeout(PREPARE_TIMEOUT, prepared).await {
        Ok(Ok(devices)) => info!(database, devices, "the store of devices is open"),
        Ok(Err(error @ Error::OtherSecrets)) => return Err(key.refused(error)),
        Ok(Err(error @ Error::Lost(_))) => return Err(key.bereft(error).context("store.mongodb")),
        Ok(Err(error)) => warn!(database, %error, "the store of devices does not answer yet"),
        Err(_) => warn!(database, "the store of devices does not answer yet"),
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
    path: PathBuf,
    /// The file was not there before.
    is_made: bool,
    /// A store may be begun with it.
    begins: bool,
}

impl Key {
    fn read(settings: &StoreSettings, begin: Begin) -> Result<Key> {
        let path = settings.hash_key()?;
        let is_made = !path.exists();
        if is_made && begin == Begin::Never {
            let path = path.display();
            bail!(
                "store.hash_key: {path} is not there: weir devices import, or a start, begins a store"
            );
        }
        let secrets = Secrets::load_or_create(&path).context("store.hash_key")?;
        Ok(Key { secrets, path, is_made, begins: is_made || begin == Begin::Missing })
    }

    /// What to say where the store is not there that it belongs to.
    fn bereft(&self, error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
        anyhow!(
            "{error}, while its key file {} is there: what was hashed with it is lost, or elsewhere. Bring the store back; \
             or begin with no devices by weir serve --new-store, after which every device has to be imported and activated \
             again",
            self.path.display()
        )
    }

    /// Takes a file that was made away again.
    fn unmake(&self) {
        if self.is_made {
            // What is left of it, the next start tells.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// What to say where a store was hashed by others. A file that was made for it goes again: it would look like the one
    /// that is missing.
    fn refused(&self, error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
        self.unmake();
        let context = if self.is_made {
            format!("store.hash_key: {} is not there", self.path.display())
        } else {
            "store.hash_key".to_owned()
        };
        anyhow::Error::new(error).context(context)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A start waits so long for a database, and goes on without.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(2);
/// Somebody watches it, and would rather wait.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// A round trip is what a batch takes: meanwhile others can go.
const REMOTE_BATCHES_MAX: usize = 8;
