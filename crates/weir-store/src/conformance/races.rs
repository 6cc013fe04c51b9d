//! Promises about concurrent requests: many tasks act on one device at the same time.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Barrier;

use super::{
    Make, NOW, activation, check, entry, find, hash, issue, key, map, put, refresh, revoke, serial,
    with,
};
use crate::contract::Store;
use crate::records::{Issue, Issued, Put, Refusal, Revoked, State};

/// Concurrent activations of one device all succeed, each with its own generation. The token of the
/// last one is valid.
pub async fn racing_activations_stand_in_a_row(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    let results = race(&store, 32, |store, number| async move {
        issue(&store, activation("a", 1, number)).await.expect("the key is right")
    })
    .await;
    let generations: BTreeSet<u64> = results.iter().map(|issued| issued.generation).collect();
    assert_eq!(generations.len(), 32, "each changes it once: {results:?}");
    assert_eq!(results.iter().filter(|issued| issued.is_first).count(), 1);
    let device = find(&store, "a").await;
    let newest_first: Vec<_> = generations.iter().rev().collect();
    for (number, issued) in (0..).zip(&results) {
        let rank = newest_first.iter().position(|generation| **generation == issued.generation);
        let is_valid = check(&store, number, NOW).await.is_some();
        assert_eq!(is_valid, rank < Some(2), "{number} is the {rank:?}th newest");
        let is_current = device.token.map(|(token, _)| token) == Some(hash(number));
        assert_eq!(is_current, rank == Some(0), "{number} is the {rank:?}th newest");
    }
    assert_eq!(Some(&&device.generation), newest_first.first());
}

/// Of many refreshes with one token, two succeed. The second one uses the token in its grace, and
/// ends it.
pub async fn racing_refreshes_with_one_token_end_it(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 1_000)).await.expect("the key is right");
    let results =
        race(
            &store,
            16,
            |store, number| async move { issue(&store, refresh(1_000, number)).await },
        )
        .await;
    check_winners(&store, &results, 2).await;
    assert_eq!(check(&store, 1_000, NOW).await, None);
}

/// Without grace only one succeeds.
pub async fn racing_refreshes_without_grace_have_one_winner(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 1_000)).await.expect("the key is right");
    let results = race(&store, 16, |store, number| async move {
        issue(&store, Issue { grace_until: NOW, ..refresh(1_000, number) }).await
    })
    .await;
    check_winners(&store, &results, 1).await;
}

/// Exactly one of many revocations is the first.
pub async fn racing_revocations_have_one_winner(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    let results = race(&store, 16, |store, _| async move { revoke(&store, "a").await }).await;
    let first = results.iter().filter(|revoked| **revoked == Revoked::Now).count();
    let others = results.iter().filter(|revoked| **revoked == Revoked::Before).count();
    assert_eq!((first, others), (1, 15));
}

/// Exactly one of many equal imports adds the device, and exactly one of many changes its key.
pub async fn racing_imports_have_one_winner(make: &impl Make) {
    let store = make().await;
    for (number, winner) in [(1, Put::Added), (2, Put::Rekeyed)] {
        let results =
            race(
                &store,
                16,
                move |store, _| async move { put(&store, entry("a", number, &[])).await },
            )
            .await;
        let winners = results.iter().filter(|put| **put == winner).count();
        let others = results.iter().filter(|put| **put == Put::Unchanged).count();
        assert_eq!((winners, others), (1, 15), "{results:?}");
    }
}

/// After all answers a revoked device has no valid token, whatever was issued meanwhile.
pub async fn a_revocation_beats_what_races_with_it(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 1_000)).await.expect("the key is right");
    let before = find(&store, "a").await.generation;
    let results = race(&store, 24, |store, number| async move {
        match number {
            12 => {
                assert_eq!(revoke(&store, "a").await, Revoked::Now);
                None
            }
            _ if number % 2 == 0 => Some(issue(&store, activation("a", 1, number)).await),
            _ => Some(issue(&store, refresh(1_000, number)).await),
        }
    })
    .await;
    let mut changes = 1;
    for result in results.iter().flatten() {
        match result {
            Ok(_) => changes += 1,
            Err(refusal) => {
                let expected = matches!(refusal, Refusal::Revoked | Refusal::InvalidToken);
                assert!(expected, "{refusal:?}");
            }
        }
    }
    let device = find(&store, "a").await;
    assert_eq!(device.state, State::Revoked);
    assert_eq!(device.generation, before + changes, "each change counts once");
    for token in (0..24).chain([1_000]) {
        assert_eq!(check(&store, token, NOW).await, None, "{token}");
    }
}

/// After all answers no token from before the change of the key is valid.
pub async fn a_changed_key_beats_what_races_with_it(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    let results = race(&store, 24, |store, number| async move {
        if number == 12 {
            assert_eq!(put(&store, entry("a", 2, &[])).await, Put::Rekeyed);
            return None;
        }
        Some(issue(&store, activation("a", 1, number)).await)
    })
    .await;
    let issued: Vec<_> =
        results.iter().flatten().filter_map(|result| result.as_ref().ok()).collect();
    let refused = results.iter().flatten().filter_map(|result| result.as_ref().err());
    for refusal in refused {
        assert_eq!(*refusal, Refusal::WrongKey);
    }
    let device = find(&store, "a").await;
    assert_eq!((device.state, device.token, device.key), (State::New, None, key(2)));
    let newest = issued.iter().map(|issued| issued.generation).max().unwrap_or(0);
    assert!(device.generation > newest, "the change of the key was the last one");
    for token in 0..24 {
        assert_eq!(check(&store, token, NOW).await, None, "{token}");
    }
}

/// Concurrent writes of labels, last connections and tokens do not overwrite each other.
pub async fn nothing_is_lost_between_writers_of_one_device(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    race(&store, 3, |store, writer| async move {
        for number in 0..20 {
            match writer {
                0 => {
                    let issued = issue(&store, activation("a", 1, number)).await;
                    issued.expect("the key is right");
                    assert!(check(&store, number, NOW).await.is_some(), "{number}");
                }
                1 => {
                    let value = number.to_string();
                    let labels = [("n", value.as_str())];
                    assert_eq!(put(&store, entry("a", 1, &labels)).await, Put::Relabelled);
                    assert_eq!(find(&store, "a").await.labels, map(&labels));
                }
                _ => {
                    let at = NOW + number;
                    store.seen(vec![(serial("a"), at)]).await.expect("the store answers");
                    assert_eq!(find(&store, "a").await.seen, Some(at));
                }
            }
        }
    })
    .await;
    let device = find(&store, "a").await;
    assert_eq!(device.seen, Some(NOW + 19));
    assert_eq!(device.labels, map(&[("n", "19")]));
    assert_eq!(device.token.map(|(token, _)| token), Some(hash(19)));
    assert_eq!(device.previous.map(|previous| previous.token), Some(hash(18)));
}

/// Once a revocation is answered, a check that begins finds no token, however many checks went on
/// before.
pub async fn no_check_that_begins_after_a_revocation_finds_a_token(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 1_000)).await.expect("the key is right");
    let is_revoked = Arc::new(AtomicBool::new(false));
    let checks = Arc::new(AtomicU64::new(0));
    race(&store, 4, move |store, number| {
        let (is_revoked, checks) = (Arc::clone(&is_revoked), Arc::clone(&checks));
        async move { check_until_revoked(&store, number, &is_revoked, &checks).await }
    })
    .await;
}

/// Task number 0 revokes while the others check.
async fn check_until_revoked(
    store: &Arc<dyn Store>,
    number: u64,
    is_revoked: &AtomicBool,
    checks: &AtomicU64,
) {
    if number == 0 {
        while checks.load(Ordering::SeqCst) < 50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(revoke(store, "a").await, Revoked::Now);
        is_revoked.store(true, Ordering::SeqCst);
        return;
    }
    loop {
        let is_over = is_revoked.load(Ordering::SeqCst);
        let holder = check(store, 1_000, NOW).await;
        checks.fetch_add(1, Ordering::SeqCst);
        if is_over {
            assert_eq!(holder, None);
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Batches with the same devices in opposite orders neither wait for each other for ever nor lose
/// anything.
pub async fn writers_of_many_devices_do_not_disturb_each_other(make: &impl Make) {
    let names: Vec<String> = (0..50).map(|number| format!("d{number}")).collect();
    let devices: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let store = with(make, &devices).await;
    race(&store, 8, |store, writer| async move {
        let wishes = (0..50).map(|number| {
            let device = if writer % 2 == 0 { number } else { 49 - number };
            activation(&format!("d{device}"), 1, writer * 50 + number)
        });
        let answers = store.issue(wishes.collect()).await.expect("the store answers");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    })
    .await;
    for name in &names {
        assert_eq!(find(&store, name).await.generation, 8, "{name}");
    }
    let checks = (0..400).map(hash).collect();
    let holders = store.check(checks, NOW).await.expect("the store answers");
    assert_eq!(holders.iter().flatten().count(), 100, "two of each device");
}

/// Checks that `expected` requests succeeded, and that only their tokens are valid.
async fn check_winners(
    store: &Arc<dyn Store>,
    results: &[Result<Issued, Refusal>],
    expected: usize,
) {
    let winners = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(winners, expected, "{results:?}");
    for (number, result) in (0..).zip(results) {
        let is_valid = check(store, number, NOW).await.is_some();
        assert_eq!(is_valid, result.is_ok(), "{number}: {result:?}");
        if let Err(refusal) = result {
            assert_eq!(*refusal, Refusal::InvalidToken);
        }
    }
}

/// Begins the same work in many tasks at once. Returns their results in order.
async fn race<T, F>(
    store: &Arc<dyn Store>,
    tasks: u64,
    run: impl Fn(Arc<dyn Store>, u64) -> F,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(Barrier::new(usize::try_from(tasks).expect("few tasks")));
    let tasks: Vec<_> = (0..tasks)
        .map(|number| {
            let (start, run) = (Arc::clone(&start), run(Arc::clone(store), number));
            tokio::spawn(async move {
                start.wait().await;
                run.await
            })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("no task panics"));
    }
    results
}
