//! Entries that Redis must not keep once it has been emptied.

use weir_tests::Redis;

use super::*;
use crate::conformance::Memory;
use crate::records::Proof;

const TOKEN: Hash = Hash([7; 32]);

/// A device with a token, and Redis in front of its store.
async fn stocked(redis: &Redis) -> (Cached, Serial) {
    let store = Arc::new(Memory::new());
    let serial = Serial::new("d1").unwrap();
    let key = Hash([1; 32]);
    let labels = std::collections::BTreeMap::default();
    let entry = DeviceEntry { serial: serial.clone(), key, labels };
    store.put(vec![entry], 1).await.unwrap();
    let proof = Proof::Key { serial: serial.clone(), key };
    let issue = Issue { proof, token: TOKEN, now: 1, expires: u64::MAX >> 2, grace_until: 1 };
    store.issue(vec![issue]).await.unwrap().remove(0).unwrap();
    let options = CacheOptions {
        redis: redis.url(),
        timeout: Duration::from_secs(60),
        ..CacheOptions::default()
    };
    (Cached::new(store, &options).unwrap(), serial)
}

/// A check has read the store. It writes its entry after the token has ended and Redis has
/// forgotten that.
#[tokio::test]
async fn what_was_read_before_a_flush_is_not_written_after_it() {
    let redis = Redis::start().unwrap();
    let (cached, serial) = stocked(&redis).await;
    let before = cached.look_up(&[TOKEN], 2).await;
    let answers = cached.store.check(vec![TOKEN], 2).await.unwrap();
    assert!(answers[0].is_some());

    cached.revoke(vec![serial]).await.unwrap();
    redis.command("FLUSHALL").unwrap();
    cached.fill(before.said.unwrap(), &[TOKEN], &answers, 2).await;

    let holders = cached.check(vec![TOKEN], 2).await.unwrap();
    assert_eq!(holders, [None], "a token that was revoked is let in");
    assert_eq!((cached.counts().hits, cached.counts().errors), (0, 0));
}

#[tokio::test]
async fn after_a_flush_it_remembers_again() {
    let redis = Redis::start().unwrap();
    let (cached, _) = stocked(&redis).await;
    for flush in 1..=3 {
        for hits in [flush - 1, flush] {
            let holders = cached.check(vec![TOKEN], 2).await.unwrap();
            assert!(holders[0].is_some());
            assert_eq!(cached.counts().hits, hits);
        }
        redis.command("FLUSHALL").unwrap();
    }
    assert_eq!(cached.counts().errors, 0);
}
