//! Topic classes: what holds for the topics whose names fit a pattern.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use weir_engine::{Priority, SlowPolicy};

use super::duration;

/// One of `[[topic_classes]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicClass {
    /// Names that it holds for: `*` stands for any characters, none included; `{device}` for a device id, and then only
    /// that device counts as one of the `devices` that may publish or subscribe.
    pub pattern: String,
    /// Messages are gathered for this long and leave as one batch; 0: each leaves at once.
    #[serde(with = "duration")]
    pub tick: Duration,
    /// Bytes that one tick may gather, what each message occupies beside its frame included; what comes then is refused until the next.
    pub tick_bytes_max: usize,
    /// Whether a tick keeps only the newest message of each key.
    pub conflation: bool,
    /// When it is the turn of its messages.
    #[serde(with = "by_name")]
    pub priority: Priority,
    /// What becomes of its messages for connections that do not keep up.
    #[serde(with = "by_name")]
    pub slow: SlowPolicy,
    /// Longest message, as the frame that leaves; 0: `limits.frame_bytes_max`.
    pub message_bytes_max: usize,
    /// Messages of one topic kept for those who come back; 0: none.
    pub retention_messages: usize,
    /// Bytes of one topic kept.
    pub retention_bytes: usize,
    /// How long a message is kept.
    #[serde(with = "duration")]
    pub retention_ttl: Duration,
    /// Whether what is kept can be read over HTTP, by whoever may subscribe.
    pub history: bool,
    /// Who may publish; the admin API always may.
    pub publish: Vec<Actor>,
    /// Who may subscribe.
    pub subscribe: Vec<Actor>,
    /// Messages that one topic takes in a second, whoever publishes; 0: as many as come.
    pub publishes_per_second: u32,
    /// Messages that it takes at once after a silence.
    pub publish_burst: u32,
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

impl Default for TopicClass {
    fn default() -> Self {
        Self {
            pattern: String::new(),
            tick: Duration::ZERO,
            tick_bytes_max: 1 << 20,
            conflation: false,
            priority: Priority::Normal,
            slow: SlowPolicy::Close,
            message_bytes_max: 0,
            retention_messages: 0,
            retention_bytes: 1 << 20,
            retention_ttl: Duration::from_secs(300),
            history: false,
            publish: vec![Actor::Services],
            subscribe: vec![Actor::Devices, Actor::Services],
            publishes_per_second: 0,
            publish_burst: 100,
        }
    }
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

impl<'de> Deserialize<'de> for Actor {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let word = String::deserialize(input)?;
        Actor::parse(&word).ok_or_else(|| {
            serde::de::Error::custom(format_args!(
                "{word:?}: allowed is devices, services or label:NAME"
            ))
        })
    }
}

/// Enums of the engine by the word that names them.
pub(super) mod by_name {
    use serde::{Deserialize, Deserializer};
    use weir_engine::{Priority, SlowPolicy};

    /// An enum whose values have names.
    pub(in crate::base::config) trait Named: Sized {
        fn find(name: &str) -> Option<Self>;
        const ALLOWED: &'static str;
    }

    impl Named for Priority {
        fn find(name: &str) -> Option<Self> {
            Priority::ALL.into_iter().find(|priority| priority.name() == name)
        }
        const ALLOWED: &'static str = "high, normal or low";
    }

    impl Named for SlowPolicy {
        fn find(name: &str) -> Option<Self> {
            SlowPolicy::ALL.into_iter().find(|policy| policy.name() == name)
        }
        const ALLOWED: &'static str = "close, drop or conflate";
    }

    pub(in crate::base::config) fn deserialize<'de, T: Named, D: Deserializer<'de>>(
        input: D,
    ) -> Result<T, D::Error> {
        let word = String::deserialize(input)?;
        T::find(&word).ok_or_else(|| {
            serde::de::Error::custom(format_args!("{word:?}: allowed is {}", T::ALLOWED))
        })
    }
}
