//! The receivers in use, and which of them is told of what.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weir_store::{Error, NoticeQueue, NoticeStatus, QueueId, QueueWatch};

use crate::base::config::{Config, NoticeEvent, ReceiverConfig};
use crate::base::pattern::Pattern;

/// All receivers of a configuration.
#[derive(Default)]
pub(super) struct Receivers {
    list: Vec<Arc<Receiver>>,
    /// By event: the queues that get it, whatever the topic.
    always: [Arc<[QueueId]>; NoticeEvent::ALL.len()],
    /// By event: whether a receiver with patterns wants it.
    is_chosen: [bool; NoticeEvent::ALL.len()],
}

/// A receiver with its queue.
pub(super) struct Receiver {
    pub(super) config: ReceiverConfig,
    /// With which its requests are signed; empty: they are not.
    pub(super) secret: String,
    patterns: Vec<Pattern>,
    queue: QueueId,
    pub(super) watch: QueueWatch,
    pub(super) counts: Arc<Counts>,
}

/// What its task counts. A reload does not change it.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) delivered: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) failures: AtomicU64,
    /// Whether the last request has failed.
    pub(super) is_failing: AtomicBool,
}

/// The figures of a receiver.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) status: NoticeStatus,
    pub(crate) delivered: u64,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    pub(crate) is_failing: bool,
}

impl Receivers {
    /// Gives each receiver of the configuration its queue. A receiver that has not changed stays as
    /// it is.
    pub(super) async fn make(
        file: &weir_store::Notices,
        config: &Config,
        before: &Receivers,
    ) -> Result<Receivers, Error> {
        let made = file.set_queues(queues_of(config)).await?;
        Ok(Self::with(made, config, before))
    }

    /// The same with queues that are there.
    pub(super) fn with(
        made: Vec<(QueueId, QueueWatch)>,
        config: &Config,
        before: &Receivers,
    ) -> Receivers {
        let wanted = &config.hooks.receivers;
        let list = wanted.iter().zip(made).map(|(receiver, (queue, watch))| {
            let known = before.list.iter().find(|known| known.queue == queue);
            let secret = match receiver.secret.is_empty() {
                true => config.hooks.secret.clone(),
                false => receiver.secret.clone(),
            };
            if let Some(known) = known
                && (&known.config, &known.secret) == (receiver, &secret)
            {
                return Arc::clone(known);
            }
            Arc::new(Receiver {
                config: receiver.clone(),
                secret,
                patterns: receiver.topics.iter().map(|pattern| Pattern::new(pattern)).collect(),
                queue,
                watch,
                counts: known.map(|known| Arc::clone(&known.counts)).unwrap_or_default(),
            })
        });
        Receivers::of(list.collect())
    }

    fn of(list: Vec<Arc<Receiver>>) -> Receivers {
        let mut receivers = Receivers { list, ..Receivers::default() };
        for (at, event) in NoticeEvent::ALL.into_iter().enumerate() {
            let wants = |one: &&Arc<Receiver>| one.config.events.contains(&event);
            let always = receivers.list.iter().filter(wants);
            let always = always.filter(|one| !has_topic(event) || one.patterns.is_empty());
            receivers.always[at] = always.map(|one| one.queue).collect();
            let chosen = receivers.list.iter().filter(wants).count();
            receivers.is_chosen[at] = chosen > receivers.always[at].len();
        }
        receivers
    }

    /// The queues that get an event.
    pub(super) fn queues(&self, event: NoticeEvent, topic: Option<&str>) -> Arc<[QueueId]> {
        let at = index(event);
        match topic.filter(|_| self.is_chosen[at]) {
            None => Arc::clone(&self.always[at]),
            Some(topic) => {
                let wants = |one: &&Arc<Receiver>| one.wants(event, topic);
                self.list.iter().filter(wants).map(|one| one.queue).collect()
            }
        }
    }

    /// Whether a queue gets an event.
    pub(super) fn hear(&self, event: NoticeEvent, topic: Option<&str>) -> bool {
        let at = index(event);
        !self.always[at].is_empty()
            || topic.is_some_and(|topic| {
                self.is_chosen[at] && self.list.iter().any(|one| one.wants(event, topic))
            })
    }
}

impl Deref for Receivers {
    type Target = [Arc<Receiver>];

    fn deref(&self) -> &[Arc<Receiver>] {
        &self.list
    }
}

impl Receiver {
    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn queue(&self) -> QueueId {
        self.queue
    }

    /// Whether notices wait for it, and it answers.
    pub(super) fn is_behind(&self) -> bool {
        self.watch.status().waiting > 0 && !self.counts.is_failing.load(Ordering::Relaxed)
    }

    pub(super) fn figures(&self) -> Figures {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Figures {
            name: self.config.name.clone(),
            status: self.watch.status(),
            delivered: load(&self.counts.delivered),
            requests: load(&self.counts.requests),
            failures: load(&self.counts.failures),
            is_failing: self.counts.is_failing.load(Ordering::Relaxed),
        }
    }

    fn wants(&self, event: NoticeEvent, topic: &str) -> bool {
        let is_its =
            self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(topic));
        is_its && self.config.events.contains(&event)
    }
}

/// The queues of all receivers, in their order.
pub(super) fn queues_of(config: &Config) -> Vec<NoticeQueue> {
    let queue_of = |receiver: &ReceiverConfig| NoticeQueue {
        name: receiver.name.clone(),
        notices_max: receiver.queue_notices_max as u64,
        bytes_max: receiver.queue_bytes_max as u64,
        keep: receiver.keep,
    };
    config.hooks.receivers.iter().map(queue_of).collect()
}

/// Whether notices of the event name a topic.
fn has_topic(event: NoticeEvent) -> bool {
    match event {
        NoticeEvent::Connected | NoticeEvent::Disconnected => false,
        NoticeEvent::Subscribed
        | NoticeEvent::Unsubscribed
        | NoticeEvent::Published
        | NoticeEvent::Occupied
        | NoticeEvent::Vacated => true,
    }
}

fn index(event: NoticeEvent) -> usize {
    event as usize
}
