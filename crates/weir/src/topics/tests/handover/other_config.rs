//! A router that another process takes over with another configuration.

use super::*;

fn class(pattern: &str) -> TopicClass {
    TopicClass { pattern: pattern.to_owned(), ..TopicClass::default() }
}

/// A player whose topics `a`, `b` and `c` have these classes, one member each and three messages.
fn player(classes: [TopicClass; 3]) -> Player {
    let mut player = Player::new(&Config { topic_classes: classes.into(), ..Config::default() });
    for name in ["a", "b", "c"] {
        assert_eq!(player.subscribe(conn(1, 1), name, None, false), Some(Ok(())));
        player.rest();
        for _ in 0..3 {
            player.publish(name, "").unwrap();
        }
    }
    player.rest();
    player.heard.clear();
    player
}

#[test]
fn classes_keep_their_numbers_and_topics_what_they_have_state_for() {
    let presence = TopicClass { presence: true, ..class("b") };
    let kept = TopicClass { retention_messages: 3, ..class("a") };
    let mut player = player([kept.clone(), presence, class("c")]);
    let number = |player: &Player, name: &str| player.router.find(name).unwrap().class().number;
    let numbers = |player: &Player| ["a", "b", "c"].map(|name| number(player, name));
    assert_eq!(numbers(&player), [1, 2, 3]);
    let retained = player.budget.messages(1, weir_engine::MessagePlace::Retained);
    // Other names, another order.
    player.config.topic_classes = vec![class("new"), class("b"), kept];
    let changed = player.hand_over();
    assert_eq!((numbers(&player), changed.len()), ([1, 2, 4], 0));
    assert_eq!(player.budget.messages(1, weir_engine::MessagePlace::Retained), retained);
    assert!(player.router.find("b").unwrap().class().presence);
    assert_eq!(player.router.members("b", None, 9).connections, 1);
    let patterns: Vec<(u16, String)> = player
        .router
        .class_patterns()
        .into_iter()
        .filter_map(|(number, pattern)| Some((number, pattern?)))
        .collect();
    let expected = [(1, "a"), (2, "b"), (3, "c"), (4, "*"), (5, "new")];
    assert_eq!(patterns, expected.map(|(number, pattern)| (number, pattern.to_owned())));
    player.end();
}

#[test]
fn what_a_class_loses_goes_and_what_it_gets_begins() {
    let long = Duration::from_secs(1000);
    let tick = TopicClass { tick: long, ..class("b") };
    let kept = TopicClass { retention_messages: 3, ..class("a") };
    let mut player = player([kept, tick, class("c")]);
    let ids = ["a", "b", "c"].map(|name| player.router.id(name).unwrap());
    let kept = TopicClass { retention_messages: 2, ..class("c") };
    player.config.topic_classes = vec![TopicClass { tick: long, ..class("a") }, kept];
    player.hand_over();
    assert_eq!((player.router.retained.messages(), player.router.retained.bytes()), (0, 0));
    // What was gathered leaves although the class has no tick any more.
    assert!(player.router.end_ticks());
    player.rest();
    assert_eq!(player.heard, [format!("1 {:?} [1, 2, 3]", ids[1])]);
    for name in ["a", "b", "c"] {
        assert_eq!(player.publish(name, "").map(|routed| routed.unwrap().offset), Ok(4));
    }
    player.rest();
    let told = [1, 2].map(|place| format!("1 {:?} [4]", ids[place]));
    assert_eq!(player.heard[1..], told, "a waits for its tick");
    assert_eq!(player.router.retained.messages(), 1);
    player.end();
}

#[test]
fn smaller_limits_and_other_rights() {
    let kept = |messages| TopicClass { retention_messages: messages, ..class("a") };
    let mut player = player([kept(3), class("b"), class("c")]);
    let id = player.router.id("b").unwrap();
    player.config.limits.topics_max = 1;
    player.config.topic_classes = vec![
        kept(1),
        TopicClass { subscribe: vec![crate::base::config::Actor::Devices], ..class("b") },
        class("c"),
    ];
    if player.router.find("b").unwrap().class().subscribe == [crate::base::config::Actor::Devices] {
        player.config.topic_classes[1].subscribe.clear();
    }
    assert_eq!(player.hand_over(), std::collections::HashSet::from([id]));
    assert_eq!((player.router.topic_count(), player.router.retained.messages()), (3, 1));
    let refused = player.subscribe(conn(0, 0), "d", None, false);
    assert_eq!(refused, Some(Err(SubscribeError::TooManyTopics)));
    player.end();
}
