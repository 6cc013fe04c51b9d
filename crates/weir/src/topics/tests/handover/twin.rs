//! A router that is handed over at any time does what its twin does that is not.

use super::*;

/// Topics with and without ticks, rings, keys, presence and a rate.
pub(super) fn config() -> Config {
    let tick = Duration::from_secs(1000);
    let class = |pattern: &str, tick, retention_messages| TopicClass {
        pattern: pattern.to_owned(),
        tick,
        retention_messages,
        resume_from_oldest: Some(retention_messages == 5),
        scope: Some(crate::base::config::Scope::Node),
        ..TopicClass::default()
    };
    let none = Duration::ZERO;
    let classes = [
        class("plain", none, 0),
        class("ring", none, 5),
        TopicClass { conflation: true, ..class("tick", tick, 0) },
        TopicClass {
            conflation: true,
            slow: weir_engine::SlowPolicy::Conflate,
            ..class("both", tick, 4)
        },
        TopicClass { presence: true, ..class("who", none, 6) },
        TopicClass { publishes_per_second: 1, publish_burst: 3, ..class("rate", none, 0) },
    ];
    let mut config = Config { topic_classes: classes.into(), ..Config::default() };
    // A replay chunk holds two messages.
    config.connection.low_watermark_bytes = 60;
    config.limits.presence_members_max = 3;
    config.limits.topics_max = 7;
    config
}

const NAMES: [&str; 7] = ["plain", "ring", "tick", "both", "who", "rate", "other"];

/// One thing that happens. `who` is one of nine connections on three shards.
#[derive(Debug, Clone, Copy)]
pub(super) struct Happening {
    what: u8,
    who: usize,
    which: usize,
}

pub(super) fn happenings(count: usize) -> impl Strategy<Value = Vec<Happening>> {
    let happening = (0u8..18, 0usize..9, 0usize..NAMES.len());
    let happening = happening.prop_map(|(what, who, which)| Happening { what, who, which });
    proptest::collection::vec(happening, 0..count)
}

/// Lets it happen, and tells what came of it.
pub(super) fn happen(player: &mut Player, Happening { what, who, which }: Happening) -> String {
    let name = NAMES[which];
    let conn = player.conn(who);
    let seen = |player: &Player| {
        let topic = player.router.id(name)?;
        player.seen.get(&(conn, topic)).copied()
    };
    match what {
        0..=2 => format!("{:?}", player.subscribe(conn, name, None, who % 2 == 0)),
        3..=5 => match seen(player) {
            Some(mut position) => {
                position.offset = position.offset.saturating_sub(who as u64 % 3);
                format!("{:?}", player.subscribe(conn, name, Some(position), false))
            }
            None => String::new(),
        },
        6 => format!("{:?}", player.unsubscribe(conn, name)),
        7..=10 => format!("{:?}", player.publish(name, ["", "a", "b"][who % 3])),
        11 => {
            player.close(conn);
            String::new()
        }
        12 => format!("{}", player.end_ticks()),
        13 => {
            player.end_presence();
            String::new()
        }
        14 => {
            player.resume_next();
            String::new()
        }
        15 if who == 0 => {
            player.sweep();
            String::new()
        }
        _ => {
            if what == 16 && who < 3 {
                player.send_early();
            }
            let is_busy = player.step();
            format!("{is_busy} {}", player.router.retry_retirements())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200.max(ProptestConfig::default().cases), ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_without_a_handover(
        happenings in happenings(250),
        at in proptest::collection::btree_set(0usize..250, 1..4),
    ) {
        let mut players = [config(), config()].map(|config| Player::new(&config));
        for (place, happening) in happenings.into_iter().enumerate() {
            if at.contains(&place) {
                let [one, twin] = &mut players;
                one.hand_over();
                twin.rest();
                // What was sent early is let go of.
                twin.early = Default::default();
                prop_assert_eq!(one.state(), twin.state());
            }
            let came = players.each_mut().map(|player| happen(player, happening));
            prop_assert_eq!(&came[0], &came[1], "{:?}", happening);
            let heard = players.each_mut().map(|player| std::mem::take(&mut player.heard));
            prop_assert_eq!(&heard[0], &heard[1], "{:?}", happening);
        }
        prop_assert_eq!(players[0].state(), players[1].state());
        let [mut one, twin] = players;
        one.hand_over();
        one.end();
        twin.end();
    }
}
