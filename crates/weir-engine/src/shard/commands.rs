//! Carries out the commands of the gateway.

use weir_wire::{CloseReason, ProstMessage, frame, v1};

use super::fanouts::Behind;
use super::{Shard, key_of};
use crate::command::{Adoption, Command, CreditKind, Front, Passed, Report, Urgent};
use crate::id::{ConnId, TopicId};
use crate::message::Item;
use crate::net::Net;
use crate::outbox::GATHER_MAX;
use crate::slot::Slot;
use crate::stats::DropRule;
use crate::table::{Holder, State};
use crate::time::{TICK, ticks};

/// Urgent requests a turn. Each may look at some thousand connections.
const URGENT_PER_TURN: usize = 64;

/// After this many commands the shard looks at connections of high priority: some 0.3 ms.
const COMMANDS_BESIDE_HIGH: usize = 32;

/// This many bytes of a resume are as much work as a command: with frames of 64 bytes, one gathered
/// send.
const BYTES_AS_COMMAND: usize = 4096;

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn take_urgent(&mut self) {
        for _ in 0..URGENT_PER_TURN {
            // Closing then waits too, which lasts no longer than the front needs to look.
            if !self.inbox.has_room_for_answer() {
                self.owes_wake = true;
                return;
            }
            let Some(urgent) = self.inbox.pop_urgent() else { return };
            match urgent {
                Urgent::Close(conn, reason) => {
                    if let Some(slot) = self.find(conn) {
                        self.close(slot, reason);
                    }
                }
                Urgent::Inspect(inspect) => self.inspect(inspect),
                Urgent::Survey(survey) => self.survey(survey),
                Urgent::Limit(settings) => self.limit(&settings),
                Urgent::Suspend => self.suspend(true),
                Urgent::GoOn => self.suspend(false),
                Urgent::TakeBack => self.end_lending(),
                Urgent::Lend(lend) => self.begin_lending(lend),
                Urgent::HandOver(hand_over) => {
                    self.hand_over_to(hand_over);
                    return;
                }
                Urgent::Stop => self.stopped = true,
            }
        }
    }

    /// Takes commands up to the turn's share of work. In between it looks at connections of high
    /// priority.
    pub(super) fn take_commands(&mut self) {
        let (mut done, mut unlooked) = (0, 0);
        while done < self.slices.commands {
            if unlooked >= COMMANDS_BESIDE_HIGH {
                self.look_at_high();
                unlooked = 0;
            }
            let Some(command) = self.inbox.pop() else { return };
            let weight = weight_of(&command);
            self.take_command(command);
            done += weight;
            unlooked += weight;
        }
    }

    /// Carries out one command. Its credit returns here, with the report that answers it, or with
    /// the end of the fan-out that it begins.
    fn take_command(&mut self, command: Command<N::Offer>) {
        let kind = command.credit_kind();
        match command {
            Command::Adopt(adoption) => return self.adopt(*adoption),
            Command::AdoptPassed(adoption) => return self.adopt_passed(*adoption),
            Command::Subscribe { conn, topic, reply } => return self.subscribe(conn, topic, reply),
            Command::Unsubscribe { conn, topic, reply } => {
                return self.unsubscribe(conn, topic, reply);
            }
            Command::Resume(chunk) => return self.resume(*chunk),
            Command::Publish(topic, message) => return self.begin_topic_fanout(topic, message),
            Command::Broadcast(message) => return self.begin_broadcast(message),
            Command::Retire(topic) => {
                self.end_resumes_of(topic);
                self.topics.retire(topic);
                return self.report(Report::Retired { topic }, true);
            }
            Command::Welcome(conn, frame) => match self.find(conn) {
                Some(slot) => self.welcome(slot, &frame),
                None => self.count_dropped(DropRule::Gone, 1),
            },
            Command::Send(conn, item) => match self.find(conn) {
                Some(slot) => self.send_item(slot, &item),
                None => self.count_dropped(DropRule::Gone, 1),
            },
            Command::Evict(conn, reason) => return self.end_behind(Behind::Evict(conn, reason)),
            Command::Drain(drain) => return self.end_behind(Behind::Drain(drain)),
            Command::EndDrain(number) => {
                self.end_drain(number);
                return self.report(Report::Drained { number }, true);
            }
            Command::Inspect(inspect) => self.inspect(inspect),
        }
        self.inbox.return_credit(kind);
    }

    /// The slot of an open connection.
    pub(super) fn find(&self, conn: ConnId) -> Option<Slot> {
        if self.is_seeded_stale_slot() {
            return self.table.find_open_of_any_generation(conn);
        }
        self.table.find_open(conn)
    }

    /// Adopts a connection whose socket waits in the passage.
    ///
    /// The socket is taken even if there is no room for it, because the next one waits behind it.
    fn adopt_passed(&mut self, adoption: Adoption<Passed>) {
        let (passed, adoption) = adoption.with(());
        let taken = self.net.take_passed(passed);
        self.inbox.note_taken(passed);
        match taken {
            Ok(socket) => self.adopt(adoption.with(socket).1),
            Err(_) => {
                self.stats.passage_lost.add(1);
                let reason = CloseReason::TooManyConnections;
                self.report(Report::Refused { ticket: adoption.ticket, reason }, true);
            }
        }
    }

    fn adopt(&mut self, adoption: Adoption<N::Offer>) {
        let Adoption { socket, ticket, device, heartbeat, priority, origin, .. } = adoption;
        let Adoption { publish_limited, positions, read_ahead, mut tls, .. } = adoption;
        if self.table.is_full() {
            let reason = CloseReason::TooManyConnections;
            return self.report(Report::Refused { ticket, reason }, true);
        }
        let slot = self.table.reserve();
        let key = key_of(self.table.generation_of(slot), slot);
        let socket = match self.net.adopt(socket, key, priority) {
            Ok(socket) => socket,
            Err(_) => {
                self.table.release(slot);
                let reason = CloseReason::SocketError;
                return self.report(Report::Refused { ticket, reason }, true);
            }
        };
        let now = self.tick();
        let heartbeat = ticks(heartbeat).max(ticks(TICK));
        let holder = Holder { device, origin, priority, publish_limited };
        self.table.open(slot, socket, holder, heartbeat, now);
        if let Some(tls) = &mut tls {
            self.secure(slot, tls);
        }
        self.fill_buckets(slot);
        self.stats.adopted.add(1);
        self.stats.connections.enter(self.table[slot].transport());
        self.stats.formats[self.format(slot).index()].add(1);
        self.arm(slot, now.plus(heartbeat.saturating_mul(2)));
        let conn = self.table.id(self.index, slot);
        self.report(Report::Adopted { conn, ticket }, true);
        if self.closes_newcomers() {
            return self.close(slot, CloseReason::Draining);
        }
        if let Some(positions) = positions
            && !self.begin_positions(slot, positions)
        {
            return self.close(slot, CloseReason::BudgetExhausted);
        }
        self.keep(slot, &read_ahead);
        if let Some(tls) = tls {
            self.keep_sealed_ahead(slot, &tls.sealed_ahead);
        }
    }

    fn welcome(&mut self, slot: Slot, frame: &[u8]) {
        self.table.welcome(slot, self.tick());
        self.send_bytes(slot, frame);
        if self.table[slot].state == State::Open {
            self.begin_reading(slot);
        }
    }

    fn subscribe(&mut self, conn: ConnId, topic: TopicId, reply: Box<[u8]>) {
        let Some(slot) = self.find(conn) else {
            return self.report(Report::NotEntered { conn, topic }, true);
        };
        let memberships = &self.table[slot].memberships;
        if memberships.find(topic).is_some() {
            self.send_item(slot, &Item::Frame(reply));
            return self.report(Report::NotEntered { conn, topic }, true);
        }
        if self.refuses_topic(slot, topic, &reply) {
            return self.report(Report::NotEntered { conn, topic }, true);
        }
        let now = self.tick();
        self.topics.join(&mut self.table, slot, topic, now);
        self.send_item(slot, &Item::Frame(reply));
        self.inbox.return_credit(CreditKind::Control);
    }

    fn unsubscribe(&mut self, conn: ConnId, topic: TopicId, reply: Box<[u8]>) {
        let slot = self.find(conn);
        let left = slot.and_then(|slot| Some((slot, self.table[slot].memberships.find(topic)?)));
        if let Some((slot, at)) = left {
            self.topics.leave(&mut self.table, slot, at);
            self.end_lag(slot, topic);
        }
        if let Some(slot) = slot {
            self.end_resume(slot, topic);
            self.send_item(slot, &Item::Frame(reply));
            self.ask_for_more(slot);
        }
        match left {
            Some(_) => self.report(Report::Left { conn, topic }, true),
            None => self.inbox.return_credit(CreditKind::Control),
        }
    }
}

/// The work of a command, in commands that queue one frame. A replay chunk counts as many sends as
/// it fills.
fn weight_of<S>(command: &Command<S>) -> usize {
    match command {
        Command::Resume(chunk) => {
            let bytes: usize = chunk.messages.iter().map(|message| message.frame().len()).sum();
            1 + (bytes / BYTES_AS_COMMAND).max(chunk.messages.len() / GATHER_MAX)
        }
        Command::Adopt(_)
        | Command::AdoptPassed(_)
        | Command::Welcome(..)
        | Command::Send(..)
        | Command::Subscribe { .. }
        | Command::Unsubscribe { .. }
        | Command::Publish(..)
        | Command::Broadcast(_)
        | Command::Evict(..)
        | Command::Retire(_)
        | Command::Drain(_)
        | Command::EndDrain(_) => 1,
        // It looks at as many connections as a fan-out does in a turn.
        Command::Inspect(_) => COMMANDS_BESIDE_HIGH,
    }
}

/// The name in a `Subscribed` frame. Shards know no names; this one is needed only if the frame is
/// not sent.
pub(super) fn topic_of(subscribed: &[u8]) -> String {
    let body = frame::decode(subscribed, usize::MAX).ok().flatten().map(|(body, _)| body);
    let message = body.and_then(|body| v1::ServerMessage::decode(body).ok());
    match message.and_then(|message| message.kind) {
        Some(v1::server_message::Kind::Subscribed(subscribed)) => subscribed.topic,
        _ => String::new(),
    }
}
