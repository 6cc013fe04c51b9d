//! Asks the stores of the configuration for their clocks, and each Redis for what it may remove.

use std::time::Duration;

use weir::{ClusterConfig, Config, RedisInfo, RedisUrls, ask_redis, unix_millis};
use weir_store::{Mongo, MongoOptions};

use crate::config::{Settings, StoreKind};

/// What a store is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Store,
    Cache,
    Broker,
}

impl Role {
    /// The key that names it.
    pub(super) fn key(self) -> &'static str {
        match self {
            Role::Store => "store.mongodb.uri",
            Role::Cache => "cache.redis",
            Role::Broker => "cluster.redis",
        }
    }
}

/// What one store tells.
#[derive(Debug)]
pub(super) struct StoreLook {
    /// As operators know it, without secrets.
    pub(super) name: String,
    pub(super) role: Role,
    /// MongoDB has no eviction policy.
    pub(super) told: Result<RedisInfo, String>,
}

/// Asks all stores that the configuration names.
pub(super) async fn look(settings: &Settings) -> Vec<StoreLook> {
    let mut looks = Vec::new();
    if settings.store_kind() == StoreKind::Mongodb {
        let told = Box::pin(ask_mongodb(settings)).await;
        let told = told.map(|ahead_ms| RedisInfo { ahead_ms, eviction_policy: None });
        let name = "MongoDB (store)".to_owned();
        looks.push(StoreLook { name, role: Role::Store, told });
    }
    let cache = &settings.cache;
    if !cache.redis.is_empty() {
        // The answers do not depend on the database.
        let (url, database) = cache.redis.rsplit_once('/').unwrap_or((&cache.redis, ""));
        let is_number = database.bytes().all(|byte| byte.is_ascii_digit());
        let url = if is_number { url } else { &cache.redis };
        let redis = RedisUrls(vec![url.to_owned()]);
        let timeout = cache.timeout.max(LEAST_TIMEOUT);
        let cluster = ClusterConfig { redis, timeout, ..ClusterConfig::default() };
        let config = Config { cluster, ..Config::default() };
        looks.extend(Box::pin(redis_looks(&config, Role::Cache)).await);
    }
    if settings.gateway.cluster.is_set() {
        looks.extend(Box::pin(redis_looks(&settings.gateway, Role::Broker)).await);
    }
    looks
}

async fn ask_mongodb(settings: &Settings) -> Result<i64, String> {
    let options = MongoOptions {
        uri: settings.store.mongodb.uri.clone(),
        database: settings.store.mongodb.database.clone(),
        connections_min: 0,
        timeout: settings.store.timeout.max(LEAST_TIMEOUT),
        ..MongoOptions::default()
    };
    let store = Mongo::new(&options).await.map_err(|error| error.to_string())?;
    store.clock_ahead_ms(unix_millis).await.map_err(|error| error.to_string())
}

async fn redis_looks(config: &Config, role: Role) -> Vec<StoreLook> {
    let what = if role == Role::Cache { "cache" } else { "cluster" };
    match ask_redis(config).await {
        Ok(looks) => looks
            .into_iter()
            .map(|look| StoreLook {
                name: format!("Redis {} ({what})", look.address),
                role,
                told: look.told,
            })
            .collect(),
        Err(error) => {
            vec![StoreLook { name: format!("Redis ({what})"), role, told: Err(error.to_string()) }]
        }
    }
}

/// The person at the command waits longer than a gateway does.
const LEAST_TIMEOUT: Duration = Duration::from_secs(2);
