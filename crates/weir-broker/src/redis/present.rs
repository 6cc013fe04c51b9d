//! In which topics this node has members, and under which name they stand in Redis.
//!
//! Members stand under the name of the node's *stay*. A stay ends for good when its node was dead for too long; the node
//! begins the next one when it is back. So nobody takes members out that the node has entered since.
//!
//! Redis keeps an index of each stay's topics, by which others find them when the node is dead. A topic is written there
//! before the first member enters, and taken out after the last has left. Each entry has a number: what takes an entry
//! out late leaves a newer one alone.

use std::collections::HashMap;

use crate::records::{Name, NodeState};

/// See the file.
pub(super) struct Present {
    instance: String,
    /// The number of the stay; 0: none has begun.
    stay: u64,
    topics: HashMap<Name, Topic>,
    /// The number of the last entry.
    entries: u64,
    /// The number of the last call that changes members.
    calls: u64,
}

/// The names of the stay at a moment, and of the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stay {
    number: u64,
    pub(super) name: String,
    pub(super) before: Option<String>,
}

/// A topic in which there are members, or were a moment ago.
struct Topic {
    /// The number of its entry in the index.
    entry: u64,
    /// After how many interruptions it was written there, if it was.
    written: Option<u64>,
    /// Calls under way that enter members, and how many there were so far.
    entering: u32,
    entered: u64,
}

/// How a topic was when a call began that lets members leave.
pub(super) struct Mark {
    stay: u64,
    entered: u64,
}

impl Present {
    pub(super) fn new(instance: &str) -> Present {
        let (instance, topics) = (instance.to_owned(), HashMap::new());
        Present { instance, stay: 0, topics, entries: 0, calls: 0 }
    }

    /// Notes what another process of this machine knows of itself; see [`NodeState`].
    pub(super) fn export_to(&self, state: &mut NodeState) {
        (state.stay, state.last_entry, state.last_call) = (self.stay, self.entries, self.calls);
        let topics = self.topics.iter();
        state.entries = topics.map(|(name, topic)| (name.clone(), topic.entry)).collect();
    }

    /// Goes on where that process has stopped. Its last calls may still be under way, so the next ones begin far behind
    /// them.
    pub(super) fn go_on(&mut self, state: &NodeState) {
        self.stay = state.stay;
        self.entries = state.last_entry;
        self.calls = state.last_call.saturating_add(CALLS_BETWEEN);
        let topic = |entry| Topic { entry, written: Some(0), entering: 0, entered: 0 };
        let entries = state.entries.iter();
        self.topics = entries.map(|(name, entry)| (name.clone(), topic(*entry))).collect();
    }

    /// The stay as it is now.
    pub(super) fn stay(&self) -> Stay {
        let before = self.stay.checked_sub(1).filter(|number| *number > 0);
        let before = before.map(|number| self.named(number));
        Stay { number: self.stay, name: self.named(self.stay), before }
    }

    /// The name of the stay that would come next.
    pub(super) fn next(&self) -> Stay {
        let number = self.stay + 1;
        Stay { number, name: self.named(number), before: Some(self.named(self.stay)) }
    }

    fn named(&self, number: u64) -> String {
        format!("{}:{number}", self.instance)
    }

    /// Whether a stay has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.stay > 0
    }

    /// Begins the next stay, if it has not begun meanwhile. It has no members; whether the one before had some.
    pub(super) fn begin(&mut self, next: &Stay) -> bool {
        let had_members = self.stay < next.number && !self.topics.is_empty();
        if self.stay < next.number {
            self.stay = next.number;
            self.topics.clear();
        }
        had_members
    }

    /// The number of a call that is about to change members. It outlives stays: Redis compares it with those of calls
    /// that come late.
    pub(super) fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// Forgets all topics.
    pub(super) fn clear(&mut self) {
        self.topics.clear();
    }

    /// Notes that members are about to enter. Gives those of the topics that have to be written to the index first, with
    /// the numbers of their entries. After an interruption Redis may have lost what was written before.
    pub(super) fn begin_entering<'a>(
        &mut self,
        topics: impl Iterator<Item = &'a Name>,
        interruptions: u64,
    ) -> Vec<(Name, u64)> {
        let mut unwritten = Vec::new();
        for name in topics {
            let topic = self.topics.entry(name.clone()).or_insert_with(|| {
                self.entries += 1;
                Topic { entry: self.entries, written: None, entering: 0, entered: 0 }
            });
            topic.entering += 1;
            topic.entered += 1;
            if topic.written != Some(interruptions) {
                unwritten.push((name.clone(), topic.entry));
            }
        }
        unwritten
    }

    /// Notes that entries are in the index.
    pub(super) fn written(&mut self, entries: &[(Name, u64)], interruptions: u64) {
        for (name, entry) in entries {
            let topic = self.topics.get_mut(name).filter(|topic| topic.entry == *entry);
            if let Some(topic) = topic {
                topic.written = Some(interruptions);
            }
        }
    }

    /// Notes that a call that entered members has ended, whether they have entered or not.
    pub(super) fn end_entering<'a>(&mut self, stay: &Stay, topics: impl Iterator<Item = &'a Name>) {
        if stay.number == self.stay {
            for name in topics {
                if let Some(topic) = self.topics.get_mut(name) {
                    topic.entering = topic.entering.saturating_sub(1);
                }
            }
        }
    }

    /// How a topic is before members leave; `None`: members are entering, or there are none.
    pub(super) fn mark(&self, name: &Name) -> Option<Mark> {
        let topic = self.topics.get(name).filter(|topic| topic.entering == 0)?;
        Some(Mark { stay: self.stay, entered: topic.entered })
    }

    /// Forgets a topic that was seen without members since it was marked, unless some have begun to enter since. Gives
    /// the number of its entry, which is to be taken out of the index.
    pub(super) fn emptied(&mut self, name: &Name, mark: &Mark) -> Option<u64> {
        let topic = self.topics.get(name)?;
        if self.stay != mark.stay || topic.entering > 0 || topic.entered != mark.entered {
            return None;
        }
        self.topics.remove(name).map(|topic| topic.entry)
    }

    /// Takes back that a topic is forgotten: its entry is in the index still.
    pub(super) fn remember(&mut self, stay: &Stay, name: &Name, entry: u64) {
        if stay.number == self.stay {
            let topic = Topic { entry, written: None, entering: 0, entered: 0 };
            self.topics.entry(name.clone()).or_insert(topic);
        }
    }

    /// The topics.
    pub(super) fn topics(&self) -> Vec<Name> {
        self.topics.keys().cloned().collect()
    }
}

/// Between the calls of two processes: more than the first makes while the second begins.
const CALLS_BETWEEN: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        "t".into()
    }

    /// Enters, and gives the number of the entry if it is to be written first.
    fn begin(present: &mut Present, interruptions: u64) -> Option<u64> {
        let unwritten = present.begin_entering([name()].iter(), interruptions);
        present.written(&unwritten, interruptions);
        unwritten.first().map(|(_, entry)| *entry)
    }

    fn end(present: &mut Present) {
        let stay = present.stay();
        present.end_entering(&stay, [name()].iter());
    }

    /// A node with a member, which has entered.
    fn entered() -> Present {
        let mut present = Present::new("node");
        assert!(!present.begin(&present.next()));
        assert_eq!(begin(&mut present, 0), Some(1));
        end(&mut present);
        present
    }

    #[test]
    fn a_topic_is_written_once_and_again_after_an_interruption() {
        let mut present = entered();
        for (interruptions, entry) in [(0, None), (1, Some(1)), (1, None), (2, Some(1))] {
            assert_eq!(begin(&mut present, interruptions), entry);
            end(&mut present);
        }
        // As long as it is not written, the next call writes it too.
        let unwritten = present.begin_entering([name()].iter(), 3);
        assert_eq!(present.begin_entering([name()].iter(), 3), unwritten);
    }

    #[test]
    fn an_empty_topic_is_forgotten_unless_members_enter() {
        let mut present = entered();
        let mark = present.mark(&name()).expect("it is known");
        assert_eq!(present.emptied(&name(), &mark), Some(1));
        assert!(present.mark(&name()).is_none());
        assert_eq!(begin(&mut present, 0), Some(2));
        // Members are entering when others begin to leave.
        assert!(present.mark(&name()).is_none());
        end(&mut present);
        // Members begin to enter, or enter, while others leave.
        let mark = present.mark(&name()).expect("it is known");
        assert_eq!(begin(&mut present, 0), None);
        assert_eq!(present.emptied(&name(), &mark), None);
        end(&mut present);
        assert_eq!(present.emptied(&name(), &mark), None);
        let mark = present.mark(&name()).expect("it is known");
        assert_eq!(present.emptied(&name(), &mark), Some(2));
        // Its entry could not be taken out.
        let stay = present.stay();
        present.remember(&stay, &name(), 2);
        assert_eq!(present.topics(), [name()]);
        assert_eq!(begin(&mut present, 0), Some(2));
    }

    #[test]
    fn a_stay_that_begins_has_nothing_of_the_one_before() {
        let mut present = entered();
        let (before, mark) = (present.stay(), present.mark(&name()).expect("it is known"));
        assert_eq!((&*before.name, &before.before), ("node:1", &None));
        let next = present.next();
        assert!(present.begin(&next));
        assert!(!present.begin(&next));
        assert_eq!(present.stay(), next);
        assert_eq!((&*next.name, next.before.as_deref()), ("node:2", Some("node:1")));
        assert_eq!(begin(&mut present, 0), Some(2));
        // What was under way before.
        present.end_entering(&before, [name()].iter());
        assert!(present.mark(&name()).is_none());
        end(&mut present);
        assert_eq!(present.emptied(&name(), &mark), None);
        present.remember(&before, &"other".into(), 1);
        assert_eq!(present.topics(), [name()]);
    }
}
