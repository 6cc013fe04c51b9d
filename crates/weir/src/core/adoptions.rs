//! Connections between the front and their shard: what the front still has to do once the shard has them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use weir_engine::{Adoption, Command, Credit, Mailbox, Origin, Priority, TlsAdoption};
use weir_wire::v1::Subscribe;

use crate::auth::Term;
use crate::auth::devices::Pin;
use crate::base::peer_charge::PeerCharge;
use crate::limits::admission::Unsettled;

/// What one shard was offered and has not answered yet.
#[derive(Default)]
pub(crate) struct PendingAdoptions {
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
    pub(crate) _charge: PeerCharge,
}

#[derive(Default)]
struct Inner {
    pending: HashMap<u64, Box<Pending>, foldhash::fast::RandomState>,
    next: u64,
    /// The caller must wake the shard.
    is_ringer_there: bool,
    closed: bool,
}

impl PendingAdoptions {
    /// Offers a connection to the shard whose mailbox the credit is of; gives it back if the mailbox has been told to
    /// drain. That command is pushed behind [`PendingAdoptions::close`], so none is offered after it.
    ///
    /// The shard is not woken yet. `Ok(true)`: the caller is the one who does so by [`PendingAdoptions::ring`], for all who offer
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
    pub(crate) fn ring(&self, mailbox: &Mailbox<OwnedFd>) {
        self.lock().is_ringer_there = false;
        mailbox.wake();
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
        self.inner.lock().expect("no panic happens under the adoptions' lock")
    }
}

/// Entries that a table may keep without use.
const TABLE_KEPT: usize = 256;
