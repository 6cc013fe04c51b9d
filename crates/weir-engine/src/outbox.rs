//! The outbox of one connection: the bytes that its socket has not taken yet.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use weir_wire::format::Format;

use crate::budget::{Budget, Holders};
use crate::handover::{ItemExport, OutboxExport};
use crate::id::TopicId;
use crate::memory::rounded;
use crate::message::{Item, Message};
use crate::slot::Slot;
use crate::time::Nanos;

/// The outbox of a connection whose socket has refused bytes, or for which several fan-outs gather.
///
/// Shape: items in order. The first may have left in part. The outbox exists only while something
/// waits, or while the connection lags behind a topic. With TLS, bytes count as sent once the
/// record that holds them has left whole.
/// Invariant: `bytes` is the sum of the items' bytes less `sent`; `sent` is less than the first
/// item's bytes; the plaintext of a sealed record follows the sent bytes.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    items: VecDeque<Item>,
    /// The format of the connection.
    pub(crate) format: Format,
    /// The record that has begun to leave, if the connection has TLS.
    pub(crate) sealed: Option<Box<Sealed>>,
    /// Bytes of the first item that the kernel has. Then that item is committed.
    sent: usize,
    bytes: usize,
    own_bytes: usize,
    /// The bytes that the last ticks and replay chunks added, the time of the first of them, and
    /// the bytes added after them.
    grace_bytes: usize,
    grace_at: Nanos,
    bytes_behind: usize,
    /// When something began to wait.
    pub(crate) began_at: Nanos,
    /// The bytes that the shard's lease holds for this outbox.
    pub(crate) charged: usize,
    /// The number of items, from the first on, whose messages count as waiting. The items behind
    /// them are gathered, and are offered to the socket soon.
    held: usize,
    /// Whether it is in the list of connections for which something waits, and its neighbours
    /// there.
    pub(crate) is_waiting: bool,
    pub(crate) wait_links: Links,
    /// When the connection crossed the high watermark, until it recovers.
    pub(crate) stalled_since: Option<Nanos>,
    /// Neighbours in the list of stalled connections, longest-stalled first.
    pub(crate) links: Links,
    /// The topics that the connection lags behind. The first one is the next to catch up with.
    pub(crate) lags: Vec<Lag>,
    /// When the socket last took bytes. Before that, when the connection began to lag.
    pub(crate) taken_at: Nanos,
    /// Neighbours in the list of connections that lag, longest-lagging first.
    pub(crate) lag_links: Links,
}

/// One of the allocator's size classes.
const OUTBOX_BYTES: usize = 192;
const _: () = assert!(size_of::<Outbox>() <= OUTBOX_BYTES);

/// The rest of a record that the kernel has refused. Its items are committed.
pub(crate) struct Sealed {
    rest: Box<[u8]>,
    sent: usize,
    /// Bytes at the head of the queue that it holds; 0 for one of TLS's own records.
    plaintext: usize,
}

impl Sealed {
    pub(crate) fn new(rest: &[u8], plaintext: usize) -> Box<Self> {
        Box::new(Self { rest: rest.into(), sent: 0, plaintext })
    }

    /// The bytes that have not left yet.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.rest[self.sent..]
    }

    pub(crate) fn plaintext(&self) -> usize {
        self.plaintext
    }

    /// Notes that the kernel took `bytes` more. Returns whether all has left.
    pub(crate) fn advance(&mut self, bytes: usize) -> bool {
        self.sent += bytes;
        self.sent >= self.rest.len()
    }

    fn footprint(&self) -> usize {
        size_of::<Sealed>() + self.rest.len()
    }
}

/// Does not print the bytes.
impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, plaintext, .. } = self;
        write!(f, "Sealed {{ {sent} of {} sent, for {plaintext} }}", self.rest.len())
    }
}

/// The position of a connection in a topic that it lags behind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lag {
    pub(crate) topic: TopicId,
    /// Order (see `Message::order`) from which on it has still to get messages.
    pub(crate) next: u64,
    /// Order of the last message that a walk has brought it.
    pub(crate) seen: u64,
}

/// A connection's place in a list of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links {
    pub(crate) previous: Slot,
    pub(crate) next: Slot,
}

impl Default for Links {
    fn default() -> Self {
        Self { previous: Slot::NONE, next: Slot::NONE }
    }
}

/// Buffers in one gathered send: more would only lengthen the turn.
pub(crate) const GATHER_MAX: usize = 64;

/// Ticks and replay chunks that come within this time count as one. Ticks of the same length end
/// together, and a device that reconnects resumes all its topics at once. It is several turns of a
/// busy shard.
const GRACE_WINDOW: Duration = Duration::from_millis(50);

/// Items of a connection that the shard looks at to find large holders: a few large ones, or many
/// small ones of few senders.
const LOOKS_MAX: usize = 32;

/// An outbox that has grown beyond this is not kept for reuse.
const KEPT_ITEMS_MAX: usize = 8;

impl Outbox {
    /// Bytes not yet sent.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes not yet sent that count towards the high watermark. The last tick or replay chunk (or
    /// several at once) does not count. So no single one stalls a connection that took everything
    /// before it.
    pub(crate) fn bytes_counted(&self) -> usize {
        let grace = self.bytes.saturating_sub(self.bytes_behind).min(self.grace_bytes);
        self.bytes - grace
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.sealed.is_none()
    }

    /// The time since which the connection is above the high watermark. If it is not above, but
    /// lags: the time since which its socket has taken nothing.
    pub(crate) fn stuck_since(&self) -> Option<Nanos> {
        self.stalled_since.or_else(|| (!self.lags.is_empty()).then_some(self.taken_at))
    }

    /// The number of items that have left in part or are in a record. They may not be dropped.
    pub(crate) fn committed(&self) -> usize {
        let Some(sealed) = &self.sealed else { return usize::from(self.sent > 0) };
        let mut bytes = self.sent + sealed.plaintext;
        let mut count = 0;
        while bytes > 0
            && let Some(item) = self.items.get(count)
        {
            bytes = bytes.saturating_sub(item.bytes(self.format).len());
            count += 1;
        }
        count
    }

    /// The bytes that this outbox occupies. Shared messages have paid for themselves.
    pub(crate) fn footprint(&self) -> usize {
        let lags = self.lags.capacity() * size_of::<Lag>();
        let sealed = self.sealed.as_ref().map_or(0, |sealed| sealed.footprint());
        let items = self.items.capacity() * size_of::<Item>();
        size_of::<Outbox>() + items + lags + sealed + self.own_bytes
    }

    /// The bytes that the allocator takes for this outbox.
    ///
    /// Cost: looks at each item if frames for this connection alone wait.
    pub(crate) fn occupied(&self) -> usize {
        let frames = if self.own_bytes == 0 {
            0
        } else {
            self.items.iter().map(|item| rounded(item.own_bytes())).sum()
        };
        let sealed = self
            .sealed
            .as_ref()
            .map_or(0, |sealed| rounded(size_of::<Sealed>()) + rounded(sealed.rest.len()));
        let lists = rounded(self.items.capacity() * size_of::<Item>())
            + rounded(self.lags.capacity() * size_of::<Lag>());
        rounded(size_of::<Outbox>()) + lists + sealed + frames
    }

    /// The first message that waits, if one does.
    pub(crate) fn first_message(&self) -> Option<&Arc<Message>> {
        self.items.iter().take(LOOKS_MAX).find_map(message_of)
    }

    /// The first waiting message that no other queue holds.
    ///
    /// Cost: looks at [`LOOKS_MAX`] items at most.
    pub(crate) fn first_of_its_own(&self) -> Option<&Arc<Message>> {
        let held = self.items.iter().take(self.held.min(LOOKS_MAX)).filter_map(message_of);
        held.into_iter().find(|message| message.charge().queues() == 1)
    }

    /// Appends an item. The kernel has `sent` of its bytes already (only for the first item).
    pub(crate) fn push(&mut self, item: Item, sent: usize, now: Nanos) {
        debug_assert!(sent == 0 || self.items.is_empty(), "only the first item can be partly sent");
        let bytes = item.bytes(self.format).len() - sent;
        self.bytes += bytes;
        self.bytes_behind += bytes;
        if item.is_tick() {
            self.grant_grace(bytes, now);
        }
        self.own_bytes += item.own_bytes();
        self.sent += sent;
        self.items.push_back(item);
    }

    /// Notes that the last `bytes` bytes belong to one tick or chunk. Those of the previous one
    /// count from now on, unless both belong together.
    pub(crate) fn grant_grace(&mut self, bytes: usize, now: Nanos) {
        let mut before = self.bytes.saturating_sub(self.bytes_behind).min(self.grace_bytes);
        if before == 0 || now.since(self.grace_at) > GRACE_WINDOW {
            (before, self.grace_at) = (0, now);
        }
        (self.grace_bytes, self.bytes_behind) = (before + bytes, 0);
    }

    /// The first item, if no byte of it is sent or sealed.
    pub(crate) fn uncommitted(&self) -> Option<&Item> {
        let is_sealed = self.sealed.as_ref().is_some_and(|sealed| sealed.plaintext > 0);
        self.items.front().filter(|_| self.sent == 0 && !is_sealed)
    }

    /// Counts one more item as waiting; `None` if all are counted. `Err`: the share for waiting has
    /// no room for this message.
    pub(crate) fn hold_next(&mut self) -> Option<Result<(), Arc<Message>>> {
        match self.items.get(self.held)? {
            Item::Message(message) if !message.hold() => Some(Err(Arc::clone(message))),
            Item::Message(_) | Item::Frame(_) => {
                self.held += 1;
                Some(Ok(()))
            }
        }
    }

    /// The most bytes that a topic, a device or a sender holds, among the first waiting items.
    pub(crate) fn most_held(&self, budget: &Budget) -> usize {
        let of_message = |message: &Arc<Message>| {
            let Holders { target, sender } = message.charge().holders();
            budget.held_by(target).max(sender.map_or(0, |sender| budget.held_by(sender)))
        };
        let items = self.items.iter().take(self.held.min(LOOKS_MAX));
        let held = items.map(|item| match item {
            Item::Message(message) => of_message(message),
            Item::Frame(_) => 0,
        });
        held.max().unwrap_or(0)
    }

    /// Whether a message waits, in part or whole.
    pub(crate) fn has_message(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Message(_)))
    }

    fn release_first(&mut self, item: &Item) {
        if self.held > 0 {
            self.held -= 1;
            release(item);
        }
    }

    /// Removes the first item.
    pub(crate) fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.release_first(&item);
        self.bytes -= item.bytes(self.format).len() - self.sent;
        self.own_bytes -= item.own_bytes();
        self.sent = 0;
        Some(item)
    }

    /// Drops all uncommitted items, leaves room for a `Goodbye`, and returns how many items it
    /// dropped.
    pub(crate) fn keep_remainder(&mut self) -> usize {
        self.keep(self.committed())
    }

    /// Drops all but the first items.
    pub(crate) fn keep(&mut self, keep: usize) -> usize {
        let mut dropped = 0;
        while self.items.len() > keep {
            let item = self.items.pop_back().expect("the outbox is longer than `keep`");
            if self.held > self.items.len() {
                self.held = self.items.len();
                release(&item);
            }
            self.bytes -= item.bytes(self.format).len();
            self.own_bytes -= item.own_bytes();
            dropped += 1;
        }
        (self.grace_bytes, self.bytes_behind) = (0, self.bytes);
        self.items.shrink_to(keep + 1);
        dropped
    }

    /// What another process needs to continue.
    pub(crate) fn export(&self, mut number: impl FnMut(&Arc<Message>) -> u64) -> OutboxExport {
        let items = self.items.iter().map(|item| match item {
            Item::Message(message) => ItemExport::Message(number(message)),
            Item::Frame(frame) => ItemExport::Frame(frame.clone()),
        });
        OutboxExport {
            items: items.collect(),
            sent: self.sent,
            sealed: self.sealed.as_ref().map(|sealed| (sealed.rest().to_vec(), sealed.plaintext)),
            grace: (self.grace_bytes, self.grace_at, self.bytes_behind),
            began_at: self.began_at,
            stalled_since: self.stalled_since,
            taken_at: self.taken_at,
            lags: self.lags.iter().map(|lag| (lag.topic, lag.next, lag.seen)).collect(),
        }
    }

    /// Continues what another process has begun. All its messages count as waiting, even beyond the
    /// budget. `find` finds them by their numbers.
    pub(crate) fn import(
        &mut self,
        export: OutboxExport,
        find: impl Fn(u64) -> Option<Arc<Message>>,
    ) {
        for item in export.items {
            let item = match item {
                ItemExport::Message(number) => find(number).map(Item::Message),
                ItemExport::Frame(frame) => Some(Item::Frame(frame)),
            };
            let Some(item) = item else { continue };
            if let Item::Message(message) = &item {
                message.encode(self.format);
                message.hold_anyway();
            }
            self.bytes += item.bytes(self.format).len();
            self.own_bytes += item.own_bytes();
            self.items.push_back(item);
        }
        self.held = self.items.len();
        self.sent = export.sent;
        self.bytes -= export.sent;
        self.sealed = export.sealed.map(|(rest, plaintext)| Sealed::new(&rest, plaintext));
        (self.grace_bytes, self.grace_at, self.bytes_behind) = export.grace;
        (self.began_at, self.taken_at) = (export.began_at, export.taken_at);
        self.stalled_since = export.stalled_since;
        let lags = export.lags.into_iter();
        self.lags = lags.map(|(topic, next, seen)| Lag { topic, next, seen }).collect();
    }

    /// Puts the next bytes to send into `bufs`, up to the first uncommitted item that has expired.
    /// Returns how many buffers it filled.
    pub(crate) fn gather<'a>(&'a self, bufs: &mut [IoSlice<'a>; GATHER_MAX], now: Nanos) -> usize {
        let mut skip = self.sent;
        let mut count = 0;
        for (buf, item) in bufs.iter_mut().zip(&self.items) {
            if skip == 0 && item.is_expired(now) {
                break;
            }
            *buf = IoSlice::new(&item.bytes(self.format)[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// Notes that the kernel took `bytes` more. Passes items that have left whole to `done`.
    pub(crate) fn advance(&mut self, bytes: usize, mut done: impl FnMut(Item)) {
        debug_assert!(bytes <= self.bytes, "the kernel takes no more than was given");
        self.bytes -= bytes;
        self.sent += bytes;
        while let Some(first) = self.items.front() {
            let whole = first.bytes(self.format).len();
            if self.sent < whole {
                break;
            }
            self.sent -= whole;
            let item = self.items.pop_front().expect("it is the first");
            self.release_first(&item);
            self.own_bytes -= item.own_bytes();
            done(item);
        }
    }

    /// Whether the outbox is small enough to keep for another connection.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.items.capacity() <= KEPT_ITEMS_MAX && self.lags.capacity() <= KEPT_ITEMS_MAX
    }
}

/// Items count as waiting no longer than the outbox lives.
impl Drop for Outbox {
    fn drop(&mut self) {
        self.items.iter().take(self.held).for_each(release);
    }
}

fn message_of(item: &Item) -> Option<&Arc<Message>> {
    match item {
        Item::Message(message) => Some(message),
        Item::Frame(_) => None,
    }
}

fn release(item: &Item) {
    match item {
        Item::Message(message) => message.release(),
        Item::Frame(_) => {}
    }
}

#[cfg(any(test, feature = "sim"))]
impl Outbox {
    /// The messages in this outbox that count as waiting.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.items.iter().take(self.held).filter_map(message_of)
    }

    /// Whether all its items count as waiting.
    pub(crate) fn is_held(&self) -> bool {
        self.held == self.items.len()
    }

    /// All bytes that wait.
    pub(crate) fn waiting(&self) -> Vec<u8> {
        let all = self.items.iter().flat_map(|item| item.bytes(self.format).iter().copied());
        all.skip(self.sent).collect()
    }

    /// Looks for contradictions between the sums and the items.
    pub(crate) fn check(&self) -> Result<(), String> {
        let all: usize = self.items.iter().map(|item| item.bytes(self.format).len()).sum();
        let own: usize = self.items.iter().map(Item::own_bytes).sum();
        let first = self.items.front().map_or(0, |item| item.bytes(self.format).len());
        let is_sent = self.sent > 0 && self.sent >= first;
        let sealed = self.sealed.as_ref().map_or(0, |sealed| sealed.plaintext);
        if sealed > self.bytes {
            return Err(format!("{sealed} of {} bytes are sealed", self.bytes));
        }
        if all != self.bytes + self.sent || own != self.own_bytes || is_sent {
            return Err(format!("the outbox holds {all} bytes, {own} of its own"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::TopicMessage;

    fn frame(byte: u8, bytes: usize) -> Item {
        Item::Frame(vec![byte; bytes].into_boxed_slice())
    }

    fn waiting(outbox: &Outbox) -> Vec<u8> {
        let mut bufs = [IoSlice::new(&[]); GATHER_MAX];
        let count = outbox.gather(&mut bufs, Nanos(0));
        bufs[..count].iter().flat_map(|buf| buf.to_vec()).collect()
    }

    #[test]
    fn bytes_leave_in_order_whatever_the_kernel_takes() {
        let mut outbox = Outbox::default();
        outbox.push(frame(1, 4), 1, Nanos(0));
        outbox.push(frame(2, 2), 0, Nanos(0));
        outbox.push(frame(3, 3), 0, Nanos(0));
        let mut all = waiting(&outbox);
        assert_eq!(all, [1, 1, 1, 2, 2, 3, 3, 3]);
        let mut done = 0;
        for step in [2, 3, 1, 2] {
            outbox.advance(step, |_| done += 1);
            all.drain(..step);
            assert_eq!(waiting(&outbox), all);
            assert_eq!(outbox.bytes(), all.len());
        }
        assert_eq!((done, outbox.is_empty(), outbox.committed()), (3, true, 0));
    }

    #[test]
    fn only_what_no_byte_was_sent_of_can_be_dropped() {
        let mut outbox = Outbox::default();
        outbox.push(frame(1, 4), 2, Nanos(0));
        outbox.push(frame(2, 2), 0, Nanos(0));
        assert!(outbox.uncommitted().is_none());
        outbox.items.reserve(1000);
        assert_eq!(outbox.keep_remainder(), 1);
        assert_eq!(waiting(&outbox), [1, 1]);
        assert!(outbox.footprint() < 500, "the room of the queue is given back");
        outbox.advance(2, |_| ());
        outbox.push(frame(3, 3), 0, Nanos(0));
        assert_eq!(outbox.keep_remainder(), 1);
        assert_eq!((outbox.bytes(), outbox.is_empty()), (0, true));
    }

    #[test]
    fn what_a_record_holds_waits_for_it_and_is_committed() {
        let mut outbox = Outbox::default();
        for (byte, bytes) in [(1, 4), (2, 2), (3, 3), (4, 1)] {
            outbox.push(frame(byte, bytes), 0, Nanos(0));
        }
        outbox.advance(1, |_| ());
        assert_eq!(outbox.committed(), 1);
        outbox.sealed = Some(Sealed::new(&[0; 30], 6));
        assert_eq!(outbox.committed(), 3, "the record ends within the third");
        assert!(outbox.uncommitted().is_none());
        let footprint = outbox.footprint();
        let mut sealed = outbox.sealed.take().expect("it was just put there");
        assert!(outbox.footprint() + 30 < footprint, "its bytes are counted");
        assert!(!sealed.advance(29));
        assert_eq!((sealed.rest().len(), sealed.plaintext()), (1, 6));
        outbox.sealed = Some(sealed);
        assert_eq!(outbox.keep_remainder(), 1);
        assert_eq!(outbox.bytes(), 8);
        assert!(outbox.check().is_ok());
        outbox.sealed = Some(Sealed::new(&[0; 30], 9));
        assert!(outbox.check().is_err(), "more is sealed than waits");
        outbox.sealed = Some(Sealed::new(&[0; 30], 0));
        outbox.advance(3, |_| ());
        assert!(outbox.uncommitted().is_some(), "a record of TLS itself commits nothing");
        outbox.advance(5, |_| ());
        assert!(!outbox.is_empty(), "but it waits");
    }

    #[test]
    fn a_send_stops_before_what_has_expired() {
        let budget = Budget::new(10_000);
        let mut outbox = Outbox::default();
        for expires_at in [Some(Nanos(5)), None, Some(Nanos(7))] {
            let message = Message::new(&budget, vec![1; 4], Nanos(0), expires_at);
            outbox.push(Item::Message(message.expect("the budget has room")), 0, Nanos(0));
        }
        outbox.advance(1, |_| ());
        let mut bufs = [IoSlice::new(&[]); GATHER_MAX];
        assert_eq!(outbox.gather(&mut bufs, Nanos(6)), 3, "a begun item is finished");
        assert_eq!(outbox.gather(&mut bufs, Nanos(7)), 2);
    }

    #[test]
    fn a_tick_counts_from_the_next_one_on() {
        let budget = Budget::new(10_000);
        let tick = |bytes| {
            let topic = TopicMessage { is_tick: true, ..TopicMessage::default() };
            let message = Message::of_topic(&budget, vec![1; bytes], Nanos(0), None, topic);
            Item::Message(message.expect("the budget has room"))
        };
        let mut outbox = Outbox::default();
        outbox.push(frame(1, 10), 0, Nanos(0));
        outbox.push(tick(100), 0, Nanos(0));
        assert_eq!((outbox.bytes(), outbox.bytes_counted()), (110, 10));
        outbox.push(frame(2, 3), 0, Nanos(0));
        assert_eq!(outbox.bytes_counted(), 13);
        outbox.advance(50, |_| ());
        assert_eq!((outbox.bytes(), outbox.bytes_counted()), (63, 3));
        let later = Nanos(51_000_000);
        outbox.push(tick(100), 0, later);
        assert_eq!((outbox.bytes(), outbox.bytes_counted()), (163, 63));
        outbox.advance(61, |_| ());
        assert_eq!((outbox.bytes(), outbox.bytes_counted()), (102, 2));
        outbox.advance(102, |_| ());
        outbox.push(frame(3, 4), 0, later);
        assert_eq!((outbox.bytes(), outbox.bytes_counted()), (4, 4));
        outbox.push(tick(100), 0, later);
        outbox.push(frame(4, 5), 0, later);
        outbox.push(tick(50), 0, later.after(GRACE_WINDOW));
        assert_eq!((outbox.bytes(), outbox.bytes_counted()), (159, 9), "both at once");
        outbox.push(tick(1), 0, later.after(GRACE_WINDOW * 2));
        assert_eq!(
            (outbox.bytes(), outbox.bytes_counted()),
            (160, 159),
            "the window does not move"
        );
    }

    #[test]
    fn a_queue_node_is_two_words() {
        assert_eq!(size_of::<Item>(), 16);
    }
}
