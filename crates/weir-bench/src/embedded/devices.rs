//! The device store of an embedded gateway: opens the requested stages as the program `weir` opens
//! them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir::DeviceStore;
use weir_store::{
    BatchLimits, Breaker, BreakerLimits, CacheOptions, Cached, DeviceEntry, Embedded,
    EmbeddedOptions, Guarded, Mongo, MongoOptions, Secrets, Serial, Store,
};

use super::instant::Instant;
use crate::activations::Activations;
use crate::clock;
use crate::stages::{Stage, Stages};

/// The store of the devices, and the devices in it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DevicesPlan {
    pub(crate) stages: Stages,
    /// The directory for files.
    pub(crate) directory: PathBuf,
    /// The devices to import, if there is a store.
    pub(crate) devices: Activations,
    /// The URL of Redis.
    pub(crate) redis: Option<String>,
    /// The URI of MongoDB.
    pub(crate) mongodb: Option<String>,
    /// Name of the database, and prefix of all names in Redis.
    pub(crate) name: String,
}

/// Opens the store, with all devices in it.
pub(super) async fn open(plan: &DevicesPlan) -> Result<Arc<DeviceStore>> {
    let stages = &plan.stages;
    let secrets = Secrets::new(&rand::random());
    let (store, breaker) = open_store(plan, &secrets).await?;
    if stages.has_store() {
        import(&*store, &plan.devices, &secrets).await?;
    }
    let cached = redis(plan, &store)?;
    let store = cached.as_ref().map_or(store, |cached| Arc::clone(cached) as Arc<dyn Store>);
    let mut devices = DeviceStore::new(store, &limits(stages), secrets);
    if let Some(breaker) = breaker {
        devices = devices.breaker(breaker);
    }
    if let Some(cached) = cached {
        devices = devices.cache(cached);
    }
    Ok(Arc::new(devices))
}

async fn open_store(
    plan: &DevicesPlan,
    secrets: &Secrets,
) -> Result<(Arc<dyn Store>, Option<Arc<Breaker>>)> {
    let (fingerprint, create) = (secrets.fingerprint(), true);
    if plan.stages.has(Stage::Embedded) {
        let path = plan.directory.join("devices.db");
        let queue_max = BatchLimits::default().queue_max;
        let options = EmbeddedOptions { path, create, timeout: TIMEOUT, queue_max, fingerprint };
        return Ok((Arc::new(Embedded::open(options)?), None));
    }
    if !plan.stages.has(Stage::Mongodb) {
        return Ok((Arc::new(Instant::default()), None));
    }
    let options = MongoOptions {
        uri: plan.mongodb.clone().context("no MongoDB is there")?,
        database: plan.name.clone(),
        timeout: TIMEOUT * 3 / 4,
        fingerprint,
        create,
        ..MongoOptions::default()
    };
    let store = Mongo::new(&options).await?;
    store.prepare().await?;
    let guarded = Guarded::new(Arc::new(store), &BreakerLimits::default());
    let breaker = Arc::clone(guarded.breaker());
    Ok((Arc::new(guarded), Some(breaker)))
}

fn redis(plan: &DevicesPlan, store: &Arc<dyn Store>) -> Result<Option<Arc<Cached>>> {
    if !plan.stages.has(Stage::Redis) {
        return Ok(None);
    }
    let options = CacheOptions {
        redis: plan.redis.clone().context("no Redis is there")?,
        prefix: format!("{}:", plan.name),
        timeout: TIMEOUT,
        ..CacheOptions::default()
    };
    Ok(Some(Arc::new(Cached::new(Arc::clone(store), &options)?)))
}

fn limits(stages: &Stages) -> BatchLimits {
    let limits = BatchLimits {
        in_flight_max: if stages.has(Stage::Embedded) { 1 } else { REMOTE_BATCHES_MAX },
        timeout: TIMEOUT,
        ..BatchLimits::default()
    };
    if stages.is_single {
        BatchLimits { batch_max: 1, batch_wait: Duration::ZERO, ..limits }
    } else {
        limits
    }
}

async fn import(store: &dyn Store, devices: &Activations, secrets: &Secrets) -> Result<()> {
    let now = clock::realtime_ns() / 1_000_000;
    let mut devices = devices.devices().peekable();
    while devices.peek().is_some() {
        let entries = devices.by_ref().take(IMPORT_AT_ONCE).map(|(serial, key)| {
            let serial = Serial::new(&serial)?;
            let key = secrets.key_hash(&serial, &key);
            Ok(DeviceEntry { serial, key, labels: Default::default() })
        });
        store.put(entries.collect::<Result<_>>()?, now).await?;
    }
    Ok(())
}

/// Long, so that a slow store shows in the times.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The value of the program `weir`: a batch to a remote store is a round trip.
const REMOTE_BATCHES_MAX: usize = 8;
const IMPORT_AT_ONCE: usize = 500;
