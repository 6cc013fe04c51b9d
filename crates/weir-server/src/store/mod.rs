//! Opens the store that the configuration names, with its cache and its circuit breaker.

mod later;

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
pub(crate) use later::{Later, Opening, take_over};

/// The result of opening the store.
pub(crate) enum Opened {
    /// The configuration names no store.
    Nothing,
    Store(Arc<DeviceStore>),
    /// Another process holds the file; the text says so.
    Held(String),
}

/// What to do if the store or its key file is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Create nothing: for a command that only reads, a missing store means a wrong path.
    Never,
    /// Create both if both are missing. If only one is missing, it is lost or elsewhere.
    Both,
    /// Create the missing one (`--new-store`).
    Missing,
}

impl Begin {
    /// The choice of the commands that have the option `--new-store`.
    pub(crate) fn of(new_store: bool) -> Begin {
        if new_store { Begin::Missing } else { Begin::Both }
    }
}

/// Opens the store as a gateway does.
pub(crate) async fn open(settings: &Settings, begin: Begin) -> Result<Opened> {
    refuse_unused_file(settings)?;
    open_with(settings, begin, settings.store.timeout).await
}

/// Opens the store for a command, with a longer timeout.
pub(crate) async fn open_patiently(settings: &Settings, begin: Begin) -> Result<Opened> {
    // Redis is told of what a command ends too.
    open_with(settings, begin, COMMAND_TIMEOUT).await
}

/// In a cluster a file from the time before would be passed over in silence, and its devices with it.
fn refuse_unused_file(settings: &Settings) -> Result<()> {
    if settings.store.kind.is_none()
        && settings.gateway.cluster.is_set()
        && let Ok(path) = settings.store.path()
        && path.exists()
    {
        bail!(
            "{} holds devices, and with cluster.redis it would not be used: set store.kind to \"mongodb\", to \"none\", \
             or to \"embedded\" with store.per_node = true",
            path.display()
        );
    }
    Ok(())
}

async fn open_with(all: &Settings, begin: Begin, timeout: Duration) -> Result<Opened> {
    let (settings, kind) = (&all.store, all.store_kind());
    match kind {
        StoreKind::None => return Ok(Opened::Nothing),
        // The key file is in this directory too, unless `store.hash_key` names another place.
        StoreKind::Embedded if begin != Begin::Never => make_directory(&settings.path()?)?,
        StoreKind::Embedded | StoreKind::Mongodb => {}
    }
    let key = Key::read(settings, begin)?;
    let (store, breaker): (Arc<dyn Store>, _) = match kind {
        StoreKind::None => return Ok(Opened::Nothing),
        StoreKind::Embedded => match embedded(settings, &key, timeout)? {
            Ok(store) => (Arc::new(store), None),
            Err(held) => return Ok(Opened::Held(held.text)),
        },
        StoreKind::Mongodb => {
            let guarded = mongodb(settings, &key, timeout).await?;
            let breaker = Arc::clone(guarded.breaker());
            (Arc::new(guarded), Some(breaker))
        }
    };
    let devices = devices(all, (store, breaker), key.secrets, timeout)?;
    Ok(Opened::Store(Arc::new(devices.key_file(key.path))))
}

/// Puts the cache and the queue in front of a store and its circuit breaker, if it has one.
fn devices(
    all: &Settings,
    (store, breaker): (Arc<dyn Store>, Option<Arc<Breaker>>),
    secrets: Secrets,
    timeout: Duration,
) -> Result<DeviceStore> {
    let (settings, cache) = (&all.store, &all.cache);
    let in_flight_max = match all.store_kind() {
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

/// Makes the directory of the store's file, for its owner alone; warns if other users can read it.
fn make_directory(path: &Path) -> Result<()> {
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_private_directory(directory)
            .with_context(|| format!("store.path: cannot make {}", directory.display()))?;
        warn_if_exposed("store.path", directory);
    }
    warn_if_exposed("store.path", path);
    Ok(())
}

/// The embedded store, or the process that holds it.
fn embedded(
    settings: &StoreSettings,
    key: &Key,
    timeout: Duration,
) -> Result<std::result::Result<Embedded, Held>> {
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
        Err(error @ OpenError::Held { holder, .. }) => {
            return Ok(Err(Held { text: error.to_string(), holder }));
        }
        Err(error) => error,
    };
    if matches!(error, OpenError::OtherSecrets(_)) {
        return Err(key.refused(error));
    }
    if matches!(error, OpenError::Missing(_)) {
        return Err(key.bereft(error).context("store.path"));
    }
    // Remove a key file that has hashed nothing yet: otherwise the next start would take its store
    // for lost.
    if std::fs::metadata(&path).map_or(true, |file| file.len() == 0) {
        key.unmake();
    }
    Err(error).context("store.path")
}

/// Logs what the opening found. An operator who misses devices looks for this line.
fn tell(path: &Path, opened: &EmbeddedReport) {
    let EmbeddedReport { devices, is_new, check, is_checked, is_log_lost } = *opened;
    let (path, check_ms) = (path.display(), millis(check));
    if is_new {
        info!(%path, devices, "created a new device store");
        return;
    }
    info!(%path, devices, check_ms, "the device store is open; no damage was found");
    if !is_checked {
        warn!(%path, check_ms, "only a part of the device store was checked for damage in this time");
    }
    if is_log_lost {
        warn!(
            %path,
            "the previous process ended without closing the store, and the file that ends in -wal is gone: unless the \
             store was restored from a copy, its last changes are lost"
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
        // The rest of the time is left for an answer from the cache.
        timeout: timeout * 3 / 4,
        fingerprint: key.secrets.fingerprint(),
        create: key.begins,
        ..MongoOptions::default()
    };
    let store = Mongo::new(&options).await.context("[store.mongodb]")?;
    let database = &mongodb.database;
    // A gateway starts even if the database is down; then the first request to it fails.
    let prepared = async {
        store.prepare().await?;
        store.count().await
    };
    match tokio::time::timeout(PREPARE_TIMEOUT, prepared).await {
        Ok(Ok(devices)) => info!(database, devices, "the device store is open"),
        Ok(Err(error @ Error::OtherSecrets)) => return Err(key.refused(error)),
        Ok(Err(error @ Error::Lost(_))) => return Err(key.bereft(error).context("store.mongodb")),
        Ok(Err(error)) => warn!(database, %error, "the device store does not answer yet"),
        Err(_) => warn!(database, "the device store does not answer yet"),
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

/// Another process holds the store's file.
struct Held {
    text: String,
    /// Its number, if known.
    holder: Option<u32>,
}

/// The secret by which keys and tokens are hashed, and its file.
struct Key {
    secrets: Secrets,
    path: PathBuf,
    /// This process created the file.
    is_made: bool,
    /// Whether a new store may be created with it.
    begins: bool,
}

impl Key {
    fn read(settings: &StoreSettings, begin: Begin) -> Result<Key> {
        let path = settings.hash_key()?;
        let is_made = !path.exists();
        if is_made && begin == Begin::Never {
            let path = path.display();
            bail!(
                "store.hash_key: {path} does not exist: weir devices import or weir serve creates a store"
            );
        }
        let secrets = Secrets::load_or_create(&path).context("store.hash_key")?;
        Ok(Key { secrets, path, is_made, begins: is_made || begin == Begin::Missing })
    }

    /// The error if a key file exists, but its store does not.
    fn bereft(&self, error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
        anyhow!(
            "{error}, but its key file {} exists: the store of that key is lost, or elsewhere. Restore it; or start \
             without devices by weir serve --new-store. Then every device must be imported and activated again",
            self.path.display()
        )
    }

    /// Removes the key file if this process created it.
    fn unmake(&self) {
        if self.is_made {
            // If the removal fails, the next start reports the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// The error if a store was hashed with another key. A file that was created for it is removed
    /// again: it would look like the missing one.
    fn refused(&self, error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
        self.unmake();
        let context = if self.is_made {
            format!("store.hash_key: {} does not exist", self.path.display())
        } else {
            "store.hash_key".to_owned()
        };
        anyhow::Error::new(error).context(context)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long a start waits for a database before it goes on without.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(2);
/// The person at a command would rather wait than see it fail.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// A batch takes a round trip; meanwhile other batches can be under way.
const REMOTE_BATCHES_MAX: usize = 8;
