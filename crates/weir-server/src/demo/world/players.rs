//! Players of the game room: each walks to random places, sees all others, and sometimes chats.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use weir_client::{Backoff, Client, ClientError, Event, Options, Payload, Publication};

use super::{about, begin, note};

/// The topics that the page knows too.
const ROOM: &str = "room/lobby";
const CHAT: &str = "chat/lobby";

/// Plays for ever: a while in the room, a pause, and again.
pub(super) async fn play(addr: SocketAddr, number: usize) {
    begin(number).await;
    let id = format!("player-{}", number + 1);
    let name = NAMES[number % NAMES.len()];
    let mut backoff = Backoff::default();
    let mut walk = Walk::begin();
    loop {
        let pause = match visit(addr, &id, name, &mut walk).await {
            Ok(()) => about(PAUSE),
            Err(error) => {
                note(&id, &error);
                // Nothing is lasting here: the gateway is ours.
                backoff.after_error(&error).unwrap_or(PAUSE)
            }
        };
        sleep(pause).await;
    }
}

/// One stay in the room.
async fn visit(addr: SocketAddr, id: &str, name: &str, walk: &mut Walk) -> Result<(), ClientError> {
    let mut options = Options::device(id).topic(ROOM);
    options.client = concat!("demo-player/", env!("CARGO_PKG_VERSION")).to_owned();
    let mut client = Client::connect(addr, options).await?;
    let mut steps = interval(STEP);
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = Instant::now() + about(STAY);
    while Instant::now() < end {
        tokio::select! {
            event = client.next() => match event? {
                None | Some(Event::Goodbye(_)) => return Ok(()),
                Some(_) => {}
            },
            _ = steps.tick() => {
                let (x, y) = walk.step();
                let place = json!({ "name": name, "x": x, "y": y }).to_string();
                client.publish_message(message(ROOM, place, id)).await?;
                if rand::random_ratio(1, STEPS_PER_LINE) {
                    let text = LINES[rand::random_range(0..LINES.len())];
                    let line = json!({ "name": name, "text": text }).to_string();
                    client.publish_message(message(CHAT, line, "")).await?;
                }
            }
        }
    }
    Ok(())
}

fn message(topic: &str, text: String, key: &str) -> Publication {
    Publication {
        topic: topic.to_owned(),
        payload: Payload::Text(text),
        content_type: "application/json".to_owned(),
        key: key.to_owned(),
        request: 0,
    }
}

/// A way through the room, in thousandths of its width and height.
struct Walk {
    at: (f64, f64),
    goal: (f64, f64),
}

impl Walk {
    fn begin() -> Walk {
        Walk { at: anywhere(), goal: anywhere() }
    }

    /// One step towards the goal, and a new goal when this one is reached.
    fn step(&mut self) -> (u32, u32) {
        let (dx, dy) = (self.goal.0 - self.at.0, self.goal.1 - self.at.1);
        let distance = dx.hypot(dy);
        if distance <= STEP_LENGTH {
            (self.at, self.goal) = (self.goal, anywhere());
        } else {
            self.at.0 += dx / distance * STEP_LENGTH;
            self.at.1 += dy / distance * STEP_LENGTH;
        }
        (whole(self.at.0), whole(self.at.1))
    }
}

fn anywhere() -> (f64, f64) {
    (rand::random_range(20.0..980.0), rand::random_range(20.0..980.0))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
fn whole(value: f64) -> u32 {
    value.clamp(0.0, 1_000.0) as u32
}

/// Four moves a second look smooth on a map that moves its dots between them.
const STEP: Duration = Duration::from_millis(250);
/// Across the room in some ten seconds.
const STEP_LENGTH: f64 = 25.0;
/// So that players come and go: one every two seconds.
const STAY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(4);
/// All players together say a line every ten seconds.
const STEPS_PER_LINE: u32 = 1_200;

const NAMES: [&str; super::PLAYERS] = [
    "Ada",
    "Alan",
    "Annie",
    "Barbara",
    "Claude",
    "Dennis",
    "Donald",
    "Edsger",
    "Elizabeth",
    "Evelyn",
    "Frances",
    "Grace",
    "Hedy",
    "Jean",
    "Joan",
    "John",
    "Karen",
    "Katherine",
    "Ken",
    "Konrad",
    "Lynn",
    "Margaret",
    "Mary",
    "Niklaus",
    "Radia",
    "Robin",
    "Shafi",
    "Sophie",
    "Tony",
    "Vint",
];

const LINES: [&str; 10] = [
    "hello everybody",
    "who walks with me?",
    "I have been in every corner by now",
    "nice room",
    "my phone got that push too",
    "meet me in the middle",
    "did you see the score?",
    "back in a minute",
    "so many dots",
    "this is my favourite corner",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_stays_in_the_room_and_gets_around() {
        let mut walk = Walk::begin();
        let (mut least, mut most) = (1_000, 0);
        for _ in 0..10_000 {
            let (x, y) = walk.step();
            assert!(x <= 1_000 && y <= 1_000, "{x}, {y}");
            (least, most) = (least.min(x), most.max(x));
        }
        assert!(least < 300 && most > 700, "{least} to {most}");
    }
}
