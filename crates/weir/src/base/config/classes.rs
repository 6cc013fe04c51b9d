//! Topic classes: what holds for the topics whose names fit a pattern.

use std::time::Duration;

use weir_engine::{Priority, SlowPolicy};

use super::RATE_MAX;
use super::keys::{DAY, Item, SECOND};

crate::config_table! {
    /// One of `[[topic_classes]]`.
    pub struct TopicClass in "tables [[topic_classes]], each with a pattern" {
        /// Names that it holds for. `*` stands for any characters, none included; `{device}`, at
        /// most once, for a device id, and `devices` below then means that device alone. The first
        /// class that fits counts, so the general ones come last.
        pattern: String, allowed("1 to limits.topic_bytes_max bytes"), example("\"room/*\""),
            needed();
        /// Messages are gathered for this long and leave as one batch: far cheaper where many
        /// publish to many. 0: each leaves at once.
        tick: Duration, allowed("{TICK_MIN:?} to {TICK_MAX:?}, or 0ms for none");
        /// What one tick may gather, with about a hundred bytes a message beside its frame. More is
        /// refused until the next one, and may be tried again then.
        tick_bytes_max: usize = 1 << 20, unit("bytes"),
            allowed("at least the largest message, at most {TICK_BYTES_MAX}");
        /// Whether a tick keeps only the newest message of each key. The offsets of the others are
        /// skipped.
        conflation: bool, allowed("true only with a tick or with slow = \"conflate\"");
        /// When it is the turn of its messages, behind the priority of connections.
        priority: Priority = Priority::Normal;
        /// What becomes of messages for a connection that does not keep up. `close`: they wait, and
        /// who stays above the high watermark for `connection.stall_timeout` is closed. `drop`:
        /// above the watermark they are skipped. `conflate`: the newest message of each key waits
        /// for it, and it is closed only when its socket takes nothing at all for that long.
        slow: SlowPolicy = SlowPolicy::Close;
        /// Longest message, measured as the frame that leaves. 0: `limits.frame_bytes_max`.
        message_bytes_max: usize, unit("bytes"),
            allowed("0 or {MESSAGE_BYTES_MIN} to limits.frame_bytes_max");
        /// Messages of one topic kept for those who come back and name their position. 0: none, and
        /// whoever has missed one is told so.
        // Each costs about a hundred bytes beside its content.
        retention_messages: usize, range(0..=1_000_000), unit("messages");
        /// Bytes of one topic kept.
        retention_bytes: usize = 1 << 20,
            allowed("at least the largest message, at most memory.retention_bytes"), unit("bytes");
        /// How long a message is kept. A topic lives until its last kept message has gone.
        retention_ttl: Duration = Duration::from_secs(300), range(SECOND..=7 * DAY),
            reason(" (7 days)");
        /// Whether `GET /v1/topics/{topic}/history` of the public API answers with what is kept, to
        /// whoever may subscribe.
        history: bool, allowed("true only with retention_messages");
        /// Who may publish: every device, services with the right, devices whose token has the
        /// label. The admin API always may.
        publish: Vec<Actor> = vec![Actor::Services], allowed("labels that a token carries");
        /// Who may subscribe, written likewise.
        subscribe: Vec<Actor> = vec![Actor::Devices, Actor::Services],
            allowed("labels that a token carries");
        /// Messages that one topic takes in a second, on average, whoever publishes. 0: as many as
        /// come.
        publishes_per_second: u32, range(0..=RATE_MAX), unit("messages a second");
        /// Messages that it takes at once after a silence.
        // Without a burst not even the first would get through.
        publish_burst: u32 = 100, range(1..=RATE_MAX), unit("messages");
    }
}

/// Somebody that a topic class gives a right to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// Every device.
    Devices,
    /// Services with the right in question.
    Services,
    /// Devices whose token carries the label; written `label:NAME`.
    Label(String),
}

impl Actor {
    /// The actor that is written so.
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

/// Below this a timer's own slack shows.
pub(super) const TICK_MIN: Duration = Duration::from_millis(10);
/// What comes only once a minute needs no gathering.
pub(super) const TICK_MAX: Duration = Duration::from_secs(60);
/// One tick is copied in one piece, and charged to the budget as one message.
pub(super) const TICK_BYTES_MAX: usize = 64 << 20;
/// A frame with a topic, an offset and some bytes.
pub(super) const MESSAGE_BYTES_MIN: usize = 64;
