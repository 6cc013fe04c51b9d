//! Tests of a router that is handed over to another process.

#![expect(clippy::wildcard_enum_match_arm, reason = "whatever else comes is a failure")]

mod cluster;
mod cost;
mod gate;
mod hostile;
mod other_config;
mod player;
mod twin;

use super::*;
use crate::base::model::TopicInfo;
use player::{Player, sent};

#[test]
fn rates_ticks_and_ages_go_on() {
    let kept = TopicClass { retention_messages: 5, ..TopicClass::default() };
    let mut config = config_of(TopicClass { pattern: "kept".to_owned(), ..kept });
    config.topic_classes.push(TopicClass {
        pattern: "rate".to_owned(),
        publishes_per_second: 10,
        publish_burst: 2,
        ..TopicClass::default()
    });
    config.topic_classes.push(TopicClass {
        pattern: "tick".to_owned(),
        tick: Duration::from_secs(1000),
        ..TopicClass::default()
    });
    let mut player = Player::new(&config);
    for name in ["rate", "tick"] {
        assert_eq!(player.subscribe(conn(1, 1), name, None, false), Some(Ok(())));
    }
    player.rest();
    let at = |player: &Player, name: &str, at_ms: u64, expires_at: Option<Nanos>| {
        let offer = Offer { accepted_at: Nanos(at_ms * 1_000_000), ..OFFER };
        player.router.publish(name, player.router.destination(name), offer, |class, place| {
            let made = message(&player.budget, (name, ""), class, place)?;
            let of_topic = class.topic_message(place, 0..0);
            let frame = made.frame().to_vec();
            Message::of_topic(&player.budget, frame, offer.accepted_at, expires_at, of_topic)
        })
    };
    assert!(at(&player, "rate", 1000, None).is_ok() && at(&player, "rate", 1000, None).is_ok());
    assert!(at(&player, "tick", 0, Some(Nanos(1))).is_ok() && at(&player, "tick", 0, None).is_ok());
    assert!(at(&player, "kept", 7, None).is_ok() && at(&player, "kept", 9, None).is_ok());
    player.rest();
    player.heard.clear();
    player.hand_over();
    let after = Duration::from_millis(70);
    let refused = Err(RouteError::RateLimited { per_second: 10, after });
    assert_eq!(at(&player, "rate", 1030, None), refused);
    assert!(at(&player, "rate", 1100, None).is_ok());
    player.end_ticks();
    player.rest();
    let tick = player.router.id("tick").unwrap();
    assert_eq!(player.heard[1..], [format!("1 {tick:?} [2]")], "the other one has expired");
    assert_eq!(player.router.counters.expired(), 1);
    // The older one goes first.
    let ttl = config.topic_classes[0].retention_ttl;
    sweep(&player.router, Nanos(8_000_000).after(ttl));
    assert_eq!(player.router.retained.messages(), 1);
    player.end();
}

/// Of what was sent early only what has gone and what has come since is told in the end.
#[test]
fn a_ring_that_was_sent_early_needs_little_in_the_end() {
    let class = TopicClass { pattern: "t".to_owned(), retention_messages: 5, ..Default::default() };
    let mut player = Player::new(&config_of(class));
    let publish = |player: &mut Player, count: usize| {
        for _ in 0..count {
            player.publish("t", "").unwrap();
            player.rest();
        }
    };
    let kept = |player: &Player| {
        let topic = player.router.find("t").unwrap();
        let state = topic.lock();
        let ring = &state.extra.as_ref().unwrap().ring;
        ring.all().iter().map(|message| message.offset()).collect::<Vec<u64>>()
    };
    // How many are published meanwhile, and how many messages are then sent.
    for (published, sent) in [(0, 0), (2, 2), (4, 4), (5, 5), (7, 5)] {
        publish(&mut player, 6);
        player.send_early();
        publish(&mut player, published);
        let before = kept(&player);
        let export = player.router.export(&mut player.early.0);
        let ring = export.topics[0].extra.as_ref().unwrap().ring.as_ref().unwrap();
        assert_eq!((export.messages.len(), ring.messages.len()), (sent, sent));
        assert_eq!(ring.early, 5 - sent as u64);
        player.router.resume_serving();
        player.send_early();
        player.hand_over();
        assert_eq!(kept(&player), before);
        assert_eq!(player.router.retained.messages(), 5);
    }
    player.end();
}
