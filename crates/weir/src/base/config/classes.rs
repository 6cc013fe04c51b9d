//! Topic classes: the rules for topics whose names match a pattern.

use std::time::Duration;

use weir_engine::{Priority, SlowPolicy};

use super::keys::{DAY, Item, SECOND};
use super::{RATE_MAX, Scope};

crate::config_table! {
    /// One of `[[topic_classes]]`.
    pub struct TopicClass in "tables [[topic_classes]], each with a pattern" {
        /// The names of the class's topics. `*` stands for any number of any characters. `{device}`
        /// stands for a device id and may occur once; `devices` below then means only that device.
        /// The first class that matches counts, so general classes come last.
        pattern: String, allowed("1 to limits.topic_bytes_max bytes"), example("\"room/*\""),
            needed();
        /// To what its topics belong: to one node, whose subscribers alone hear what is published
        /// there, or to the cluster. Absent: to the cluster if `cluster.redis` is set, to the node
        /// otherwise.
        scope: Option<Scope>, allowed("\"cluster\" only with cluster.redis"), example("\"node\"");
        /// Whether it is known who is in a topic: `GET /v1/topics/{topic}/presence` lists devices
        /// and connections, and subscribers can ask to hear who enters and leaves.
        // See limits.presence_members_max. In a cluster each member takes some 100 bytes of Redis
        // in addition.
        presence: bool;
        /// Callers that may see who is in a topic, of those that may subscribe: by the public API,
        /// and as events. They learn the device ids of others. The admin API always may.
        presence_for: Vec<Actor> = vec![Actor::Services], allowed("labels that a token carries");
        /// Messages are gathered for this long and leave as one batch: far cheaper where many
        /// publish to many. 0: each leaves at once.
        tick: Duration, allowed("{TICK_MIN:?} to {TICK_MAX:?}, or 0ms for none");
        /// Bytes that one tick may gather, with about a hundred bytes per message beside its frame.
        /// Further messages are refused until the next tick.
        tick_bytes_max: usize = 1 << 20, unit("bytes"),
            allowed("at least the largest message, at most {TICK_BYTES_MAX}");
        /// Whether a tick keeps only the newest message of each key. The offsets of replaced
        /// messages are skipped.
        conflation: bool, allowed("true only with a tick or with slow = \"conflate\"");
        /// Priority of the messages. The priority of connections comes first.
        priority: Priority = Priority::Normal;
        /// What happens to messages for a connection that does not keep up. `close`: they wait; a
        /// connection that stays above the high watermark for `connection.stall_timeout` is closed.
        /// `drop`: above the watermark they are dropped. `conflate`: the newest message of each key
        /// waits, and the connection is closed only if its socket takes nothing for that time.
        slow: SlowPolicy = SlowPolicy::Close;
        /// Longest message, as the length of its frame. 0: `limits.frame_bytes_max`.
        message_bytes_max: usize, unit("bytes"),
            allowed("0 or {MESSAGE_BYTES_MIN} to limits.frame_bytes_max");
        /// Messages that one topic keeps for clients that resume from a position. 0: none; a client
        /// that missed a message learns only that it did.
        // Each message costs about a hundred bytes beside its content.
        retention_messages: usize, range(0..=1_000_000), unit("messages");
        /// Bytes that one topic keeps. In a cluster each node keeps so many; Redis keeps messages by
        /// number and age.
        retention_bytes: usize = 1 << 20,
            allowed("at least the largest message, at most memory.retention_bytes"), unit("bytes");
        /// How long a message is kept. A topic exists until its last kept message has gone.
        retention_ttl: Duration = Duration::from_secs(300), range(SECOND..=7 * DAY),
            reason(" (7 days)");
        /// Whether a client whose position is of another epoch gets all that is kept, or goes on
        /// with the next message. Either way it is told that it has missed something. Absent: all
        /// that is kept.
        resume_from_oldest: Option<bool>,
            allowed("true only with retention_messages"), example("false");
        /// Whether `GET /v1/topics/{topic}/history` of the public API answers with what is kept, to
        /// whoever may subscribe.
        history: bool, allowed("true only with retention_messages");
        /// Callers that may publish: every device, services with the right, devices whose token has
        /// the label. The admin API always may.
        publish: Vec<Actor> = vec![Actor::Services], allowed("labels that a token carries");
        /// Callers that may subscribe, in the same form.
        subscribe: Vec<Actor> = vec![Actor::Devices, Actor::Services],
            allowed("labels that a token carries");
        /// The upstream that is asked whether a device may publish to these topics; its path and its
        /// other rules are those of `hooks.publish`. Empty: none. Absent: `hooks.publish.upstream`.
        publish_hook: Option<String>, allowed("the name of one of [[upstreams]], or \"\""),
            example("\"\"");
        /// The same for subscriptions and `hooks.subscribe`.
        subscribe_hook: Option<String>, allowed("the name of one of [[upstreams]], or \"\""),
            example("\"\"");
        /// Messages per second that one topic takes on average, from all publishers. 0: no limit.
        publishes_per_second: u32, range(0..=RATE_MAX), unit("messages a second");
        /// Messages that a topic takes at once after a silence.
        // Without a burst, even the first message would be refused.
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

impl TopicClass {
    /// Whether a resume of an unknown epoch begins at the oldest message that is kept: as configured, or if any is kept.
    pub fn resumes_from_oldest(&self) -> bool {
        self.resume_from_oldest.unwrap_or(self.retention_messages > 0)
    }
}

impl Actor {
    /// The label, if it is one.
    pub(crate) fn label(&self) -> Option<&str> {
        match self {
            Actor::Label(label) => Some(label),
            Actor::Devices | Actor::Services => None,
        }
    }

    /// The actor that this word stands for.
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

/// Below this time, the inaccuracy of timers shows.
pub(super) const TICK_MIN: Duration = Duration::from_millis(10);
/// Messages that come once a minute need no tick.
pub(super) const TICK_MAX: Duration = Duration::from_secs(60);
/// A tick is copied in one piece, and charged to the budget as one message.
pub(super) const TICK_BYTES_MAX: usize = 64 << 20;
/// A frame with a topic, an offset and some bytes.
pub(super) const MESSAGE_BYTES_MIN: usize = 64;
