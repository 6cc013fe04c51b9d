//! Topic classes as the router uses them: with parsed patterns and resolved settings.

mod handover;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Priority, SlowPolicy, TopicMessage};

pub(super) use handover::Use;

use super::ticker::Ticker;
use super::{MessagePosition, RouteError};
use crate::base::config::{Actor, CLASSES_MAX, Config, HooksConfig, Scope, TopicClass};
use crate::base::pattern::Pattern;
use crate::limits::bucket::Rate;

/// The rules for the topics whose names match a pattern.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    /// Pattern of the topic names.
    pub(crate) pattern: Pattern,
    /// The number of its pattern, from 1, which it keeps as long as it is configured. Messages to no
    /// topic have 0.
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
    /// The upstream that is asked whether a device may publish.
    pub(crate) publish_hook: Option<Arc<str>>,
    /// The upstream that is asked whether a device may subscribe.
    pub(crate) subscribe_hook: Option<Arc<str>>,
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
#[derive(Debug, Clone)]
pub(super) struct TickRule {
    /// Ends the ticks of its length.
    pub(super) ticker: Arc<Ticker>,
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
    /// Each length of a tick once.
    tickers: Vec<Arc<Ticker>>,
    /// The pattern of each number, also of those whose messages may still be there.
    patterns: Box<[Option<Box<str>>]>,
}

/// What a topic that exists keeps of its class.
///
/// Its scope and its presence stay, because the topic has state for them; so do its priority and its
/// slow policy, because messages of a topic must not overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) is_cluster: bool,
    pub(super) presence: bool,
    pub(super) priority: Priority,
    pub(super) slow: SlowPolicy,
}

/// The numbers of classes.
struct Numbering {
    /// Of the classes in use.
    classes: Vec<(Box<str>, u16)>,
    of_default: u16,
    /// Of each number, also of those that rest.
    patterns: Box<[Option<Box<str>>]>,
}

/// Chooses a number for each pattern.
struct Numbers {
    before: Option<Numbering>,
    patterns: Box<[Option<Box<str>>]>,
    taken: HashSet<u16>,
    first_of_default: u16,
}

impl Classes {
    /// `before`: those in use. `is_unused` tells whether no message has the number of a class.
    pub(super) fn new(
        config: &Config,
        has_broker: bool,
        before: Option<&Classes>,
        is_unused: impl Fn(u16) -> bool,
    ) -> Self {
        let frame_bytes_max = config.limits.frame_bytes_max;
        let mut tickers: Vec<Arc<Ticker>> = Vec::new();
        let mut ticker = |length: Duration| {
            let has_length = |ticker: &&Arc<Ticker>| ticker.length() == length;
            let known = before.and_then(|before| before.tickers.iter().find(has_length));
            let known = tickers.iter().find(has_length).or(known).map(Arc::clone);
            let ticker = known.unwrap_or_else(|| Arc::new(Ticker::new(length)));
            if !tickers.iter().any(|known| Arc::ptr_eq(known, &ticker)) {
                tickers.push(Arc::clone(&ticker));
            }
            ticker
        };
        let before = before.map(Classes::numbering);
        let mut numbers = Numbers::new(config.topic_classes.len(), before);
        let mut class = |class: &TopicClass| {
            let number = numbers.of(&class.pattern, &is_unused);
            let ticker = (!class.tick.is_zero()).then(|| ticker(class.tick));
            let made = Class::new(class, ticker, frame_bytes_max, has_broker);
            Arc::new(Class { number, ..made.with_hooks(class, &config.hooks) })
        };
        let ordered = config.topic_classes.iter().map(&mut class).collect();
        let default = TopicClass { pattern: "*".to_owned(), ..TopicClass::default() };
        let made = Class::new(&default, None, frame_bytes_max, has_broker);
        let default = Class {
            number: numbers.of_default(),
            is_default: true,
            ..made.with_hooks(&default, &config.hooks)
        };
        Self { ordered, default: Arc::new(default), tickers, patterns: numbers.patterns }
    }

    fn numbering(&self) -> Numbering {
        let classes = self.ordered.iter();
        Numbering {
            classes: classes.map(|class| (class.pattern.as_str().into(), class.number)).collect(),
            of_default: self.default.number,
            patterns: self.patterns.clone(),
        }
    }

    /// The first class whose pattern fits the name.
    pub(super) fn of(&self, name: &str) -> &Arc<Class> {
        let fits = |class: &&Arc<Class>| class.pattern.matches(name);
        self.ordered.iter().find(fits).unwrap_or(&self.default)
    }

    /// The numbers that messages may have, each with its pattern; `None` for messages to no topic.
    pub(super) fn patterns(&self) -> impl Iterator<Item = (u16, Option<&str>)> {
        let numbered = (0u16..).zip(&self.patterns);
        let named = numbered.filter_map(|(number, name)| Some((number, Some(name.as_deref()?))));
        std::iter::once((0, None)).chain(named)
    }

    /// The tickers of all lengths.
    pub(super) fn tickers(&self) -> &[Arc<Ticker>] {
        &self.tickers
    }
}

impl Numbers {
    fn new(classes: usize, before: Option<Numbering>) -> Numbers {
        let patterns = match &before {
            Some(before) => before.patterns.clone(),
            None => vec![None; CLASS_NUMBERS].into(),
        };
        // The numbers of the classes in use are not given to other patterns: their topics move now.
        let in_use = before.iter().flat_map(|before| before.classes.iter());
        let mut taken: HashSet<u16> = in_use.map(|(_, number)| *number).collect();
        // Numbers begin with the order of the file.
        let first_of_default = u16::try_from(classes + 1).unwrap_or(0);
        taken.insert(before.as_ref().map_or(first_of_default, |before| before.of_default));
        Numbers { before, patterns, taken, first_of_default }
    }

    fn of(&mut self, pattern: &str, is_unused: &impl Fn(u16) -> bool) -> u16 {
        let is_it = |class: &&(Box<str>, u16)| *class.0 == *pattern;
        let kept = self.before.as_ref().and_then(|before| before.classes.iter().find(is_it));
        if let Some((_, number)) = kept {
            return *number;
        }
        let free = (1u16..).zip(&self.patterns[1..]);
        let free = free.filter(|(number, _)| !self.taken.contains(number));
        // Rather its former number, then one that nobody ever had, then one without messages.
        let rank = |(number, name): &(u16, &Option<Box<str>>)| match name {
            Some(name) if **name == *pattern => 0,
            None => 1,
            Some(_) if is_unused(*number) => 2,
            Some(_) => 3,
        };
        let number = free.min_by_key(rank).map_or(0, |(number, _)| number);
        self.take(number, pattern)
    }

    fn of_default(&mut self) -> u16 {
        let number = match &self.before {
            Some(before) => before.of_default,
            None => self.first_of_default,
        };
        self.take(number, "*")
    }

    fn take(&mut self, number: u16, pattern: &str) -> u16 {
        self.taken.insert(number);
        self.patterns[usize::from(number)] = Some(pattern.into());
        number
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
    fn new(
        class: &TopicClass,
        ticker: Option<Arc<Ticker>>,
        frame_bytes_max: usize,
        has_broker: bool,
    ) -> Self {
        Self {
            pattern: Pattern::new(&class.pattern),
            number: 0,
            is_default: false,
            publish: class.publish.clone(),
            subscribe: class.subscribe.clone(),
            history: class.history,
            presence: class.presence,
            presence_for: class.presence_for.clone(),
            publish_hook: None,
            subscribe_hook: None,
            is_cluster: has_broker && class.scope != Some(Scope::Node),
            resumes_from_oldest: class.resumes_from_oldest(),
            priority: class.priority,
            slow: class.slow,
            message_bytes_max: match class.message_bytes_max {
                0 => frame_bytes_max,
                limit => limit.min(frame_bytes_max),
            },
            tick: ticker.map(|ticker| TickRule {
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

    /// The class with its own hooks, or else with those for all topics.
    fn with_hooks(self, class: &TopicClass, hooks: &HooksConfig) -> Self {
        let of = |own: &Option<String>, all: &str| {
            let name = own.as_deref().unwrap_or(all);
            (!name.is_empty()).then(|| Arc::from(name))
        };
        Self {
            publish_hook: of(&class.publish_hook, &hooks.publish.upstream),
            subscribe_hook: of(&class.subscribe_hook, &hooks.subscribe.upstream),
            ..self
        }
    }

    /// What topics of this class keep.
    pub(super) fn fixed(&self) -> Fixed {
        let Class { is_cluster, presence, priority, slow, .. } = *self;
        Fixed { is_cluster, presence, priority, slow }
    }

    /// This class for a topic that exists and keeps this of its class before.
    pub(super) fn in_place_of(self: &Arc<Class>, fixed: Fixed) -> Arc<Class> {
        if self.fixed() == fixed {
            return Arc::clone(self);
        }
        let Fixed { is_cluster, presence, priority, slow } = fixed;
        Arc::new(Class { is_cluster, presence, priority, slow, ..(**self).clone() })
    }

    /// Whether the same callers may subscribe by both classes.
    pub(super) fn admits_like(&self, other: &Class) -> bool {
        let rules = |class: &Class| {
            // The pattern counts only where it names a device.
            let pattern = class.pattern.has_device().then(|| class.pattern.as_str().to_owned());
            (pattern, class.subscribe.clone(), class.presence_for.clone())
        };
        rules(self) == rules(other)
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

/// Room for as many removed classes as there can be: their messages may stay for a while.
#[expect(clippy::cast_possible_truncation, reason = "the limit is small")]
pub(crate) const CLASS_NUMBERS: usize = 2 * (CLASSES_MAX as usize + 1) + 1;

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
        let classes = Classes::new(&config, false, None, |_| true);
        let lengths: Vec<Duration> = classes.tickers().iter().map(|tick| tick.length()).collect();
        assert_eq!(lengths, [50, 9].map(Duration::from_millis));
        let tick = classes.of("room/1").tick.as_ref().unwrap();
        assert!(Arc::ptr_eq(&tick.ticker, &classes.tickers()[0]));
        assert!(classes.of("x").tick.is_none());
        config.topic_classes.truncate(1);
        let classes = Classes::new(&config, false, None, |_| true);
        assert_eq!(classes.of("x").pattern.as_str(), "*");
        assert_eq!(classes.of("x").publish, [Actor::Services]);
    }

    #[test]
    fn a_topic_that_exists_keeps_what_its_order_and_its_state_need() {
        let class = |presence, priority, slow| TopicClass {
            pattern: "*".to_owned(),
            presence,
            priority,
            slow,
            history: priority == Priority::High,
            ..TopicClass::default()
        };
        let of = |class: TopicClass| {
            let config = Config { topic_classes: vec![class], ..Config::default() };
            Arc::clone(Classes::new(&config, false, None, |_| true).of("x"))
        };
        let before = of(class(true, Priority::Low, SlowPolicy::Conflate));
        let after = of(class(false, Priority::High, SlowPolicy::Close));
        let moved = after.in_place_of(before.fixed());
        let fixed = (moved.presence, moved.priority, moved.slow);
        assert_eq!(fixed, (true, Priority::Low, SlowPolicy::Conflate));
        assert!(moved.history);
        assert!(Arc::ptr_eq(&after, &after.in_place_of(after.fixed())));
    }

    #[test]
    fn a_pattern_keeps_its_number_and_removed_ones_rest() {
        let config = |patterns: &[&str]| Config {
            topic_classes: patterns
                .iter()
                .map(|pattern| TopicClass { pattern: (*pattern).into(), ..Default::default() })
                .collect(),
            ..Config::default()
        };
        let first = Classes::new(&config(&["a", "b"]), false, None, |_| false);
        let numbers = |classes: &Classes| -> Vec<u16> {
            ["a", "b", "c", "x"].map(|name| classes.of(name).number).into()
        };
        assert_eq!(numbers(&first), [1, 2, 3, 3]);
        let next = Classes::new(&config(&["c", "b"]), false, Some(&first), |_| false);
        assert_eq!(numbers(&next), [3, 2, 4, 3]);
        let patterns: Vec<_> = next.patterns().collect();
        let expected = [(0, None), (1, Some("a")), (2, Some("b")), (3, Some("*")), (4, Some("c"))];
        assert_eq!(patterns, expected);
        let last = Classes::new(&config(&["a", "d"]), false, Some(&next), |_| false);
        assert_eq!((last.of("a").number, last.of("d").number), (1, 5));
        // Whatever comes and goes, the numbers suffice.
        let mut classes = last;
        for round in 0..10 {
            let patterns: Vec<String> =
                (0..CLASSES_MAX).map(|class| format!("{round}/{class}")).collect();
            let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
            classes = Classes::new(&config(&patterns), false, Some(&classes), |_| false);
            let numbers: HashSet<u16> =
                patterns.iter().map(|name| classes.of(name).number).collect();
            assert_eq!(numbers.len(), patterns.len());
            assert!(!numbers.contains(&0) && !numbers.contains(&classes.default.number));
        }
    }
}
