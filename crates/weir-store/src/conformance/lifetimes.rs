//! Promises about how long tokens are valid, and about removing ended ones.

use std::sync::Arc;

use super::{
    DAY, GRACE, Make, NOW, activation, check, find, hash, issue, key, many, refresh, revoke,
    serial, wanted, with,
};
use crate::contract::Store;
use crate::records::{Device, Holder, Issue, Millis, Page, Proof, Refusal};

/// A token is valid before its end, and not at its end.
pub async fn a_token_ends_when_it_ends(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    assert!(check(&store, 10, NOW + DAY - 1).await.is_some());
    assert_eq!(check(&store, 10, NOW + DAY).await, None);
    let late = wanted(Proof::Token(hash(10)), 11, NOW + DAY);
    assert_eq!(issue(&store, late).await, Err(Refusal::InvalidToken));
    // The key still works, but the ended token does not become the previous token.
    let again = wanted(Proof::Key { serial: serial("a"), key: key(1) }, 12, NOW + DAY);
    issue(&store, again).await.expect("the key is right");
    assert_eq!(check(&store, 10, NOW + DAY).await, None);
    assert_eq!(find(&store, "a").await.previous, None);
    // A token that ends when it begins is never valid.
    let short =
        Issue { expires: NOW + DAY + 9, ..wanted(Proof::Token(hash(12)), 13, NOW + DAY + 9) };
    issue(&store, short).await.expect("the token is valid");
    assert_eq!(check(&store, 13, NOW + DAY + 9).await, None);
}

/// After a new token, the previous token is valid until its grace is over.
pub async fn the_token_before_has_its_time_of_grace(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    issue(&store, activation("a", 1, 11)).await.expect("the key is right");
    let holder = check(&store, 10, NOW + GRACE - 1).await.expect("it is in its time of grace");
    assert_eq!(holder.expires, NOW + GRACE);
    assert_eq!(check(&store, 10, NOW + GRACE).await, None);
    assert!(check(&store, 11, NOW + GRACE).await.is_some());
    // Without grace it ends at once.
    let hard = Issue { grace_until: NOW, ..activation("a", 1, 12) };
    issue(&store, hard).await.expect("the key is right");
    assert_eq!(check(&store, 11, NOW).await, None);
    assert_eq!(check(&store, 10, NOW).await, None, "two tokens followed it");
    assert!(check(&store, 12, NOW).await.is_some());
}

/// Grace ends no later than the token itself.
pub async fn grace_prolongs_nothing(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    let short = Issue { expires: NOW + 10, ..activation("a", 1, 10) };
    issue(&store, short).await.expect("the key is right");
    issue(&store, activation("a", 1, 11)).await.expect("the key is right");
    let holder = check(&store, 10, NOW + 9).await.expect("it has not ended");
    assert_eq!(holder.expires, NOW + 10);
    assert_eq!(check(&store, 10, NOW + 10).await, None);
}

/// However often a device activates, only its last two tokens are valid.
pub async fn two_tokens_are_valid_at_most(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    for token in 10..20 {
        issue(&store, activation("a", 1, token)).await.expect("the key is right");
        for earlier in 10..=token {
            let valid = check(&store, earlier, NOW).await.is_some();
            assert_eq!(valid, earlier + 2 > token, "{earlier} after {token}");
        }
    }
}

/// A refresh needs no key, and gives the same grace as an activation.
pub async fn a_token_gives_the_next_one(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    let issued = issue(&store, refresh(10, 11)).await.expect("the token is valid");
    assert_eq!((issued.serial, issued.is_first), (serial("a"), false));
    assert!(check(&store, 11, NOW + DAY - 1).await.is_some());
    assert!(check(&store, 10, NOW + GRACE - 1).await.is_some());
    assert_eq!(check(&store, 10, NOW + GRACE).await, None);
}

/// A device that lost the answer to a refresh may repeat it with its old token. That ends the lost
/// token.
pub async fn a_token_in_grace_gives_the_next_one(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    issue(&store, refresh(10, 11)).await.expect("the token is valid");
    let late = wanted(Proof::Token(hash(10)), 12, NOW + GRACE);
    assert_eq!(issue(&store, late).await, Err(Refusal::InvalidToken));
    let repeated = wanted(Proof::Token(hash(10)), 12, NOW + GRACE - 1);
    issue(&store, repeated).await.expect("the token is in its time of grace");
    for (token, valid) in [(10, false), (11, true), (12, true)] {
        assert_eq!(check(&store, token, NOW + GRACE - 1).await.is_some(), valid, "{token}");
    }
    assert_eq!(issue(&store, refresh(10, 13)).await, Err(Refusal::InvalidToken));
}

/// Removing ended tokens changes no other answer.
pub async fn sweeping_changes_nothing(make: &impl Make) {
    let store = with(make, &[("a", 1), ("b", 1), ("c", 1), ("d", 1)]).await;
    let short = |name, token| Issue { expires: NOW + 10, ..activation(name, 1, token) };
    let wishes = vec![
        short("a", 10),
        // Issued with a token that ends first.
        refresh(10, 11),
        activation("b", 1, 20),
        activation("b", 1, 21),
        activation("b", 1, 22),
        short("c", 30),
        activation("d", 1, 40),
    ];
    for answer in many(store.issue(wishes), 7).await {
        answer.expect("the proof is right");
    }
    revoke(&store, "d").await;
    let tokens = [10, 11, 20, 21, 22, 30, 40];
    for now in [NOW, NOW + 9, NOW + 10, NOW + GRACE, NOW + DAY - 1, NOW + DAY, NOW + 9 * DAY] {
        let before = answers(&store, &tokens, now).await;
        store.sweep(now, 3).await.expect("the store answers");
        assert_eq!(answers(&store, &tokens, now).await, before);
        store.sweep(now, 1_000).await.expect("the store answers");
        assert_eq!(answers(&store, &tokens, now).await, before);
    }
    for (name, token) in [("a", 50), ("b", 51), ("c", 52)] {
        issue(&store, activation(name, 1, token)).await.expect("the key is right");
        assert!(check(&store, token, NOW).await.is_some());
    }
}

/// A sweep removes at most its limit, comes to an end, and keeps valid tokens.
pub async fn sweeping_removes_what_has_ended(make: &impl Make) {
    let names: Vec<String> = (0..20).map(|number| format!("d{number}")).collect();
    let devices: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let store = with(make, &devices).await;
    let wishes = (0..).zip(&names).map(|(number, name)| Issue {
        expires: if number < 15 { NOW + 10 } else { NOW + DAY },
        ..activation(name, 1, 100 + number)
    });
    many(store.issue(wishes.collect()), 20).await;
    assert_eq!(store.sweep(NOW + 9, 100).await, Ok(0), "nothing has ended");
    let mut removed = 0;
    for _ in 0..100 {
        let step = store.sweep(NOW + 10, 4).await.expect("the store answers");
        assert!(step <= 4, "{step} of at most 4");
        removed += step;
    }
    assert!(removed <= 15, "{removed} of 15");
    assert_eq!(store.sweep(NOW + 10, 4).await, Ok(0));
    for number in 15..20 {
        assert!(check(&store, 100 + number, NOW + 10).await.is_some(), "{number}");
    }
}

/// All answers of a store at a time, about tokens and about devices.
async fn answers(
    store: &Arc<dyn Store>,
    tokens: &[u64],
    now: Millis,
) -> (Vec<Option<Holder>>, Vec<Device>, u64) {
    let hashes = tokens.iter().map(|token| hash(*token)).collect();
    let devices = store.list(Page { after: None, limit: 100 }).await.expect("the store answers");
    let count = store.count().await.expect("the store answers");
    (many(store.check(hashes, now), tokens.len()).await, devices, count)
}
