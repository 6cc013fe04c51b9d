//! Pending adoptions: the front's remaining work for each connection that a shard has been offered.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use weir_engine::{
    Adoption, Credit, Footprint, Mailbox, NotOffered, NotPassed, Origin, Priority, TlsAdoption,
    rounded, rounded_table,
};
use weir_wire::v1::Subscribe;

use crate::auth::Term;
use crate::auth::devices::Pin;
use crate::base::peer_charge::PeerCharge;
use crate::core::clients::Client;
use crate::limits::admission::Unsettled;

/// The connections that one shard was offered and has not answered yet.
#[derive(Default)]
pub(crate) struct PendingAdoptions {
    inner: Mutex<Inner>,
}

/// The parts of a connection that go to the shard.
pub(crate) struct Offer {
    pub(crate) socket: OwnedFd,
    /// Plaintext that came after `Hello`.
    pub(crate) read_ahead: Vec<u8>,
    pub(crate) tls: Option<Box<TlsAdoption>>,
}

/// The front's work and state until the shard has answered.
pub(crate) struct Pending {
    /// The device, and its generation at the authentication.
    pub(crate) pin: Pin,
    /// The agreed heartbeat.
    pub(crate) heartbeat: Duration,
    /// The priority from its token.
    pub(crate) priority: Priority,
    /// The connection origin: source, grant, format and client.
    pub(crate) origin: Origin,
    /// The version of the credentials that admitted it.
    pub(crate) version: u64,
    /// Whether `limits.publishes_per_second` applies to the connection.
    pub(crate) publish_limited: bool,
    /// The use of the client program's name.
    pub(crate) client: Client,
    /// Present if the credentials end at some time.
    pub(crate) term: Option<Term>,
    /// The start positions of a reader of events.
    pub(crate) positions: Option<Vec<(u64, u64)>>,
    /// Whether it replaces its device's oldest connection when the device has too many.
    pub(crate) replaces: bool,
    /// Whether it answers calls.
    pub(crate) answers_calls: bool,
    /// The subscriptions from `Hello`.
    pub(crate) topics: Vec<Subscribe>,
    /// Held until the shard answers.
    pub(crate) unsettled: Unsettled,
    /// The charge for `topics` and `read_ahead`, held equally long.
    pub(crate) _charge: PeerCharge,
}

/// A connection that a shard was not offered, and why.
pub(crate) enum NotAsked<'a> {
    /// The shard has been told to close all.
    Closed(Offer),
    /// The socket did not enter the passage to the shard. It may be offered again.
    NotPassed(NotPassed, Box<Unasked<'a>>),
}

/// A connection that may be offered again, with the credit for it.
pub(crate) struct Unasked<'a> {
    pub(crate) credit: Credit<'a, OwnedFd>,
    pub(crate) offer: Offer,
    pub(crate) pending: Box<Pending>,
}

#[derive(Default)]
struct Inner {
    pending: HashMap<u64, Box<Pending>, foldhash::fast::RandomState>,
    next: u64,
    /// A caller has undertaken to wake the shard.
    is_ringer_there: bool,
    closed: bool,
}

impl PendingAdoptions {
    /// Offers a connection to the shard that the credit belongs to. It returns the connection if
    /// the shard has been told to close all. That command follows [`PendingAdoptions::close`], so no
    /// offer comes after it, until [`PendingAdoptions::open`].
    ///
    /// The shard still sleeps afterwards. `Ok(true)` tells the caller to wake it with
    /// [`PendingAdoptions::ring`], for all offers until then.
    pub(crate) fn offer<'a>(
        &self,
        credit: Credit<'a, OwnedFd>,
        offer: Offer,
        mut pending: Box<Pending>,
    ) -> Result<bool, NotAsked<'a>> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(NotAsked::Closed(offer));
        }
        let Offer { socket, read_ahead, tls } = offer;
        let ticket = inner.next;
        let (device, heartbeat) = (pending.pin.device(), pending.heartbeat);
        let (priority, origin) = (pending.priority, pending.origin);
        let (publish_limited, positions) = (pending.publish_limited, pending.positions.take());
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
        if let Err(NotOffered { credit, adoption, cause }) =
            credit.offer_quietly(Box::new(adoption))
        {
            let Adoption { socket, positions, read_ahead, tls, .. } = *adoption;
            pending.positions = positions;
            let offer = Offer { socket, read_ahead, tls };
            return Err(NotAsked::NotPassed(cause, Box::new(Unasked { credit, offer, pending })));
        }
        inner.next += 1;
        pending.unsettled.note_offered();
        // The shard's answer is taken under the same lock.
        inner.pending.insert(ticket, pending);
        Ok(!std::mem::replace(&mut inner.is_ringer_there, true))
    }

    /// Wakes the shard for its offers.
    pub(crate) fn ring(&self, mailbox: &Mailbox<OwnedFd>) {
        self.lock().is_ringer_there = false;
        mailbox.wake();
    }

    /// Removes and returns the entry that a shard has answered.
    pub(crate) fn take(&self, ticket: u64) -> Option<Box<Pending>> {
        let mut inner = self.lock();
        let pending = inner.pending.remove(&ticket);
        // Returns the table's memory after a rush of connections.
        if inner.pending.is_empty() && inner.pending.capacity() > TABLE_KEPT {
            inner.pending.shrink_to(0);
        }
        pending
    }

    /// The pending adoptions.
    pub(crate) fn footprint(&self) -> Footprint {
        let inner = self.lock();
        let table = rounded_table(inner.pending.capacity(), size_of::<(u64, Box<Pending>)>());
        let each = inner.pending.values().map(|pending| {
            rounded(size_of::<Pending>())
                + rounded(pending.topics.capacity() * size_of::<Subscribe>())
        });
        Footprint::new(inner.pending.len(), table + each.sum::<usize>())
    }

    /// The ticket of the next offer.
    pub(crate) fn next_ticket(&self) -> u64 {
        self.lock().next
    }

    /// Goes on with the tickets of another process. There were no offers so far.
    pub(crate) fn go_on_from(&self, ticket: u64) {
        self.lock().next = ticket;
    }

    /// Ends the offers.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// Permits offers again.
    pub(crate) fn open(&self) {
        self.lock().closed = false;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic happens under the adoptions' lock")
    }
}

/// Unused entries that a table may keep.
const TABLE_KEPT: usize = 256;
