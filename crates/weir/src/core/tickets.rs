//! Connections between the front and their shard: what the front still has to do once the shard has them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use weir_engine::{Adoption, Command, Credit, Mailbox, Origin, Priority, TlsAdoption};
use weir_wire::v1::Subscribe;

use crate::auth::devices::Pin;
use crate::base::share::Charge;
use crate::connection::desk::Term;
use crate::limits::admission::Unsettled;

/// What one shard was offered and has not answered yet.
#[derive(Default)]
pub(crate) struct Tickets {
    inner: Mutex<Inner>,
}

/// A connection, taken apart.
pub(crate) struct Offer {
    pub(crate) socket: OwnedFd,
    /// Plaintext that came behind `Hello`.
    pub(crate) read_ahead: Vec<u8>,
    pub(crate) tls: Option<Box<TlsAdoption>>,
}

/// What follows when the shard has the connection.
pub(crate) struct Pending {
    /// The device, and the generation at which it was authenticated.
    pub(crate) pin: Pin,
    /// Agreed.
    pub(crate) heartbeat: Duration,
    /// From its token.
    pub(crate) priority: Priority,
    /// Where it comes from, and what its token permits.
    pub(crate) origin: Origin,
    /// Whether `limits.publishes_per_second` holds for it.
    pub(crate) publish_limited: bool,
    /// If its credentials end.
    pub(crate) term: Option<Term>,
    /// For a reader of events.
    pub(crate) positions: Option<Vec<(u64, u64)>>,
    /// Whether it replaces the oldest of its device's connections when they are too many.
    pub(crate) replaces: bool,
    /// From `Hello`.
    pub(crate) topics: Vec<Subscribe>,
    /// Held until the shard answers.
    pub(crate) unsettled: Unsettled,
    /// For `topics`, and for what was read ahead; likewise.
    pub(crate) _charge: Charge,
}

/// How many connections each shard has, as far as the front knows: offered ones included, closed ones until the
/// report.
pub(crate) struct Assignments {
    by_shard: Box<[AtomicUsize]>,
    total: AtomicUsize,
    connections_max: usize,
}

#[derive(Default)]
struct Inner {
    pending: HashMap<u64, Box<Pending>, foldhash::fast::RandomState>,
    next: u64,
    /// Somebody is to ring the shard's bell.
    is_ringer_there: bool,
    closed: bool,
}

impl Tickets {
    /// Offers a connection to the shard whose lane the credit is of; gives it back if the lane has been told to
    /// drain. That command is pushed behind [`Tickets::close`], so none is offered after it.
    ///
    /// The shard is not woken yet. `Ok(true)`: the caller is the one who does so by [`Tickets::ring`], for all who offer
    /// until then.
    pub(crate) fn offer(
        &self,
        credit: Credit<'_, OwnedFd>,
        offer: Offer,
        mut pending: Box<Pending>,
    ) -> Result<bool, Offer> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(offer);
        }
        let Offer { socket, read_ahead, tls } = offer;
        let ticket = inner.next;
        inner.next += 1;
        let (device, heartbeat) = (pending.pin.device(), pending.heartbeat);
        let (priority, origin) = (pending.priority, pending.origin);
        let (publish_limited, positions) = (pending.publish_limited, pending.positions.take());
        inner.pending.insert(ticket, pending);
        let adoption = Adoption {
            socket,
            ticket,
            device,
            heartbeat,
            priority,
            origin,
            publish_limited,
            positions,
            read_ahead,
            tls,
        };
        credit.push_quietly(Command::Adopt(Box::new(adoption)));
        Ok(!std::mem::replace(&mut inner.is_ringer_there, true))
    }

    /// Wakes the shard for what it has been offered.
    pub(crate) fn ring(&self, lane: &Mailbox<OwnedFd>) {
        self.lock().is_ringer_there = false;
        lane.nudge();
    }

    /// The shard has answered.
    pub(crate) fn take(&self, ticket: u64) -> Option<Box<Pending>> {
        let mut inner = self.lock();
        let pending = inner.pending.remove(&ticket);
        // After a rush of connections the table is given back.
        if inner.pending.is_empty() && inner.pending.capacity() > TABLE_KEPT {
            inner.pending.shrink_to(0);
        }
        pending
    }

    /// No more offers.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic happens under the tickets' lock")
    }
}

impl Assignments {
    pub(crate) fn new(shards: usize, connections_max: usize) -> Self {
        let by_shard = (0..shards).map(|_| AtomicUsize::new(0)).collect();
        Self { by_shard, total: AtomicUsize::new(0), connections_max }
    }

    /// Whether `connections_max` are there.
    pub(crate) fn is_full(&self) -> bool {
        self.total.load(Ordering::Relaxed) >= self.connections_max
    }

    /// The shard with the fewest connections, which has one more now; `None` if `connections_max` are there.
    pub(crate) fn assign(&self) -> Option<usize> {
        let max = self.connections_max;
        let entered = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < max).then_some(count + 1)
        });
        entered.ok()?;
        let counts = self.by_shard.iter().map(|count| count.load(Ordering::Relaxed));
        let (shard, _) = counts.enumerate().min_by_key(|(_, count)| *count)?;
        self.by_shard[shard].fetch_add(1, Ordering::Relaxed);
        Some(shard)
    }

    /// The shard has one less.
    pub(crate) fn release(&self, shard: usize) {
        self.by_shard[shard].fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Entries that a table may keep without use.
const TABLE_KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_shard_is_next_until_all_are_full() {
        let assignments = Assignments::new(2, 3);
        let assigned: Vec<_> = (0..4).map(|_| assignments.assign()).collect();
        assert_eq!(assigned, [Some(0), Some(1), Some(0), None]);
        assert!(assignments.is_full());
        assignments.release(1);
        assert_eq!(assignments.assign(), Some(1));
    }
}
