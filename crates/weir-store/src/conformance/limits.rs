//! Promises about extremes: sizes of batches, serial numbers, labels, times.

use super::{
    GRACE, Make, NOW, activation, check, entry, find, hash, issue, key, list, many, map, put,
    revoke, serial,
};
use crate::contract::BATCH_MAX;
use crate::records::{Issue, Millis, Page, Proof, Put, Revoked, Serial};

/// An empty batch has an empty answer.
pub async fn batches_may_be_empty(make: &impl Make) {
    let store = make().await;
    assert_eq!(store.put(Vec::new(), NOW).await, Ok(Vec::new()));
    assert_eq!(store.issue(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.check(Vec::new(), NOW).await, Ok(Vec::new()));
    assert_eq!(store.revoke(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.find(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.seen(Vec::new()).await, Ok(()));
    assert_eq!(store.sweep(NOW, 0).await, Ok(0));
}

/// Every method takes a batch of the largest size.
pub async fn batches_may_be_large(make: &impl Make) {
    let store = make().await;
    let names: Vec<String> = (0..BATCH_MAX).map(|number| format!("d{number:05}")).collect();
    let serials = || names.iter().map(|name| serial(name)).collect::<Vec<Serial>>();
    let entries = names.iter().map(|name| entry(name, 1, &[])).collect();
    let puts = many(store.put(entries, NOW), BATCH_MAX).await;
    assert!(puts.iter().all(|put| *put == Put::Added));
    let wishes = (0..).zip(&names).map(|(number, name)| activation(name, 1, number));
    let issued = many(store.issue(wishes.collect()), BATCH_MAX).await;
    assert!(issued.iter().all(Result::is_ok));
    let tokens = (0..BATCH_MAX as u64).map(hash).collect();
    let holders = many(store.check(tokens, NOW), BATCH_MAX).await;
    let holders: Vec<_> = holders.into_iter().flatten().map(|holder| holder.serial).collect();
    assert!(holders == serials(), "all are valid, and in their order");
    store.seen(serials().into_iter().map(|serial| (serial, NOW)).collect()).await.expect("seen");
    let found = many(store.find(serials()), BATCH_MAX).await;
    assert!(found.iter().flatten().filter(|device| device.seen == Some(NOW)).count() == BATCH_MAX);
    let page = Page { after: None, limit: BATCH_MAX };
    assert_eq!(store.list(page).await.expect("the store answers").len(), BATCH_MAX);
    let revoked = many(store.revoke(serials()), BATCH_MAX).await;
    assert!(revoked.iter().all(|revoked| *revoked == Revoked::Now));
    assert!(store.sweep(NOW + 100 * GRACE, BATCH_MAX).await.expect("swept") <= BATCH_MAX);
}

/// Serial numbers that look alike are different devices, and none is changed.
pub async fn serials_are_told_apart_by_their_bytes(make: &impl Make) {
    let store = make().await;
    let names = unlike_serials();
    let entries = (0..).zip(&names).map(|(number, name)| entry(name, number, &[]));
    let puts = many(store.put(entries.collect(), NOW), names.len()).await;
    assert!(puts.iter().all(|put| *put == Put::Added), "{puts:?}");
    for (number, name) in (0..).zip(&names) {
        let issued = issue(&store, activation(name, number, 100 + number)).await;
        let issued = issued.unwrap_or_else(|refusal| panic!("{name:?}: {refusal:?}"));
        assert_eq!(issued.serial.as_str(), name);
        let holder = check(&store, 100 + number, NOW).await.expect("it is valid");
        assert_eq!(holder.serial.as_str(), name);
        let device = find(&store, name).await;
        assert_eq!((device.serial.as_str(), device.key), (name.as_str(), key(number)));
    }
    assert_eq!(revoke(&store, &names[0]).await, Revoked::Now);
    for number in 1..names.len() as u64 {
        assert!(check(&store, 100 + number, NOW).await.is_some(), "{number}");
    }
}

/// A list ignores languages: it is in the order of bytes.
pub async fn serials_are_in_the_order_of_their_bytes(make: &impl Make) {
    let store = make().await;
    let mut names = unlike_serials();
    let entries = names.iter().map(|name| entry(name, 1, &[])).collect();
    many(store.put(entries, NOW), names.len()).await;
    names.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    assert_eq!(list(&store, None, 100).await, names);
    for (index, name) in names.iter().enumerate() {
        assert_eq!(list(&store, Some(name), 100).await, names[index + 1..], "behind {name:?}");
    }
}

/// Labels come back as they were given, whatever they contain.
pub async fn labels_may_be_anything(make: &impl Make) {
    let store = make().await;
    let long = "ü".repeat(5_000);
    let labels = [
        ("", "empty name"),
        ("empty value", ""),
        ("a.b", "dot"),
        ("$set", "dollar"),
        ("$", "."),
        ("_id", "1"),
        ("quotes \"'`\\", "\"'`\\ \0 \n\r\t"),
        ("größe", "数"),
        ("long", long.as_str()),
        ("number", "007"),
        ("true", "null"),
    ];
    assert_eq!(put(&store, entry("a", 1, &labels)).await, Put::Added);
    assert_eq!(find(&store, "a").await.labels, map(&labels));
    assert_eq!(put(&store, entry("a", 1, &labels)).await, Put::Unchanged);
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    let holder = check(&store, 10, NOW).await.expect("it is valid");
    assert_eq!(holder.labels, map(&labels));
    assert_eq!(put(&store, entry("a", 1, &labels[1..])).await, Put::Relabelled);
    assert_eq!(find(&store, "a").await.labels, map(&labels[1..]));
}

/// No time is too early or too late. A token without an end is valid for a very long time.
pub async fn times_may_be_anything(make: &impl Make) {
    let store = make().await;
    assert_eq!(many(store.put(vec![entry("a", 1, &[])], 0), 1).await, [Put::Added]);
    assert_eq!(find(&store, "a").await.created, 0);
    let proof = || Proof::Key { serial: serial("a"), key: key(1) };
    let endless = |token| Issue {
        proof: proof(),
        token: hash(token),
        now: 0,
        expires: Millis::MAX,
        grace_until: Millis::MAX,
    };
    issue(&store, endless(10)).await.expect("the key is right");
    issue(&store, endless(11)).await.expect("the key is right");
    for token in [10, 11] {
        assert!(check(&store, token, 0).await.is_some(), "{token}");
        assert!(check(&store, token, YEAR_9999).await.is_some(), "{token}");
    }
    let ended = Issue { expires: 0, grace_until: 0, ..endless(12) };
    issue(&store, ended).await.expect("the key is right");
    for token in [10, 11, 12] {
        assert_eq!(check(&store, token, 0).await, None, "{token}");
    }
    store.seen(vec![(serial("a"), Millis::MAX)]).await.expect("the store answers");
    assert!(find(&store, "a").await.seen >= Some(YEAR_9999));
    store.sweep(Millis::MAX, 100).await.expect("the store answers");
}

/// Serial numbers that a store may confuse, misread, or put in the wrong order.
fn unlike_serials() -> Vec<String> {
    let mut names: Vec<String> = [
        "a",
        "A",
        "a ",
        " a",
        "ab",
        "a-b",
        "a_b",
        "a.b",
        "a%",
        "%",
        "*",
        "?",
        "a*",
        "$where",
        "_id",
        "'",
        "\"",
        "\\",
        "/",
        "../x",
        "null",
        "0",
        "00",
        "1e3",
        "é",
        "e\u{301}",
        "ß",
        "ss",
        "ı",
        "i",
        "\u{feff}",
        "\u{fffd}",
        "\u{ffff}",
        "\u{10000}",
        "\u{10ffff}",
        "\u{200d}",
        "数",
        "👩‍🚀",
    ]
    .map(str::to_owned)
    .to_vec();
    for length in [Serial::BYTES_MAX - 1, Serial::BYTES_MAX] {
        names.push("z".repeat(length));
    }
    names.push("ü".repeat(Serial::BYTES_MAX / 2));
    names.push("\u{10348}".repeat(Serial::BYTES_MAX / 4));
    names
}

/// The last moment in common representations of time.
const YEAR_9999: Millis = 253_402_300_799_999;
