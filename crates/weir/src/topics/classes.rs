//! Topic classes as the router uses them: patterns taken apart once, settings resolved.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Priority, SlowPolicy, TopicMessage};

use super::{Place, RouteError};
use crate::base::config::{Actor, Config, TopicClass};
use crate::base::pattern::Pattern;
use crate::limits::bucket::Rate;

/// What holds for the topics whose names fit a pattern.
#[derive(Debug)]
pub(crate) struct Class {
    /// Names that it holds for.
    pub(crate) pattern: Pattern,
    /// Whether it is the one for all names that no class of the configuration fits.
    is_default: bool,
    /// Who may publish; the admin API always may.
    pub(crate) publish: Vec<Actor>,
    /// Who may subscribe.
    pub(crate) subscribe: Vec<Actor>,
    /// Whether what its topics keep can be read.
    pub(crate) history: bool,
    pub(super) priority: Priority,
    pub(super) slow: SlowPolicy,
    /// Longest frame of a message.
    pub(super) message_bytes_max: usize,
    pub(super) tick: Option<TickRule>,
    pub(super) retention: Option<Retention>,
    pub(super) rate: Option<Rate>,
}

/// Messages are gathered and leave as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TickRule {
    /// Index of its length among all that there are.
    pub(super) ticker: usize,
    /// Bytes that they may occupy.
    pub(super) bytes_max: usize,
    /// Whether only the newest of each key stays.
    pub(super) conflation: bool,
}

/// Messages are kept for those who come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retention {
    pub(super) messages_max: usize,
    pub(super) bytes_max: usize,
    pub(super) ttl: Duration,
}

/// The classes in the order of the configuration, and the one for all other topics.
///
/// Cost: a look-up tries the patterns one by one; the router does it once for a topic that exists.
#[derive(Debug)]
pub(crate) struct Classes {
    ordered: Box<[Arc<Class>]>,
    default: Arc<Class>,
    /// Each once.
    tick_lengths: Vec<Duration>,
}

impl Classes {
    pub(super) fn new(config: &Config) -> Self {
        let frame_bytes_max = config.limits.frame_bytes_max;
        let default = TopicClass { pattern: "*".to_owned(), ..TopicClass::default() };
        let mut tick_lengths = Vec::new();
        let mut class = |class: &TopicClass| {
            let ticker = tick_lengths.iter().position(|length| *length == class.tick);
            let ticker = ticker.unwrap_or_else(|| {
                if !class.tick.is_zero() {
                    tick_lengths.push(class.tick);
                }
                tick_lengths.len().saturating_sub(1)
            });
            Arc::new(Class::new(class, ticker, frame_bytes_max))
        };
        let ordered = config.topic_classes.iter().map(&mut class).collect();
        let default =
            Arc::new(Class { is_default: true, ..Class::new(&default, 0, frame_bytes_max) });
        Self { ordered, default, tick_lengths }
    }

    /// The first class whose pattern fits the name.
    pub(super) fn of(&self, name: &str) -> &Arc<Class> {
        let fits = |class: &&Arc<Class>| class.pattern.matches(name);
        self.ordered.iter().find(fits).unwrap_or(&self.default)
    }

    /// How long ticks are.
    pub(super) fn tick_lengths(&self) -> &[Duration] {
        &self.tick_lengths
    }
}

impl Config {
    /// The class of the topics with this name; `None`: the default one, which stands in no file.
    pub fn class_of(&self, topic: &str) -> Option<&TopicClass> {
        self.topic_classes.iter().find(|class| Pattern::new(&class.pattern).matches(topic))
    }
}

impl Class {
    fn new(class: &TopicClass, ticker: usize, frame_bytes_max: usize) -> Self {
        Self {
            pattern: Pattern::new(&class.pattern),
            is_default: false,
            publish: class.publish.clone(),
            subscribe: class.subscribe.clone(),
            history: class.history,
            priority: class.priority,
            slow: class.slow,
            message_bytes_max: match class.message_bytes_max {
                0 => frame_bytes_max,
                limit => limit.min(frame_bytes_max),
            },
            tick: (!class.tick.is_zero()).then_some(TickRule {
                ticker,
                bytes_max: class.tick_bytes_max,
                conflation: class.conflation,
            }),
            retention: (class.retention_messages > 0).then_some(Retention {
                messages_max: class.retention_messages,
                bytes_max: class.retention_bytes,
                ttl: class.retention_ttl,
            }),
            rate: (class.publishes_per_second > 0).then_some(Rate {
                per_second: class.publishes_per_second,
                burst: class.publish_burst.max(1),
            }),
        }
    }

    /// The pattern under which it stands in the configuration, if it does.
    pub(crate) fn configured_pattern(&self) -> Option<&str> {
        (!self.is_default).then(|| self.pattern.as_str())
    }

    /// What the shards must know of a single message; `key` says where its key stands in the frame.
    pub(crate) fn topic_message(&self, place: Place, key: Range<u32>) -> TopicMessage {
        let Place { epoch, offset } = place;
        TopicMessage {
            priority: self.priority,
            slow: self.slow,
            epoch,
            offset,
            key,
            ..TopicMessage::default()
        }
    }

    pub(super) fn check_length(&self, frame_bytes: usize) -> Result<(), RouteError> {
        let limit = self.message_bytes_max;
        if frame_bytes > limit { Err(RouteError::TooLarge { limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_class_that_fits_counts() {
        let class = |pattern: &str, tick| TopicClass {
            pattern: pattern.to_owned(),
            tick: Duration::from_millis(tick),
            ..TopicClass::default()
        };
        let topic_classes = vec![class("room/*", 50), class("*", 0), class("room/1", 9)];
        let mut config = Config { topic_classes, ..Config::default() };
        let classes = Classes::new(&config);
        assert_eq!(classes.tick_lengths(), [50, 9].map(Duration::from_millis));
        assert_eq!(classes.of("room/1").tick.map(|tick| tick.ticker), Some(0));
        assert_eq!(classes.of("x").tick, None);
        config.topic_classes.truncate(1);
        let classes = Classes::new(&config);
        assert_eq!(classes.of("x").pattern.as_str(), "*");
        assert_eq!(classes.of("x").publish, [Actor::Services]);
    }
}
