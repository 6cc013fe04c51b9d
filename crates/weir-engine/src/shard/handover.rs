//! Hands a shard over: takes everything out of it, and makes a shard of that.
//!
//! A shard hands over at rest: no command waits, no fan-out walks, no report waits for the front, and
//! no drain runs. Nothing else is asked of its connections: they may be stalled, lag, resume, close,
//! or have a frame or a record half sent or half received.

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::Arc;

use weir_wire::handover::split_shard;
use zeroize::Zeroize;

use super::forms::bytes_of_positions;
use super::latest::Latest;
use super::resumes::RESUME_BYTES;
use super::resumes::Resumes;
use super::tls_table::TakenOut;
use super::tls_table::TlsTable;
use super::{Shard, key_of};
use crate::command::{Front, HandOver, HandedOver, Keeper, NotHandedOver, Taken};
use crate::handover::{
    BlockExport, ConnectionExport, Inner, MessageExport, OutboxExport, ShardExport, TlsExport,
};
use crate::id::{ConnId, Priority, TopicId};
use crate::message::Message;
use crate::net::Net;
use crate::pool::Block;
use crate::slot::{Slot, TlsSlot};
use crate::table::{Ending, Flags, HeldBack, State};
use crate::time::Tick;
use crate::topics::Topics;
use crate::wheel::Wheel;

/// A socket of a connection that is taken over.
enum Arrived<O, S> {
    /// It was lent, and is watched already.
    Before(S),
    /// It came with the state.
    Now(O),
}

/// The messages of an export, each once.
#[derive(Default)]
struct Messages {
    known: HashMap<*const Message, ()>,
    exports: Vec<MessageExport>,
}

impl Messages {
    /// The number of a message: its address, which is unique while the process keeps it.
    fn number(&mut self, message: &Arc<Message>) -> u64 {
        let address = Arc::as_ptr(message);
        if self.known.insert(address, ()).is_none() {
            let singles = message.singles().iter().map(|single| self.number(single)).collect();
            self.exports.push(message.export(address as u64, singles));
        }
        address as u64
    }
}

/// Taking out.
impl<N: Net, F: Front> Shard<N, F> {
    /// Whether the shard may be handed over.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_walking = self.fanouts.is_busy() || self.fanouts.len() > 0;
        !is_walking && self.backlog.is_empty() && self.draining.is_none() && self.inbox.is_empty()
    }

    /// Takes everything out of a shard at rest. It has no connection any more.
    pub(crate) fn export(&mut self) -> ShardExport<N::Socket> {
        debug_assert!(self.is_at_rest(), "the caller waits until it is");
        let mut messages = Messages::default();
        let lists = [&self.stalled, &self.lagging, &self.waiting];
        let [stalled, lagging, waiting] = lists.map(|list| list.slots(&mut self.table));
        let stores = self.latest.export(|message| messages.number(message));
        let resumes = self.resumes.export();
        let slots = self.table.slots();
        let held = Slot::all(0..slots).filter(|slot| self.table[*slot].socket.is_some());
        let held: Vec<Slot> = held.collect();
        let connections = held.into_iter().map(|slot| self.take_out(slot, &mut messages)).collect();
        let (free, retired) = self.table.unused();
        ShardExport {
            started: self.started,
            slots,
            free,
            retired,
            welcomes: self.table.welcomes(),
            drains: self.drains,
            connections,
            messages: messages.exports,
            stores,
            resumes,
            stalled,
            lagging,
            waiting,
        }
    }

    fn take_out(&mut self, slot: Slot, messages: &mut Messages) -> ConnectionExport<N::Socket> {
        self.count_out(slot);
        let id = self.table.id(self.index, slot);
        let lent = self.lending.as_ref().is_some_and(|lending| lending.has(id));
        let entry = &mut self.table[slot];
        let members: Vec<(TopicId, u32)> = entry
            .memberships
            .iter()
            .map(|membership| {
                let member =
                    self.topics.member(entry.priority, membership.topic, membership.position);
                (membership.topic, member.map_or(0, |member| member.joined().0))
            })
            .collect();
        let tls = self.tls.take_out(entry.tls).map(|taken| {
            let TakenOut { session, partial, is_ahead, is_ended, farewell } = taken;
            let partial = partial.map(|block| block_export(&block));
            Box::new(TlsExport { session, partial, is_ahead, is_ended, farewell })
        });
        entry.tls = TlsSlot::NONE;
        ConnectionExport {
            socket: entry.socket.take().expect("only connections with a socket are taken out"),
            lent,
            id,
            device: entry.device,
            origin: entry.origin,
            priority: entry.priority,
            heartbeat: entry.heartbeat(),
            closing: (entry.state == State::Closing).then_some(entry.reason),
            welcomed: entry.flags.welcomed.then_some(entry.welcomed),
            inner: Inner {
                publish_due: entry.publish_due,
                frames_due: entry.frames_due,
                adopted_at: entry.adopted_at.0,
                heard_at: entry.heard_at.0,
                timer: entry.timer.at().0,
                flags: entry.flags.export(),
            },
            topics: members,
            partial: entry.partial.take().map(|block| block_export(&block)),
            outbox: entry
                .outbox
                .take()
                .map(|outbox| Box::new(outbox.export(|message| messages.number(message)))),
            positions: self.positions.remove(&slot),
            tls,
        }
    }
}

fn block_export(block: &Block) -> BlockExport {
    BlockExport { bytes: block.filled().to_vec(), since: block.since.0 }
}

/// Making a shard.
impl<N: Net, F: Front> Shard<N, F> {
    /// Fills a shard without connections with what another one has handed over. `adopt` gives each
    /// socket, registered under its key.
    ///
    /// Everything is charged even beyond the budget: it was there before. If room is short, the
    /// shard makes some in its first turn.
    ///
    /// Errors: those of `adopt`.
    pub(crate) fn import<S>(
        &mut self,
        export: ShardExport<S>,
        mut adopt: impl FnMut(&mut N, S, (ConnId, Priority)) -> io::Result<N::Socket>,
    ) -> io::Result<()> {
        debug_assert!(self.table.in_use() == 0, "the shard has no connection yet");
        let ShardExport { started, slots, free, retired, welcomes, drains, .. } = export;
        self.started = started;
        let now = self.tick();
        self.wheel.begin_at(now);
        self.drains = drains;
        self.table.restore(slots, &free, &retired, welcomes);
        let budget = Arc::clone(self.lease.budget());
        let mut messages = HashMap::with_capacity(export.messages.len());
        for message in export.messages {
            let singles = message.singles.iter().filter_map(|number| messages.get(number).cloned());
            let (number, singles) = (message.number, singles.collect());
            messages.insert(number, Message::import(&budget, message, singles));
        }
        for connection in export.connections {
            self.put_in(connection, &messages, &mut adopt)?;
        }
        for store in export.stores {
            let found = store.messages.iter().filter_map(|number| messages.get(number).cloned());
            let bytes = self.latest.import(store.topic, store.met, found);
            self.lease.take_anyway(bytes);
        }
        for resume in export.resumes {
            self.lease.take_anyway(RESUME_BYTES);
            self.resumes.import(resume);
        }
        for (list, slots) in [
            (&mut self.stalled, export.stalled),
            (&mut self.lagging, export.lagging),
            (&mut self.waiting, export.waiting.clone()),
        ] {
            for slot in slots {
                list.append(&mut self.table, Slot::at(slot));
            }
        }
        for slot in export.waiting {
            if let Some(outbox) = &mut self.table[Slot::at(slot)].outbox {
                outbox.is_waiting = true;
            }
        }
        Ok(())
    }

    fn put_in<S>(
        &mut self,
        connection: ConnectionExport<S>,
        messages: &HashMap<u64, Arc<Message>>,
        adopt: &mut impl FnMut(&mut N, S, (ConnId, Priority)) -> io::Result<N::Socket>,
    ) -> io::Result<()> {
        let ConnectionExport { socket, id, inner, topics, partial, outbox, positions, tls, .. } =
            connection;
        let slot = id.slot();
        self.table[slot].socket = Some(adopt(&mut self.net, socket, (id, connection.priority))?);
        let tls_slot = tls.map_or(TlsSlot::NONE, |tls| {
            let TlsExport { session, partial, is_ahead, is_ended, farewell } = *tls;
            let partial = partial.map(|block| self.block(&block));
            self.tls.put_in(TakenOut { session, partial, is_ahead, is_ended, farewell })
        });
        let partial = partial.map(|block| self.block(&block));
        let entry = &mut self.table[slot];
        (entry.device, entry.origin, entry.priority) =
            (connection.device, connection.origin, connection.priority);
        entry.tls = tls_slot;
        entry.partial = partial;
        (entry.publish_due, entry.frames_due) = (inner.publish_due, inner.frames_due);
        (entry.adopted_at, entry.heard_at) = (Tick(inner.adopted_at), Tick(inner.heard_at));
        entry.flags = Flags::import(inner.flags);
        entry.flags.welcomed = connection.welcomed.is_some();
        entry.welcomed = connection.welcomed.unwrap_or(0);
        entry.state = if connection.closing.is_some() { State::Closing } else { State::Open };
        if let Some(reason) = connection.closing {
            entry.reason = reason;
        }
        self.table.note_restored(slot, id, connection.heartbeat);
        for (topic, joined) in topics {
            self.topics.join(&mut self.table, slot, topic, Tick(joined));
        }
        if let Some(outbox) = outbox {
            self.put_outbox(slot, *outbox, messages);
        }
        if let Some(positions) = positions {
            self.events.take_anyway(bytes_of_positions(positions.len()));
            self.positions.insert(slot, positions);
        }
        self.count_in(slot);
        // What has become due in the pause is due at the next tick.
        self.arm(slot, Tick(inner.timer).max(self.tick().plus(1)));
        self.list_again(slot);
        Ok(())
    }

    /// A block of another process.
    fn block(&mut self, export: &BlockExport) -> Box<Block> {
        let block = self.pool.take(&export.bytes, Tick(export.since));
        self.incoming.take_anyway(block.footprint());
        block
    }

    fn put_outbox(
        &mut self,
        slot: Slot,
        export: OutboxExport,
        messages: &HashMap<u64, Arc<Message>>,
    ) {
        let outbox = self.outbox(slot);
        outbox.import(export, |number| messages.get(&number).cloned());
        outbox.charged = outbox.footprint();
        let (charged, topics) = (outbox.charged, outbox.lags.iter().map(|lag| lag.topic));
        let topics: Vec<TopicId> = topics.collect();
        self.lease.take_anyway(charged);
        topics.into_iter().for_each(|topic| self.latest.begin_lag(topic));
    }

    fn count_in(&self, slot: Slot) {
        let entry = &self.table[slot];
        let (stats, transport) = (&self.stats, entry.transport());
        if entry.state == State::Open {
            stats.connections.enter(transport);
            stats.formats[entry.format().index()].add(1);
        } else if entry.flags.ending.has(Ending::TOLD) {
            stats.lingering.enter(transport);
        }
        stats.queued_items.add(entry.outbox.as_ref().map_or(0, |outbox| outbox.len() as u64));
    }

    fn count_out(&self, slot: Slot) {
        let entry = &self.table[slot];
        let (stats, transport) = (&self.stats, entry.transport());
        if entry.state == State::Open {
            stats.connections.leave(transport);
            let format = &stats.formats[entry.format().index()];
            format.set(format.get() - 1);
        } else if entry.flags.ending.has(Ending::TOLD) {
            stats.lingering.leave(transport);
        }
        let items = entry.outbox.as_ref().map_or(0, |outbox| outbox.len() as u64);
        stats.queued_items.set(stats.queued_items.get() - items);
    }

    /// Lists a connection where it was listed.
    fn list_again(&mut self, slot: Slot) {
        let flags = self.table[slot].flags;
        if flags.to_read {
            self.to_read.push(slot);
        }
        if flags.held_back == HeldBack::ForFront {
            self.held_back.push(slot);
        }
    }
}

/// Handing over and taking over.
impl<N: Net, F: Front> Shard<N, F> {
    /// Stops reading and the deadlines, or goes on with both.
    pub(crate) fn suspend(&mut self, is_suspended: bool) {
        if std::mem::replace(&mut self.is_suspended, is_suspended) && !is_suspended {
            self.behind = self.table.in_use();
        }
    }

    /// Hands everything over, if the shard is suspended and at rest.
    pub(super) fn hand_over_to(&mut self, HandOver { link, is_due, take }: HandOver) {
        if !self.is_suspended || !self.is_at_rest() {
            take(Err(NotHandedOver::NotAtRest));
            return;
        }
        let Some(link) = self.take_link(link) else {
            take(Err(NotHandedOver::NoDescriptor));
            return;
        };
        if !is_due() {
            return;
        }
        let export = self.export();
        let lent: Vec<bool> = export.connections.iter().map(|connection| connection.lent).collect();
        let (mut state, sockets) = export.encode();
        let to_send = lent.iter().zip(&sockets).filter(|(lent, _)| !**lent);
        let to_send: Vec<_> = to_send.filter_map(|(_, socket)| self.net.lend(socket)).collect();
        match take(Ok((HandedOver { state: &state, sockets: &to_send }, link))) {
            Keeper::Other => {
                state.zeroize();
                // The other process has copies: to close ends nothing.
                self.net.set_lent(false);
                sockets.into_iter().for_each(|socket| self.net.close(socket));
                self.stopped = true;
            }
            Keeper::Itself => {
                self.put_back(&state, sockets);
                state.zeroize();
                self.suspend(false);
            }
        }
    }

    /// Empties the shard, and fills it with what it has exported.
    fn put_back(&mut self, state: &[u8], sockets: Vec<N::Socket>) {
        let mut sockets = sockets.into_iter();
        let split = split_shard(state).expect("what is encoded can be split");
        let export = ShardExport::decode(split, |_, _| sockets.next());
        let export = export.expect("what is exported is known");
        debug_assert_eq!(export.check(self.index), Ok(()), "what is exported is whole");
        self.empty();
        self.import(export, |_, socket, _| Ok(socket)).expect("the sockets are registered");
    }

    /// Watches a socket whose connection another process will hand over.
    ///
    /// Errors: the kernel has no memory for it.
    pub(crate) fn borrow(
        &mut self,
        (conn, priority): (ConnId, Priority),
        socket: N::Offer,
    ) -> io::Result<()> {
        let key = key_of(conn.generation(), conn.slot());
        let socket = self.net.adopt(socket, key, priority)?;
        self.borrowed.insert(conn, socket);
        Ok(())
    }

    /// Fills a shard without connections with what another process has handed over. The shard has
    /// to serve nothing before that.
    ///
    /// Errors: a state that this program does not understand, another number of sockets, or no
    /// memory to watch a socket. The sockets are closed then, which does not end their connections.
    pub(crate) fn take_over(
        &mut self,
        state: &[u8],
        sockets: Vec<N::Offer>,
    ) -> io::Result<Vec<Taken>> {
        let invalid =
            |error: Box<dyn Error + Send + Sync>| io::Error::new(io::ErrorKind::InvalidData, error);
        let split = split_shard(state).map_err(|error| invalid(error.into()))?;
        let mut sockets = sockets.into_iter();
        let borrowed = &mut self.borrowed;
        let export = ShardExport::decode(split, |conn, lent| match lent {
            true => borrowed.remove(&conn).map(Arrived::Before),
            false => sockets.next().map(Arrived::Now),
        });
        let export = export.map_err(|error| invalid(error.into()))?;
        if sockets.next().is_some() {
            return Err(invalid("more sockets than connections".into()));
        }
        // Their connections have ended meanwhile.
        for (_, socket) in std::mem::take(&mut self.borrowed) {
            self.net.close(socket);
        }
        export.check(self.index).map_err(|error| invalid(error.into()))?;
        let taken = |connection: &ConnectionExport<_>| Taken {
            id: connection.id,
            device: connection.device,
            origin: connection.origin,
            is_closing: connection.closing.is_some(),
        };
        let taken = export.connections.iter().map(taken).collect();
        self.import(export, |net, arrived, (conn, priority)| match arrived {
            Arrived::Before(socket) => Ok(socket),
            Arrived::Now(offer) => {
                net.adopt(offer, key_of(conn.generation(), conn.slot()), priority)
            }
        })?;
        // The other process closes its copies when it has time.
        self.net.set_lent(true);
        self.behind = self.table.in_use();
        Ok(taken)
    }

    /// Forgets everything that was handed over.
    fn empty(&mut self) {
        self.table.empty();
        (self.tls, self.topics, self.wheel) = (TlsTable::new(), Topics::new(), Wheel::new());
        (self.latest, self.resumes) = (Latest::default(), Resumes::default());
        self.positions.clear();
        self.spare_outboxes.clear();
        for list in [&mut self.stalled, &mut self.lagging, &mut self.waiting] {
            list.forget();
        }
        for lease in [&mut self.lease, &mut self.incoming, &mut self.events] {
            lease.begin_anew();
        }
        (self.to_read, self.held_back, self.looked_at) = (Vec::new(), Vec::new(), 0);
    }

    /// Hands the shard over to itself: everything is taken out, and put into empty tables. Returns
    /// whether it was at rest.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn hand_over(&mut self) -> bool {
        if !self.is_at_rest() {
            return false;
        }
        let mut export = self.export();
        self.spoil_export(&mut export);
        let (state, sockets) = export.encode();
        self.put_back(&state, sockets);
        self.spoil_import();
        self.count_levels();
        true
    }
}
