//! Lends the sockets of all connections to the process that will take over, a few in each turn, so
//! that they need not move in the pause.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use super::Shard;
use crate::command::{Front, Lend, Lender, Link, Loan, NotHandedOver};
use crate::id::ConnId;
use crate::net::Net;
use crate::slot::Slot;

/// Sockets that are lent.
///
/// Shape: 16 bytes for each; what has ended meanwhile stays among them.
pub(super) struct Lending {
    link: OwnedFd,
    /// `None`: all that were there have been lent, or it failed.
    lender: Option<Lender>,
    /// The next slot to look at.
    next: u32,
    lent: HashSet<ConnId, foldhash::fast::RandomState>,
}

/// Sockets lent in a turn: as many as one message takes, some 0.4 ms.
const PER_TURN: usize = 253;
/// Entries looked at in a turn.
const LOOKS_PER_TURN: u32 = 4096;

impl Lending {
    /// Whether sockets are still to be lent.
    pub(super) fn is_busy(&self) -> bool {
        self.lender.is_some()
    }

    /// Whether the other process has the socket of this connection.
    pub(super) fn has(&self, conn: ConnId) -> bool {
        self.lent.contains(&conn)
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn begin_lending(&mut self, Lend { link, mut lender }: Lend) {
        let Some(link) = self.take_link(link) else {
            lender(Err(NotHandedOver::NoDescriptor));
            return;
        };
        self.net.set_lent(true);
        let lent = HashSet::default();
        self.lending = Some(Lending { link, lender: Some(lender), next: 0, lent });
    }

    /// The descriptor in this shard's table; `None`: the table has no room.
    pub(super) fn take_link(&mut self, link: Link) -> Option<OwnedFd> {
        match link {
            Link::Here(link) => Some(link),
            Link::Passed(passed) => {
                let taken = self.net.take_link(passed);
                self.inbox.note_taken(passed);
                taken.ok()
            }
        }
    }

    /// Nobody takes over.
    pub(super) fn end_lending(&mut self) {
        self.lending = None;
        self.net.set_lent(false);
    }

    pub(super) fn go_on_lending(&mut self) {
        let Some(mut lending) = self.lending.take() else { return };
        if let Some(lender) = &mut lending.lender {
            let slots = self.table.slots();
            let end = slots.min(lending.next.saturating_add(LOOKS_PER_TURN));
            let (mut conns, mut sockets) = (Vec::new(), Vec::new());
            while lending.next < end && conns.len() < PER_TURN {
                let slot = Slot::at(lending.next);
                lending.next += 1;
                let entry = &self.table[slot];
                if let Some(socket) = entry.socket.as_ref().and_then(|socket| self.net.lend(socket))
                {
                    conns.push((self.table.id(self.index, slot), entry.priority));
                    sockets.push(socket);
                }
            }
            let is_last = lending.next >= slots;
            let mut wants_more = true;
            if !conns.is_empty() {
                wants_more =
                    lender(Ok(Loan { conns: &conns, sockets: &sockets, link: &lending.link }));
                if wants_more {
                    lending.lent.extend(conns.iter().map(|(conn, _)| *conn));
                }
            }
            if wants_more && is_last {
                lender(Ok(Loan { conns: &[], sockets: &[], link: &lending.link }));
            }
            if !wants_more || is_last {
                lending.lender = None;
            }
        }
        self.lending = Some(lending);
    }
}
