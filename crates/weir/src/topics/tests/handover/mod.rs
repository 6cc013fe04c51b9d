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

/// A message that is retained, and waits for a connection of a shard, is sent once and shared again.
#[test]
fn messages_are_shared_with_other_parts() {
    use weir_engine::handover::{Claims, ImportedMessages, Messages};
    let class = TopicClass { pattern: "t".to_owned(), retention_messages: 5, ..Default::default() };
    let mut player = Player::new(&config_of(class));
    player.publish("t", "").unwrap();
    let kept = {
        let topic = player.router.find("t").unwrap();
        let state = topic.lock();
        state.extra.as_ref().unwrap().ring.behind(0, 1000).0
    };
    let claims = Arc::<Claims>::default();
    let mut of_shard = Messages::beside(Arc::clone(&claims));
    let number = of_shard.number(&kept[0]);
    let export = player.router.export(Messages::beside(claims));
    assert_eq!(export.messages.len(), 0);
    let other = Player::new(&player.config);
    let mut imported = ImportedMessages::new(&other.budget);
    imported.take([of_shard.into_exports()]).unwrap();
    other.router.import(export, &mut imported).unwrap();
    let in_ring = {
        let topic = other.router.find("t").unwrap();
        let state = topic.lock();
        state.extra.as_ref().unwrap().ring.behind(0, 1000).0
    };
    assert!(Arc::ptr_eq(&in_ring[0], &imported.get(number).unwrap()));
    drop((imported, in_ring, kept));
    assert_eq!(other.budget.used(), player.budget.used());
    other.end();
}
