//! Tests of a topic's history.

use super::*;

/// The epoch relative to the topic's, and the offset; then the limits of the request.
fn look(
    router: &Router,
    after: Option<(u64, u64)>,
    (messages_max, bytes_max): (usize, usize),
) -> (bool, bool, Vec<u64>) {
    let epoch = router.epoch("t").unwrap();
    let after = after.map(|(other, offset)| Position { epoch: epoch ^ other, offset });
    let range = Range { after, messages_max, bytes_max };
    let Found::Here(history) = router.history("t", range) else { panic!("it is not here") };
    assert_eq!((history.epoch, history.sent), (epoch, 7));
    let offsets = history.messages.iter().map(|message| message.offset()).collect();
    (history.recovered, history.is_all, offsets)
}

#[test]
fn what_is_kept_can_be_looked_at_in_parts() {
    let class =
        TopicClass { pattern: "t*".to_owned(), retention_messages: 5, ..TopicClass::default() };
    let (router, _shards) = world_of(&config_of(class), 1, 64);
    let budget = Arc::clone(&router.budget);
    let range = Range { after: None, messages_max: 9, bytes_max: 1000 };
    assert!(matches!(router.history("t", range), Found::Nowhere));
    for _ in 0..7 {
        publish(&router, &budget, "t").unwrap().unwrap();
    }
    for (after, limits, recovered, is_all, expected) in [
        (None, (9, 1000), false, true, &[3, 4, 5, 6, 7][..]),
        (None, (2, 1000), false, false, &[3, 4]),
        (Some((0, 4)), (2, 1000), true, false, &[5, 6]),
        (Some((0, 6)), (2, 1000), true, true, &[7]),
        (Some((0, 7)), (2, 1000), true, true, &[]),
        (Some((0, 2)), (9, 1000), true, true, &[3, 4, 5, 6, 7]),
        // Messages after this position have been removed, or never existed.
        (Some((0, 1)), (1, 1000), false, false, &[3]),
        (Some((0, 8)), (1, 1000), false, false, &[3]),
        (Some((1, 7)), (1, 1000), false, false, &[3]),
        // At least one message comes, however long it is.
        (None, (9, 1), false, false, &[3]),
    ] {
        let expected = (recovered, is_all, expected.to_vec());
        assert_eq!(look(&router, after, limits), expected, "{after:?} {limits:?}");
    }
}
