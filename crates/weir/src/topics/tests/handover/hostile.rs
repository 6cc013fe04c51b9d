//! Exports that no router has made.

use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1 as export;

use super::*;

/// An export with a bit of everything.
fn full() -> export::Topics {
    let mut player = Player::new(&twin::config());
    for (place, name) in ["plain", "ring", "tick", "both", "who", "rate"].into_iter().enumerate() {
        for number in 0..4 {
            player.subscribe(player.conn(number), name, None, place % 2 == 0);
        }
        player.rest();
        for key in ["", "a", "b"] {
            player.publish(name, key).unwrap();
        }
    }
    player.rest();
    let epoch = player.router.epoch("ring").unwrap();
    let position = Some(Position { epoch, offset: 0 });
    player.subscribe(conn(2, 8), "ring", position, false);
    player.rest();
    player.unsubscribe(conn(0, 0), "who");
    player.subscribe(conn(0, 0), "other", None, false);
    player.rest();
    player.close(conn(0, 0));
    sent(&player.router)
}

fn import(export: export::Topics) -> Result<(), NotUnderstood> {
    let player = Player::new(&twin::config());
    let mut rings = EarlyRings::new(&player.budget);
    player.router.import(export, &mut rings).map(|_| ())
}

/// The parts of retained messages that are sent early.
fn early() -> Vec<Vec<u8>> {
    let mut player = Player::new(&twin::config());
    for _ in 0..4 {
        for name in ["ring", "both"] {
            player.publish(name, "").unwrap();
        }
        player.rest();
    }
    player.send_early();
    player.early.1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn garbled_early_parts_are_an_error_and_no_panic(
        place in any::<proptest::sample::Index>(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut parts = early();
        let part = place.index(parts.len() - 1);
        for (index, byte) in changes {
            let place = index.index(parts[part].len());
            parts[part][place] = byte;
        }
        let budget = Budget::new(1 << 20);
        let mut rings = EarlyRings::new(&budget);
        let _ = parts.iter().try_for_each(|part| rings.take(part).map(|_| ()));
        drop(rings);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn garbled_bytes_are_an_error_and_no_panic(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut bytes = full().encode_to_vec();
        for (index, byte) in changes {
            let place = index.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(export) = export::Topics::decode(&*bytes) {
            let _ = import(export);
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    type Spoil = fn(&mut export::Topics);
    let cases: [(&str, Spoil); 19] = [
        ("the number of a message", |export| {
            export.messages.pop();
        }),
        ("topics.classes", |export| export.classes = None),
        ("topic.class", |export| export.topics[0].class = 99),
        ("topic.epoch", |export| export.topics[0].epoch = 0),
        ("topic.offset", |export| export.topics[0].offset = u64::MAX),
        ("topic.name", |export| export.topics[0].name.clear()),
        ("topic.name", |export| export.topics[0].name = "ring".to_owned()),
        ("topic.members", |export| export.topics[0].members.push(1)),
        ("topic.members", |export| export.topics[0].members.extend([9, 1])),
        ("topic.members", |export| export.topics[0].members = vec![0, u32::MAX]),
        ("topic.formats", |export| export.topics[0].formats = 1),
        ("topic_ids.used", |export| export.ids.as_mut().unwrap().used = u32::MAX),
        ("topic_ids.used", |export| export.ids.as_mut().unwrap().free.push(0)),
        ("topic_ids.used", |export| export.topics[0].id = 70_000),
        ("topic_ids.waiting", |export| export.ids.as_mut().unwrap().waiting = vec![0, 0]),
        ("topic_resume.connection", |export| export.resumes[0].connection = u64::MAX),
        ("topic_resume.topic", |export| export.resumes[0].topic = 70_000),
        ("topic_resume.outcome", |export| export.resumes[0].outcome = 3),
        ("topic_class_number.number", |export| {
            export.classes.as_mut().unwrap().numbers[0].number = 70_000;
        }),
    ];
    let sound = full();
    assert_eq!(import(sound.clone()), Ok(()));
    for (field, spoil) in cases {
        let mut spoiled = sound.clone();
        spoil(&mut spoiled);
        let refused = import(spoiled).map_err(|error| error.field);
        assert_eq!(refused, Err(field));
    }
    let mut of_presence = sound.clone();
    let presence =
        of_presence.topics.iter_mut().find_map(|topic| topic.extra.as_mut()?.presence.as_mut());
    let presence = presence.unwrap();
    presence.present.push(presence.present[0].clone());
    let refused = import(of_presence).map_err(|error| error.field);
    assert_eq!(refused, Err("topic_presence.present"));
    let mut of_early = sound.clone();
    let ring = of_early.topics.iter_mut().find_map(|topic| topic.extra.as_mut()?.ring.as_mut());
    ring.unwrap().early = 1;
    assert_eq!(import(of_early).map_err(|error| error.field), Err("topic_ring.early"));
    let mut of_ring = sound;
    let ring = of_ring.topics.iter_mut().find_map(|topic| topic.extra.as_mut()?.ring.as_mut());
    ring.unwrap().messages.reverse();
    assert_eq!(import(of_ring).map_err(|error| error.field), Err("topic_ring.messages"));
}
