//! Sections `[store]`, `[store.mongodb]` and `[cache]`: where devices are kept, and what stands
//! before it.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir::ConfigError;
use weir::keys::{MINUTE, SECOND};
use weir_store::BATCH_MAX;

weir::config_table! {
    /// Section `[store]`.
    pub(crate) struct StoreSettings {
        /// Where devices are kept: in a file of its own, in MongoDB, or nowhere. `none`: no device
        /// activates here, and no token of an activated one is known.
        kind: StoreKind;
        /// The file of the embedded store; one process holds it at a time. Empty: `devices.db` in
        /// `$STATE_DIRECTORY`, `$XDG_STATE_HOME/weir` or `~/.local/state/weir`, the first that is
        /// set.
        path: PathBuf, allowed("or \"\"");
        /// File of the 32 random bytes by which keys and tokens are hashed; made if it is not
        /// there. Without it nothing in the store is good for anything: keep a copy, and give it to
        /// every node that shares the store. Empty: `store.key` beside the file of `store.path`.
        hash_key: PathBuf, allowed("or \"\"");
        /// How long a request to the store may take, waiting included; then it is answered with
        /// 503. Longer than a slow disk takes, shorter than clients wait. MongoDB has three
        /// quarters of it, and what the cache knows the rest.
        timeout: Duration = Duration::from_secs(2), range(10..=MINUTE);
        /// Requests that may wait for the store: activations and checks of tokens each. One more is
        /// answered with 503 at once: a second of a fast store.
        // Each is some 300 bytes, and the most is a second of a store that is fast.
        queue_max: usize = 16_384, range(1..=1_000_000), unit("requests");
        /// Requests that go to the store together at most. 1: each by itself, for comparison.
        batch_max: usize = 512, range(1..=BATCH_MAX as u64), unit("requests");
        /// How long the first request of a batch waits for others: a commit costs about as much for
        /// one as for hundreds. 0ms: not at all, and together goes what came while the batch before
        /// was on its way.
        batch_wait: Duration = Duration::from_millis(1), range(0..=SECOND);
        /// MongoDB, where devices are kept there.
        mongodb: MongoSettings;
    }
}

weir::config_table! {
    /// Section `[store.mongodb]`.
    pub(crate) struct MongoSettings {
        /// Where MongoDB is: `mongodb://…` or `mongodb+srv://…`, with the credentials and the TLS
        /// that it asks for.
        uri: String, allowed("not empty with store.kind = \"mongodb\""), secret();
        /// The database that holds the collections.
        database: String = "weir".to_owned(), allowed("not empty");
        /// When a write counts as done. With less than a majority an answered activation can be
        /// lost with the primary.
        write_concern: String = "majority".to_owned(),
            allowed("\"majority\" or a number of members");
        /// Connections to it.
        connections_max: u32 = 16, range(1..=1_000), unit("connections");
    }
}

weir::config_table! {
    /// Section `[cache]`.
    pub(crate) struct CacheSettings {
        /// A Redis that tokens are looked up in before the store is asked:
        /// `redis://[[user]:password@]host[:port][/database]`. Useful where a store is far away;
        /// what it holds lets devices in while the store is down. Who can write to it can let
        /// himself in. It must not evict what has not expired for want of memory (`maxmemory-policy
        /// noeviction` or `volatile-ttl`), nor come back with less than it had (no snapshots: `save
        /// ""`; a replica that takes over may be behind as well): a token that has ended could come
        /// back for `cache.ttl`.
        redis: String, allowed("or \"\" for none"), secret();
        /// What the names of all entries begin with: several fleets can share a Redis.
        prefix: String = "weir:".to_owned(), allowed("1 to {PREFIX_BYTES_MAX} bytes");
        /// How long an entry lives. Longer saves trips to the store; so long may others take a
        /// token for valid that was ended by a gateway that cannot reach Redis.
        // So long may a revocation that Redis was not told of be unknown to another gateway.
        ttl: Duration = Duration::from_secs(30), range(SECOND..=10 * MINUTE);
        /// How long Redis may take for a check, connecting included: then the store is asked
        /// instead. Telling it what the store answered may take as long again.
        timeout: Duration = Duration::from_millis(200), range(1..=MINUTE);
    }
}

weir::keys::named_enum! {
    /// Where devices are kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) enum StoreKind {
        /// In a file.
        #[default]
        Embedded = "embedded",
        /// In a database.
        Mongodb = "mongodb",
        /// Nowhere.
        None = "none",
    }
}

weir::config_words!(StoreKind);

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
        let mongodb = &self.mongodb;
        if self.kind == StoreKind::Mongodb && mongodb.uri.is_empty() {
            let allowed = "a URI such as mongodb://db.example:27017, as store.kind = \"mongodb\"";
            let depends_on = &["store.kind"];
            return Err(ConfigError { depends_on, ..error("store.mongodb.uri", "\"\"", allowed) });
        }
        if mongodb.database.is_empty() {
            return Err(error("store.mongodb.database", "\"\"", "a name"));
        }
        if cache.prefix.is_empty() || cache.prefix.len() > PREFIX_BYTES_MAX {
            let allowed = format!("1 to {PREFIX_BYTES_MAX} bytes");
            return Err(error("cache.prefix", format_args!("{:?}", cache.prefix), allowed));
        }
        Ok(())
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

const PREFIX_BYTES_MAX: usize = 64;
