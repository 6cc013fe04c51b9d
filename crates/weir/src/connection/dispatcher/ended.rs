//! Ends of connections: what the front still holds for a connection is given back, and the end is
//! kept for the operator.

use std::collections::HashSet;
use std::net::SocketAddr;

use weir_engine::handover::NotUnderstood;
use weir_engine::{ConnId, DeviceRef, Origin, PeerAddr, TICK, TopicId, Transport};
use weir_wire::CloseReason;
use weir_wire::format::Format;
use weir_wire::handover::v1;

use super::{Asker, Dispatcher};
use crate::backends::notices::Who;
use crate::base::clock::unix_time;
use crate::base::handover::{at, narrow, refused};
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

impl Ended {
    /// For a process that takes over.
    pub(super) fn export(&self) -> v1::WaitingEnd {
        v1::WaitingEnd {
            device: self.device.0,
            source: self.origin.source,
            grant: self.origin.grant.into(),
            format: self.origin.format() as u32,
            client: self.origin.client().into(),
            reason: self.reason.code().into(),
            transport: self.transport as u32,
            peer: self.peer.map(|peer| SocketAddr::from(peer).to_string()),
            age_ticks: self.age_ticks,
            topics: self.topics.iter().map(|topic| topic.0).collect(),
        }
    }

    /// The connection of a shard that has ended in another process.
    pub(super) fn asker(
        ended: &v1::WaitingEnd,
        conn: ConnId,
        shard: usize,
    ) -> Result<Asker, NotUnderstood> {
        if conn.shard() != shard {
            return Err(refused("waiting_end: one of another shard", conn.to_u64()));
        }
        let format = at("waiting_end.format", &Format::ALL, ended.format)?;
        let grant = narrow("waiting_end.grant", ended.grant)?;
        let client = narrow("waiting_end.client", ended.client)?;
        if client > Origin::CLIENT_MAX {
            return Err(refused("waiting_end.client", client));
        }
        let origin = Origin::new(ended.source, grant, format, client);
        Ok(Asker { conn, device: DeviceRef(ended.device), origin })
    }

    /// Its end. `knows`: whether there is such a topic.
    pub(super) fn import(
        ended: v1::WaitingEnd,
        Asker { conn, device, origin }: Asker,
        knows: impl Fn(TopicId) -> bool,
    ) -> Result<Ended, NotUnderstood> {
        let v1::WaitingEnd { reason, transport, peer, age_ticks, topics, .. } = ended;
        let reason =
            CloseReason::from_code(reason).ok_or_else(|| refused("waiting_end.reason", reason))?;
        let peer = peer.map(|peer| peer.parse::<SocketAddr>().map(PeerAddr::from));
        let peer = peer.transpose().map_err(|_| refused("waiting_end.peer", conn.to_u64()))?;
        let mut known = HashSet::with_capacity(topics.len());
        if let Some(topic) =
            topics.iter().find(|topic| !knows(TopicId(**topic)) || !known.insert(**topic))
        {
            return Err(refused("waiting_end.topics", *topic));
        }
        Ok(Ended {
            conn,
            device,
            origin,
            reason,
            transport: at("waiting_end.transport", &Transport::ALL, transport)?,
            peer,
            age_ticks,
            topics: topics.into_iter().map(TopicId).collect(),
        })
    }
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    type Damage = fn(&mut v1::WaitingEnd);

    const CONN: ConnId = ConnId::from_u64(1);

    /// An end with a value of its own in each field.
    pub(in super::super) fn ended() -> Ended {
        Ended {
            conn: CONN,
            device: DeviceRef(2),
            origin: Origin::new(3, 4, Format::Stream, 5),
            reason: CloseReason::Stalled,
            transport: Transport::Tls,
            peer: Some("192.0.2.6:7".parse::<SocketAddr>().unwrap().into()),
            age_ticks: 8,
            topics: [TopicId(9), TopicId(10)].into(),
        }
    }

    fn import(exported: v1::WaitingEnd) -> Result<Ended, NotUnderstood> {
        let asker = Ended::asker(&exported, CONN, CONN.shard())?;
        Ended::import(exported, asker, |topic| topic != TopicId(11))
    }

    #[test]
    fn an_end_is_exported_and_damaged_ones_are_refused() {
        let exported = ended().export();
        let unknown = import(v1::WaitingEnd { peer: None, ..exported.clone() }).ok().unwrap();
        assert_eq!(unknown.peer, None);
        let (expected, there) = (ended(), import(exported.clone()).ok().unwrap());
        assert_eq!((there.conn, there.device), (expected.conn, expected.device));
        assert_eq!((there.origin, there.reason), (expected.origin, expected.reason));
        assert_eq!((there.transport, there.peer), (expected.transport, expected.peer));
        assert_eq!((there.age_ticks, there.topics), (expected.age_ticks, expected.topics));
        let damages: [(&str, Damage); 9] = [
            ("waiting_end.grant", |ended| ended.grant = 1 << 16),
            ("waiting_end.format", |ended| ended.format = u32::MAX),
            ("waiting_end.client", |ended| ended.client = u32::from(Origin::CLIENT_MAX) + 1),
            ("waiting_end.client", |ended| ended.client = u32::MAX),
            ("waiting_end.reason", |ended| ended.reason = 0),
            ("waiting_end.transport", |ended| ended.transport = 2),
            ("waiting_end.peer", |ended| ended.peer = Some("192.0.2.6".to_owned())),
            ("waiting_end.topics", |ended| ended.topics.push(11)),
            ("waiting_end.topics", |ended| ended.topics.push(9)),
        ];
        for (nth, (expected, damage)) in damages.into_iter().enumerate() {
            let mut damaged = exported.clone();
            damage(&mut damaged);
            let refused = import(damaged).err().map(|NotUnderstood { field, .. }| field);
            assert_eq!(refused, Some(expected), "damage {nth}");
        }
        let elsewhere = Ended::asker(&exported, CONN, CONN.shard() + 1);
        assert!(elsewhere.is_err());
    }
}
