//! Topic classes as the router uses them: with parsed patterns and resolved settings.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Priority, SlowPolicy, TopicMessage};

use super::{MessagePosition, RouteError};
use crate::base::config::{Actor, Config, Scope, TopicClass};
use crate::base::pattern::Pattern;
use crate::limits::bucket::Rate;

/// The rules for the topics whose names match a pattern.
#[derive(Debug)]
pub(crate) struct Class {
    /// Pattern of the topic names.
    pub(crate) pattern: Pattern,
    /// Its place in the configuration, counted from 1; the default class is the last. Messages to
    /// no topic have 0.
    pub(super) number: u16,
    /// Whether this class serves the names that match no configured class.
    is_default: bool,
    /// Actors that may publish. The admin API always may.
    pub(crate) publish: Vec<Actor>,
    /// Actors that may subscribe.
    pub(crate) subscribe: Vec<Actor>,
    /// Whether requests may read the history.
    pub(crate) history: bool,
    /// Whether it is known who is in a topic.
    pub(crate) presence: bool,
    /// Actors that may see who is in a topic, of those that may subscribe.
    pub(crate) presence_for: Vec<Actor>,
    /// Whether its topics belong to the cluster, and not to this node alone.
    pub(crate) is_cluster: bool,
    /// Whether a resume from an unknown position begins with the oldest retained message.
    pub(super) resumes_from_oldest: bool,
    pub(super) priority: Priority,
    pub(super) slow: SlowPolicy,
    /// Longest frame of a message.
    pub(super) message_bytes_max: usize,
    pub(super) tick: Option<TickRule>,
    pub(super) retention: Option<Retention>,
    pub(super) rate: Option<Rate>,
}

/// The topic gathers messages and sends them as one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TickRule {
    /// Index of its length among all tick lengths.
    pub(super) ticker: usize,
    /// Bytes that the gathered messages may occupy.
    pub(super) bytes_max: usize,
    /// Whether only the newest message of each key stays.
    pub(super) conflation: bool,
}

/// The topic retains messages for connections that resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retention {
    pub(super) messages_max: usize,
    pub(super) bytes_max: usize,
    pub(super) ttl: Duration,
}

/// The classes in the order of the configuration, and the default class for all other topics.
///
/// Cost: a look-up tries the patterns one by one. The router needs it only for a topic that does
/// not exist yet.
#[derive(Debug)]
pub(crate) struct Classes {
    ordered: Box<[Arc<Class>]>,
    default: Arc<Class>,
    /// Each length once.
    tick_lengths: Vec<Duration>,
}

impl Classes {
    pub(super) fn new(config: &Config, has_broker: bool) -> Self {
        let frame_bytes_max = config.limits.frame_bytes_max;
        let default = TopicClass { pattern: "*".to_owned(), ..TopicClass::default() };
        let mut tick_lengths = Vec::new();
        let mut number = 0;
        let mut class = |class: &TopicClass| {
            number += 1;
            let ticker = tick_lengths.iter().position(|length| *length == class.tick);
            let ticker = ticker.unwrap_or_else(|| {
                if !class.tick.is_zero() {
                    tick_lengths.push(class.tick);
                }
                tick_lengths.len().saturating_sub(1)
            });
            Arc::new(Class { number, ..Class::new(class, ticker, frame_bytes_max, has_broker) })
        };
        let ordered = config.topic_classes.iter().map(&mut class).collect();
        let default = Arc::new(Class {
            number: number + 1,
            is_default: true,
            ..Class::new(&default, 0, frame_bytes_max, has_broker)
        });
        Self { ordered, default, tick_lengths }
    }

    /// The first class whose pattern fits the name.
    pub(super) fn of(&self, name: &str) -> &Arc<Class> {
        let fits = |class: &&Arc<Class>| class.pattern.matches(name);
        self.ordered.iter().find(fits).unwrap_or(&self.default)
    }

    /// The pattern of each class, by number; `None` for messages to no topic.
    pub(super) fn patterns(&self) -> impl Iterator<Item = Option<&str>> {
        let classes = self.ordered.iter().chain([&self.default]);
        std::iter::once(None).chain(classes.map(|class| Some(class.pattern.as_str())))
    }

    /// The different lengths of ticks.
    pub(super) fn tick_lengths(&self) -> &[Duration] {
        &self.tick_lengths
    }
}

impl Config {
    /// The class of the topics with this name; `None` for the default class, which no file
    /// configures.
    pub fn class_of(&self, topic: &str) -> Option<&TopicClass> {
        self.topic_classes.iter().find(|class| Pattern::new(&class.pattern).matches(topic))
    }
}

impl Class {
    fn new(class: &TopicClass, ticker: usize, frame_bytes_max: usize, has_broker: bool) -> Self {
        Self {
            pattern: Pattern::new(&class.pattern),
            number: 0,
            is_default: false,
            publish: class.publish.clone(),
            subscribe: class.subscribe.clone(),
            history: class.history,
            presence: class.presence,
            presence_for: class.presence_for.clone(),
            is_cluster: has_broker && class.scope != Some(Scope::Node),
            resumes_from_oldest: class.resumes_from_oldest(),
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

    /// The class's pattern in the configuration; `None` for the default class.
    pub(crate) fn configured_pattern(&self) -> Option<&str> {
        (!self.is_default).then(|| self.pattern.as_str())
    }

    /// The class's properties and the place of one message, for the shards. `key` is the range of
    /// its key in the frame.
    pub(crate) fn topic_message(&self, place: MessagePosition, key: Range<u32>) -> TopicMessage {
        let MessagePosition { topic, epoch, offset, shift } = place;
        TopicMessage {
            topic,
            class: self.number,
            priority: self.priority,
            slow: self.slow,
            epoch,
            offset,
            shift,
            key,
            ..TopicMessage::default()
        }
    }

    /// What the broker is to keep of a topic.
    pub(super) fn broker_retention(&self) -> Option<weir_broker::Retention> {
        let Retention { messages_max, ttl, .. } = self.retention?;
        Some(weir_broker::Retention { messages_max, ttl })
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
        let classes = Classes::new(&config, false);
        assert_eq!(classes.tick_lengths(), [50, 9].map(Duration::from_millis));
        assert_eq!(classes.of("room/1").tick.map(|tick| tick.ticker), Some(0));
        assert_eq!(classes.of("x").tick, None);
        config.topic_classes.truncate(1);
        let classes = Classes::new(&config, false);
        assert_eq!(classes.of("x").pattern.as_str(), "*");
        assert_eq!(classes.of("x").publish, [Actor::Services]);
    }
}
