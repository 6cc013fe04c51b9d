//! New limits and classes for the router and its topics, while they are in use.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::coop;
use weir_engine::{Budget, ConnId, MessagePlace, TopicId};

use super::{Class, Classes, Router, State, Topic, lock};
use crate::base::config::Config;

/// Classes that are not in use yet.
pub(crate) struct NextClasses(Arc<Classes>);

/// What a topic had from its class before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Had {
    pub(super) ticks: bool,
    pub(super) retention: bool,
}

impl Router {
    /// Changes the limits for further topics, subscriptions and messages.
    pub(crate) fn limit(&self, config: &Config) {
        let topics_max = config.limits.topics_max;
        self.ids.limit(topics_max);
        self.unattended_max.store(topics_max.div_ceil(2), Ordering::Relaxed);
        self.presence.limit(config.limits.presence_members_max);
        self.name_bytes_max.store(config.limits.topic_bytes_max, Ordering::Relaxed);
        self.chunk_bytes_max.store(config.connection.low_watermark_bytes, Ordering::Relaxed);
    }

    /// The longest name of a topic.
    pub(crate) fn name_bytes_max(&self) -> usize {
        self.name_bytes_max.load(Ordering::Relaxed)
    }

    /// The longest frame.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    pub(super) fn chunk_bytes_max(&self) -> usize {
        self.chunk_bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn unattended_max(&self) -> usize {
        self.unattended_max.load(Ordering::Relaxed)
    }

    /// Makes the classes of another configuration.
    pub(crate) fn prepare(&self, config: &Config) -> NextClasses {
        let is_unused = |number| has_no_messages(&self.budget, number);
        let before = self.classes.load();
        NextClasses(Arc::new(Classes::new(config, self.has_broker, Some(&before), is_unused)))
    }

    /// Uses these classes from now on. Each topic moves to the class that matches its name. Returns
    /// the topics to which others may subscribe than before.
    ///
    /// Cost: each topic is locked once. Its name is compared with the patterns outside the lock.
    pub(crate) async fn replace(&self, NextClasses(next): NextClasses) -> HashSet<TopicId> {
        self.classes.store(Arc::clone(&next));
        let mut changed = HashSet::new();
        for stripe in &self.stripes {
            // A topic that begins later finds the new classes: it does so under this lock.
            let topics: Vec<Arc<Topic>> = lock(stripe).iter().cloned().collect();
            for topic in topics {
                self.serving().await;
                if !self.move_topic(&topic, next.of(&topic.name)) {
                    changed.insert(topic.id);
                }
                while !self.trim_to_class(&topic) {
                    coop::consume_budget().await;
                }
                coop::consume_budget().await;
            }
        }
        self.tickers.replace(next.tickers());
        changed
    }

    /// Gives a topic another class; returns whether the same callers may subscribe to it.
    fn move_topic(&self, topic: &Arc<Topic>, class: &Arc<Class>) -> bool {
        let mut state = topic.lock();
        let before = Arc::clone(&topic.class());
        let class = class.in_place_of(before.fixed());
        if state.ended {
            return true;
        }
        // What the tick has gathered leaves at its end, or before the next message.
        if before.tick.is_some() && class.tick.is_none() {
            self.end_tick(topic, &mut state);
        }
        let had = Had { ticks: before.tick.is_some(), retention: before.retention.is_some() };
        self.fit(&mut state, had, &class);
        let is_like = class.admits_like(&before);
        topic.class.store(class);
        self.end_if_idle(topic, &mut state);
        is_like
    }

    /// Prepares a topic for a class that has what its class before had not.
    pub(super) fn fit(&self, state: &mut State, had: Had, class: &Class) {
        let (sent, offset) = (state.sent_with(had.ticks), state.offset);
        let needs_extra = class.rate.is_some() || class.tick.is_some() || class.retention.is_some();
        if needs_extra || state.extra.is_some() {
            let has_gathered = state.has_gathered();
            let extra = state.extra_mut();
            if !had.ticks && class.tick.is_some() && !has_gathered {
                extra.tick.forget(offset);
            }
            if !had.retention && class.retention.is_some() {
                extra.ring.begin_behind(sent, &self.retained);
            }
        }
    }

    /// Removes some of the messages that the topic's class no longer retains; returns whether that
    /// was all.
    pub(super) fn trim_to_class(&self, topic: &Arc<Topic>) -> bool {
        let mut state = topic.lock();
        let retention = topic.class().retention;
        let sent = state.sent(&topic.class());
        let Some(extra) = &mut state.extra else { return true };
        let is_done = extra.ring.shrink(retention, sent, &self.retained);
        if is_done {
            self.end_if_idle(topic, &mut state);
        }
        is_done
    }

    /// Topics that a connection resumes, and is not in yet.
    pub(crate) fn resumed_by(&self, conn: ConnId) -> Vec<TopicId> {
        self.resumes.topics_of(conn)
    }

    /// Whether a connection hears who enters a topic and leaves it.
    pub(crate) fn watches(&self, topic: TopicId, conn: ConnId) -> bool {
        let Some(topic) = self.ids.topic(topic) else { return false };
        let state = topic.lock();
        let members = state.extra.as_ref().and_then(|extra| extra.members.as_ref());
        members.is_some_and(|members| members.watches(conn))
    }
}

fn has_no_messages(budget: &Budget, number: u16) -> bool {
    MessagePlace::ALL.iter().all(|place| budget.messages(number, *place).count == 0)
}
