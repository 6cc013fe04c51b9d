//! What every store promises, kept by MongoDB, and by Redis before it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weir_store::{
    CacheOptions, Cached, DeviceEntry, Error, Hash, Mongo, MongoOptions, Serial, Store,
};
use weir_tests::{Database, Redis};

/// One for all tests of this program: each makes a database of its own in it.
fn database() -> &'static Database {
    static DATABASE: OnceLock<Database> = OnceLock::new();
    DATABASE.get_or_init(|| Database::start().expect("a database"))
}

fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start().expect("Redis"))
}

/// A store in a database that nobody else uses.
async fn mongo() -> Arc<dyn Store> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let options = MongoOptions {
        uri: database().uri(),
        database: format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed)),
        timeout: Duration::from_secs(180),
        ..MongoOptions::default()
    };
    Arc::new(Mongo::new(&options).await.expect("good options"))
}

/// The same, behind entries of Redis that nobody else uses.
async fn cached() -> Arc<dyn Store> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let options = CacheOptions {
        redis: redis().url(),
        prefix: format!("test{}:", NUMBER.fetch_add(1, Ordering::Relaxed)),
        timeout: Duration::from_secs(180),
        ..CacheOptions::default()
    };
    Arc::new(Cached::new(mongo().await, &options).expect("good options"))
}

/// Whoever has other secrets is told so, whatever is asked, and changes nothing.
#[tokio::test]
async fn a_database_is_not_used_with_other_secrets() {
    let options = MongoOptions {
        uri: database().uri(),
        database: "secrets".into(),
        timeout: Duration::from_secs(180),
        fingerprint: Hash([1; 32]),
        ..MongoOptions::default()
    };
    let ours = Mongo::new(&options).await.unwrap();
    assert_eq!(ours.check(vec![Hash([5; 32])], 1).await, Ok(vec![None]));
    let options = MongoOptions { fingerprint: Hash([2; 32]), ..options };
    let stranger = Mongo::new(&options).await.unwrap();
    let entry = DeviceEntry {
        serial: Serial::new("add").unwrap(),
        key: Hash([3; 32]),
        labels: BTreeMap::default(),
    };
    assert_eq!(stranger.prepare().await, Err(Error::OtherSecrets));
    assert_eq!(stranger.put(vec![entry], 1).await, Err(Error::OtherSecrets));
    assert_eq!(stranger.check(vec![Hash([5; 32])], 1).await, Err(Error::OtherSecrets));
    assert_eq!((ours.count().await, ours.prepare().await), (Ok(0), Ok(())));
}

// `serials_are_in_the_order_of_their_bytes` depends on how the server orders `_id`, and the one of these tests compares
// UTF-16 where MongoDB compares bytes.
mod promises_of_mongodb {
    use super::mongo;

    weir_store::conformance! { mongo, but the order of serials }
}

mod promises_of_the_cache {
    use super::cached;

    weir_store::conformance! { cached, but the order of serials }
}
