//! Exports all topics.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_engine::Message;
use weir_engine::handover::Messages;
use weir_wire::handover::v1;

use super::rings::SentRings;
use crate::topics::{Class, Extra, Router, Topic};

/// What topics have from their classes, each once.
#[derive(Default)]
struct Uses {
    /// By the addresses of the classes, which all topics keep meanwhile.
    known: HashMap<*const Class, u32, foldhash::fast::RandomState>,
    list: Vec<v1::TopicClassUse>,
}

impl Uses {
    /// The place of what topics of this class have.
    fn place(&mut self, class: &Arc<Class>) -> u32 {
        let list = &mut self.list;
        *self.known.entry(Arc::as_ptr(class)).or_insert_with(|| {
            let of_class = class.export();
            let place = list.iter().position(|known| *known == of_class);
            let place = place.unwrap_or_else(|| {
                list.push(of_class);
                list.len() - 1
            });
            u32::try_from(place).unwrap_or(u32::MAX)
        })
    }
}

impl Router {
    /// Everything that another process needs to go on with the topics. The router stands still from
    /// here on. The caller has seen to it that no report of a shard is on its way.
    ///
    /// `sent`: the messages that were sent early. Others that are retained, or wait for the end of a
    /// tick, are among the result.
    ///
    /// Cost: takes the lock of each topic once, and copies the bytes of these messages.
    pub(crate) fn export(&self, sent: &mut SentRings) -> v1::Topics {
        self.stand_still();
        let (mut topics, mut uses) = (Vec::with_capacity(self.topic_count()), Uses::default());
        let mut chunk = 0;
        // Classes must not go while their addresses are known.
        let mut classes = Vec::new();
        while let Some(of_chunk) = self.ids.chunk(chunk) {
            for topic in &of_chunk {
                let class = topic.class.load_full();
                let place = uses.place(&class);
                if classes.last().is_none_or(|last| !Arc::ptr_eq(last, &class)) {
                    classes.push(class);
                }
                topics.extend(topic.export(place, sent));
            }
            chunk += 1;
        }
        let (next_resume, resumes) = self.resumes.export();
        let mut in_classes = self.classes.load().export(&self.budget);
        in_classes.in_use = uses.list;
        v1::Topics {
            messages: sent.messages.take_exports(),
            classes: Some(in_classes),
            ids: Some(self.ids.export()),
            topics,
            resumes,
            next_resume,
            replays: self.export_replays(),
            attendances: self.attendances.export(),
            refused: self.retained.refused(),
            is_broker_lost: self.is_broker_lost(),
            broker_since_ms: self.broker_since_ms.load(Ordering::Relaxed),
        }
    }
}

impl Topic {
    /// `None`: it has ended.
    fn export(&self, class: u32, sent: &mut SentRings) -> Option<v1::Topic> {
        let SentRings { messages, newest, .. } = sent;
        let state = self.lock();
        if state.ended {
            return None;
        }
        let members = state.counts.export();
        Some(v1::Topic {
            id: self.id.0,
            name: self.name.as_ref().to_owned(),
            class,
            epoch: state.epoch,
            offset: state.offset,
            members: members.flat_map(|(shard, count)| [shard, count]).collect(),
            formats: state.formats.export(),
            extra: state.extra.as_ref().map(|extra| extra.export(messages, newest.get(&self.id))),
        })
    }
}

impl Extra {
    /// The number of resumes follows from the list of them.
    fn export(&self, messages: &mut Messages, newest: Option<&Arc<Message>>) -> v1::TopicExtra {
        v1::TopicExtra {
            bucket: self.bucket.full_at().0,
            ring: self.ring.export(messages, newest),
            tick: self.tick.export(messages),
            cluster: self.cluster.as_ref().map(|cluster| cluster.export()),
            presence: self.members.as_ref().map(|members| members.export()),
        }
    }
}
