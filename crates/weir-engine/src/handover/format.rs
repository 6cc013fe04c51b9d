//! The export of a shard as the messages of `weir.handover.v1`, and back.

use std::fmt;

use weir_wire::format::Format;
use weir_wire::handover::{put_connection, v1};
use weir_wire::{CloseReason, ProstMessage};
use zeroize::Zeroize;

use super::{
    BlockExport, ConnectionExport, Inner, ItemExport, MessageExport, OutboxExport, ResumeExport,
    ShardExport, StoreExport, TlsExport,
};
use crate::id::{ConnId, DeviceRef, Origin, Priority, SlowPolicy, TopicId};
use crate::time::Nanos;
use crate::tls::{Alert, Session};

/// A field of an export that this program does not understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotUnderstood {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
}

impl fmt::Display for NotUnderstood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, which this program does not know", self.field, self.value)
    }
}

impl std::error::Error for NotUnderstood {}

fn unknown(field: &'static str, value: impl Into<u64>) -> NotUnderstood {
    NotUnderstood { field, value: value.into() }
}

/// A number in a narrower type.
fn narrow<T: TryFrom<u64>>(field: &'static str, value: impl Into<u64>) -> Result<T, NotUnderstood> {
    let value = value.into();
    T::try_from(value).map_err(|_| unknown(field, value))
}

/// The variant at an index.
fn at<T: Copy>(field: &'static str, all: &[T], index: u32) -> Result<T, NotUnderstood> {
    all.get(index as usize).copied().ok_or_else(|| unknown(field, index))
}

/// The pairs of a list.
fn pairs<T: Copy + Into<u64>>(
    field: &'static str,
    list: &[T],
) -> Result<Vec<(T, T)>, NotUnderstood> {
    let (pairs, rest) = list.as_chunks::<2>();
    match rest {
        [] => Ok(pairs.iter().map(|[one, two]| (*one, *two)).collect()),
        [left, ..] => Err(unknown(field, *left)),
    }
}

fn flat<T: Copy>(pairs: impl IntoIterator<Item = (T, T)>) -> Vec<T> {
    pairs.into_iter().flat_map(|(one, two)| [one, two]).collect()
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, NotUnderstood> {
    value.ok_or_else(|| unknown(field, 0_u64))
}

impl<S> ShardExport<S> {
    /// The bytes of [`v1::Shard`], and the sockets in the order of the connections.
    pub fn encode(self) -> (Vec<u8>, Vec<S>) {
        let shard = v1::Shard {
            started: self.started.0,
            slots: self.slots,
            free: flat(self.free),
            retired: self.retired,
            welcomes: self.welcomes,
            drains: self.drains,
            messages: self.messages.into_iter().map(MessageExport::encode).collect(),
            connections: Vec::new(),
            stores: self.stores.into_iter().map(StoreExport::encode).collect(),
            resumes: self.resumes.into_iter().map(ResumeExport::encode).collect(),
            stalled: self.stalled,
            lagging: self.lagging,
            waiting: self.waiting,
        };
        let of_connections = self.connections.len() * CONNECTION_BYTES;
        let mut state = Vec::with_capacity(shard.encoded_len() + of_connections);
        shard.encode(&mut state).expect("a vector has room");
        let mut sockets = Vec::with_capacity(self.connections.len());
        for connection in self.connections {
            let (mut connection, socket) = connection.encode();
            put_connection(&connection, &mut state);
            sockets.push(socket);
            let session = connection.tls.as_mut().and_then(|tls| tls.session.as_mut());
            session.into_iter().for_each(wipe);
        }
        (state, sockets)
    }

    /// The export of a message and of the bytes of its connections, as [`split_shard`] returns them.
    /// `socket` gives the socket of each connection, which was lent before or was not.
    ///
    /// Errors: a field that this program does not understand, or a missing socket.
    ///
    /// [`split_shard`]: weir_wire::handover::split_shard
    pub fn decode(
        (shard, connections): (v1::Shard, Vec<&[u8]>),
        mut socket: impl FnMut(ConnId, bool) -> Option<S>,
    ) -> Result<ShardExport<S>, NotUnderstood> {
        // Collected as a `Result` they would grow piece by piece, which takes twice the memory.
        let mut decoded = Vec::with_capacity(connections.len());
        for (index, bytes) in connections.into_iter().enumerate() {
            let malformed = |_| unknown("connections: the one that is malformed", index as u64);
            let connection = v1::Connection::decode(bytes).map_err(malformed)?;
            let found = socket(ConnId::from_u64(connection.id), connection.lent);
            let found = found.ok_or_else(|| unknown("connection without socket", connection.id))?;
            decoded.push(ConnectionExport::decode(connection, found)?);
        }
        let messages = shard.messages.into_iter().map(MessageExport::decode);
        Ok(ShardExport {
            started: Nanos(shard.started),
            slots: shard.slots,
            free: pairs("shard.free", &shard.free)?,
            retired: shard.retired,
            welcomes: shard.welcomes,
            drains: shard.drains,
            connections: decoded,
            messages: messages.collect::<Result<_, _>>()?,
            stores: shard.stores.into_iter().map(StoreExport::decode).collect(),
            resumes: shard.resumes.into_iter().map(ResumeExport::decode).collect(),
            stalled: shard.stalled,
            lagging: shard.lagging,
            waiting: shard.waiting,
        })
    }
}

impl<S> ConnectionExport<S> {
    fn encode(self) -> (v1::Connection, S) {
        let (inner, origin) = (self.inner, self.origin);
        let connection = v1::Connection {
            id: self.id.to_u64(),
            device: self.device.0,
            source: origin.source,
            grant: origin.grant.into(),
            format: origin.format() as u32,
            client: origin.client().into(),
            priority: self.priority as u32,
            heartbeat: self.heartbeat,
            closing: self.closing.map_or(0, |reason| reason.code().into()),
            welcomed: self.welcomed,
            publish_due: inner.publish_due,
            frames_due: inner.frames_due,
            adopted_at: inner.adopted_at,
            heard_at: inner.heard_at,
            timer: inner.timer,
            flags: inner.flags,
            topics: flat(self.topics.into_iter().map(|(topic, joined)| (topic.0, joined))),
            partial: self.partial.map(|block| Box::new(block.encode())),
            outbox: self.outbox.map(|outbox| Box::new(outbox.encode())),
            positions: self.positions.map(|told| Box::new(v1::Positions { told: flat(told) })),
            tls: self.tls.map(|tls| Box::new(tls.encode())),
            lent: self.lent,
        };
        (connection, self.socket)
    }

    fn decode(connection: v1::Connection, socket: S) -> Result<Self, NotUnderstood> {
        let format = at("connection.format", &Format::ALL, connection.format)?;
        let (grant, client) = (
            narrow("connection.grant", connection.grant)?,
            narrow("connection.client", connection.client)?,
        );
        if client > Origin::CLIENT_MAX {
            return Err(unknown("connection.client", client));
        }
        let closing = match connection.closing {
            0 => None,
            code => Some(
                CloseReason::from_code(code).ok_or_else(|| unknown("connection.closing", code))?,
            ),
        };
        let topics = pairs("connection.topics", &connection.topics)?.into_iter();
        let positions = connection.positions;
        let positions = positions.map(|positions| pairs("positions.told", &positions.told));
        let outbox = connection.outbox.map(|outbox| OutboxExport::decode(*outbox));
        let tls = connection.tls.map(|tls| TlsExport::decode(*tls));
        Ok(Self {
            socket,
            lent: connection.lent,
            id: ConnId::from_u64(connection.id),
            device: DeviceRef(connection.device),
            origin: Origin::new(connection.source, grant, format, client),
            priority: at("connection.priority", &Priority::ALL, connection.priority)?,
            heartbeat: connection.heartbeat,
            closing,
            welcomed: connection.welcomed,
            inner: Inner {
                publish_due: connection.publish_due,
                frames_due: connection.frames_due,
                adopted_at: connection.adopted_at,
                heard_at: connection.heard_at,
                timer: connection.timer,
                flags: connection.flags,
            },
            topics: topics.map(|(topic, joined)| (TopicId(topic), joined)).collect(),
            partial: connection.partial.map(|block| BlockExport::decode(*block)),
            outbox: outbox.transpose()?.map(Box::new),
            positions: positions.transpose()?,
            tls: tls.transpose()?.map(Box::new),
        })
    }
}

impl BlockExport {
    fn encode(self) -> v1::Block {
        v1::Block { bytes: self.bytes, since: self.since }
    }

    fn decode(block: v1::Block) -> Self {
        Self { bytes: block.bytes, since: block.since }
    }
}

impl TlsExport {
    fn encode(self) -> v1::Tls {
        v1::Tls {
            session: Some(self.session.encode()),
            partial: self.partial.map(BlockExport::encode),
            is_ahead: self.is_ahead,
            is_ended: self.is_ended,
            farewell: self.farewell.map(|alert| alert as u32),
        }
    }

    fn decode(tls: v1::Tls) -> Result<Self, NotUnderstood> {
        let farewell = tls.farewell.map(|code| {
            let alert = Alert::ALL.into_iter().find(|alert| *alert as u32 == code);
            alert.ok_or_else(|| unknown("tls.farewell", code))
        });
        let mut keys = required("tls.session", tls.session)?;
        let session = Session::decode(&keys);
        wipe(&mut keys);
        Ok(Self {
            session: session?,
            partial: tls.partial.map(BlockExport::decode),
            is_ahead: tls.is_ahead,
            is_ended: tls.is_ended,
            farewell: farewell.transpose()?,
        })
    }
}

impl OutboxExport {
    fn encode(self) -> v1::Outbox {
        let (grace_bytes, grace_at, bytes_behind) = self.grace;
        let lags = self.lags.into_iter();
        let sealed = self.sealed;
        v1::Outbox {
            items: self.items.into_iter().map(ItemExport::encode).collect(),
            sent: self.sent as u64,
            sealed: sealed.map(|(rest, bytes)| v1::Sealed { rest, plaintext: bytes as u64 }),
            grace_bytes: grace_bytes as u64,
            grace_at: grace_at.0,
            bytes_behind: bytes_behind as u64,
            began_at: self.began_at.0,
            stalled_since: self.stalled_since.map(|at| at.0),
            taken_at: self.taken_at.0,
            lags: lags.map(|(topic, next, seen)| v1::Lag { topic: topic.0, next, seen }).collect(),
        }
    }

    fn decode(outbox: v1::Outbox) -> Result<Self, NotUnderstood> {
        let sealed = outbox
            .sealed
            .map(|sealed| Ok((sealed.rest, narrow("sealed.plaintext", sealed.plaintext)?)));
        let grace_bytes = narrow("outbox.grace_bytes", outbox.grace_bytes)?;
        let bytes_behind = narrow("outbox.bytes_behind", outbox.bytes_behind)?;
        let items = outbox.items.into_iter().map(ItemExport::decode);
        let lags = outbox.lags.into_iter();
        Ok(Self {
            items: items.collect::<Result<_, _>>()?,
            sent: narrow("outbox.sent", outbox.sent)?,
            sealed: sealed.transpose()?,
            grace: (grace_bytes, Nanos(outbox.grace_at), bytes_behind),
            began_at: Nanos(outbox.began_at),
            stalled_since: outbox.stalled_since.map(Nanos),
            taken_at: Nanos(outbox.taken_at),
            lags: lags.map(|lag| (TopicId(lag.topic), lag.next, lag.seen)).collect(),
        })
    }
}

impl ItemExport {
    fn encode(self) -> v1::Item {
        let kind = match self {
            ItemExport::Message(number) => v1::item::Kind::Message(number),
            ItemExport::Frame(frame) => v1::item::Kind::Frame(frame.into_vec()),
        };
        v1::Item { kind: Some(kind) }
    }

    fn decode(item: v1::Item) -> Result<Self, NotUnderstood> {
        Ok(match required("item.kind", item.kind)? {
            v1::item::Kind::Message(number) => ItemExport::Message(number),
            v1::item::Kind::Frame(frame) => ItemExport::Frame(frame.into_boxed_slice()),
        })
    }
}

impl MessageExport {
    pub(super) fn encode(self) -> v1::Message {
        let (target, sender) = self.holders;
        v1::Message {
            number: self.number,
            frame: self.frame.into_vec(),
            format: self.format as u32,
            epoch: self.epoch,
            accepted_at: self.accepted_at.0,
            expires_at: self.expires_at.map(|at| at.0),
            priority: self.priority as u32,
            slow: self.slow as u32,
            is_tick: self.is_tick,
            topic: self.topic.map(|topic| topic.0),
            offset: self.offset,
            key_begin: self.key.start,
            key_end: self.key.end,
            singles: self.singles,
            shift: self.shift,
            replaces: self.replaces,
            class: self.class.into(),
            target: target.into(),
            sender: sender.map(u32::from),
        }
    }

    pub(super) fn decode(message: v1::Message) -> Result<Self, NotUnderstood> {
        let key = message.key_begin..message.key_end;
        if key.start > key.end || key.end as usize > message.frame.len() {
            return Err(unknown("message.key_end", message.key_end));
        }
        let sender = message.sender.map(|sender| narrow("message.sender", sender));
        Ok(Self {
            number: message.number,
            frame: message.frame.into_boxed_slice(),
            format: at("message.format", &Format::ALL, message.format)?,
            epoch: message.epoch,
            accepted_at: Nanos(message.accepted_at),
            expires_at: message.expires_at.map(Nanos),
            priority: at("message.priority", &Priority::ALL, message.priority)?,
            slow: at("message.slow", &SlowPolicy::ALL, message.slow)?,
            is_tick: message.is_tick,
            topic: message.topic.map(TopicId),
            offset: message.offset,
            key,
            singles: message.singles,
            shift: message.shift,
            replaces: message.replaces,
            class: narrow("message.class", message.class)?,
            holders: (narrow("message.target", message.target)?, sender.transpose()?),
        })
    }
}

impl StoreExport {
    fn encode(self) -> v1::Store {
        v1::Store { topic: self.topic.0, met: self.met, messages: self.messages }
    }

    fn decode(store: v1::Store) -> Self {
        Self { topic: TopicId(store.topic), met: store.met, messages: store.messages }
    }
}

impl ResumeExport {
    fn encode(self) -> v1::Resume {
        let Self { slot, topic, number, after, parts, is_asked } = self;
        v1::Resume { slot, topic: topic.0, number, after, parts, is_asked }
    }

    fn decode(resume: v1::Resume) -> Self {
        let v1::Resume { slot, topic, number, after, parts, is_asked } = resume;
        Self { slot, topic: TopicId(topic), number, after, parts, is_asked }
    }
}

/// The keys do not stay in memory that is free.
fn wipe(session: &mut v1::Session) {
    session.send.zeroize();
    session.receive.zeroize();
}

/// Room for a connection with TLS and some topics. With more bytes that wait, it grows.
const CONNECTION_BYTES: usize = 256;
