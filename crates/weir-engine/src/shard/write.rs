//! Bytes to devices: sends, bytes that the kernel refuses, watermarks, and the byte budget.

use std::io::{self, IoSlice};
use std::sync::Arc;

use weir_wire::CloseReason;
use weir_wire::format::Format;

use super::Shard;
use crate::command::Front;
use crate::id::{SlowPolicy, TopicId};
use crate::message::{Item, Message};
use crate::net::Net;
use crate::outbox::{GATHER_MAX, Outbox};
use crate::slot::Slot;
use crate::stats::DropRule;
use crate::table::{Beat, State};

/// Outboxes kept for reuse. A fan-out that gathers for a few thousand connections takes none from
/// the allocator.
const SPARE_OUTBOXES_MAX: usize = 4096;

/// The result of gathering one message for one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gathered {
    /// Whether the connection is new to the gathering.
    pub(super) is_new: bool,
    /// Whether earlier gathered messages were offered to the socket.
    pub(super) has_sent: bool,
}

impl<N: Net, F: Front> Shard<N, F> {
    /// Sends a shared message of `topic` (`NONE`: no topic) to one open connection. This is the hot
    /// path of every fan-out. Returns whether the kernel took all.
    pub(super) fn deliver(&mut self, slot: Slot, topic: TopicId, message: &Arc<Message>) -> bool {
        self.end_epoch(slot, topic, message);
        let entry = &self.table[slot];
        if entry.outbox.is_some() {
            self.deliver_behind(slot, topic, message);
            return false;
        }
        if message.is_expired(self.now) {
            self.note_accepted();
            self.count_dropped(DropRule::Expired, 1);
            return false;
        }
        let format = self.format(slot);
        let formed;
        let (topic_message, message) = match format {
            Format::Stream => (message, message),
            Format::WsProtobuf | Format::WsJson | Format::Sse => {
                let Some(message_formed) = self.formed(slot, message) else { return false };
                formed = message_formed;
                (message, &formed)
            }
        };
        if self.is_secure(slot) {
            return self.deliver_sealed(slot, message);
        }
        let bytes = message.bytes(format);
        match self.send(slot, &[IoSlice::new(bytes)]) {
            Ok(sent) if sent == bytes.len() => {
                self.note_accepted();
                self.note_sent(1);
                self.stats.delivered.add(1);
                true
            }
            // A connection that has been told the position must wait for the message. Otherwise
            // another event would say that it has come.
            Ok(0) if conflates(topic, message) && !self.tells_positions(slot) => {
                self.lag(slot, topic, topic_message);
                false
            }
            Ok(sent) => {
                self.note_accepted();
                self.queue(slot, Item::Message(Arc::clone(message)), sent);
                false
            }
            Err(error) => {
                self.note_accepted();
                self.count_dropped(DropRule::Closed, 1);
                self.fail(slot, &error);
                false
            }
        }
    }

    /// The same for a connection for which something waits: the topic's slow policy decides.
    fn deliver_behind(&mut self, slot: Slot, topic: TopicId, message: &Arc<Message>) {
        match message.slow() {
            SlowPolicy::Drop
                if self.is_stalled(slot)
                    || self.is_held_up(slot)
                    || self.is_seeded_early_skip(slot) =>
            {
                self.count_dropped(DropRule::Slow, 1);
            }
            SlowPolicy::Conflate if conflates(topic, message) => self.lag(slot, topic, message),
            SlowPolicy::Close | SlowPolicy::Drop | SlowPolicy::Conflate => {
                let Some(message) = self.formed(slot, message) else { return };
                self.note_accepted();
                self.queue(slot, Item::Message(message), 0);
            }
        }
    }

    /// Sends frames for this open connection alone.
    pub(super) fn send_bytes(&mut self, slot: Slot, frames: &[u8]) {
        if self.format(slot) == Format::Stream {
            return self.send_formed(slot, frames);
        }
        let mut formed = Vec::new();
        self.form(slot, frames, &mut formed);
        if !formed.is_empty() {
            self.send_formed(slot, &formed);
        }
    }

    /// The same with bytes that are in the connection's format already.
    pub(super) fn send_formed(&mut self, slot: Slot, bytes: &[u8]) {
        self.note_accepted();
        if self.table[slot].outbox.is_some() {
            self.queue(slot, Item::Frame(bytes.into()), 0);
            // These bytes do not wait for the end of a gathering, which higher ranks may delay
            // without end.
            return self.flush_gathered(slot);
        }
        if self.is_secure(slot) {
            return self.send_bytes_sealed(slot, bytes);
        }
        match self.send(slot, &[IoSlice::new(bytes)]) {
            Ok(sent) if sent == bytes.len() => self.note_sent(1),
            // The whole frame, so that its remainder counts as committed.
            Ok(sent) => self.queue(slot, Item::Frame(bytes.into()), sent),
            Err(error) => {
                self.count_dropped(DropRule::Closed, 1);
                self.fail(slot, &error);
            }
        }
    }

    /// Sends an item to one open connection.
    pub(super) fn send_item(&mut self, slot: Slot, item: &Item) {
        match item {
            Item::Message(message) => {
                self.deliver_now(slot, TopicId::NONE, message);
                self.flush_gathered(slot);
            }
            Item::Frame(frame) => self.send_bytes(slot, frame),
        }
    }

    /// [`Shard::deliver`] for a single message. Notes its delivery lag here.
    fn deliver_now(&mut self, slot: Slot, topic: TopicId, message: &Arc<Message>) {
        if self.deliver(slot, topic, message) {
            let lag = &self.stats.lag[self.table[slot].priority.index()];
            lag.record(self.net.now().since(message.accepted_at()), 1);
        }
    }

    /// One send. If the socket refuses, the result is 0 bytes.
    pub(super) fn send(&mut self, slot: Slot, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let socket = self.table[slot].socket.as_ref().expect("the connection has a socket");
        loop {
            match self.net.send(socket, bufs) {
                Ok(sent) => {
                    self.stats.sent_bytes.add(sent as u64);
                    return Ok(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stats.sends_refused.add(1);
                    return Ok(0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts an item into the connection's outbox and checks the watermark.
    fn queue(&mut self, slot: Slot, item: Item, sent: usize) {
        if self.push(slot, item, sent) && !self.table[slot].flags.to_flush {
            self.check_watermarks(slot);
        }
    }

    /// The connection's outbox. If it has none, it gets a spare one.
    pub(super) fn outbox(&mut self, slot: Slot) -> &mut Outbox {
        let (spare, now) = (&mut self.spare_outboxes, self.now);
        let entry = &mut self.table[slot];
        let format = entry.format();
        entry.outbox.get_or_insert_with(|| {
            let mut outbox = spare.pop().unwrap_or_default();
            (outbox.format, outbox.began_at) = (format, now);
            outbox
        })
    }

    /// Puts an item, in the connection's format, into its outbox. `false` if the budget had no room
    /// and the connection has ended.
    pub(super) fn push(&mut self, slot: Slot, item: Item, sent: usize) -> bool {
        if self.is_seeded_lost_remainder() && sent > 0 {
            return true;
        }
        let now = self.now;
        self.outbox(slot).push(item, sent, now);
        self.stats.queued_items.add(1);
        if self.account(slot) {
            return true;
        }
        self.close(slot, CloseReason::BudgetExhausted);
        false
    }

    /// Queues a message behind those of the same gathering, to be flushed when the gathering is
    /// over.
    pub(super) fn gather(
        &mut self,
        slot: Slot,
        topic: TopicId,
        message: &Arc<Message>,
    ) -> Gathered {
        self.end_epoch(slot, topic, message);
        let has_sent = conflates(topic, message) && self.has_gathered_enough(slot);
        if has_sent {
            self.flush_gathered(slot);
        }
        let not_new = Gathered { is_new: false, has_sent };
        if self.table[slot].state != State::Open {
            return not_new;
        }
        let is_waiting = self.table[slot].outbox.is_some();
        let is_listed = self.table[slot].flags.to_flush;
        if is_waiting && (!is_listed || self.is_stalled(slot) || self.is_lagging(slot)) {
            self.deliver_behind(slot, topic, message);
            return not_new;
        }
        if self.tells_positions(slot) {
            // This connection needs a copy of its own. There would be no room for the copies of a
            // whole gathering at once.
            self.deliver_now(slot, topic, message);
            return Gathered { is_new: false, has_sent: true };
        }
        let Some(message) = self.formed(slot, message) else { return not_new };
        self.note_accepted();
        if !self.push(slot, Item::Message(message), 0) {
            return not_new;
        }
        self.table[slot].flags.to_flush = true;
        Gathered { is_new: !is_listed, has_sent }
    }

    /// Whether so much is gathered for a connection that a conflating topic must first see whether
    /// it keeps up. Gathered messages are not conflated any more.
    fn has_gathered_enough(&self, slot: Slot) -> bool {
        let entry = &self.table[slot];
        let bytes = entry.outbox.as_ref().map_or(0, |outbox| outbox.bytes());
        entry.flags.to_flush && bytes > self.settings.low_watermark_bytes
    }

    /// Flushes the gathered messages of a connection.
    pub(super) fn flush_gathered(&mut self, slot: Slot) {
        let entry = &mut self.table[slot];
        if std::mem::replace(&mut entry.flags.to_flush, false) && entry.state == State::Open {
            self.flush(slot);
        }
    }

    pub(super) fn handle_writable(&mut self, slot: Slot) {
        if self.table[slot].outbox.is_none() {
            return;
        }
        self.flush(slot);
        if self.table[slot].state == State::Closing && self.table[slot].outbox.is_none() {
            self.end_our_side(slot);
        }
    }

    /// Sends the waiting items, and then the messages that the connection lags behind, until
    /// everything is gone or the socket refuses.
    pub(super) fn flush(&mut self, slot: Slot) {
        if self.flush_queue(slot) {
            self.catch_up(slot);
        }
        if self.table[slot].outbox.is_some() {
            self.check_watermarks(slot);
        }
        self.ask_for_more(slot);
    }

    /// Sends the waiting items. Returns whether everything is gone.
    fn flush_queue(&mut self, slot: Slot) -> bool {
        if self.is_secure(slot) {
            return self.flush_sealed(slot);
        }
        while let Some(outbox) =
            self.table[slot].outbox.as_ref().filter(|outbox| !outbox.is_empty())
        {
            let expired = outbox.uncommitted().is_some_and(|item| item.is_expired(self.now));
            if expired {
                self.drop_first(slot);
                continue;
            }
            let mut bufs = [IoSlice::new(&[]); GATHER_MAX];
            let count = outbox.gather(&mut bufs, self.now);
            let bytes: usize = bufs[..count].iter().map(|buf| buf.len()).sum();
            let socket = self.table[slot].socket.as_ref().expect("the connection has a socket");
            let sent = match self.net.send(socket, &bufs[..count]) {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => {
                    self.fail(slot, &error);
                    return false;
                }
            };
            self.stats.sent_bytes.add(sent as u64);
            self.advance(slot, sent);
            if sent < bytes {
                self.stats.sends_refused.add(1);
                return false;
            }
        }
        true
    }

    /// Notes the bytes that the kernel took. An empty outbox goes back to the spare ones.
    pub(super) fn advance(&mut self, slot: Slot, sent: usize) {
        let priority = self.table[slot].priority;
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        let (stats, now) = (&self.stats, self.now);
        if sent > 0 {
            outbox.taken_at = now;
        }
        let mut done = 0;
        outbox.advance(sent, |item| {
            done += 1;
            stats.queued_items.set(stats.queued_items.get() - 1);
            if let Item::Message(message) = item {
                stats.delivered.add(1);
                stats.lag[priority.index()].record(now.since(message.accepted_at()), 1);
            }
        });
        let is_over = outbox.is_empty() && outbox.lags.is_empty();
        self.note_sent(done);
        if is_over {
            self.release_outbox(slot);
        } else {
            self.account(slot);
        }
    }

    /// Drops the first item, which has expired.
    pub(super) fn drop_first(&mut self, slot: Slot) {
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        let dropped = usize::from(outbox.pop().is_some());
        let is_over = outbox.is_empty() && outbox.lags.is_empty();
        self.stats.queued_items.set(self.stats.queued_items.get() - dropped as u64);
        self.count_dropped(DropRule::Expired, dropped);
        if is_over {
            self.release_outbox(slot);
        } else {
            self.account(slot);
        }
    }

    pub(super) fn count_dropped(&self, rule: DropRule, count: usize) {
        self.stats.dropped[rule as usize].add(count as u64);
    }

    /// Takes an outbox out of its entry. It is empty, or its connection ends.
    pub(super) fn release_outbox(&mut self, slot: Slot) {
        if self.is_stalled(slot) {
            self.end_stall(slot);
        }
        self.unlist_waiting(slot);
        let Some(mut outbox) = self.table[slot].outbox.take() else { return };
        let now = self.tick();
        let entry = &mut self.table[slot];
        match entry.flags.beat {
            // The question may have waited in the outbox.
            Beat::Asked if entry.state == State::Open => entry.leave_time_to_answer(now),
            Beat::Waiting => entry.flags.beat = Beat::Settled,
            Beat::Settled | Beat::Asked => {}
        }
        debug_assert!(outbox.lags.is_empty(), "a lagging connection has an outbox");
        self.stats.queued_items.set(self.stats.queued_items.get() - outbox.len() as u64);
        if !self.is_seeded_leak() {
            self.lease.give(outbox.charged);
        }
        outbox.charged = 0;
        if outbox.is_empty()
            && outbox.is_worth_keeping()
            && self.spare_outboxes.len() < SPARE_OUTBOXES_MAX
        {
            self.spare_outboxes.push(outbox);
        }
    }

    pub(super) fn is_stalled(&self, slot: Slot) -> bool {
        self.table[slot].outbox.as_ref().is_some_and(|outbox| outbox.stalled_since.is_some())
    }

    /// Whether the connection lags, and more than a begun item waits for it. It does not catch up
    /// before that has left. So messages of dropping topics and of conflating topics take turns,
    /// and neither starve.
    fn is_held_up(&self, slot: Slot) -> bool {
        self.table[slot]
            .outbox
            .as_ref()
            .is_some_and(|outbox| !outbox.lags.is_empty() && outbox.len() > outbox.committed())
    }

    /// A connection above the high watermark is stalled. Its clock runs until it is at the low
    /// watermark.
    pub(super) fn check_watermarks(&mut self, slot: Slot) {
        if !self.hold_all(slot) {
            return self.end_without_room(slot);
        }
        let Some(outbox) = &self.table[slot].outbox else { return };
        let is_stalled = outbox.stalled_since.is_some();
        if is_stalled && outbox.bytes() <= self.settings.low_watermark_bytes {
            self.end_stall(slot);
        } else if !is_stalled
            && outbox.bytes_counted() > self.settings.high_watermark_bytes
            && self.table[slot].state == State::Open
        {
            self.begin_stall(slot);
        }
    }

    fn begin_stall(&mut self, slot: Slot) {
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        outbox.stalled_since = Some(self.now);
        self.stalled.append(&mut self.table, slot);
        self.note_slow(slot, false);
        self.arm(slot, self.tick().plus(self.limits.stall.saturating_add(1)));
    }

    /// Ends a stall: the connection has recovered, or ends.
    pub(super) fn end_stall(&mut self, slot: Slot) {
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        let Some(since) = outbox.stalled_since.take() else { return };
        self.stalled.remove(&mut self.table, slot);
        let lasted = self.now.since(since);
        if self.table[slot].state == State::Open {
            self.stats.stall_recovered.record(lasted, 1);
            // Taking bytes is a sign of life. The shard now reads what the connection sent
            // meanwhile.
            let now = self.tick();
            let entry = &mut self.table[slot];
            (entry.heard_at, entry.flags.beat) = (now, Beat::Settled);
            entry.flags.read_late();
            self.list_to_read(slot);
            self.arm_next(slot);
        } else {
            self.stats.stall_closed.record(lasted, 1);
        }
    }

    /// Adjusts the lease to the bytes that an outbox occupies. `false` if the budget has no room.
    ///
    /// Other connections end only for an open connection: a `Goodbye` is not worth the end of
    /// another one.
    pub(super) fn account(&mut self, slot: Slot) -> bool {
        let Some(outbox) = &mut self.table[slot].outbox else { return true };
        let (occupied, charged) = (outbox.footprint(), outbox.charged);
        if occupied <= charged {
            outbox.charged = occupied;
            self.lease.give(charged - occupied);
            return true;
        }
        let missing = occupied - charged;
        let is_granted = match self.table[slot].state {
            State::Open => self.charge(missing),
            State::Closing | State::Closed | State::Free => self.lease.take(missing),
        };
        if !is_granted {
            return false;
        }
        let Some(outbox) = &mut self.table[slot].outbox else {
            // Making room for it ended this very connection.
            self.lease.give(missing);
            return true;
        };
        outbox.charged += missing;
        let surplus = outbox.charged.saturating_sub(outbox.footprint());
        outbox.charged -= surplus;
        self.lease.give(surplus);
        true
    }
}

/// Whether a connection for which something waits shall lag behind the message's topic.
fn conflates(topic: TopicId, message: &Message) -> bool {
    message.slow() == SlowPolicy::Conflate && topic != TopicId::NONE
}
