//! How far topics of the cluster are followed, for another process and from one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_broker::{Name, Received};
use weir_engine::handover::NotUnderstood;
use weir_engine::{Nanos, Share, TopicId};
use weir_wire::handover::v1;

use super::needs::Replay;
use super::parked::Parked;
use super::{ClusterTopic, Need, Phase, held_bytes};
use crate::base::handover::{at, refused};
use crate::observe::counters::Following;
use crate::topics::handover::{Shards, growing};
use crate::topics::{Router, State, Topic};

impl Phase {
    /// In the order of their numbers in an export.
    const ALL: [Phase; 4] = [Phase::Apart, Phase::Joining, Phase::Live, Phase::CatchingUp];
}

impl ClusterTopic {
    /// What the topic waits for from the broker is asked anew.
    pub(in crate::topics) fn export(&self) -> v1::TopicFollow {
        let held = self.held.iter().map(|(epoch, message)| v1::TopicHeld {
            epoch: *epoch,
            offset: message.offset,
            payload: message.payload.clone(),
        });
        let parked = self.parked.iter().map(|parked| v1::TopicParked {
            number: parked.number,
            subscriber: Some(parked.subscriber.export()),
        });
        v1::TopicFollow {
            phase: self.phase as u32,
            held: held.collect(),
            parked: parked.collect(),
            shift: self.shift,
            empty_since: self.empty_since.0,
            lingers: self.lingers,
            is_listed: self.is_listed,
        }
    }
}

impl State {
    /// Since when a topic without subscribers lingers, if it is listed.
    pub(in crate::topics) fn lingers_since(&mut self) -> Option<Nanos> {
        let cluster = self.cluster();
        cluster.is_listed.then_some(cluster.empty_since)
    }
}

impl Router {
    pub(in crate::topics) fn import_follow(
        &self,
        export: v1::TopicFollow,
        shards: Shards,
    ) -> Result<ClusterTopic, NotUnderstood> {
        let mut cluster = ClusterTopic::new();
        cluster.phase = at("topic_follow.phase", &Phase::ALL, export.phase)?;
        for v1::TopicHeld { epoch, offset, payload } in export.held {
            let message = Received { offset: growing("topic_held.offset", offset)?, payload };
            self.budget.overdraw(Share::Messages, held_bytes(&message));
            cluster.held.push_back((epoch, message));
        }
        for v1::TopicParked { number, subscriber } in export.parked {
            let missing = || refused("topic_parked.subscriber", 0_u64);
            let subscriber = subscriber.ok_or_else(missing)?;
            let subscriber = self.import_subscriber(&subscriber, shards)?;
            self.parked.fetch_add(1, Ordering::Relaxed);
            cluster.parked.push(Parked { subscriber, number });
        }
        cluster.shift = export.shift;
        cluster.empty_since = Nanos(growing("topic_follow.empty_since", export.empty_since)?);
        (cluster.lingers, cluster.is_listed) = (export.lingers, export.is_listed);
        Ok(cluster)
    }

    /// Asks the broker, which knows nothing of this process, for what a topic of another process
    /// needs: its messages from here on, and those since its last one.
    pub(in crate::topics) fn ask_anew(&self, topic: &Topic, state: &mut State) {
        let cluster = state.cluster();
        // What may have been missed so far is in the answer.
        cluster.again = false;
        match cluster.phase {
            Phase::Apart if cluster.parked.is_empty() => {}
            Phase::Apart => self.retry(topic, state),
            Phase::Joining => self.join(topic, state),
            // Nobody can tell what it has missed, and nothing is missing: this process listens already.
            Phase::Live | Phase::CatchingUp
                if topic.class().retention.is_none() && self.needs.has_joined(&topic.name) =>
            {
                cluster.phase = Phase::CatchingUp;
            }
            Phase::Live | Phase::CatchingUp => {
                let question = self.needs.question();
                (cluster.phase, cluster.asked) = (Phase::CatchingUp, Some(question));
                let name = Name::from(topic.name.as_ref());
                self.needs.push(Need::Join(name, state.offset, question));
            }
        }
    }

    /// The topics that this node has joined at the broker, or is joining.
    pub(crate) fn joined(&self) -> Vec<String> {
        let topics = self.topics_with(|class| class.is_cluster);
        let has_joined = |topic: &&Arc<Topic>| {
            let mut state = topic.lock();
            !state.ended && state.cluster().phase != Phase::Apart
        };
        topics.iter().filter(has_joined).map(|topic| topic.name.as_ref().to_owned()).collect()
    }

    /// This process listens to these topics before it takes them from another one.
    pub(crate) fn note_joined(&self, topics: impl IntoIterator<Item = Name>) {
        self.needs.note_joined(topics);
    }

    /// Goes on with the topics from another process that wait for nothing. What the broker tells
    /// comes after this.
    pub(crate) fn follow_imported(&self) {
        for topic in self.topics_with(|class| class.is_cluster) {
            let mut state = topic.lock();
            if !state.ended {
                let cluster = state.cluster();
                if cluster.phase == Phase::CatchingUp && cluster.asked.is_none() {
                    self.apply_held(&topic, &mut state);
                }
                self.end_if_idle(&topic, &mut state);
            }
        }
        self.needs.forget_joined();
    }

    /// Goes on where the router stood still: answers that came meanwhile were not heard.
    pub(in crate::topics) fn follow_again(&self, topic: &Arc<Topic>, state: &mut State) {
        let cluster = state.cluster();
        let is_retrying = std::mem::take(&mut cluster.is_retrying);
        match cluster.phase {
            Phase::Joining => self.join(topic, state),
            Phase::CatchingUp if cluster.asked.is_some() => self.read(topic, state),
            Phase::Apart | Phase::Live | Phase::CatchingUp if is_retrying => {
                self.retry(topic, state);
            }
            Phase::CatchingUp => self.apply_held(topic, state),
            Phase::Apart | Phase::Live => {}
        }
    }

    /// Keeps messages that come while the router stands still.
    pub(super) fn keep_for_later(
        &self,
        topic: &Topic,
        state: &mut State,
        epoch: u64,
        messages: Vec<Received>,
    ) {
        if state.cluster().phase == Phase::Apart {
            return;
        }
        for message in messages {
            if epoch == state.epoch && message.offset <= state.offset {
                self.counters.count_followed(Following::Duplicate, 1);
                continue;
            }
            if state.cluster().phase == Phase::Live {
                state.cluster().phase = Phase::CatchingUp;
            }
            self.hold(topic, state, epoch, message);
        }
    }

    /// Parts that running resumes wait for.
    pub(in crate::topics) fn export_replays(&self) -> Vec<v1::TopicReplay> {
        let parts = self.needs.unanswered().into_iter();
        let parts = parts
            .filter(|((conn, number), part)| self.resumes.is_running(*conn, part.topic, *number));
        let parts = parts.map(|((conn, number), part)| v1::TopicReplay {
            topic: part.topic.0,
            after: part.after,
            connection: conn.to_u64(),
            number,
            first: part.first,
        });
        parts.collect()
    }

    /// Asks for the parts that resumes of another process wait for.
    pub(in crate::topics) fn import_replays(
        &self,
        parts: Vec<v1::TopicReplay>,
        shards: Shards,
    ) -> Result<(), NotUnderstood> {
        for part in parts {
            let conn = shards.conn("topic_replay.connection", part.connection)?;
            let topic = self.ids.topic(TopicId(part.topic));
            let topic = topic.ok_or_else(|| refused("topic_replay.topic", part.topic))?;
            let first = part.first.as_ref().map(|first| self.import_subscriber(first, shards));
            let first = first.transpose()?;
            self.parked.fetch_add(usize::from(first.is_some()), Ordering::Relaxed);
            self.needs.push_replay(
                topic.id,
                Replay {
                    topic: Name::from(topic.name.as_ref()),
                    after: growing("topic_replay.after", part.after)?,
                    bytes_max: self.chunk_bytes_max(),
                    conn,
                    number: part.number,
                    first,
                },
            );
        }
        Ok(())
    }
}
