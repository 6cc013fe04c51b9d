//! Sections `[store]`, `[store.mongodb]` and `[cache]`: where devices are kept, and what stands before it.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir::ConfigError;
use weir_store::BATCH_MAX;

/// Section `[store]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoreSettings {
    pub(crate) kind: StoreKind,
    /// The file of the embedded store; empty: [`StoreSettings::path`] says where.
    pub(crate) path: PathBuf,
    /// The file of the secret that keys and tokens are hashed by; empty: beside the store.
    pub(crate) hash_key: PathBuf,
    /// How long a request may take, waiting included.
    pub(crate) timeout: Duration,
    /// Requests that may wait.
    pub(crate) queue_max: usize,
    /// Requests of the largest batch.
    pub(crate) batch_max: usize,
    /// How long the first one of a batch waits for others.
    pub(crate) batch_wait: Duration,
    pub(crate) mongodb: MongoSettings,
}

/// Section `[store.mongodb]`.
#[derive(Clone, PartialEq)]
pub(crate) struct MongoSettings {
    /// It may hold a password.
    pub(crate) uri: String,
    pub(crate) database: String,
    pub(crate) write_concern: String,
    pub(crate) connections_max: u32,
}

/// Section `[cache]`.
#[derive(Clone, PartialEq)]
pub(crate) struct CacheSettings {
    /// Empty: none. It may hold a password.
    pub(crate) redis: String,
    pub(crate) prefix: String,
    pub(crate) ttl: Duration,
    pub(crate) timeout: Duration,
}

/// Where devices are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// In a file.
    Embedded,
    /// In a database.
    Mongodb,
    /// Nowhere.
    None,
}

impl StoreSettings {
    /// The file, as configured or by default.
    pub(crate) fn path(&self) -> Result<PathBuf, ConfigError> {
        if self.path.as_os_str().is_empty() {
            return Ok(directory()?.join("devices.db"));
        }
        Ok(self.path.clone())
    }

    /// The file of the secret, as configured or by default.
    pub(crate) fn hash_key(&self) -> Result<PathBuf, ConfigError> {
        if !self.hash_key.as_os_str().is_empty() {
            return Ok(self.hash_key.clone());
        }
        Ok(self.path()?.parent().unwrap_or(Path::new("")).join("store.key"))
    }

    pub(super) fn validate(&self, cache: &CacheSettings) -> Result<(), ConfigError> {
        time("store.timeout", self.timeout, TIMEOUT_MIN, MINUTE)?;
        within("store.queue_max", self.queue_max, 1..=QUEUE_MAX)?;
        within("store.batch_max", self.batch_max, 1..=BATCH_MAX)?;
        time("store.batch_wait", self.batch_wait, Duration::ZERO, BATCH_WAIT_MAX)?;
        let mongodb = &self.mongodb;
        within("store.mongodb.connections_max", mongodb.connections_max, 1..=CONNECTIONS_MAX)?;
        if self.kind == StoreKind::Mongodb && mongodb.uri.is_empty() {
            let allowed = "a URI such as mongodb://db.example:27017, as store.kind = \"mongodb\"";
            let depends_on = &["store.kind"];
            return Err(ConfigError { depends_on, ..error("store.mongodb.uri", "\"\"", allowed) });
        }
        if mongodb.database.is_empty() {
            return Err(error("store.mongodb.database", "\"\"", "a name"));
        }
        time("cache.ttl", cache.ttl, CACHE_TTL_MIN, CACHE_TTL_MAX)?;
        time("cache.timeout", cache.timeout, CACHE_TIMEOUT_MIN, MINUTE)?;
        if cache.prefix.is_empty() || cache.prefix.len() > PREFIX_BYTES_MAX {
            let allowed = format!("1 to {PREFIX_BYTES_MAX} bytes");
            return Err(error("cache.prefix", format_args!("{:?}", cache.prefix), allowed));
        }
        Ok(())
    }
}

impl StoreKind {
    pub(super) const ALL: [StoreKind; 3] =
        [StoreKind::Embedded, StoreKind::Mongodb, StoreKind::None];

    /// The word in the configuration.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            StoreKind::Embedded => "embedded",
            StoreKind::Mongodb => "mongodb",
            StoreKind::None => "none",
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            kind: StoreKind::Embedded,
            path: PathBuf::new(),
            hash_key: PathBuf::new(),
            timeout: Duration::from_secs(2),
            queue_max: 16_384,
            batch_max: 512,
            batch_wait: Duration::from_millis(1),
            mongodb: MongoSettings {
                uri: String::new(),
                database: "weir".to_owned(),
                write_concern: "majority".to_owned(),
                connections_max: 16,
            },
        }
    }
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            redis: String::new(),
            prefix: "weir:".to_owned(),
            ttl: Duration::from_secs(30),
            timeout: Duration::from_millis(200),
        }
    }
}

impl std::fmt::Debug for MongoSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MongoSettings").field("database", &self.database).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for CacheSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheSettings").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Where a program keeps what it remembers: systemd's directory for a service, then XDG's.
fn directory() -> Result<PathBuf, ConfigError> {
    let from =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // Only where a unit has several of them is it a list.
    let of_service =
        from("STATE_DIRECTORY").filter(|path| !path.as_os_str().as_encoded_bytes().contains(&b':'));
    of_service
        .or_else(|| from("XDG_STATE_HOME").map(|home| home.join("weir")))
        .or_else(|| from("HOME").map(|home| home.join(".local/state/weir")))
        .ok_or_else(|| {
            let allowed = "a file, as neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME is set; or store.kind = \"none\"";
            error("store.path", "\"\"", allowed)
        })
}

fn error(key: &str, value: impl Display, allowed: impl Display) -> ConfigError {
    let (value, allowed) = (value.to_string(), allowed.to_string());
    ConfigError { key: key.to_owned(), value, allowed, depends_on: &[] }
}

fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(error(key, value, format_args!("{} to {}", range.start(), range.end())))
}

fn time(key: &str, value: Duration, min: Duration, max: Duration) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(error(key, format_args!("{value:?}"), format_args!("{min:?} to {max:?}")))
}

const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const MINUTE: Duration = Duration::from_secs(60);
/// Each is some 300 bytes, and a second of a store that is fast.
const QUEUE_MAX: usize = 1_000_000;
const BATCH_WAIT_MAX: Duration = Duration::from_secs(1);
const CONNECTIONS_MAX: u32 = 1_000;
const CACHE_TTL_MIN: Duration = Duration::from_secs(1);
/// So long may a revocation that Redis was not told of be unknown to another gateway.
const CACHE_TTL_MAX: Duration = Duration::from_secs(600);
const CACHE_TIMEOUT_MIN: Duration = Duration::from_millis(1);
const PREFIX_BYTES_MAX: usize = 64;
