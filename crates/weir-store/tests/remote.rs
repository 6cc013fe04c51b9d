//! What every store promises, kept by MongoDB, and by Redis before it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weir_store::{
    CacheOptions, Cached, DeviceEntry, Error, Hash, Issue, Mongo, MongoOptions, Page, Proof,
    Serial, Store,
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
        create: true,
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
        create: true,
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

fn entry(serial: &str) -> DeviceEntry {
    let serial = Serial::new(serial).expect("a serial");
    DeviceEntry { serial, key: Hash([3; 32]), labels: BTreeMap::default() }
}

fn activation(serial: &str, token: u8) -> Issue {
    Issue {
        proof: Proof::Key { serial: entry(serial).serial, key: entry(serial).key },
        token: Hash([token; 32]),
        now: 1_000,
        expires: u64::MAX >> 2,
        grace_until: 2_000,
    }
}

/// Whatever is asked is answered with the loss, and nobody is taken for unknown.
async fn is_lost(store: &Mongo, expected: &str) {
    for outcome in [
        store.issue(vec![activation("d1", 20)]).await.map(drop),
        store.check(vec![Hash([10; 32])], 1_500).await.map(drop),
        store.probe().await,
    ] {
        let Err(Error::Lost(cause)) = outcome else { panic!("{expected}: {outcome:?}") };
        assert!(cause.contains(expected), "{cause}");
    }
}

/// Collections that are dropped under a running gateway, and brought back.
#[tokio::test]
async fn a_dropped_collection_is_a_loss_and_not_an_empty_one() {
    let options = MongoOptions {
        uri: database().uri(),
        database: "dropped".into(),
        timeout: Duration::from_secs(180),
        ..MongoOptions::default()
    };
    let raw = mongodb::Client::with_uri_str(&options.uri).await.unwrap().database("dropped");
    let refused = Mongo::new(&options).await.unwrap();
    assert!(matches!(refused.prepare().await, Err(Error::Lost(_))), "nothing is begun unasked");
    let begun = Mongo::new(&MongoOptions { create: true, ..options.clone() }).await.unwrap();
    assert_eq!(begun.prepare().await, Ok(()));
    let store = Mongo::new(&options).await.unwrap();
    store.put(vec![entry("d1")], 5).await.unwrap();
    store.issue(vec![activation("d1", 10)]).await.unwrap().remove(0).unwrap();
    assert_eq!((store.probe().await, store.count().await), (Ok(()), Ok(1)));
    let listed = store.list(Page { after: None, limit: 10 }).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");

    for name in ["devices", "tokens"] {
        let collection = raw.collection::<mongodb::bson::Document>(name);
        let mut found = collection.find(mongodb::bson::doc! {}).await.unwrap();
        let mut kept = Vec::new();
        while found.advance().await.unwrap() {
            kept.push(found.deserialize_current().unwrap());
        }
        collection.drop().await.unwrap();
        is_lost(&store, name).await;
        let begun_anew = Mongo::new(&options).await.unwrap();
        assert!(matches!(begun_anew.prepare().await, Err(Error::Lost(_))), "{name}");
        // Something may have been written since.
        let _ = collection.drop().await;
        collection.insert_many(kept).await.unwrap();
        assert_eq!(store.probe().await, Ok(()), "{name} is back");
        assert!(store.check(vec![Hash([10; 32])], 1_500).await.unwrap()[0].is_some());
    }
    raw.collection::<mongodb::bson::Document>("store").drop().await.unwrap();
    assert!(matches!(store.probe().await, Err(Error::Lost(_))));
    assert_eq!(begun.prepare().await, Ok(()), "it is not made again meanwhile");
    assert!(matches!(store.probe().await, Err(Error::Lost(_))));
}

/// One from before there were sentinels.
#[tokio::test]
async fn devices_of_an_older_version_are_taken_over() {
    let options = MongoOptions {
        uri: database().uri(),
        database: "older".into(),
        timeout: Duration::from_secs(180),
        create: true,
        ..MongoOptions::default()
    };
    let store = Mongo::new(&options).await.unwrap();
    store.put(vec![entry("d1")], 5).await.unwrap();
    store.issue(vec![activation("d1", 10)]).await.unwrap().remove(0).unwrap();
    let raw = mongodb::Client::with_uri_str(&options.uri).await.unwrap().database("older");
    for name in ["devices", "tokens"] {
        let collection = raw.collection::<mongodb::bson::Document>(name);
        collection.delete_one(mongodb::bson::doc! { "_id": "" }).await.unwrap();
    }
    let store = Mongo::new(&MongoOptions { create: false, ..options }).await.unwrap();
    assert_eq!((store.prepare().await, store.count().await), (Ok(()), Ok(1)));
    assert!(store.check(vec![Hash([10; 32])], 1_500).await.unwrap()[0].is_some());
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
