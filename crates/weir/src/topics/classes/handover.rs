//! The classes of another process, and their numbers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::handover::NotUnderstood;
use weir_engine::{Budget, MessagePlace, Priority, SlowPolicy};
use weir_wire::handover::v1;

use super::{CLASS_NUMBERS, Class, Classes, Fixed, Numbering, Numbers};
use crate::base::handover::{at, narrow, refused};

/// What topics of another process have from a class.
#[derive(Debug)]
pub(in crate::topics) struct Use {
    pub(in crate::topics) fixed: Fixed,
    /// The length of its ticks.
    pub(in crate::topics) tick: Option<Duration>,
    pub(in crate::topics) is_retained: bool,
    /// See [`Class::admits`].
    pub(in crate::topics) admits: String,
}

impl Use {
    pub(in crate::topics) fn import(export: v1::TopicClassUse) -> Result<Use, NotUnderstood> {
        let v1::TopicClassUse { is_cluster, presence, tick, is_retained, admits, .. } = export;
        let priority = at("topic_class_use.priority", &Priority::ALL, export.priority)?;
        let slow = at("topic_class_use.slow", &SlowPolicy::ALL, export.slow)?;
        let fixed = Fixed { is_cluster, presence, priority, slow };
        let tick = (tick > 0).then(|| Duration::from_nanos(tick));
        Ok(Use { fixed, tick, is_retained, admits })
    }
}

impl Class {
    /// What topics have from this class.
    pub(in crate::topics) fn export(&self) -> v1::TopicClassUse {
        let Fixed { is_cluster, presence, priority, slow } = self.fixed();
        let tick = self.tick.as_ref().map_or(0, |rule| rule.ticker.length().as_nanos());
        v1::TopicClassUse {
            is_cluster,
            presence,
            priority: priority as u32,
            slow: slow as u32,
            tick: u64::try_from(tick).unwrap_or(u64::MAX),
            is_retained: self.retention.is_some(),
            admits: self.admits(),
        }
    }

    /// A text that is the same only if [`Class::admits_like`] says so. Between versions of the program
    /// it may differ although the rules are the same: then rights are checked once more.
    pub(in crate::topics) fn admits(&self) -> String {
        let pattern = self.pattern.has_device().then(|| self.pattern.as_str());
        format!("{pattern:?} {:?} {:?}", self.subscribe, self.presence_for)
    }
}

impl Classes {
    /// The numbers, without what topics have from the classes.
    pub(in crate::topics) fn export(&self, budget: &Budget) -> v1::TopicClasses {
        let configured: HashSet<u16> = self.ordered.iter().map(|class| class.number).collect();
        let has_messages =
            |number| MessagePlace::ALL.iter().any(|at| budget.messages(number, *at).count > 0);
        let numbered = self.patterns().filter_map(|(number, pattern)| Some((number, pattern?)));
        let numbers = numbered.map(|(number, pattern)| v1::TopicClassNumber {
            number: number.into(),
            pattern: pattern.to_owned(),
            is_configured: configured.contains(&number),
            has_messages: has_messages(number),
        });
        v1::TopicClasses {
            numbers: numbers.collect(),
            default_number: self.default.number.into(),
            in_use: Vec::new(),
        }
    }

    /// These classes with the numbers that patterns have in another process, as after a reload:
    /// messages from there name them.
    pub(in crate::topics) fn numbered_as(
        &self,
        export: &v1::TopicClasses,
    ) -> Result<Classes, NotUnderstood> {
        let (before, used) = Numbering::import(export)?;
        let is_unused = |number| !used.contains(&number);
        let mut numbers = Numbers::new(self.ordered.len(), Some(before));
        let mut numbered = |class: &Arc<Class>| {
            let number = numbers.of(class.pattern.as_str(), &is_unused);
            Arc::new(Class { number, ..(**class).clone() })
        };
        let ordered = self.ordered.iter().map(&mut numbered).collect();
        let default = Class { number: numbers.of_default(), ..(*self.default).clone() };
        let (tickers, patterns) = (self.tickers.clone(), numbers.patterns);
        Ok(Classes { ordered, default: Arc::new(default), tickers, patterns })
    }
}

impl Numbering {
    /// The numbers of another process, and those that messages have.
    fn import(export: &v1::TopicClasses) -> Result<(Numbering, HashSet<u16>), NotUnderstood> {
        let number = |number: u32| match narrow::<u16>("topic_class_number.number", number)? {
            number if (1..CLASS_NUMBERS).contains(&usize::from(number)) => Ok(number),
            number => Err(refused("topic_class_number.number", number)),
        };
        let mut patterns: Box<[Option<Box<str>>]> = vec![None; CLASS_NUMBERS].into();
        let (mut classes, mut used) = (Vec::new(), HashSet::new());
        for numbered in &export.numbers {
            let number = number(numbered.number)?;
            let pattern: Box<str> = numbered.pattern.as_str().into();
            if numbered.is_configured {
                classes.push((pattern.clone(), number));
            }
            used.extend(numbered.has_messages.then_some(number));
            if patterns[usize::from(number)].replace(pattern).is_some() {
                return Err(refused("topic_class_number.number", number));
            }
        }
        let of_default = number(export.default_number)?;
        if classes.iter().any(|(_, number)| *number == of_default) {
            return Err(refused("topic_classes.default_number", of_default));
        }
        Ok((Numbering { classes, of_default, patterns }, used))
    }
}
