//! Topic classes: the rules for the topics whose names match a pattern.

use std::time::Duration;

use weir_engine::{Priority, SlowPolicy};

use super::RATE_MAX;
use super::keys::{DAY, Item, SECOND};

crate::config_table! {
    /// One of `[[topic_classes]]`.
    pub struct TopicClass in "tables [[topic_classes]], each with a pattern" {
        /// Pattern of the topic names. `*` stands for any characters, or none. `{device}`, at most
        /// once, stands for a device id; `devices` below then means only that device. The first
        /// matching class counts, so general classes come last.
        pattern: String, allowed("1 to limits.topic_bytes_max bytes"), example("\"room/*\""),
            needed();
        /// Messages are gathered for this long and leave as one batch. That is far cheaper if many
        /// publish to many. 0: each message leaves at once.
        tick: Duration, allowed("{TICK_MIN:?} to {TICK_MAX:?}, or 0ms for none");
        /// Bytes that one tick may gather. A message counts about a hundred bytes more than its
        /// frame. Further messages are refused and can be published again in the next tick.
        tick_bytes_max: usize = 1 << 20, unit("bytes"),
            allowed("at least the largest message, at most {TICK_BYTES_MAX}");
        /// Whether a tick keeps only the newest message of each key. The offsets of the others are
        /// skipped.
        conflation: bool, allowed("true only with a tick or with slow = \"conflate\"");
        /// The priority of its messages. The priority of the connection counts first.
        priority: Priority = Priority::Normal;
        /// The treatment of messages for a connection that does not keep up. `close`: messages
        /// wait, and a connection above the high watermark for `connection.stall_timeout` is
        /// closed. `drop`: above the watermark messages are skipped. `conflate`: the newest message
        /// of each key waits, and a connection is closed only if its socket takes nothing at all
        /// for that long.
        slow: SlowPolicy = SlowPolicy::Close;
        /// The longest message, measured as its frame to subscribers. 0: `limits.frame_bytes_max`.
        message_bytes_max: usize, unit("bytes"),
            allowed("0 or {MESSAGE_BYTES_MIN} to limits.frame_bytes_max");
        /// Messages of one topic that are retained for connections that resume. 0: none; a
        /// connection that has missed a message is told so.
        // Each costs about a hundred bytes in addition to its content.
        retention_messages: usize, range(0..=1_000_000), unit("messages");
        /// Bytes of one topic that are retained.
        retention_bytes: usize = 1 << 20,
            allowed("at least the largest message, at most memory.retention_bytes"), unit("bytes");
        /// The time for which a message is retained. A topic lives until its last retained message
        /// has gone.
        retention_ttl: Duration = Duration::from_secs(300), range(SECOND..=7 * DAY),
            reason(" (7 days)");
        /// Whether `GET /v1/topics/{topic}/history` of the public API returns the retained messages
        /// to callers that may subscribe.
        history: bool, allowed("true only with retention_messages");
        /// Actors that may publish: `devices` is every device, `services` every service with the
        /// right, `label:NAME` every device whose token has the label. The admin API always may.
        publish: Vec<Actor> = vec![Actor::Services], allowed("labels that tokens have");
        /// Actors that may subscribe, in the same form.
        subscribe: Vec<Actor> = vec![Actor::Devices, Actor::Services],
            allowed("labels that tokens have");
        /// Average number of messages that one topic takes in a second, from all publishers
        /// together. 0: no limit.
        publishes_per_second: u32, range(0..=RATE_MAX), unit("messages a second");
        /// Messages that one topic takes at once after a silence.
        // Without a burst, not even the first message would get through.
        publish_burst: u32 = 100, range(1..=RATE_MAX), unit("messages");
    }
}

/// A kind of caller to which a topic class gives a right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// Every device.
    Devices,
    /// Services with the right in question.
    Services,
    /// Devices whose token has the label; written `label:NAME`.
    Label(String),
}

impl Actor {
    /// Reads an actor from its form in the configuration.
    pub fn parse(word: &str) -> Option<Actor> {
        match word {
            "devices" => Some(Actor::Devices),
            "services" => Some(Actor::Services),
            _ => match word.strip_prefix("label:") {
                Some("") | None => None,
                Some(label) => Some(Actor::Label(label.to_owned())),
            },
        }
    }
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Actor::Devices => f.write_str("devices"),
            Actor::Services => f.write_str("services"),
            Actor::Label(label) => write!(f, "label:{label}"),
        }
    }
}

crate::config_words!(SlowPolicy);

impl Item for Actor {
    fn list() -> String {
        "a list of \"devices\", \"services\" and \"label:NAME\"".to_owned()
    }

    fn parse(text: &str) -> Option<Actor> {
        Actor::parse(text)
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn words() -> Vec<&'static str> {
        vec!["devices", "services", "label:"]
    }
}

/// Below this the inaccuracy of timers shows.
pub(super) const TICK_MIN: Duration = Duration::from_millis(10);
/// Messages that come once a minute need no gathering.
pub(super) const TICK_MAX: Duration = Duration::from_secs(60);
/// One tick is copied in one piece, and counts as one message in the byte budget.
pub(super) const TICK_BYTES_MAX: usize = 64 << 20;
/// A frame with a topic, an offset and some bytes.
pub(super) const MESSAGE_BYTES_MIN: usize = 64;
