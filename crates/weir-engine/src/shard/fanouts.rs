//! The fan-outs of a shard: their walks, the order of the walks, and the commands that wait behind
//! them.
//!
//! [`Fanouts`] does no I/O and knows connections only by their slots. It names the next step, and
//! the shard takes it (`walk`).

use std::collections::VecDeque;
use std::sync::Arc;

use weir_wire::CloseReason;

use crate::command::Drain;
use crate::id::{ConnId, Priority, TopicId};
use crate::memory::{Footprint, rounded};
use crate::message::Message;
use crate::outbox::GATHER_MAX;
use crate::slot::Slot;
use crate::time::Nanos;

/// The fan-outs of a shard.
///
/// The fan-out of a message is one walk for each priority among its connections. Walks are ranked,
/// first by the priority of the connections, then by that of the message. A lower rank continues
/// only while no higher rank has work. Within a rank, walks continue in order of arrival. All
/// messages of a topic have one priority, so each member gets them in order.
///
/// A walk that is alone in its rank sends as it goes. If several wait, one gathered send carries
/// all their messages for a connection: first they walk, and each puts its message into the
/// outboxes; then every touched connection is flushed once.
///
/// ```text
/// waiting ──walk (direct: send as it goes)─────────────────────► ended
///         └─walk (gather: into outboxes)──► walked ──flushed──► ended
/// ```
#[derive(Debug, Default)]
pub(super) struct Fanouts {
    ranks: [Rank; RANKS],
    /// Messages with a walk that has not ended, and the free places among them.
    running: Vec<Running>,
    free: Vec<u32>,
    /// Messages whose fan-out has begun.
    begun: u64,
    /// Commands that stood in the queue behind this number of messages. They wait until those have
    /// been walked.
    behind: VecDeque<(u64, Behind)>,
}

/// One rank for each pair of priorities, of connections and of messages.
const RANKS: usize = Priority::COUNT * Priority::COUNT;

/// The next step of the fan-outs, in the rank with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Walk the first walk, and send as it goes.
    Send(usize),
    /// Walk, and gather.
    Gather(usize),
    /// Flush the gathered messages.
    Flush(usize),
}

/// The size of a send without much copying: some microseconds.
pub(super) const LITTLE_BYTES: usize = 16 * 1024;

/// The walks of one rank.
#[derive(Debug, Default)]
pub(super) struct Rank {
    /// In order of arrival. The first one is being walked.
    waiting: VecDeque<Walk>,
    /// Walked, but not flushed yet.
    walked: Vec<Walk>,
    /// Connections that the gathering has touched, and how many of them are flushed. A connection
    /// that a higher rank has flushed meanwhile stays in the list.
    touched: Vec<Slot>,
    flushed: usize,
}

/// A message with a walk that has not ended.
#[derive(Debug)]
struct Running {
    walks: u8,
    began: Option<Nanos>,
}

/// One message on its way to the connections of one priority.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) message: Arc<Message>,
    pub(super) over: Over,
    pub(super) priority: Priority,
    /// Its message, by place among the running ones and by number in order of arrival.
    running: u32,
    number: u64,
    pub(super) cursor: u32,
    /// The end of the walk. It reaches the connections that were there when the message was taken
    /// from the queue.
    pub(super) end: u32,
}

/// The end of connections that must still get the messages before it in the queue.
#[derive(Debug)]
pub(super) enum Behind {
    Evict(ConnId, CloseReason),
    Drain(Drain),
}

/// The connections that a walk goes over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Over {
    Topic(TopicId),
    /// All slots whose connection was welcomed before this number.
    All {
        before: u32,
    },
}

impl Over {
    /// The topic; `TopicId::NONE` for a broadcast.
    pub(super) fn topic(self) -> TopicId {
        match self {
            Over::Topic(topic) => topic,
            Over::All { .. } => TopicId::NONE,
        }
    }
}

impl Fanouts {
    pub(super) fn is_busy(&self) -> bool {
        self.ranks.iter().any(Rank::is_busy)
    }

    /// The number of messages whose fan-out has begun and not ended.
    pub(super) fn len(&self) -> usize {
        self.running.len() - self.free.len()
    }

    /// The running walks, and the bytes of the lists.
    pub(super) fn footprint(&self) -> Footprint {
        let of_rank = |rank: &Rank| {
            rounded(rank.waiting.capacity() * size_of::<Walk>())
                + rounded(rank.walked.capacity() * size_of::<Walk>())
                + rounded(rank.touched.capacity() * size_of::<Slot>())
        };
        let lists = rounded(self.running.capacity() * size_of::<Running>())
            + rounded(self.free.capacity() * size_of::<u32>())
            + rounded(self.behind.capacity() * size_of::<(u64, Behind)>());
        Footprint::new(self.len(), self.ranks.iter().map(of_rank).sum::<usize>() + lists)
    }

    /// Begins a walk for each priority that has connections; `ends` has the end of each walk.
    /// `false` if there is no connection.
    pub(super) fn begin(
        &mut self,
        message: &Arc<Message>,
        over: Over,
        ends: [u32; Priority::COUNT],
    ) -> bool {
        let walks = ends.map(|end| u8::from(end > 0)).iter().sum();
        if walks == 0 {
            return false;
        }
        let number = self.begun;
        let running = self.add(Running { walks, began: None });
        for (priority, end) in Priority::ALL.into_iter().zip(ends).filter(|(_, end)| *end > 0) {
            let message = Arc::clone(message);
            let rank = priority.index() * Priority::COUNT + message.priority().index();
            let walk = Walk { message, over, priority, running, number, cursor: 0, end };
            self.ranks[rank].waiting.push_back(walk);
        }
        true
    }

    /// The next step; `None` if there is none. `is_tight`: the byte budget is nearly used up, so
    /// gathering should stop, because each outbox takes some 200 bytes. `touched_max`: a gathering
    /// ends with this many connections.
    pub(super) fn poll_step(
        &self,
        is_tight: impl FnOnce() -> bool,
        touched_max: usize,
    ) -> Option<Step> {
        let number = self.ranks.iter().position(Rank::is_busy)?;
        let (rank, is_tight) = (&self.ranks[number], is_tight());
        let is_alone = rank.waiting.len() == 1 || is_tight;
        Some(if rank.touched.is_empty() && is_alone {
            Step::Send(number)
        } else if !rank.touched.is_empty() && (is_tight || rank.is_gathered(touched_max)) {
            Step::Flush(number)
        } else {
            Step::Gather(number)
        })
    }

    /// The rank with this number.
    pub(super) fn rank(&mut self, rank: usize) -> &mut Rank {
        &mut self.ranks[rank]
    }

    /// Takes the first walk of a rank. It begins, or continues, at `now`.
    pub(super) fn take_walk(&mut self, rank: usize, now: Nanos) -> Option<Walk> {
        let walk = self.ranks[rank].waiting.pop_front()?;
        self.running[walk.running as usize].began.get_or_insert(now);
        Some(walk)
    }

    /// Notes that a walk has ended and its sends have left. With the last walk of a message the
    /// fan-out has ended; then this returns the time when it began.
    pub(super) fn end_walk(&mut self, walk: &Walk, now: Nanos) -> Option<Nanos> {
        let running = &mut self.running[walk.running as usize];
        running.walks -= 1;
        if running.walks > 0 {
            return None;
        }
        self.free.push(walk.running);
        Some(running.began.unwrap_or(now))
    }

    /// Puts a command behind the messages that have begun.
    pub(super) fn put_behind(&mut self, behind: Behind) {
        self.behind.push_back((self.begun, behind));
    }

    /// The next command whose messages have all been walked.
    pub(super) fn poll_behind(&mut self) -> Option<Behind> {
        let (messages, _) = self.behind.front()?;
        if *messages > self.walked_before() {
            return None;
        }
        self.behind.pop_front().map(|(_, behind)| behind)
    }

    fn add(&mut self, running: Running) -> u32 {
        self.begun += 1;
        if let Some(place) = self.free.pop() {
            self.running[place as usize] = running;
            return place;
        }
        self.running.push(running);
        u32::try_from(self.running.len() - 1).expect("no more messages than the queue has credits")
    }

    /// The number before which all messages have been walked.
    fn walked_before(&self) -> u64 {
        let first = |rank: &Rank| rank.waiting.front().map(|walk| walk.number);
        self.ranks.iter().filter_map(first).min().unwrap_or(self.begun)
    }
}

impl Rank {
    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.touched.is_empty()
    }

    /// Whether a gathering is over: all walks have walked, or as many as one send can gather; or it
    /// has touched very many connections; or flushing has begun.
    fn is_gathered(&self, touched_max: usize) -> bool {
        self.waiting.is_empty()
            || self.is_full()
            || self.flushed > 0
            || self.touched.len() >= touched_max
    }

    /// Whether as many have walked as one send can gather.
    pub(super) fn is_full(&self) -> bool {
        self.walked.len() >= GATHER_MAX
    }

    /// Puts back a walk that has not reached its end.
    pub(super) fn put_back(&mut self, walk: Walk) {
        self.waiting.push_front(walk);
    }

    /// Puts away a walk that has reached its end. The gathered messages must still be flushed.
    pub(super) fn put_walked(&mut self, walk: Walk) {
        self.walked.push(walk);
    }

    /// The walks that have reached their end, once everything that they gathered is flushed.
    /// [`Rank::keep`] takes the vector back.
    pub(super) fn take_flushed(&mut self) -> Vec<Walk> {
        if self.flushed < self.touched.len() {
            return Vec::new();
        }
        self.touched.clear();
        self.flushed = 0;
        std::mem::take(&mut self.walked)
    }

    /// Keeps the memory of a vector from [`Rank::take_flushed`], which is empty now.
    pub(super) fn keep(&mut self, emptied: Vec<Walk>) {
        if self.walked.capacity() == 0 {
            self.walked = emptied;
        }
    }

    /// Lists a connection for which a message was gathered.
    pub(super) fn touch(&mut self, slot: Slot) {
        self.touched.push(slot);
    }

    /// The number of listed connections.
    pub(super) fn touched(&self) -> usize {
        self.touched.len()
    }

    /// Puts connections with little to send in front, if large messages were gathered. Called
    /// before flushing begins. Otherwise a topic with large messages and many members would delay
    /// all others of its rank.
    pub(super) fn put_small_first(&mut self, is_small: impl Fn(Slot) -> bool) {
        if self.flushed > 0 {
            return;
        }
        let gathered: usize = self.walked.iter().map(|walk| walk.message.occupied_bytes()).sum();
        if gathered <= LITTLE_BYTES {
            return;
        }
        let mut small = 0;
        for index in 0..self.touched.len() {
            if is_small(self.touched[index]) {
                self.touched.swap(small, index);
                small += 1;
            }
        }
    }

    /// The next connection to flush; `None` when all are.
    pub(super) fn poll_flush(&mut self) -> Option<Slot> {
        let slot = self.touched.get(self.flushed).copied()?;
        self.flushed += 1;
        Some(slot)
    }
}

#[cfg(any(test, feature = "sim"))]
impl Fanouts {
    /// The number of commands that wait for walks to end.
    pub(super) fn commands_waiting(&self) -> usize {
        self.behind.len()
    }

    /// The number of walks over the members of a topic with one priority that have begun and not
    /// ended.
    pub(super) fn walks_over(&self, priority: Priority, id: TopicId) -> usize {
        let is_over = |walk: &&Walk| {
            walk.priority == priority && matches!(walk.over, Over::Topic(topic) if topic == id)
        };
        self.ranks.iter().flat_map(|rank| &rank.waiting).filter(is_over).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::message::TopicMessage;

    const NOW: Nanos = Nanos(7);
    const TOUCHED_MAX: usize = 100;

    fn message(priority: Priority) -> Arc<Message> {
        let topic = TopicMessage { priority, ..TopicMessage::default() };
        Message::of_topic(&Budget::new(1 << 20), vec![0; 10], NOW, None, topic).expect("room")
    }

    fn begin(fanouts: &mut Fanouts, priority: Priority, ends: [u32; Priority::COUNT]) {
        assert!(fanouts.begin(&message(priority), Over::Topic(TopicId(1)), ends));
    }

    fn step(fanouts: &Fanouts) -> Option<Step> {
        fanouts.poll_step(|| false, TOUCHED_MAX)
    }

    /// Walks to the end without flushing. Returns when the fan-out began, if it has ended.
    fn send(fanouts: &mut Fanouts, rank: usize) -> Option<Nanos> {
        let walk = fanouts.take_walk(rank, NOW).expect("a walk waits");
        fanouts.end_walk(&walk, NOW)
    }

    #[test]
    fn connections_and_then_messages_of_high_priority_go_first() {
        let mut fanouts = Fanouts::default();
        begin(&mut fanouts, Priority::Low, [0, 5, 0]);
        begin(&mut fanouts, Priority::High, [0, 5, 0]);
        begin(&mut fanouts, Priority::Low, [5, 0, 0]);
        for (rank, left) in [(2, 2), (3, 1), (5, 0)] {
            assert_eq!(step(&fanouts), Some(Step::Send(rank)));
            assert_eq!(send(&mut fanouts, rank), Some(NOW));
            assert_eq!(fanouts.len(), left);
        }
        assert_eq!(step(&fanouts), None);
        assert!(!fanouts.begin(&message(Priority::High), Over::Topic(TopicId(1)), [0; 3]));
    }

    #[test]
    fn several_of_a_rank_gather_and_are_flushed_once() {
        let mut fanouts = Fanouts::default();
        begin(&mut fanouts, Priority::High, [5, 0, 0]);
        begin(&mut fanouts, Priority::High, [5, 0, 0]);
        assert_eq!(fanouts.poll_step(|| true, TOUCHED_MAX), Some(Step::Send(0)), "no room");
        for touched in 1..=2 {
            assert_eq!(step(&fanouts), Some(Step::Gather(0)));
            let walk = fanouts.take_walk(0, NOW).expect("a walk waits");
            fanouts.rank(0).touch(Slot::at(touched));
            fanouts.rank(0).put_walked(walk);
        }
        assert_eq!(step(&fanouts), Some(Step::Flush(0)));
        assert_eq!(fanouts.rank(0).poll_flush(), Some(Slot::at(1)));
        assert!(fanouts.rank(0).take_flushed().is_empty(), "one is left to flush");
        assert_eq!(fanouts.rank(0).poll_flush(), Some(Slot::at(2)));
        assert_eq!(fanouts.rank(0).poll_flush(), None);
        assert_eq!(fanouts.rank(0).take_flushed().len(), 2);
        assert_eq!(step(&fanouts), None);
    }

    #[test]
    fn a_fan_out_ends_with_its_last_walk_and_what_stands_behind_it_follows() {
        let mut fanouts = Fanouts::default();
        begin(&mut fanouts, Priority::High, [5, 5, 0]);
        let conn = ConnId::from_u64(1);
        fanouts.put_behind(Behind::Evict(conn, CloseReason::Draining));
        assert!(fanouts.poll_behind().is_none());
        assert_eq!(send(&mut fanouts, 0), None, "the other walk is left");
        assert!(fanouts.poll_behind().is_none());
        assert_eq!(send(&mut fanouts, 3), Some(NOW));
        assert!(
            matches!(fanouts.poll_behind(), Some(Behind::Evict(evicted, _)) if evicted == conn)
        );
        assert!(fanouts.poll_behind().is_none());
    }
}
