//! One simulated connection: two byte streams, and the kernel's state of them.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Weak;

/// The peer's end of a simulated connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub(crate) u32);

impl PeerId {
    /// Its running number, from 0.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The state of the connection, as its peer can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerView {
    /// Both sides are open, as far as the peer can see.
    Open,
    /// The server has ended its side.
    Ended,
    /// The connection was reset, or never taken over.
    Reset,
}

/// The owner of the server's end.
#[derive(Debug)]
pub(crate) enum Owner {
    /// Offered, but not taken. The weak reference tells whether the offer still exists.
    Offered(Option<Weak<()>>),
    /// The shard.
    Shard,
    /// Nobody: it is closed, and sent bytes still arrive.
    Closed,
    /// Nobody: reset by the server.
    Aborted,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) owner: Owner,
    pub(crate) key: u64,
    pub(crate) is_high: bool,

    /// Bytes from the peer that the shard has not read.
    pub(crate) inbound: VecDeque<u8>,
    /// Bytes that the shard has read.
    pub(crate) consumed: u64,
    /// The peer has ended its side.
    pub(crate) is_ended: bool,
    /// The error of the next call.
    pub(crate) error: Option<io::ErrorKind>,
    /// An error has been reported: now reads see the end, and writes a broken pipe.
    pub(crate) is_dead: bool,

    /// Bytes that the kernel took, from `forgotten` on.
    outbound: Vec<u8>,
    forgotten: u64,
    /// How many of these bytes the peer has read, and how many an observer has seen.
    read: u64,
    observed: u64,
    /// The most bytes that the kernel holds, and the level at which it announces room.
    pub(crate) capacity: usize,
    pub(crate) low: usize,
    pub(crate) is_our_side_ended: bool,
    /// Remaining refusals of a storm.
    pub(crate) refusals: u32,
    /// The peer has closed both directions: bytes that reach it are answered with a reset.
    pub(crate) rejects: bool,
    /// Whether it is in the list of connections whose kernel took bytes that no observer has seen.
    pub(crate) is_fresh: bool,

    /// Whether it is in the list of connections with an edge to announce.
    pub(crate) has_edge: bool,
    /// The shard has found nothing to read. The next arrival is an edge.
    pub(crate) wants_read: bool,
    /// The shard has been refused. The next room is an edge.
    pub(crate) wants_write: bool,
}

impl Link {
    pub(crate) fn new(offer: Option<Weak<()>>) -> Self {
        Self {
            owner: Owner::Offered(offer),
            key: 0,
            is_high: false,
            inbound: VecDeque::new(),
            consumed: 0,
            is_ended: false,
            error: None,
            is_dead: false,
            outbound: Vec::new(),
            forgotten: 0,
            read: 0,
            observed: 0,
            capacity: CAPACITY,
            low: CAPACITY / 2,
            is_our_side_ended: false,
            refusals: 0,
            rejects: false,
            is_fresh: false,
            has_edge: false,
            wants_read: false,
            wants_write: false,
        }
    }

    /// Bytes that the kernel has ever taken.
    pub(crate) fn taken(&self) -> u64 {
        self.forgotten + self.outbound.len() as u64
    }

    /// Bytes in the kernel that the peer has not read.
    pub(crate) fn unread(&self) -> usize {
        usize::try_from(self.taken() - self.read).expect("at most the capacity")
    }

    pub(crate) fn is_readable(&self) -> bool {
        !self.inbound.is_empty() || self.is_ended || self.has_failed()
    }

    pub(crate) fn is_writable(&self) -> bool {
        (self.refusals == 0 && self.unread() <= self.low) || self.has_failed()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some() || self.is_dead
    }

    pub(crate) fn read_into(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !self.inbound.is_empty() {
            let bytes = self.inbound.len().min(buf.len());
            for (to, from) in buf.iter_mut().zip(self.inbound.drain(..bytes)) {
                *to = from;
            }
            self.consumed += bytes as u64;
            self.wants_read = bytes < buf.len();
            return Ok(bytes);
        }
        if let Some(kind) = self.error.take() {
            self.is_dead = true;
            return Err(kind.into());
        }
        if self.is_ended || self.is_dead {
            return Ok(0);
        }
        self.wants_read = true;
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Takes at most `bytes_max` bytes of `bufs`.
    pub(crate) fn take(&mut self, bufs: &[IoSlice<'_>], bytes_max: usize) -> io::Result<usize> {
        if let Some(kind) = self.error.take() {
            self.is_dead = true;
            return Err(kind.into());
        }
        if self.is_dead || self.is_our_side_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut room = self.capacity.saturating_sub(self.unread()).min(bytes_max);
        let (mut taken, mut offered) = (0, 0);
        for buf in bufs {
            let bytes = room.min(buf.len());
            self.outbound.extend_from_slice(&buf[..bytes]);
            room -= bytes;
            taken += bytes;
            offered += buf.len();
        }
        if taken < offered {
            self.wants_write = true;
        }
        if taken == 0 && offered > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }

    /// The peer reads at most `bytes_max` bytes.
    pub(crate) fn peer_read(&mut self, bytes_max: usize) -> &[u8] {
        let from = usize::try_from(self.read - self.forgotten).expect("behind what is forgotten");
        let to = self.outbound.len().min(from.saturating_add(bytes_max));
        self.read += (to - from) as u64;
        &self.outbound[from..to]
    }

    /// The bytes that the kernel took since the last look.
    pub(crate) fn observe(&mut self) -> &[u8] {
        self.forget();
        let from = usize::try_from(self.observed - self.forgotten).expect("not yet forgotten");
        self.observed = self.taken();
        &self.outbound[from..]
    }

    /// Releases the bytes that both the peer and the observer have seen.
    pub(crate) fn forget(&mut self) {
        let seen = usize::try_from(self.read.min(self.observed) - self.forgotten)
            .expect("both are behind what is forgotten");
        if seen == self.outbound.len() || seen > FORGOTTEN_AT_ONCE {
            self.outbound.drain(..seen);
            self.forgotten += seen as u64;
        }
    }

    /// Counts read bytes as observed too, for peers without an observer.
    pub(crate) fn observe_what_is_read(&mut self) {
        self.observed = self.observed.max(self.read);
        self.forget();
    }
}

const CAPACITY: usize = 64 * 1024;

/// Seen bytes are released in pieces of this size, so that the rest is seldom moved.
const FORGOTTEN_AT_ONCE: usize = 64 * 1024;
