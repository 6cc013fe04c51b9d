//! The backend: pushes to phones, and keeps the live page current.

use std::time::Duration;

use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use weir::{Handle, Payload, Publication, Target};

use super::phones::{NEWS, id_of};

/// The topic of the live page.
pub(super) const LIVE: &str = "live/match";

/// Pushes to one phone after the other, whether it is awake or not, and now and then news to all.
pub(super) async fn push(handle: Handle, phones: usize) {
    let mut ticks = interval(PUSH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1_u64.. {
        ticks.tick().await;
        if number.is_multiple_of(PUSHES_PER_NEWS) {
            publish(&handle, NEWS, &format!("news number {}", number / PUSHES_PER_NEWS), "");
        }
        if phones > 0 {
            let topic = format!("phone/{}", id_of(rand::random_range(0..phones)));
            publish(&handle, &topic, &format!("message {number} for you"), "");
        }
    }
}

/// Counts the points of a league for ever.
pub(super) async fn score(handle: Handle) {
    let mut points = [0_u32; TEAMS.len()];
    let mut ticks = interval(SCORE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let team = rand::random_range(0..TEAMS.len());
        points[team] += rand::random_range(1..=3);
        let text = json!({ "team": TEAMS[team], "points": points[team] }).to_string();
        publish(&handle, LIVE, &text, TEAMS[team]);
    }
}

/// Publishes, or leaves it out if the gateway is too busy now.
fn publish(handle: &Handle, topic: &str, text: &str, key: &str) {
    let publication = Publication {
        target: Target::Topic(topic),
        payload: Payload::Text(text),
        content_type: "",
        key,
        ttl: None,
        sender: None,
        idempotency_key: None,
    };
    if let Err(error) = handle.publish(&publication) {
        tracing::debug!(topic, %error, "the demo's backend leaves a message out");
    }
}

/// Each of 60 phones gets a message every twelve seconds, awake or asleep.
const PUSH: Duration = Duration::from_millis(200);
/// News every ten seconds.
const PUSHES_PER_NEWS: u64 = 50;
/// Two to three scores a second.
const SCORE: Duration = Duration::from_millis(400);

const TEAMS: [&str; 8] =
    ["north", "south", "east", "west", "harbour", "station", "castle", "university"];
