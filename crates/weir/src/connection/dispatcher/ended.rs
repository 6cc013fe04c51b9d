//! Ends of connections: what the front still holds for a connection is given back, and the end is
//! kept for the operator.

use std::net::SocketAddr;

use weir_engine::{ConnId, DeviceRef, Origin, PeerAddr, TICK, TopicId, Transport};
use weir_wire::CloseReason;

use super::Dispatcher;
use crate::backends::notices::Who;
use crate::base::clock::unix_time;
use crate::core::ends::End;
use crate::core::events::EventKind;

/// A connection that has ended, as its shard reports it.
pub(super) struct Ended {
    pub(super) conn: ConnId,
    pub(super) device: DeviceRef,
    pub(super) origin: Origin,
    pub(super) reason: CloseReason,
    pub(super) transport: Transport,
    pub(super) peer: Option<PeerAddr>,
    pub(super) age_ticks: u32,
    pub(super) topics: Box<[TopicId]>,
}

impl Dispatcher {
    pub(super) fn end(&mut self, ended: Ended) {
        let Ended { conn, device, origin, reason, transport, peer, age_ticks, topics } = ended;
        self.terms.remove(conn);
        self.shared.calls.end(conn);
        let removed = self.shared.devices.remove(device, conn);
        if let Some((device, order)) = &removed {
            if let Some(node) = &self.shared.node {
                node.release(device, conn);
            }
            self.shared.events.tell(conn, device, EventKind::Disconnected(reason));
            let who = Who { device, conn, order: *order };
            self.shared.notices.disconnected(who, reason, TICK * age_ticks);
        }
        self.shared.router.end_resumes(conn);
        for topic in topics {
            self.shared.router.leave(topic, conn);
        }
        self.shared.ends.note(End {
            at: unix_time(),
            conn: Some(conn),
            device: removed.map(|(device, _)| device),
            peer: peer.map(SocketAddr::from),
            source: self.shared.admission.source(origin),
            client: self.shared.clients.name(origin.client()),
            protocol: origin.format(),
            transport,
            reason,
            age: TICK * age_ticks,
        });
        self.shared.clients.leave(origin.client());
        self.shared.admission.release(self.shard);
        self.shared.admission.leave(origin);
    }
}
