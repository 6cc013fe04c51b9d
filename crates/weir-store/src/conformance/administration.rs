//! Promises about importing, revoking, listing and counting devices.

use super::{
    DAY, GRACE, Make, NOW, activation, check, entry, find, issue, key, list, many, map, put,
    refresh, revoke, serial, with,
};
use crate::records::{Device, Page, Put, Refusal, Revoked, State};

/// Imported devices are stored as they came.
pub async fn devices_are_added_and_found(make: &impl Make) {
    let store = make().await;
    let labels = [("colour", "green"), ("site", "7")];
    let entries = vec![entry("b", 2, &labels), entry("a", 1, &[])];
    assert_eq!(many(store.put(entries.clone(), NOW), 2).await, [Put::Added, Put::Added]);
    let serials = ["a", "gone", "b"].map(serial).to_vec();
    let found = many(store.find(serials), 3).await;
    let expected: Vec<_> = entries.into_iter().map(|entry| Device::new(entry, NOW)).collect();
    assert_eq!(found, [Some(expected[1].clone()), None, Some(expected[0].clone())]);
}

/// An import reports its effect: nothing, new labels, or a new key, which changes everything.
pub async fn an_import_is_repeated_with_changes(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    let before = find(&store, "a").await;

    assert_eq!(put(&store, entry("a", 1, &[])).await, Put::Unchanged);
    assert_eq!(find(&store, "a").await, before);

    let labels = [("site", "8")];
    assert_eq!(put(&store, entry("a", 1, &labels)).await, Put::Relabelled);
    assert_eq!(find(&store, "a").await, Device { labels: map(&labels), ..before.clone() });
    let holder = check(&store, 10, NOW).await.expect("labels end no token");
    assert_eq!(holder.labels, map(&labels));
    assert_eq!(put(&store, entry("a", 1, &labels)).await, Put::Unchanged);

    assert_eq!(put(&store, entry("a", 2, &[])).await, Put::Rekeyed);
    let rekeyed = find(&store, "a").await;
    assert!(rekeyed.generation > before.generation);
    assert_eq!(
        rekeyed,
        Device {
            key: key(2),
            state: State::New,
            generation: rekeyed.generation,
            token: None,
            previous: None,
            ..before
        }
    );
    assert_eq!(check(&store, 10, NOW).await, None);
    assert_eq!(issue(&store, refresh(10, 11)).await, Err(Refusal::InvalidToken));
    assert_eq!(issue(&store, activation("a", 1, 11)).await, Err(Refusal::WrongKey));
    let issued = issue(&store, activation("a", 2, 11)).await.expect("the new key is right");
    assert!(issued.generation > rekeyed.generation && !issued.is_first);
}

/// A revoked device stays revoked when it is imported again, unless its key has changed.
pub async fn a_revoked_device_comes_back_by_a_new_key_alone(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    assert_eq!(revoke(&store, "a").await, Revoked::Now);
    assert_eq!(put(&store, entry("a", 1, &[])).await, Put::Unchanged);
    assert_eq!(put(&store, entry("a", 1, &[("b", "c")])).await, Put::Relabelled);
    assert_eq!(find(&store, "a").await.state, State::Revoked);
    assert_eq!(issue(&store, activation("a", 1, 11)).await, Err(Refusal::Revoked));
    assert_eq!(put(&store, entry("a", 2, &[])).await, Put::Rekeyed);
    assert_eq!(find(&store, "a").await.state, State::New);
    assert_eq!(check(&store, 10, NOW).await, None, "a revoked token never comes back");
    issue(&store, activation("a", 2, 12)).await.expect("the new key is right");
    assert_eq!(check(&store, 10, NOW).await, None, "a revoked token never comes back");
    assert!(check(&store, 12, NOW).await.is_some());
}

/// If a serial number occurs several times in one import, all its items take effect, in their
/// order.
pub async fn items_of_an_import_take_effect_in_their_order(make: &impl Make) {
    let store = make().await;
    let labels = [("a", "b")];
    let entries = vec![
        entry("a", 1, &[]),
        entry("b", 1, &[]),
        entry("a", 1, &labels),
        entry("a", 1, &labels),
        entry("a", 2, &labels),
        entry("a", 1, &[]),
        entry("b", 1, &[]),
    ];
    let expected = [
        Put::Added,
        Put::Added,
        Put::Relabelled,
        Put::Unchanged,
        Put::Rekeyed,
        Put::Rekeyed,
        Put::Unchanged,
    ];
    assert_eq!(many(store.put(entries, NOW), 7).await, expected);
    let device = find(&store, "a").await;
    assert_eq!((device.key, device.labels), (key(1), map(&[])));
}

/// A revocation tells a first one from a repeated one and from one of an unknown device, also
/// within a batch.
pub async fn a_revocation_says_what_it_found(make: &impl Make) {
    let store = with(make, &[("a", 1), ("b", 1)]).await;
    let serials = ["a", "gone", "a", "b"].map(serial).to_vec();
    let expected = [Revoked::Now, Revoked::Unknown, Revoked::Before, Revoked::Now];
    assert_eq!(many(store.revoke(serials), 4).await, expected);
    assert_eq!(revoke(&store, "b").await, Revoked::Before);
    assert_eq!(find(&store, "a").await.state, State::Revoked);
}

/// A revoked device can use neither its tokens nor its key.
pub async fn a_revocation_ends_everything(make: &impl Make) {
    let store = with(make, &[("a", 1), ("b", 1)]).await;
    let before = issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    issue(&store, activation("a", 1, 11)).await.expect("the key is right");
    issue(&store, activation("b", 1, 20)).await.expect("the key is right");
    assert_eq!(revoke(&store, "a").await, Revoked::Now);
    for token in [10, 11] {
        assert_eq!(check(&store, token, NOW).await, None);
        // The refusal depends on whether the token still leads to the device.
        let refused = issue(&store, refresh(token, 12)).await.expect_err("it is shut out");
        assert!(matches!(refused, Refusal::Revoked | Refusal::InvalidToken), "{refused:?}");
    }
    assert_eq!(issue(&store, activation("a", 1, 12)).await, Err(Refusal::Revoked));
    assert_eq!(check(&store, 12, NOW).await, None);
    let device = find(&store, "a").await;
    assert!(device.generation > before.generation + 1, "an issue and a revocation");
    assert!(device.activated.is_some(), "the first activation is not forgotten");
    assert!(check(&store, 20, NOW).await.is_some(), "others are not concerned");
}

/// Pages follow each other without gaps or repetition, whatever their size.
pub async fn devices_are_listed_in_pages(make: &impl Make) {
    let store = make().await;
    assert_eq!(list(&store, None, 10).await, [""; 0]);
    let mut names: Vec<String> = (0..57).map(|number| format!("d{}", number * 37 % 101)).collect();
    let entries: Vec<_> = names.iter().map(|name| entry(name, 1, &[("n", name)])).collect();
    many(store.put(entries, NOW), 57).await;
    names.sort();
    for limit in [1, 7, 56, 57, 58, 10_000] {
        let mut listed: Vec<String> = Vec::new();
        loop {
            let after = listed.last().cloned();
            let page = list(&store, after.as_deref(), limit).await;
            assert!(page.len() <= limit, "{} of {limit}", page.len());
            if page.is_empty() {
                break;
            }
            listed.extend(page);
        }
        assert_eq!(listed, names, "in pages of {limit}");
    }
    let page = store.list(Page { after: None, limit: 1 }).await.expect("the store answers");
    assert_eq!(page, [find(&store, &names[0]).await], "whole records are listed");
}

/// The serial number that a page begins after need not exist.
pub async fn a_page_begins_behind_any_serial(make: &impl Make) {
    let store = with(make, &[("b", 1), ("d", 1), ("d1", 1)]).await;
    assert_eq!(list(&store, Some("a"), 10).await, ["b", "d", "d1"]);
    assert_eq!(list(&store, Some("c"), 10).await, ["d", "d1"]);
    assert_eq!(list(&store, Some("d0"), 1).await, ["d1"]);
    assert_eq!(list(&store, Some("d1"), 10).await, [""; 0]);
    revoke(&store, "b").await;
    assert_eq!(list(&store, None, 1).await, ["b"], "the revoked are listed too");
}

/// The store keeps the time of the last connection, in whatever order it is told, and changes
/// nothing else.
pub async fn seen_never_falls(make: &impl Make) {
    let store = with(make, &[("a", 1), ("b", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    let before = find(&store, "a").await;
    assert_eq!(before.seen, None);
    let at = NOW + 1_000;
    for seen in [
        vec![("a", at)],
        vec![("a", at - 1), ("gone", at), ("b", at - 5)],
        vec![("b", at - 7), ("b", at - 3), ("b", at - 4)],
        vec![],
    ] {
        let seen = seen.into_iter().map(|(name, at)| (serial(name), at)).collect();
        store.seen(seen).await.expect("the store answers");
    }
    assert_eq!(find(&store, "a").await, Device { seen: Some(at), ..before });
    assert_eq!(find(&store, "b").await.seen, Some(at - 3));
    assert!(check(&store, 10, NOW + DAY - 1).await.is_some());
    let gone = many(store.find(vec![serial("gone")]), 1).await;
    assert_eq!(gone, [None], "a connection makes no device");
    issue(&store, activation("a", 1, 11)).await.expect("the key is right");
    assert!(check(&store, 10, NOW + GRACE - 1).await.is_some());
    assert_eq!(find(&store, "a").await.seen, Some(at));
}

/// The count is one of the last minute.
pub async fn devices_are_counted(make: &impl Make) {
    let store = make().await;
    assert_eq!(store.count().await, Ok(0));
    let entries: Vec<_> = (0..100).map(|number| entry(&format!("d{number}"), 1, &[])).collect();
    many(store.put(entries.clone(), NOW), 100).await;
    many(store.put(entries, NOW), 100).await;
    assert!(store.count().await.expect("the store answers") <= 100);
}
