//! Lists of topics: all with a property, and pages for operators.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Class, Router, Topic, lock};
use crate::base::model::TopicInfo;

impl Router {
    /// Topics by name: those that begin with `prefix` and come after `after`, at most `limit`.
    ///
    /// Cost: reads every name, one stripe at a time. Only operators should need it.
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicInfo> {
        let mut least: BTreeMap<Box<str>, Arc<Topic>> = Default::default();
        for stripe in &self.stripes {
            for topic in lock(stripe).iter() {
                let name = topic.name.as_ref();
                let is_wanted = name.starts_with(prefix) && after.is_none_or(|after| name > after);
                let is_full = least.len() >= limit;
                let is_least = !is_full
                    || least.last_key_value().is_some_and(|(last, _)| name < last.as_ref());
                if !is_wanted || !is_least {
                    continue;
                }
                least.insert(name.into(), Arc::clone(topic));
                if least.len() > limit {
                    least.pop_last();
                }
            }
        }
        least.into_values().map(|topic| topic.info()).collect()
    }

    /// The topics that exist and whose classes are meant.
    pub(super) fn topics_with(&self, is_meant: impl Fn(&Class) -> bool) -> Vec<Arc<Topic>> {
        let mut topics = Vec::new();
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            topics.extend(stripe.iter().filter(|topic| is_meant(&topic.class())).cloned());
        }
        // The order of a table is random; a simulation has to repeat.
        topics.sort_unstable_by_key(|topic| topic.id);
        topics
    }
}

impl Topic {
    fn info(&self) -> TopicInfo {
        let state = self.lock();
        TopicInfo {
            topic: self.name.as_ref().to_owned(),
            subscribers: state.counts.total(),
            offset: state.offset,
            epoch: state.epoch,
            class: self.class().pattern.as_str().to_owned(),
            retained_messages: state.extra.as_ref().map_or(0, |extra| extra.ring.len()),
        }
    }
}
