//! Promises about issuing tokens and checking them.

use super::{
    DAY, GRACE, Make, NOW, activation, check, entry, find, hash, issue, key, many, map, put,
    refresh, revoke, serial, wanted, with,
};
use crate::records::{Holder, Issued, Previous, Proof, Refusal, State};

/// A device that shows its key gets a token, and the token leads to the device.
pub async fn a_key_gives_a_token(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    put(&store, entry("a", 1, &[("site", "7")])).await;
    let first = issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    assert_eq!(first, Issued { serial: serial("a"), generation: first.generation, is_first: true });
    let holder = Holder {
        serial: serial("a"),
        labels: map(&[("site", "7")]),
        generation: first.generation,
        expires: NOW + DAY,
    };
    assert_eq!(check(&store, 10, NOW).await, Some(holder));
    let device = find(&store, "a").await;
    assert_eq!(device.state, State::Active);
    assert_eq!(device.activated, Some(NOW));
    assert_eq!(device.token, Some((hash(10), NOW + DAY)));
    assert_eq!((device.previous, device.generation), (None, first.generation));

    let again = wanted(Proof::Key { serial: serial("a"), key: key(1) }, 11, NOW + 5);
    let second = issue(&store, again).await.expect("the key is right");
    assert!(second.generation > first.generation && !second.is_first);
    let device = find(&store, "a").await;
    assert_eq!(device.activated, Some(NOW), "the first time counts");
    assert_eq!(device.token, Some((hash(11), NOW + 5 + DAY)));
    let until = NOW + 5 + GRACE;
    assert_eq!(device.previous, Some(Previous { token: hash(10), until }));
}

/// Each refusal has its reason, and changes nothing.
pub async fn refusals_have_their_reasons(make: &impl Make) {
    let store = with(make, &[("a", 1), ("b", 2), ("c", 3)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    revoke(&store, "c").await;
    let before = (find(&store, "a").await, find(&store, "b").await, find(&store, "c").await);
    let cases = [
        (activation("gone", 1, 11), Refusal::UnknownDevice),
        (activation("a", 2, 11), Refusal::WrongKey),
        (activation("b", 1, 11), Refusal::WrongKey),
        (activation("c", 3, 11), Refusal::Revoked),
        (refresh(99, 11), Refusal::InvalidToken),
        // The hash of a key is no token.
        (wanted(Proof::Token(key(1)), 11, NOW), Refusal::InvalidToken),
        (wanted(Proof::Token(hash(10)), 11, NOW + DAY), Refusal::InvalidToken),
    ];
    for (wish, refusal) in cases {
        assert_eq!(issue(&store, wish.clone()).await, Err(refusal), "{wish:?}");
        assert_eq!(check(&store, 11, NOW).await, None, "{wish:?}");
    }
    let after = (find(&store, "a").await, find(&store, "b").await, find(&store, "c").await);
    assert_eq!(after, before);
    // A revoked device is refused, whatever key it shows.
    let refused = issue(&store, activation("c", 1, 11)).await.expect_err("it is shut out");
    assert!(matches!(refused, Refusal::Revoked | Refusal::WrongKey), "{refused:?}");
}

/// A refusal in the middle of a batch affects no other item, and answers are in the order of the
/// items.
pub async fn every_item_has_its_own_answer(make: &impl Make) {
    let names: Vec<String> = (0..64).map(|number| format!("d{number}")).collect();
    let devices: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let store = with(make, &devices).await;
    let wishes = (0..).zip(&names).map(|(number, name)| {
        let key_number = if number % 3 == 0 { 2 } else { 1 };
        let name = if number % 5 == 0 { "gone" } else { name.as_str() };
        activation(name, key_number, 1_000 + number)
    });
    let answers = many(store.issue(wishes.collect()), 64).await;
    let checks = (0..64).map(|number| hash(1_000 + number)).collect();
    let holders = many(store.check(checks, NOW), 64).await;
    for (number, (answer, holder)) in answers.into_iter().zip(holders).enumerate() {
        let serial = serial(&names[number]);
        match answer {
            Err(refusal) => {
                let unknown = number % 5 == 0;
                let expected = if unknown { Refusal::UnknownDevice } else { Refusal::WrongKey };
                assert!(unknown || number % 3 == 0, "{number}: {refusal:?}");
                assert_eq!((refusal, holder), (expected, None), "{number}");
            }
            Ok(issued) => {
                assert!(number % 5 != 0 && number % 3 != 0, "{number}: {issued:?}");
                assert_eq!(issued.serial, serial);
                assert_eq!(holder.map(|holder| holder.serial), Some(serial));
            }
        }
    }
}

/// Items of one batch for one device take effect in their order: each one sees the effects of those
/// before it.
pub async fn items_for_one_device_take_effect_in_their_order(make: &impl Make) {
    let store = with(make, &[("a", 1), ("b", 1)]).await;
    let wishes = vec![
        activation("a", 1, 10),
        activation("b", 1, 20),
        refresh(10, 11),
        // During its grace.
        refresh(10, 12),
        // No longer valid: 11 is the token before 12.
        refresh(10, 13),
        activation("a", 2, 14),
        refresh(11, 15),
        activation("b", 1, 21),
    ];
    let answers = many(store.issue(wishes), 8).await;
    let outcomes: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().map(|issued| issued.is_first)).collect();
    let invalid = Err(&Refusal::InvalidToken);
    let wrong = Err(&Refusal::WrongKey);
    assert_eq!(
        outcomes,
        [Ok(true), Ok(true), Ok(false), Ok(false), invalid, wrong, Ok(false), Ok(false)]
    );
    let generations = |indices: &[usize]| -> Vec<u64> {
        indices.iter().map(|i| answers[*i].as_ref().map_or(0, |issued| issued.generation)).collect()
    };
    assert!(generations(&[0, 2, 3, 6]).is_sorted_by(|a, b| a < b), "{answers:?}");
    assert!(generations(&[1, 7]).is_sorted_by(|a, b| a < b), "{answers:?}");
    let device = find(&store, "a").await;
    assert_eq!(device.token.map(|(token, _)| token), Some(hash(15)));
    assert_eq!(device.previous.map(|previous| previous.token), Some(hash(12)));
    assert_eq!(device.generation, generations(&[6])[0]);
    for (token, valid) in
        [(10, false), (11, false), (12, true), (13, false), (14, false), (15, true), (20, true)]
    {
        assert_eq!(check(&store, token, NOW).await.is_some(), valid, "{token}");
    }
}

/// A batch of checks may contain any tokens, also twice.
pub async fn checks_answer_in_their_order(make: &impl Make) {
    let store = with(make, &[("a", 1), ("b", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    issue(&store, activation("b", 1, 20)).await.expect("the key is right");
    let asked = [20, 99, 10, 20, 98, 10].map(hash).to_vec();
    let holders = many(store.check(asked, NOW), 6).await;
    let names: Vec<_> =
        holders.iter().map(|holder| holder.as_ref().map(|holder| holder.serial.as_str())).collect();
    assert_eq!(names, [Some("b"), None, Some("a"), Some("b"), None, Some("a")]);
}

/// A check returns the holder as it is now, whatever was known before.
pub async fn a_holder_is_as_its_device_is_now(make: &impl Make) {
    let store = with(make, &[("a", 1)]).await;
    issue(&store, activation("a", 1, 10)).await.expect("the key is right");
    assert!(check(&store, 10, NOW).await.is_some());
    let issued = issue(&store, refresh(10, 11)).await.expect("the token is valid");
    let before = check(&store, 10, NOW).await.expect("it is in its time of grace");
    assert_eq!((before.generation, before.expires), (issued.generation, NOW + GRACE));
    let holder = check(&store, 11, NOW).await.expect("it is the last one");
    assert_eq!((holder.generation, holder.expires), (issued.generation, NOW + DAY));
    assert_eq!(check(&store, 11, NOW).await, Some(holder), "asking changes nothing");
    put(&store, entry("a", 2, &[])).await;
    assert_eq!(check(&store, 11, NOW).await, None);
}
