//! Topic classes as the router uses them: patterns taken apart once, settings resolved.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Priority, SlowPolicy, TopicMessage};

use super::{Place, RouteError};
use crate::base::config::{Actor, Config, TopicClass};

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

/// Messages that are taken, by one topic or from one sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
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

/// A pattern of topic names, taken apart.
///
/// Shape: `*` stands for any characters, none included; `{device}` for a device id, which has at least one. All else
/// stands for itself.
/// Cost: a look runs through the name once, but for literals that occur several times behind a `*`; no allocation.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    text: Box<str>,
    /// `{device}` as a gap.
    anybody: Box<[Segment]>,
    /// `{device}` as a literal that is known when it is asked for.
    somebody: Box<[Segment]>,
    /// What sets `{device}` off from a part that a `*` stands in: an id that holds it could reach into another's names.
    separators: Box<[char]>,
}

/// Literals that stand side by side, behind a gap or not.
#[derive(Debug, Clone, Default)]
struct Segment {
    /// Bytes of the gap before, at the least; `None`: no gap.
    gap: Option<usize>,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
enum Piece {
    Literal(Box<[u8]>),
    Device,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl std::hash::Hash for Pattern {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        let compile = |is_gap: bool| {
            let mut segments = vec![Segment::default()];
            let mut rest = text;
            while let Some(at) = rest.find(['*', '{']) {
                push_literal(&mut segments, &rest[..at]);
                rest = &rest[at..];
                if let Some(behind) = rest.strip_prefix('*') {
                    open_gap(&mut segments, 0);
                    rest = behind;
                } else if let Some(behind) = rest.strip_prefix(DEVICE) {
                    if is_gap {
                        open_gap(&mut segments, 1);
                    } else {
                        last(&mut segments).pieces.push(Piece::Device);
                    }
                    rest = behind;
                } else {
                    push_literal(&mut segments, &rest[..1]);
                    rest = &rest[1..];
                }
            }
            push_literal(&mut segments, rest);
            segments.into_boxed_slice()
        };
        let (before, behind) = text.split_once(DEVICE).unwrap_or_default();
        let before = before.contains('*').then(|| before.chars().next_back()).flatten();
        let behind = behind.contains('*').then(|| behind.chars().next()).flatten();
        Self {
            text: text.into(),
            anybody: compile(true),
            somebody: compile(false),
            separators: before.into_iter().chain(behind).collect(),
        }
    }

    /// Whether the name fits, whichever device `{device}` stands for.
    pub(crate) fn matches(&self, name: &str) -> bool {
        fits(&self.anybody, name.as_bytes(), b"")
    }

    /// Whether the name fits with `{device}` standing for this one, and for no other.
    pub(crate) fn matches_for(&self, name: &str, device: &str) -> bool {
        !device.contains(&*self.separators)
            && fits(&self.somebody, name.as_bytes(), device.as_bytes())
    }

    /// Whether it names a device.
    pub(crate) fn has_device(&self) -> bool {
        self.text.contains(DEVICE)
    }

    /// As it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl Segment {
    fn bytes(&self, device: &[u8]) -> usize {
        self.pieces.iter().map(|piece| piece.bytes(device).len()).sum()
    }

    /// Whether `name` begins with it.
    fn begins(&self, name: &[u8], device: &[u8]) -> bool {
        let mut rest = name;
        self.pieces.iter().all(|piece| match rest.strip_prefix(piece.bytes(device)) {
            Some(behind) => {
                rest = behind;
                true
            }
            None => false,
        })
    }
}

impl Piece {
    fn bytes<'a>(&'a self, device: &'a [u8]) -> &'a [u8] {
        match self {
            Piece::Literal(literal) => literal,
            Piece::Device => device,
        }
    }
}

/// Each segment takes the first place that it fits, the last one the end of the name. Bytes do for characters: no
/// literal fits in the middle of one.
fn fits(segments: &[Segment], name: &[u8], device: &[u8]) -> bool {
    let mut rest = name;
    for (index, segment) in segments.iter().enumerate() {
        let bytes = segment.bytes(device);
        let least = segment.gap.unwrap_or(0);
        let Some(most) = rest.len().checked_sub(bytes) else { return false };
        let is_last = index + 1 == segments.len();
        let places = match segment.gap {
            None if is_last && most > 0 => return false,
            None => 0..=0,
            Some(_) if is_last => most.max(least)..=most,
            Some(_) => least..=most,
        };
        let mut places = places.filter(|at| segment.begins(&rest[*at..], device));
        let Some(at) = places.next() else { return false };
        rest = &rest[at + bytes..];
    }
    true
}

fn push_literal(segments: &mut [Segment], literal: &str) {
    if !literal.is_empty() {
        last(segments).pieces.push(Piece::Literal(literal.as_bytes().into()));
    }
}

/// Begins a gap, or widens the one that nothing has followed yet.
fn open_gap(segments: &mut Vec<Segment>, bytes: usize) {
    let before = last(segments);
    match before.gap {
        Some(gap) if before.pieces.is_empty() => before.gap = Some(gap + bytes),
        Some(_) | None => segments.push(Segment { gap: Some(bytes), pieces: Vec::new() }),
    }
}

fn last(segments: &mut [Segment]) -> &mut Segment {
    segments.last_mut().expect("a pattern has at least one segment")
}

const DEVICE: &str = "{device}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        let check = |pattern: &str, name: &str, expected: bool| {
            assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern:?} on {name:?}");
        };
        check("*", "", true);
        check("*", "a/b", true);
        check("", "", true);
        check("", "a", false);
        check("a/b", "a/b", true);
        check("a/b", "a/bc", false);
        check("a/*", "a/", true);
        check("a/*", "a", false);
        check("*b", "abab", true);
        check("*b", "aba", false);
        check("a*a", "a", false);
        check("a*a", "aa", true);
        check("a*bc*d", "abbcxbcd", true);
        check("a*bc*d", "abbcx", false);
        check("*ab*ab", "ab", false);
        check("**", "x", true);
        check("größe/*", "größe/1", true);
        check("{a}*", "{a}b", true);
        check("{", "{", true);
    }

    #[test]
    fn a_device_is_somebody_or_one_of_them() {
        let check = |pattern: &str, name: &str, anybody: bool, d1: bool| {
            let fits = Pattern::new(pattern);
            assert_eq!(fits.matches(name), anybody, "{pattern:?} on {name:?}");
            assert_eq!(fits.matches_for(name, "d1"), d1, "{pattern:?} on {name:?} for d1");
        };
        check("to/{device}", "to/d1", true, true);
        check("to/{device}", "to/d2", true, false);
        check("to/{device}", "to/", false, false);
        check("to/{device}", "to/d11", true, false);
        check("{device}/*", "d1/x", true, true);
        check("{device}/*", "/x", false, false);
        check("*/{device}/in", "a/d1/d1/in", true, true);
        check("*/{device}/in", "a/d1/d2/in", true, false);
        check("*{device}", "d", true, false);
        check("*{device}", "", false, false);
        check("*{device}{device}", "d1", true, false);
        check("*x{device}", "xxd1", true, true);
        check("news", "news", true, true);
    }

    #[test]
    fn a_name_is_one_device_s_alone() {
        let check = |pattern: &str, name: &str, devices: &[&str]| {
            let fits = Pattern::new(pattern);
            let ids = ["van-7", "van-7/cmd", "cmd", "x"];
            let whose = ids.into_iter().filter(|id| fits.matches_for(name, id));
            assert_eq!(whose.collect::<Vec<_>>(), devices, "{pattern:?} on {name:?}");
        };
        check("{device}/*", "van-7/cmd/x", &["van-7"]);
        check("a/{device}/*", "a/van-7/cmd/x", &["van-7"]);
        check("*/{device}", "a/van-7/cmd", &["cmd"]);
        check("*/{device}-x", "van-7/cmd-x", &["cmd"]);
        // Without a * there is no doubt.
        check("{device}/in", "van-7/cmd/in", &["van-7/cmd"]);
        check("*", "van-7/cmd", &["van-7", "van-7/cmd", "cmd", "x"]);
    }

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
