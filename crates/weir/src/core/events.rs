//! Events: readers hear what happens to connections. The gateway never waits for a reader.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_engine::{ConnId, Footprint, rounded};
use weir_wire::CloseReason;

use crate::base::clock::unix_time;
use crate::observe::upgrades::Upgraded;

/// One thing that has happened to a connection, or to the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The time at which the front learnt of it, since 1970.
    pub at: Duration,
    /// The connection; `None`: it has happened to the gateway.
    pub conn: Option<ConnId>,
    /// Its device's id.
    pub device: Option<String>,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kind of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// The connection has settled.
    Connected,
    /// The connection has ended, and its subscriptions with it.
    Disconnected(CloseReason),
    /// The connection asked for a topic and the router accepted it. The event also comes if the
    /// connection was subscribed already, or if its shard refuses because the connection has too
    /// many topics.
    Subscribed(String),
    /// The connection asked to leave a topic.
    Unsubscribed(String),
    /// This process has taken the place of another one. A reader that begins to listen within a
    /// minute hears of it first.
    Upgraded(Upgraded),
    /// A new process has not taken over, for this reason. This one serves on.
    UpgradeFailed(String),
}

/// A choice of events; by default all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventFilter {
    /// Names of kinds ([`EventKind::name`]); empty: every kind.
    pub kinds: Vec<&'static str>,
    /// Only events of this device.
    pub device: Option<String>,
    /// Only topics whose names begin with this prefix, so only subscriptions.
    pub topic: Option<String>,
    /// Only this share of the connections, from 0 to 1. Each chosen connection shows all its
    /// events.
    pub sample: Option<f64>,
}

/// The reason why a stream of events ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventsEnd {
    /// The reader has fallen behind and was cut.
    Overflow {
        /// Events that were not delivered before the cut. Later events are not counted.
        dropped: u64,
    },
    /// The gateway has ended.
    Closed,
}

/// Events for one reader, in the order of each connection.
///
/// Limits: [`Events::QUEUE_MAX`] events wait. One more event cuts the reader and drops the waiting
/// ones.
pub struct Events {
    bus: Arc<Bus>,
    reader: Arc<Reader>,
}

/// Passes events on to the readers.
///
/// Cost: one relaxed read per event while there is no reader. Otherwise an event is made once, and
/// all readers share it.
#[derive(Default)]
pub(crate) struct Bus {
    /// The length of `readers.list`.
    count: AtomicUsize,
    readers: RwLock<Readers>,
    dropped: AtomicU64,
    cut: AtomicU64,
    /// What readers hear first, if they come soon after it.
    first: OnceLock<Arc<Event>>,
}

#[derive(Default)]
struct Readers {
    /// Readers that have neither left nor been cut.
    list: Vec<Arc<Reader>>,
    /// No more events come.
    is_closed: bool,
}

/// The counts for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventCounts {
    pub(crate) readers: usize,
    pub(crate) cut: u64,
    pub(crate) dropped: u64,
}

struct Reader {
    filter: EventFilter,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Arc<Event>>,
    /// The stream ends with this, after the waiting events.
    end: Option<EventsEnd>,
    waker: Option<Waker>,
}

impl Event {
    fn new(of: Option<(ConnId, &str)>, kind: EventKind) -> Arc<Event> {
        let (conn, device) = of.map(|(conn, device)| (conn, device.to_owned())).unzip();
        Arc::new(Event { at: unix_time(), conn, device, kind })
    }

    /// The topic of a subscription event.
    pub fn topic(&self) -> Option<&str> {
        self.kind.topic()
    }
}

impl EventKind {
    /// The names of all kinds.
    pub const NAMES: [&'static str; 6] =
        ["connected", "disconnected", "subscribed", "unsubscribed", "upgraded", "upgrade_failed"];

    /// The name of the kind.
    pub const fn name(&self) -> &'static str {
        match self {
            EventKind::Connected => Self::NAMES[0],
            EventKind::Disconnected(_) => Self::NAMES[1],
            EventKind::Subscribed(_) => Self::NAMES[2],
            EventKind::Unsubscribed(_) => Self::NAMES[3],
            EventKind::Upgraded(_) => Self::NAMES[4],
            EventKind::UpgradeFailed(_) => Self::NAMES[5],
        }
    }

    fn topic(&self) -> Option<&str> {
        match self {
            EventKind::Subscribed(topic) | EventKind::Unsubscribed(topic) => Some(topic),
            EventKind::Connected
            | EventKind::Disconnected(_)
            | EventKind::Upgraded(_)
            | EventKind::UpgradeFailed(_) => None,
        }
    }
}

impl EventFilter {
    fn lets_pass(&self, event: &Event) -> bool {
        let (kinds, name) = (&self.kinds, event.kind.name());
        (kinds.is_empty() || kinds.contains(&name))
            && self.device.as_ref().is_none_or(|device| Some(device) == event.device.as_ref())
            && self.sample.is_none_or(|share| event.conn.is_none_or(|conn| is_sampled(conn, share)))
            && self
                .topic
                .as_deref()
                .is_none_or(|prefix| event.topic().is_some_and(|topic| topic.starts_with(prefix)))
    }
}

impl Events {
    /// The limit on simultaneous readers.
    pub const READERS_MAX: usize = 16;
    /// Events that wait for a reader: 2 MiB with the longest names.
    pub const QUEUE_MAX: usize = 1024;

    /// Waits for the next event.
    ///
    /// Errors: the reason why no more events come.
    pub async fn next(&mut self) -> Result<Arc<Event>, EventsEnd> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next event. If there is none, the waker is called for the next one.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arc<Event>, EventsEnd>> {
        let mut queue = self.reader.lock();
        if let Some(event) = queue.events.pop_front() {
            return Poll::Ready(Ok(event));
        }
        if let Some(end) = queue.end {
            return Poll::Ready(Err(end));
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.bus.remove(&self.reader);
    }
}

impl Bus {
    /// Opens a stream of the events from now on; `None` if there are too many readers. On a closed
    /// bus the stream only ends.
    pub(crate) fn listen(self: &Arc<Self>, filter: EventFilter) -> Option<Events> {
        let reader = Arc::new(Reader { filter, queue: Mutex::default() });
        let is_new = |event: &&Arc<Event>| unix_time().saturating_sub(event.at) < FIRST_FOR;
        if let Some(first) = self.first.get().filter(is_new)
            && reader.filter.lets_pass(first)
        {
            reader.lock().events.push_back(Arc::clone(first));
        }
        let mut readers = self.readers.write().expect(NO_PANIC);
        if readers.is_closed {
            reader.lock().end = Some(EventsEnd::Closed);
        } else if readers.list.len() >= Events::READERS_MAX {
            return None;
        } else {
            readers.list.push(Arc::clone(&reader));
            self.count.store(readers.list.len(), Ordering::Relaxed);
        }
        drop(readers);
        Some(Events { bus: Arc::clone(self), reader })
    }

    /// Whether there is a reader. Callers ask before they build an event.
    pub(crate) fn is_heard(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Passes an event to the readers, and waits for none of them.
    pub(crate) fn tell(&self, conn: ConnId, device: &str, kind: EventKind) {
        if self.is_heard() {
            self.pass(&Event::new(Some((conn, device)), kind));
        }
    }

    /// Passes an event of the gateway to the readers.
    pub(crate) fn tell_all(&self, kind: EventKind) {
        self.pass(&Event::new(None, kind));
    }

    /// Has readers hear this first, if they come soon. Nobody listens yet. It is called once.
    pub(crate) fn begin_with(&self, kind: EventKind) {
        let _ = self.first.set(Event::new(None, kind));
    }

    fn pass(&self, event: &Arc<Event>) {
        let mut cut = Vec::new();
        for reader in &self.readers.read().expect(NO_PANIC).list {
            if reader.filter.lets_pass(event) && !self.push(reader, event) {
                cut.push(Arc::clone(reader));
            }
        }
        // Their places are free for other readers at once, even if their connections take long to
        // end.
        cut.iter().for_each(|reader| self.remove(reader));
    }

    /// Ends all streams after their waiting events.
    pub(crate) fn close(&self) {
        let mut readers = self.readers.write().expect(NO_PANIC);
        readers.is_closed = true;
        for reader in &readers.list {
            let mut queue = reader.lock();
            queue.end.get_or_insert(EventsEnd::Closed);
            queue.wake();
        }
    }

    /// The waiting events of all readers. An event that several readers wait for counts for each.
    pub(crate) fn footprint(&self) -> Footprint {
        let readers = self.readers.read().expect(NO_PANIC);
        let mut sum = Footprint::default();
        for reader in &readers.list {
            let queue = reader.queue.lock().expect(NO_PANIC);
            let list = rounded(queue.events.capacity() * size_of::<Arc<Event>>());
            sum += Footprint::of_each(queue.events.len(), size_of::<Event>() + EVENT_BYTES);
            sum.bytes += list;
        }
        sum
    }

    pub(crate) fn counts(&self) -> EventCounts {
        EventCounts {
            readers: self.count.load(Ordering::Relaxed),
            cut: self.cut.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    fn remove(&self, reader: &Arc<Reader>) {
        let mut readers = self.readers.write().expect(NO_PANIC);
        readers.list.retain(|other| !Arc::ptr_eq(other, reader));
        self.count.store(readers.list.len(), Ordering::Relaxed);
    }

    /// `false`: the reader was cut.
    fn push(&self, reader: &Reader, event: &Arc<Event>) -> bool {
        let mut queue = reader.lock();
        if queue.end.is_some() {
            return true;
        }
        let is_room = queue.events.len() < Events::QUEUE_MAX;
        if is_room {
            queue.events.push_back(Arc::clone(event));
        } else {
            let dropped = std::mem::take(&mut queue.events).len() as u64 + 1;
            queue.end = Some(EventsEnd::Overflow { dropped });
            self.cut.fetch_add(1, Ordering::Relaxed);
            self.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        queue.wake();
        is_room
    }
}

impl Reader {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect(NO_PANIC)
    }
}

impl Queue {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Whether a connection belongs to a share of all connections. The answer for one connection never
/// changes.
fn is_sampled(conn: ConnId, share: f64) -> bool {
    // Spreads ids that differ in few bits over all numbers (the finisher of SplitMix64).
    let mut mixed = conn.to_u64().wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let place = (mixed ^ (mixed >> 31)) >> 11;
    (place as f64) < share * (1u64 << 53) as f64
}

const NO_PANIC: &str = "no panic happens under the locks of the events";
/// The two counts of an `Arc`, and the texts of an event.
const EVENT_BYTES: usize = 64;
/// Time for the readers of the process before this one to come back.
const FIRST_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    /// The kinds of events that wait for a reader, and its end.
    fn drain(events: &mut Events) -> (Vec<String>, Option<EventsEnd>) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut heard = Vec::new();
        loop {
            match events.poll_next(&mut cx) {
                Poll::Ready(Ok(event)) => {
                    let topic = event.topic().unwrap_or_default();
                    let device = event.device.as_deref().unwrap_or_default();
                    heard.push(format!("{} {device} {topic}", event.kind.name()));
                }
                Poll::Ready(Err(end)) => return (heard, Some(end)),
                Poll::Pending => return (heard, None),
            }
        }
    }

    fn tell_all(bus: &Bus) {
        let topic = |topic: &str| topic.to_owned();
        for (device, kind) in [
            ("a", EventKind::Connected),
            ("a", EventKind::Subscribed(topic("news/1"))),
            ("b", EventKind::Connected),
            ("b", EventKind::Subscribed(topic("room"))),
            ("b", EventKind::Unsubscribed(topic("room"))),
            ("a", EventKind::Disconnected(CloseReason::PeerClosed)),
        ] {
            bus.tell(conn(1), device, kind);
        }
    }

    #[test]
    fn a_filter_lets_pass_what_it_names() {
        let bus = Arc::new(Bus::default());
        tell_all(&bus);
        let all = EventFilter::default;
        let filters = [
            (all(), 6),
            (EventFilter { kinds: vec!["connected", "disconnected"], ..all() }, 3),
            (EventFilter { device: Some("a".to_owned()), ..all() }, 3),
            (EventFilter { topic: Some("news".to_owned()), ..all() }, 1),
            (EventFilter { topic: Some(String::new()), ..all() }, 3),
            (EventFilter { sample: Some(0.0), ..all() }, 0),
            (EventFilter { sample: Some(1.0), ..all() }, 6),
        ];
        for (filter, count) in filters {
            let mut events = bus.listen(filter.clone()).unwrap();
            tell_all(&bus);
            let (heard, end) = drain(&mut events);
            assert_eq!((heard.len(), end), (count, None), "{filter:?}: {heard:?}");
        }
        assert_eq!(bus.counts(), EventCounts { readers: 0, cut: 0, dropped: 0 });
    }

    #[test]
    fn who_comes_soon_after_an_upgrade_hears_of_it_first() {
        let bus = Arc::new(Bus::default());
        let upgraded = Upgraded {
            at: unix_time(),
            pid: 1,
            before: "weir 0.0.1".to_owned(),
            pause: Duration::from_millis(1),
            connections: vec![("tcp", 2)],
            stayed: Vec::new(),
        };
        bus.begin_with(EventKind::Upgraded(upgraded));
        let heard = |filter| {
            let mut events = bus.listen(filter).unwrap();
            bus.tell(conn(1), "a", EventKind::Connected);
            bus.tell_all(EventKind::UpgradeFailed("no".to_owned()));
            drain(&mut events).0
        };
        let all = EventFilter::default;
        assert_eq!(heard(all()), ["upgraded  ", "connected a ", "upgrade_failed  "]);
        assert_eq!(heard(EventFilter { kinds: vec!["upgraded"], ..all() }), ["upgraded  "]);
        // They belong to no device, and to every share.
        assert_eq!(heard(EventFilter { device: Some("a".to_owned()), ..all() }), ["connected a "]);
        let none = EventFilter { sample: Some(0.0), ..all() };
        assert_eq!(heard(none), ["upgraded  ", "upgrade_failed  "]);
    }

    #[test]
    fn a_share_of_the_connections_is_about_that_share() {
        let sampled = (0..10_000).filter(|number| is_sampled(conn(*number), 0.1)).count();
        assert!((900..1_100).contains(&sampled), "{sampled}");
    }

    #[test]
    fn a_reader_that_is_behind_is_cut_and_the_others_are_not() {
        let bus = Arc::new(Bus::default());
        let mut slow = bus.listen(EventFilter::default()).unwrap();
        let mut quick = bus.listen(EventFilter::default()).unwrap();
        for number in 0..Events::QUEUE_MAX + 10 {
            bus.tell(conn(number as u64), "d", EventKind::Connected);
            assert_eq!(drain(&mut quick).0.len(), 1);
        }
        let dropped = Events::QUEUE_MAX as u64 + 1;
        let overflow = Some(EventsEnd::Overflow { dropped });
        assert_eq!(drain(&mut slow), (Vec::new(), overflow));
        assert_eq!(bus.counts(), EventCounts { readers: 1, cut: 1, dropped });
        bus.tell(conn(1), "last", EventKind::Connected);
        bus.close();
        assert_eq!(drain(&mut slow), (Vec::new(), overflow));
        let last = vec!["connected last ".to_owned()];
        assert_eq!(drain(&mut quick), (last, Some(EventsEnd::Closed)));
    }

    #[test]
    fn there_is_a_bound_on_readers() {
        let bus = Arc::new(Bus::default());
        let listen = || bus.listen(EventFilter::default());
        let mut readers: Vec<_> = (0..Events::READERS_MAX).map(|_| listen().unwrap()).collect();
        assert!(listen().is_none());
        readers.pop();
        assert!(listen().is_some());
        // Readers that were cut leave their places at once.
        for _ in 0..=Events::QUEUE_MAX {
            bus.tell(conn(1), "d", EventKind::Connected);
        }
        assert_eq!(bus.counts().readers, 0);
        assert!(listen().is_some());
    }

    #[test]
    fn who_listens_after_the_end_hears_of_it() {
        let bus = Arc::new(Bus::default());
        bus.close();
        let mut late = bus.listen(EventFilter::default()).unwrap();
        bus.tell(conn(1), "d", EventKind::Connected);
        assert_eq!(drain(&mut late), (Vec::new(), Some(EventsEnd::Closed)));
    }
}
