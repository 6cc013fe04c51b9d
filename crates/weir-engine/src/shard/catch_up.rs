//! Conflation: connections that lag behind a topic, and how they catch up with it.
//!
//! A connection for which something waits does not get the messages of a conflating topic queued.
//! It *lags*: its outbox notes the offsets that it still needs, and the shard keeps the newest
//! message of each key for all connections that lag behind the topic (`latest`). When the socket
//! takes bytes and the queue is empty, those messages leave in the order of their offsets.
//!
//! The store gives a connection messages only up to the last one that a walk has brought it
//! (`Lag::seen`). What a walk brings later has a higher offset. So each message reaches the
//! connection on one way only, however far the walks of the topic are for others.
//!
//! A connection that never catches up gets the keys that changed longest ago. If all keys change
//! between two sends, always in the same order, those are the same keys each time; the last keys
//! come only in a pause. The shard cannot skip a message in favour of a later one, because offsets
//! must rise: if it is the last message of its key, it would be lost.

use std::io::IoSlice;
use std::sync::Arc;

use weir_wire::CloseReason;
use weir_wire::format::Format;

use super::Shard;
use super::latest::{Balance, Held};
use super::secure::Offered;
use crate::command::Front;
use crate::id::TopicId;
use crate::message::{Item, Message};
use crate::net::Net;
use crate::outbox::{GATHER_MAX, Lag};
use crate::slot::Slot;
use crate::stats::DropRule;
use crate::table::State;
use crate::tls::plaintext_bytes_max;

/// The result of one attempt to let a connection catch up.
pub(super) enum Progress {
    /// The socket took everything, or the shard must look again.
    GoOn,
    /// The socket refuses, the connection has ended, or it needs nothing more.
    Stop,
}

impl<N: Net, F: Front> Shard<N, F> {
    /// A message says that a new epoch of its topic begins: a connection that lags behind the old one gets nothing more
    /// of that, and learns so by the message.
    pub(super) fn end_epoch(&mut self, slot: Slot, topic: TopicId, message: &Message) {
        if message.replaces() != 0 {
            self.end_lag(slot, topic);
            self.forget_position(slot, message.replaces());
        }
    }

    pub(super) fn is_lagging(&self, slot: Slot) -> bool {
        self.table[slot].outbox.as_ref().is_some_and(|outbox| !outbox.lags.is_empty())
    }

    /// Handles a message of a conflating topic for a connection for which something waits. The
    /// store keeps the message, and the connection notes that it needs this message, or a newer one
    /// of its key.
    pub(super) fn lag(&mut self, slot: Slot, topic: TopicId, message: &Arc<Message>) {
        let (now, seen) = (self.now, message.order());
        let outbox = self.outbox(slot);
        if let Some(lag) = outbox.lags.iter_mut().find(|lag| lag.topic == topic) {
            lag.seen = lag.seen.max(seen);
            return self.remember(slot, topic, message);
        }
        let next = message.singles().first().map_or(seen, |single| single.order());
        let is_first = outbox.lags.is_empty();
        outbox.lags.push(Lag { topic, next, seen });
        if is_first {
            outbox.taken_at = now;
            self.lagging.append(&mut self.table, slot);
            self.list_waiting(slot);
            self.note_slow(slot, true);
        }
        self.latest.begin_lag(topic);
        self.arm_next(slot);
        if self.account(slot) {
            self.remember(slot, topic, message);
        } else {
            self.close(slot, CloseReason::BudgetExhausted);
        }
    }

    /// Enters a message that `slot` needs into the store of a topic; of a batch, its single
    /// messages.
    fn remember(&mut self, slot: Slot, topic: TopicId, message: &Arc<Message>) {
        let keeps_older = self.is_seeded_older_kept();
        let messages_max = self.settings.conflation_keys_max;
        if !self.latest.meet(topic, message.order()) {
            return;
        }
        let alone = [Arc::clone(message)];
        let singles = if message.singles().is_empty() { &alone } else { message.singles() };
        let mut has_room = true;
        for single in singles {
            has_room = self.hold(single);
            if !has_room {
                // The next connection in this walk has to try again.
                self.latest.forget_met(topic);
                break;
            }
            let held = Held::new(Arc::clone(single));
            // Making room may have ended all connections that lagged behind the topic.
            let Some(replaced) = self.latest.enter(topic, held, messages_max, keeps_older) else {
                break;
            };
            self.count_dropped(DropRule::Conflated, replaced);
        }
        if !has_room || !self.account_store(topic) {
            self.close(slot, CloseReason::BudgetExhausted);
        }
    }

    /// Adjusts the lease to the bytes that a store occupies; `false` if the budget has no room.
    fn account_store(&mut self, topic: TopicId) -> bool {
        match self.latest.account(topic) {
            Balance::Give(bytes) => self.lease.give(bytes),
            Balance::Take(bytes) if !self.charge(bytes) => return false,
            Balance::Take(bytes) => {
                if !self.latest.note_charged(topic, bytes) {
                    // Making room ended all connections that lagged behind the topic.
                    self.lease.give(bytes);
                }
            }
        }
        true
    }

    /// Sends a lagging connection with an empty queue the messages that it still needs, until it
    /// has caught up or the socket refuses.
    pub(super) fn catch_up(&mut self, slot: Slot) {
        while self.table[slot].state == State::Open
            && let Some(lag) = self.first_lag(slot).copied()
        {
            let mut batch = std::mem::take(&mut self.batch);
            let expired = self.latest.gather(&lag, self.now, &mut batch);
            let of = batch.first().map_or((0, 0), |message| (message.epoch(), message.shift()));
            if !self.form_batch(slot, &mut batch) {
                batch.clear();
            }
            let progress = match expired {
                Some(offset) => {
                    if let Some(lag) = self.first_lag(slot) {
                        lag.next = offset + 1;
                    }
                    self.note_accepted();
                    self.count_dropped(DropRule::Expired, 1);
                    Progress::GoOn
                }
                None if batch.is_empty() => {
                    self.end_lag(slot, lag.topic);
                    Progress::GoOn
                }
                None if self.is_secure(slot) => self.send_batch_sealed(slot, &batch),
                None => self.send_batch(slot, &batch),
            };
            batch.clear();
            self.batch = batch;
            self.take_back_position(slot, lag.topic, of);
            if matches!(progress, Progress::Stop) {
                return;
            }
        }
    }

    /// Turns each message of a batch into the connection's format.
    fn form_batch(&mut self, slot: Slot, batch: &mut [Arc<Message>]) -> bool {
        if self.format(slot) == Format::Stream {
            return true;
        }
        batch.iter_mut().all(|message| {
            // A ring may keep the message much longer than any connection lags.
            let formed = self.formed_of_retained(slot, message);
            let is_there = formed.is_some();
            *message = formed.unwrap_or_else(|| Arc::clone(message));
            is_there
        })
    }

    fn first_lag(&mut self, slot: Slot) -> Option<&mut Lag> {
        self.table[slot].outbox.as_mut()?.lags.first_mut()
    }

    /// Offers messages of the topic whose turn it is to the socket. If the socket takes a part of a
    /// message, the rest is queued: that message is committed, but later ones may still be
    /// replaced.
    fn send_batch(&mut self, slot: Slot, batch: &[Arc<Message>]) -> Progress {
        let format = self.format(slot);
        let mut bufs = [IoSlice::new(&[]); GATHER_MAX];
        for (buf, message) in bufs.iter_mut().zip(batch) {
            *buf = IoSlice::new(message.bytes(format));
        }
        let bytes: usize = batch.iter().map(|message| message.bytes(format).len()).sum();
        let mut sent = match self.send(slot, &bufs[..batch.len()]) {
            Ok(sent) => sent,
            Err(error) => {
                self.fail(slot, &error);
                return Progress::Stop;
            }
        };
        let progress = if sent < bytes { Progress::Stop } else { Progress::GoOn };
        let mut next = None;
        for message in batch {
            if sent == 0 {
                break;
            }
            next = Some(message.order() + 1);
            self.note_accepted();
            let whole = message.bytes(format).len();
            if sent < whole {
                self.push(slot, Item::Message(Arc::clone(message)), sent);
                break;
            }
            sent -= whole;
            self.note_sent(1);
            self.stats.delivered.add(1);
            self.stats.lag[self.table[slot].priority.index()]
                .record(self.now.since(message.accepted_at()), 1);
        }
        if let Some(next) = next {
            self.end_batch(slot, next);
            if let Some(outbox) = &mut self.table[slot].outbox {
                outbox.taken_at = self.now;
            }
        }
        progress
    }

    /// The same with TLS: as many messages as one record holds, or one message.
    fn send_batch_sealed(&mut self, slot: Slot, batch: &[Arc<Message>]) -> Progress {
        let mut bufs = [IoSlice::new(&[]); GATHER_MAX];
        let format = self.format(slot);
        let (mut count, mut bytes) = (0, 0);
        for (buf, message) in bufs.iter_mut().zip(batch) {
            bytes += message.bytes(format).len();
            if count > 0 && bytes > plaintext_bytes_max() {
                break;
            }
            *buf = IoSlice::new(message.bytes(format));
            count += 1;
        }
        let Offered { sent, rest } = match self.offer(slot, &mut bufs[..count]) {
            Ok(offered) => offered,
            Err(cause) => {
                self.end_unsendable(slot, &cause);
                return Progress::Stop;
            }
        };
        for message in &batch[..count] {
            self.note_accepted();
            if rest.is_none() {
                self.note_sent(1);
                self.stats.delivered.add(1);
                self.stats.lag[self.table[slot].priority.index()]
                    .record(self.now.since(message.accepted_at()), 1);
            }
        }
        self.end_batch(slot, batch[count - 1].order() + 1);
        let Some(rest) = rest else { return Progress::GoOn };
        // The record holds all of them, or it is one message.
        let items = batch[..count].iter().map(|message| Item::Message(Arc::clone(message)));
        self.commit(slot, items, sent, rest);
        Progress::Stop
    }

    /// A batch has left, or is committed: the next of its topic has the order `next`.
    fn end_batch(&mut self, slot: Slot, next: u64) {
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        if let Some(lag) = outbox.lags.first_mut() {
            lag.next = next;
            // Rotates, so that a busy topic starves none.
            outbox.lags.rotate_left(1);
        }
    }

    /// Notes that a connection has caught up with a topic, or leaves it. If the connection needs
    /// nothing more and nothing waits, its outbox goes.
    pub(super) fn end_lag(&mut self, slot: Slot, topic: TopicId) {
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        let Some(at) = outbox.lags.iter().position(|lag| lag.topic == topic) else { return };
        outbox.lags.remove(at);
        let is_live = outbox.lags.is_empty();
        let is_empty = outbox.is_empty();
        self.lease.give(self.latest.end_lag(topic));
        if is_live {
            self.lagging.remove(&mut self.table, slot);
            if is_empty {
                self.release_outbox(slot);
            }
        }
    }

    /// Ends all lags of a connection that ends. It gets no further messages from the stores.
    pub(super) fn end_lags(&mut self, slot: Slot) {
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        let lags = std::mem::take(&mut outbox.lags);
        if lags.is_empty() {
            return;
        }
        if self.table[slot].reason == CloseReason::Stalled && !self.is_stalled(slot) {
            let since = self.table[slot].outbox.as_ref().map_or(self.now, |outbox| outbox.taken_at);
            self.stats.stall_closed.record(self.now.since(since), 1);
        }
        for lag in lags {
            self.lease.give(self.latest.end_lag(lag.topic));
        }
        self.lagging.remove(&mut self.table, slot);
        self.account(slot);
    }
}
