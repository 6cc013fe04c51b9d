//! Delivers the messages of a topic of the cluster, and tells members where messages are lost.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;
use weir_broker::{History, Position, Received};
use weir_engine::{Budget, Command, Message, Nanos, TopicMessage};
use weir_wire::hot;

use super::{Envelope, Outcome, Phase, Source};
use crate::base::clock::unix_millis;
use crate::base::mailboxes::Publisher;
use crate::observe::counters::{EpochOutcome, Following};
use crate::topics::{Class, MessagePosition, Offer, Router, State, Topic};

/// A message as the broker has brought it.
pub(super) struct Arrived<'a> {
    push: hot::Push<'a>,
    accepted_at: Nanos,
    expires_at: Option<Nanos>,
}

/// Why a message is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// Its time is over.
    Expired,
    /// Another version has written it.
    Unknown,
}

impl<'a> Arrived<'a> {
    pub(super) fn read(received: &'a Received, source: Source) -> Result<Arrived<'a>, Unread> {
        let (now, now_ms) = (Nanos::now(), unix_millis());
        let envelope = Envelope::decode(&received.payload).ok_or(Unread::Unknown)?;
        let ttl = envelope.rest(now_ms).ok_or(Unread::Expired)?;
        let age = Duration::from_millis(now_ms.saturating_sub(envelope.accepted_ms));
        let accepted_at = match source {
            Source::Live => now,
            Source::Kept => {
                Nanos(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)))
            }
        };
        let expires_at = ttl.map(|ttl| now.after(ttl));
        let push = hot::Push { offset: received.offset, ..envelope.push };
        Ok(Arrived { push, accepted_at, expires_at })
    }

    /// The message at its place; `None` if the budget is used up.
    pub(super) fn message(
        &self,
        budget: &Arc<Budget>,
        class: &Class,
        place: MessagePosition,
    ) -> Option<Arc<Message>> {
        let mut frame = Vec::with_capacity(self.push.frame_bytes());
        let key = self.push.encode_frame(&mut frame);
        let at = |at| u32::try_from(at).expect("a frame is shorter than four gigabytes");
        let of_topic = TopicMessage {
            sender: self.push.sender,
            ..class.topic_message(place, at(key.start)..at(key.end))
        };
        Message::of_topic(budget, frame, self.accepted_at, self.expires_at, of_topic)
    }
}

impl Router {
    /// Delivers a message that comes next, or later where a gap cannot be filled.
    pub(super) fn apply(
        &self,
        topic: &Arc<Topic>,
        state: &mut State,
        received: &Received,
        source: Source,
    ) -> Outcome {
        let arrived = match Arrived::read(received, source) {
            Ok(arrived) => arrived,
            Err(unread) => {
                self.pass_over(unread, state.counts.total());
                state.offset = received.offset;
                return Outcome::Applied;
            }
        };
        let offer = Offer {
            frame_bytes: arrived.push.frame_bytes(),
            key: arrived.push.key,
            accepted_at: arrived.accepted_at,
            publisher: Publisher::Backend,
        };
        let message = |class: &Class, place| arrived.message(&self.budget, class, place);
        let before = std::mem::replace(&mut state.offset, received.offset - 1);
        if self.send(topic, state, offer, message) {
            state.offset = received.offset;
            let is_filled = source == Source::Kept && state.cluster().phase == Phase::CatchingUp;
            let what = if is_filled { Following::Filled } else { Following::Applied };
            self.counters.count_followed(what, 1);
            return Outcome::Applied;
        }
        state.offset = before;
        Outcome::NoRoom
    }

    /// Counts a message that so many connections do not get.
    pub(super) fn pass_over(&self, unread: Unread, connections: u32) {
        match unread {
            Unread::Expired => self.counters.count_expired(u64::from(connections)),
            Unread::Unknown => self.counters.count_followed(Following::Unknown, 1),
        }
    }

    /// Sends a message to the members, or only keeps it if there are none; `false`: no room.
    fn send(
        &self,
        topic: &Arc<Topic>,
        state: &mut State,
        offer: Offer<'_>,
        message: impl Fn(&Class, MessagePosition) -> Option<Arc<Message>>,
    ) -> bool {
        if state.counts.total() > 0 {
            let class = topic.class();
            return self.deliver((topic, &class), state, offer, &message).is_ok()
                // A full tick leaves early: the message has been accepted.
                || topic.class().tick.is_some()
                    && self.end_tick(topic, state)
                    && self.deliver((topic, &class), state, offer, &message).is_ok();
        }
        // What members were to get before they left comes first.
        if topic.class().tick.is_some() && !self.end_tick(topic, state) {
            return false;
        }
        let place = topic.next(state);
        if topic.class().retention.is_some() {
            let Some(message) = message(&topic.class(), place) else { return false };
            self.retain(topic, &mut state.extra_mut().ring, &message);
        }
        if topic.class().tick.is_some() {
            state.extra_mut().tick.skip_to(place.offset);
        }
        true
    }

    /// The topic begins to follow an epoch behind `position`.
    pub(super) fn begin_epoch(&self, state: &mut State, position: Position) {
        let next_order = state.offset.wrapping_add(state.cluster().shift).wrapping_add(1);
        if state.epoch != 0 {
            state.cluster().shift = next_order.wrapping_sub(position.offset);
        }
        state.epoch = position.epoch;
        state.offset = position.offset;
        let extra = state.extra_mut();
        extra.ring.begin_behind(position.offset, &self.retained);
        extra.tick.forget(position.offset);
    }

    /// What members have not got can not be had any more: they are told where messages go on.
    /// `false`: a mailbox or the budget has no room to tell them.
    pub(super) fn replace_epoch(
        &self,
        topic: &Arc<Topic>,
        state: &mut State,
        to: Position,
    ) -> bool {
        let before = state.epoch;
        if state.counts.total() > 0 {
            let Some(credits) = self.credits(&state.counts, &topic.class(), Publisher::Backend)
            else {
                return false;
            };
            let order = state.offset.wrapping_add(state.cluster().shift).wrapping_add(1);
            let of_topic = TopicMessage {
                topic: Some(topic.id),
                class: topic.class().number,
                priority: topic.class().priority,
                epoch: to.epoch,
                offset: to.offset,
                shift: order.wrapping_sub(to.offset),
                replaces: before,
                ..TopicMessage::default()
            };
            let frame = topic.subscribed(to.epoch, to.offset, false).into_vec();
            let notice = Message::of_topic(&self.budget, frame, Nanos::now(), None, of_topic);
            let Some(notice) = notice else { return false };
            for credit in credits {
                credit.push(Command::Publish(topic.id, Arc::clone(&notice)));
            }
        }
        self.counters.count_followed(Following::Restarted, 1);
        self.begin_epoch(state, to);
        true
    }

    /// The broker has begun a new epoch; `false`: no room to tell members.
    pub(super) fn change_epoch(
        &self,
        topic: &Arc<Topic>,
        state: &mut State,
        history: &History,
    ) -> bool {
        let offset = match topic.class().retention.is_some() {
            true => history.began.max(history.first - 1),
            false => history.top.offset,
        };
        let (before, epoch) = (state.offset, history.top.epoch);
        let has_room = self.replace_epoch(topic, state, Position { epoch, offset });
        if has_room {
            let what = match history.began >= before {
                true => EpochOutcome::Continued,
                false => EpochOutcome::Lost,
            };
            self.counters.count_epoch_change(what);
            let (topic, offsets) = (topic.name.as_ref(), what.name());
            info!(topic, before, began = history.began, offsets, "a topic has a new epoch");
        }
        has_room
    }
}
