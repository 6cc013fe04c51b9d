//! Resuming: sends a connection the messages that it has missed, chunk by chunk. The last chunk
//! makes it a member.

use std::sync::Arc;

use weir_wire::{CloseReason, ErrorCode};

use super::Shard;
use super::commands::topic_of;
use super::read::error_item;
use super::resumes::{Ask, RESUME_BYTES};
use crate::command::{CreditKind, Front, ReplayBegin, ReplayChunk, Report};
use crate::id::TopicId;
use crate::message::{Item, Message};
use crate::net::Net;
use crate::slot::Slot;
use crate::table::State;

impl<N: Net, F: Front> Shard<N, F> {
    /// Queues a replay chunk. The last one enters the connection into the topic.
    pub(super) fn resume(&mut self, chunk: ReplayChunk) {
        let ReplayChunk { conn, topic, resume, begin, messages, after, is_last } = chunk;
        let mut is_refused = false;
        let slot = self.find(conn).filter(|slot| match begin {
            Some(begin) => {
                let is_busy = self.resumes.is_running(*slot, topic);
                let has_begun = self.begin_resume(*slot, topic, begin);
                is_refused = !has_begun && !is_busy && self.table[*slot].state == State::Open;
                has_begun
            }
            None => self.resumes.is_current(*slot, topic, resume),
        });
        let is_entered = slot.is_some_and(|slot| {
            self.queue_chunk(slot, &messages);
            if is_last {
                self.end_resume(slot, topic);
            }
            let is_open = self.table[slot].state == State::Open;
            if is_open && is_last {
                let now = self.tick();
                self.topics.join(&mut self.table, slot, topic, now);
                self.ask_for_more(slot);
            } else if is_open {
                self.go_on_with_resume(slot, topic, resume, after);
            }
            is_open
        });
        if is_last && !is_entered {
            return self.report(Report::NotEntered { conn, topic }, true);
        }
        if is_refused {
            return self.report(Report::ResumeRefused { conn, topic, resume }, true);
        }
        self.inbox.return_credit(CreditKind::Control);
    }

    /// Answers the beginning of a resume. Returns whether the resume may continue.
    fn begin_resume(&mut self, slot: Slot, topic: TopicId, begin: ReplayBegin) -> bool {
        if self.table[slot].memberships.find(topic).is_some() {
            self.send_item(slot, &Item::Frame(begin.reply_if_member));
            return false;
        }
        if self.refuses_topic(slot, topic, &begin.reply) {
            return false;
        }
        self.send_item(slot, &Item::Frame(begin.reply));
        self.table[slot].state == State::Open
    }

    /// Tells a connection why it may not begin with a topic. `reply` is the answer that it would
    /// have got.
    pub(super) fn refuses_topic(&mut self, slot: Slot, topic: TopicId, reply: &[u8]) -> bool {
        if self.resumes.is_running(slot, topic) {
            let message = "connection is resuming this topic; unsubscribe from it first";
            self.send_item(slot, &error_item(ErrorCode::Busy, &topic_of(reply), message));
            return true;
        }
        let limit = self.settings.topics_per_connection_max;
        if self.table[slot].memberships.len() + self.resumes.count(slot) >= limit {
            self.stats.subscriptions_refused.add(1);
            let message = format!(
                "connection is in {limit} topics already, the limit of limits.topics_per_connection_max"
            );
            self.send_item(slot, &error_item(ErrorCode::TooManyTopics, &topic_of(reply), &message));
            return true;
        }
        false
    }

    /// Queues the messages of a chunk, and sends them together unless something waits already. They
    /// count towards the high watermark only from the next chunk on, together with those of chunks
    /// and ticks that come at about the same time.
    fn queue_chunk(&mut self, slot: Slot, messages: &[Arc<Message>]) {
        let is_waiting = self.table[slot].outbox.is_some();
        let kept =
            messages.len() - usize::from(self.is_seeded_short_resume() && messages.len() > 1);
        let format = self.format(slot);
        let mut bytes = 0;
        for message in &messages[..kept] {
            if self.table[slot].state != State::Open {
                return;
            }
            let Some(message) = self.formed_of_retained(slot, message) else { return };
            self.note_accepted();
            bytes += message.bytes(format).len();
            self.push(slot, Item::Message(message), 0);
        }
        if bytes == 0 || self.table[slot].state != State::Open {
            return;
        }
        if let Some(outbox) = &mut self.table[slot].outbox {
            outbox.grant_grace(bytes, self.now);
        }
        if self.table[slot].flags.to_flush {
            self.flush_gathered(slot);
        } else if is_waiting {
            self.check_watermarks(slot);
        } else {
            self.flush(slot);
        }
    }

    /// Notes the progress of a resume, and asks for the next chunk if there is room.
    fn go_on_with_resume(&mut self, slot: Slot, topic: TopicId, number: u32, after: u64) {
        if !self.resumes.is_running(slot, topic) {
            if !self.charge(RESUME_BYTES) {
                return self.close(slot, CloseReason::BudgetExhausted);
            }
            if self.table[slot].state != State::Open {
                // Making room ended this very connection.
                return self.lease.give(RESUME_BYTES);
            }
        }
        self.resumes.handle_part(slot, topic, number, after);
        self.ask_for_more(slot);
    }

    /// Asks for the next chunk if at most the low watermark waits for the connection. It asks for
    /// one topic at a time: the one of which the fewest chunks have come.
    pub(super) fn ask_for_more(&mut self, slot: Slot) {
        if self.resumes.is_empty() || self.table[slot].state != State::Open {
            return;
        }
        let waiting = self.table[slot].outbox.as_ref().map_or(0, |outbox| outbox.bytes());
        if waiting > self.settings.low_watermark_bytes {
            return;
        }
        let Some(Ask { topic, resume, after }) = self.resumes.poll_ask(slot) else { return };
        let conn = self.table.id(self.index, slot);
        self.report(Report::ResumeNext { conn, topic, resume, after }, false);
    }

    /// Ends a resume after its last chunk, or when it is called off.
    pub(super) fn end_resume(&mut self, slot: Slot, topic: TopicId) {
        let bytes = self.resumes.end(slot, topic);
        if bytes > 0 {
            self.lease.give(bytes);
        }
    }

    /// Ends the resumes of a connection that ends.
    pub(super) fn end_resumes(&mut self, slot: Slot) {
        let bytes = self.resumes.end_connection(slot);
        if bytes > 0 {
            self.lease.give(bytes);
        }
    }

    /// Ends the resumes of a retired topic. The front has told the connections that resumed it.
    pub(super) fn end_resumes_of(&mut self, topic: TopicId) {
        let slots = self.resumes.end_topic(topic);
        self.lease.give(slots.len() * RESUME_BYTES);
        for slot in slots {
            self.ask_for_more(slot);
        }
    }
}
