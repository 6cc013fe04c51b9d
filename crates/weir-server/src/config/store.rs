//! Sections `[store]`, `[store.mongodb]` and `[cache]`: the store of devices and the cache in front
//! of it.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir::keys::{MINUTE, SECOND};
use weir::{ClusterConfig, ConfigError};
use weir_store::BATCH_MAX;

weir::config_table! {
    /// Section `[store]`.
    pub(crate) struct StoreSettings {
        /// Where devices are kept: in a file of its own, in MongoDB, or nowhere. `none`: no device
        /// activates here, and no token of an activated one is known. Absent: `embedded` without a
        /// cluster, `none` in one.
        kind: Option<StoreKind>, allowed("\"embedded\" in a cluster only with store.per_node"),
            example("\"embedded\"");
        /// Whether this node of a cluster may keep devices in a file of its own. A device that
        /// activates here is then unknown at all other nodes: its token admits it here only.
        per_node: bool;
        /// The file of the embedded store; one process holds it at a time. Empty: `devices.db` in
        /// `$STATE_DIRECTORY`, `$XDG_STATE_HOME/weir` or `~/.local/state/weir`, the first that is
        /// set.
        path: PathBuf, allowed("or \"\"");
        /// File with the 32 random bytes by which keys and tokens are hashed. The gateway makes it
        /// if it is missing. Without this file the store is useless: keep a copy, and give it to
        /// every node that shares the store. Empty: `store.key` beside the file of `store.path`.
        hash_key: PathBuf, allowed("or \"\"");
        /// How long a request to the store may take, waiting included. Then the gateway answers
        /// 503. Choose a time longer than a slow disk takes and shorter than clients wait. MongoDB
        /// gets three quarters of the time; the rest is for an answer from the cache.
        timeout: Duration = Duration::from_secs(2), range(10..=MINUTE);
        /// Requests that may wait for the store: activations, and checks of tokens. The next
        /// request gets 503 at once. The default is about a second's work of a fast store.
        // Each takes some 300 bytes.
        queue_max: usize = 16_384, range(1..=1_000_000), unit("requests");
        /// Most requests in one batch. 1: each request goes alone, for comparison.
        batch_max: usize = 512, range(1..=BATCH_MAX as u64), unit("requests");
        /// How long the first request of a batch waits for others. A commit costs about as much for
        /// one request as for hundreds. 0ms: it does not wait, and a batch consists of the requests
        /// that came during the batch before.
        batch_wait: Duration = Duration::from_millis(1), range(0..=SECOND);
        /// The database, with `kind = "mongodb"`.
        mongodb: MongoSettings;
    }
}

weir::config_table! {
    /// Section `[store.mongodb]`.
    pub(crate) struct MongoSettings {
        /// Address of MongoDB: `mongodb://…` or `mongodb+srv://…`, with its credentials and TLS
        /// options.
        uri: String, allowed("not empty with store.kind = \"mongodb\""), secret();
        /// The database that holds the collections.
        database: String = "weir".to_owned(), allowed("not empty");
        /// How many members must confirm a write. With less than a majority, a confirmed activation
        /// can be lost together with the primary.
        write_concern: String = "majority".to_owned(),
            allowed("\"majority\" or a number of members");
        /// Connections to MongoDB.
        connections_max: u32 = 16, range(1..=1_000), unit("connections");
    }
}

weir::config_table! {
    /// Section `[cache]`.
    pub(crate) struct CacheSettings {
        /// A Redis in which tokens are looked up before the store is asked:
        /// `redis://[[user]:password@]host[:port][/database]`. It helps if the store is far away,
        /// and its entries admit devices while the store is down. Anyone who can write to this
        /// Redis can admit himself. Redis must not evict entries before they expire
        /// (`maxmemory-policy noeviction` or `volatile-ttl`). It must not return with older data:
        /// turn snapshots off (`save ""`), and note that a replica that takes over may be behind
        /// too. Otherwise a token that has ended could become valid again for `cache.ttl`.
        redis: String, allowed("or \"\" for none"), secret();
        /// Prefix of the names of all entries, so that several fleets can share a Redis.
        prefix: String = "weir:".to_owned(), allowed("1 to {PREFIX_BYTES_MAX} bytes");
        /// How long an entry lives. A longer time saves requests to the store. But if a gateway
        /// that cannot reach Redis ends a token, other gateways may accept that token for this
        /// long.
        // The same holds for a revocation that did not reach Redis.
        ttl: Duration = Duration::from_secs(30), range(SECOND..=10 * MINUTE);
        /// How long Redis may take for a look-up, connecting included. Then the store is asked.
        /// Telling Redis the store's answer may take the same time again.
        timeout: Duration = Duration::from_millis(200), range(1..=MINUTE);
    }
}

weir::keys::named_enum! {
    /// Where devices are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum StoreKind {
        /// In a file.
        Embedded = "embedded",
        /// In a database.
        Mongodb = "mongodb",
        /// Nowhere.
        None = "none",
    }
}

weir::config_words!(StoreKind);

impl StoreSettings {
    /// Where devices are kept, as configured or by default.
    pub(crate) fn kind(&self, cluster: &ClusterConfig) -> StoreKind {
        let default = if cluster.is_set() { StoreKind::None } else { StoreKind::Embedded };
        self.kind.unwrap_or(default)
    }

    /// The file, as configured or by default.
    pub(crate) fn path(&self) -> Result<PathBuf, ConfigError> {
        if self.path.as_os_str().is_empty() {
            return Ok(directory()?.join("devices.db"));
        }
        Ok(self.path.clone())
    }

    /// The configured file of the secret, or the default one.
    pub(crate) fn hash_key(&self) -> Result<PathBuf, ConfigError> {
        if !self.hash_key.as_os_str().is_empty() {
            return Ok(self.hash_key.clone());
        }
        Ok(self.path()?.parent().unwrap_or(Path::new("")).join("store.key"))
    }

    pub(super) fn validate(
        &self,
        cache: &CacheSettings,
        cluster: &ClusterConfig,
    ) -> Result<(), ConfigError> {
        let (mongodb, kind) = (&self.mongodb, self.kind(cluster));
        if kind == StoreKind::Embedded && cluster.is_set() && !self.per_node {
            let allowed = "\"mongodb\" or \"none\" with cluster.redis: tokens from a file of this node would admit \
                           nobody at the others; or set store.per_node = true if that is meant";
            let depends_on = &["cluster.redis"];
            return Err(ConfigError { depends_on, ..error("store.kind", "\"embedded\"", allowed) });
        }
        if kind == StoreKind::Mongodb && mongodb.uri.is_empty() {
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

/// The directory for a program's state.
fn directory() -> Result<PathBuf, ConfigError> {
    weir::state_directory().ok_or_else(|| {
        let allowed = "a path, since neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME is set; or set store.kind = \"none\"";
        error("store.path", "\"\"", allowed)
    })
}

fn error(key: &str, value: impl Display, allowed: impl Display) -> ConfigError {
    let (value, allowed) = (value.to_string(), allowed.to_string());
    ConfigError { key: key.to_owned(), value, allowed, depends_on: &[] }
}

const PREFIX_BYTES_MAX: usize = 64;
