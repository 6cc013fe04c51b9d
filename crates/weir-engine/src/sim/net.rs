//! [`Net`] without a kernel: virtual time, sockets as pairs of byte streams, and edges like those
//! of epoll.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::dice::Dice;
use super::fault::{Fault, Faults};
use super::link::{Link, Owner, PeerId, PeerView};
use crate::command::Passed;
use crate::id::Priority;
use crate::net::{Net, Ready};
use crate::time::Nanos;

/// The offer of a simulated connection: a number of its own. The connection exists as long as the
/// offer does.
#[derive(Debug)]
pub struct SimOffer {
    number: u64,
    _alive: Arc<()>,
}

/// A type that can stand for a simulated connection in [`Command::Adopt`](crate::Command::Adopt).
///
/// A front for real sockets offers an `OwnedFd`. Any descriptor will do, because only its number
/// counts.
pub trait Offer: Send + 'static {
    /// A number that no other offer has at the same time.
    fn number(&self) -> u64;
}

impl Offer for SimOffer {
    fn number(&self) -> u64 {
        self.number
    }
}

impl Offer for OwnedFd {
    fn number(&self) -> u64 {
        u64::try_from(self.as_raw_fd()).expect("an owned descriptor is not negative")
    }
}

/// A simulated socket in the shard's hands.
#[derive(Debug)]
pub struct SimSocket(u32);

/// The simulated kernel.
///
/// Shape: edge-triggered. An edge is due when bytes arrive after the shard has found nothing to
/// read, when there is room after a refusal, at the peer's end, and at errors. An edge announces
/// the readiness at that moment. With `announces_all` every arrival is an edge, as with epoll;
/// without it, only those on which the shard may rely. Time passes while the shard waits, at most
/// until `wait_until`, and by a microsecond a turn.
#[derive(Debug)]
pub struct SimNet<O = SimOffer> {
    now: Nanos,
    wait_until: Nanos,
    is_clock_still: bool,
    was_idle: bool,
    sends: u64,
    looks: u64,
    links: Vec<Link>,
    offers: HashMap<u64, u32>,
    offered: u64,
    edges: Vec<u32>,
    fresh: Vec<u32>,
    taken: u64,
    late: Vec<u64>,
    dice: Dice,
    /// Whether every arrival is an edge.
    pub announces_all: bool,
    /// Rates and counts of faults.
    pub faults: Faults,
    passage: SimPassage<O>,
    wakes_front: bool,
}

/// The sockets that wait in a passage.
pub(super) type SimPassage<O> = Arc<Mutex<VecDeque<(Passed, O)>>>;

/// The least time of a turn, so that a shard that never waits does not stop the clock.
const TURN: Duration = Duration::from_micros(1);

/// The most keys of closed sockets that are kept, to announce them late.
const LATE_MAX: usize = 64;

impl<O: Offer> SimNet<O> {
    /// A network without connections. The clock begins at a second.
    pub fn new(seed: u64) -> Self {
        let now = Nanos(1_000_000_000);
        Self {
            now,
            wait_until: now,
            is_clock_still: false,
            was_idle: false,
            sends: 0,
            looks: 0,
            links: Vec::new(),
            offers: HashMap::new(),
            offered: 0,
            edges: Vec::new(),
            fresh: Vec::new(),
            taken: 0,
            late: Vec::new(),
            dice: Dice::new(seed),
            announces_all: true,
            faults: Faults::default(),
            passage: SimPassage::default(),
            wakes_front: false,
        }
    }

    /// Makes a new connection that `offer` stands for.
    pub fn connect_with(&mut self, offer: &O) -> PeerId {
        self.link(offer.number(), Link::new(None))
    }

    pub(super) fn passage(&self) -> SimPassage<O> {
        Arc::clone(&self.passage)
    }

    /// Whether the shard has woken the front since the last call.
    pub(super) fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.wakes_front)
    }

    fn link(&mut self, number: u64, link: Link) -> PeerId {
        let index = u32::try_from(self.links.len()).expect("fewer connections than 2^32");
        self.links.push(link);
        self.offers.insert(number, index);
        PeerId(index)
    }

    /// Lets the clock jump forward.
    pub fn jump(&mut self, by: Duration) {
        self.now = self.now.after(by);
    }

    /// Stops the clock, or lets it continue.
    pub fn hold_clock(&mut self, still: bool) {
        self.is_clock_still = still;
    }

    /// The time until which waits may last.
    pub fn set_wait_until(&mut self, until: Nanos) {
        self.wait_until = until;
    }

    /// Whether the last wait found nothing ready and was free to sleep.
    pub fn was_idle(&self) -> bool {
        self.was_idle
    }

    /// The number of the shard's looks at high-priority connections.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// The number of sends that the shard has attempted.
    pub fn sends(&self) -> u64 {
        self.sends
    }

    /// Sets the most bytes that the kernel holds for a connection, and the level at which it
    /// announces room.
    pub fn set_send_buffer(&mut self, peer: PeerId, capacity: usize, low: usize) {
        let link = self.link_mut(peer);
        link.capacity = capacity;
        link.low = low.min(capacity.saturating_sub(1));
        self.note_room(peer);
    }

    /// The peer sends bytes. Ignored once the connection is over.
    pub fn peer_write(&mut self, peer: PeerId, bytes: &[u8]) {
        let announces_all = self.announces_all;
        let link = self.link_mut(peer);
        if bytes.is_empty() || link.is_ended || link.has_failed() || !link.is_held() {
            return;
        }
        link.inbound.extend(bytes);
        if link.wants_read || announces_all {
            link.wants_read = false;
            self.raise(peer.0);
        }
    }

    /// The peer reads at most `bytes_max` of the bytes that the kernel took.
    pub fn peer_read(&mut self, peer: PeerId, bytes_max: usize) -> Vec<u8> {
        let bytes = self.link_mut(peer).peer_read(bytes_max).to_vec();
        self.note_room(peer);
        self.link_mut(peer).observe_what_is_read();
        bytes
    }

    /// The peer reads at most `bytes_max` bytes, which an observer sees. Returns their number.
    pub(crate) fn peer_skip(&mut self, peer: PeerId, bytes_max: usize) -> usize {
        let bytes = self.link_mut(peer).peer_read(bytes_max).len();
        self.note_room(peer);
        bytes
    }

    fn note_room(&mut self, peer: PeerId) {
        let link = self.link_mut(peer);
        if link.wants_write && link.is_writable() {
            link.wants_write = false;
            self.raise(peer.0);
        }
    }

    /// The peer ends its side.
    pub fn peer_end(&mut self, peer: PeerId) {
        self.link_mut(peer).is_ended = true;
        self.raise(peer.0);
    }

    /// The connection fails: `ConnectionReset` by the peer, `TimedOut` by the kernel.
    pub fn peer_fail(&mut self, peer: PeerId, error: io::ErrorKind) {
        let link = self.link_mut(peer);
        if !link.has_failed() {
            link.error = Some(error);
            self.raise(peer.0);
        }
    }

    /// The state of the connection, as its peer can tell.
    pub fn peer_view(&self, peer: PeerId) -> PeerView {
        let link = self.link_of(peer);
        match &link.owner {
            Owner::Offered(Some(offer)) if offer.strong_count() == 0 => PeerView::Reset,
            Owner::Aborted => PeerView::Reset,
            Owner::Offered(_) | Owner::Shard if link.has_failed() => PeerView::Reset,
            Owner::Offered(_) => PeerView::Open,
            Owner::Shard if link.is_our_side_ended => PeerView::Ended,
            Owner::Shard => PeerView::Open,
            Owner::Closed => PeerView::Ended,
        }
    }

    pub(crate) fn link_of(&self, peer: PeerId) -> &Link {
        &self.links[peer.0 as usize]
    }

    pub(crate) fn link_mut(&mut self, peer: PeerId) -> &mut Link {
        &mut self.links[peer.0 as usize]
    }

    /// The connections whose kernel took bytes since the last call.
    pub(crate) fn take_fresh(&mut self) -> Vec<u32> {
        for index in &self.fresh {
            self.links[*index as usize].is_fresh = false;
        }
        std::mem::take(&mut self.fresh)
    }

    /// The number of bytes that the kernel ever took.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Announces the readiness of all sockets that the shard holds.
    pub(crate) fn announce_all(&mut self) {
        for index in (0..).take(self.links.len()) {
            self.raise(index);
        }
    }

    /// Whether readiness waits to be announced.
    pub(crate) fn has_edges(&self) -> bool {
        !self.edges.is_empty()
    }

    /// The number of sockets that the shard holds.
    pub fn sockets_held(&self) -> usize {
        self.links.iter().filter(|link| matches!(link.owner, Owner::Shard)).count()
    }

    /// Frees the memory of a connection that is over.
    pub(crate) fn bury(&mut self, peer: PeerId) {
        let link = self.link_mut(peer);
        link.inbound = std::collections::VecDeque::new();
        link.peer_read(usize::MAX);
        link.observe_what_is_read();
    }

    fn raise(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        if matches!(link.owner, Owner::Shard) && !link.has_edge {
            link.has_edge = true;
            self.edges.push(index);
        }
    }

    fn is_interrupted(&mut self) -> bool {
        let is_hit = self.dice.chance(self.faults.interrupted);
        if is_hit {
            self.faults.note(Fault::Interrupted);
        }
        is_hit
    }

    /// Announces the due edges, in random order.
    fn announce(&mut self, ready: &mut Vec<Ready>, count_max: usize) {
        let mut count = self.edges.len().min(count_max);
        if count > 1 && self.dice.chance(self.faults.short_wait) {
            self.faults.note(Fault::ShortWait);
            count = self.dice.between(1, 2) as usize;
        }
        for _ in 0..count {
            let index = self.edges.swap_remove(self.dice.index(self.edges.len()));
            self.announce_one(index, ready);
        }
        if !self.links.is_empty() && self.dice.chance(self.faults.spurious_edge) {
            let index = self.dice.index(self.links.len());
            if matches!(self.links[index].owner, Owner::Shard) && !self.links[index].has_edge {
                self.faults.note(Fault::SpuriousEdge);
                let key = self.links[index].key;
                ready.push(Ready { key, readable: true, writable: true, ended: false });
            }
        }
        if self.dice.chance(self.faults.late_edge)
            && let Some(key) = self.dice.pick(&self.late)
        {
            self.faults.note(Fault::LateEdge);
            ready.push(Ready { key: *key, readable: true, writable: true, ended: true });
        }
    }

    fn announce_one(&mut self, index: u32, ready: &mut Vec<Ready>) {
        let link = &mut self.links[index as usize];
        link.has_edge = false;
        if !matches!(link.owner, Owner::Shard) {
            return;
        }
        link.refusals = link.refusals.saturating_sub(1);
        if link.refusals > 0 {
            link.has_edge = true;
            self.edges.push(index);
        }
        let link = &mut self.links[index as usize];
        let (readable, writable) = (link.is_readable(), link.is_writable());
        link.wants_read = !readable;
        link.wants_write = !writable;
        let ended = link.is_ended || link.has_failed();
        if readable || writable {
            ready.push(Ready { key: link.key, readable, writable, ended });
        }
    }

    fn let_go(&mut self, socket: &SimSocket, owner: Owner) {
        let link = &mut self.links[socket.0 as usize];
        link.owner = owner;
        if self.late.len() < LATE_MAX {
            self.late.push(link.key);
        } else {
            let index = self.dice.index(LATE_MAX);
            self.late[index] = link.key;
        }
    }

    /// The most bytes of a send that the kernel will take; 0: it refuses.
    fn bytes_taken_at_most(&mut self, index: u32, offered: usize) -> usize {
        let link = &mut self.links[index as usize];
        if link.refusals > 0 {
            return 0;
        }
        let room = link.capacity.saturating_sub(link.unread());
        if self.dice.chance(self.faults.refusal_storm) {
            self.faults.note(Fault::RefusalStorm);
            self.links[index as usize].refusals = self.dice.between(2, 6);
            self.raise(index);
            return 0;
        }
        let bytes = room.min(offered);
        if bytes > 1 && self.dice.chance(self.faults.partial_write) {
            self.faults.note(Fault::PartialWrite);
            // The acknowledgement that makes room is an edge.
            self.raise(index);
            return self.dice.between(1, u32::try_from(bytes - 1).unwrap_or(u32::MAX)) as usize;
        }
        usize::MAX
    }
}

impl SimNet<SimOffer> {
    /// Makes a new connection. Returns its peer and its offer.
    pub fn connect(&mut self) -> (PeerId, SimOffer) {
        let alive = Arc::new(());
        let link = Link::new(Some(Arc::downgrade(&alive)));
        self.offered += 1;
        let offer = SimOffer { number: self.offered, _alive: alive };
        (self.link(offer.number, link), offer)
    }
}

impl Link {
    fn is_held(&self) -> bool {
        matches!(self.owner, Owner::Offered(_) | Owner::Shard)
    }
}

impl<O: Offer> Net for SimNet<O> {
    type Offer = O;
    type Socket = SimSocket;

    fn take_link(&mut self, _: Passed) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_lent(&mut self, _: bool) {}

    fn lend<'a>(&self, _: &'a SimSocket) -> Option<BorrowedFd<'a>> {
        None
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn adopt(&mut self, offer: O, key: u64, priority: Priority) -> io::Result<SimSocket> {
        let index = self
            .offers
            .remove(&offer.number())
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let link = &mut self.links[index as usize];
        if self.dice.chance(self.faults.adopt_failed) {
            self.faults.note(Fault::AdoptFailed);
            link.owner = Owner::Aborted;
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        link.owner = Owner::Shard;
        link.key = key;
        link.is_high = priority == Priority::High;
        self.raise(index);
        Ok(SimSocket(index))
    }

    fn take_passed(&mut self, passed: Passed) -> io::Result<O> {
        let first = self.passage.lock().expect("no one panicked").pop_front();
        let (number, offer) = first.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))?;
        assert_eq!(number, passed, "commands and sockets have the same order");
        if self.dice.chance(self.faults.no_descriptor) {
            self.faults.note(Fault::NoDescriptor);
            if let Some(index) = self.offers.remove(&offer.number()) {
                self.links[index as usize].owner = Owner::Closed;
            }
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(offer)
    }

    fn wake_front(&mut self) {
        self.wakes_front = true;
    }

    fn descriptors(&self) -> usize {
        0
    }

    fn wait(
        &mut self,
        ready: &mut Vec<Ready>,
        timeout: Option<Duration>,
        count_max: usize,
    ) -> io::Result<()> {
        self.was_idle = false;
        if self.is_interrupted() {
            return Ok(());
        }
        if !self.is_clock_still {
            self.now = self.now.after(TURN);
        }
        if self.edges.is_empty() && timeout != Some(Duration::ZERO) {
            self.was_idle = true;
            let until = timeout.map_or(self.wait_until, |timeout| self.now.after(timeout));
            if !self.is_clock_still {
                self.now = self.now.max(until.min(self.wait_until));
            }
        }
        self.poll_high(ready)?;
        self.announce(ready, count_max);
        Ok(())
    }

    fn poll_high(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.looks += 1;
        let is_high = |links: &[Link], index: u32| links[index as usize].is_high;
        for at in (0..self.edges.len()).rev() {
            if is_high(&self.links, self.edges[at]) {
                let index = self.edges.swap_remove(at);
                self.announce_one(index, ready);
            }
        }
        Ok(())
    }

    fn recv(&mut self, socket: &SimSocket, buf: &mut [u8]) -> io::Result<usize> {
        if self.is_interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.links[socket.0 as usize].read_into(buf)
    }

    fn send(&mut self, socket: &SimSocket, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.sends += 1;
        let offered = bufs.iter().map(|buf| buf.len()).sum();
        let bytes_max = self.bytes_taken_at_most(socket.0, offered);
        let link = &mut self.links[socket.0 as usize];
        let taken = link.take(bufs, bytes_max)?;
        self.taken += taken as u64;
        if !std::mem::replace(&mut link.is_fresh, true) {
            self.fresh.push(socket.0);
        }
        if link.rejects {
            self.peer_fail(PeerId(socket.0), io::ErrorKind::ConnectionReset);
        }
        Ok(taken)
    }

    fn shutdown_write(&mut self, socket: &SimSocket) {
        self.links[socket.0 as usize].is_our_side_ended = true;
    }

    fn take_error(&mut self, socket: &SimSocket) -> Option<io::Error> {
        let link = &mut self.links[socket.0 as usize];
        let kind = link.error.take()?;
        link.is_dead = true;
        Some(kind.into())
    }

    fn peer_addr(&self, socket: &SimSocket) -> Option<SocketAddr> {
        let port = u16::try_from(socket.0 % 60_000 + 1024).expect("below 2^16");
        Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    fn close(&mut self, socket: SimSocket) {
        self.let_go(&socket, Owner::Closed);
    }

    fn abort(&mut self, socket: SimSocket) {
        self.let_go(&socket, Owner::Aborted);
    }
}
