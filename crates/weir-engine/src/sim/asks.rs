//! The front in a run: its requests to the shard, and its handling of reports.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_wire::CloseReason;
use weir_wire::format::Format;

use super::book::Says;
use super::conn::{Conn, Phase};
use super::driver::Run;
use super::fault::Fault;
use super::ids::foreign;
use super::owed::{Direct, DirectWhat};
use super::secure;
use super::topic::topic_of;
use crate::budget::Share;
use crate::command::{
    Adoption, Command, Inspect, InspectPage, InspectWhat, Report, TlsAdoption, Urgent,
};
use crate::id::{ConnId, DeviceRef, Origin, Priority, TopicId, Transport};
use crate::message::Item;

/// Share of the connections that have TLS, in 65,536ths.
const SECURE: u32 = 24_000;

impl Run {
    /// The front acts, or a fault hits it.
    pub(super) fn front_acts(&mut self) -> Result<(), String> {
        match self.dice.below(1000) {
            0..=99 => self.adopt(),
            100..=249 => self.subscribe(),
            250..=309 => self.unsubscribe(),
            310..=569 => self.publish(),
            570..=599 => self.resume(),
            600..=609 => self.push_stale_part(),
            610..=649 => self.broadcast(),
            650..=799 => self.send(),
            800..=849 => self.address_the_dead(),
            850..=879 if !self.dice.chance(self.deadliness) => self.publish(),
            850..=864 => self.evict(),
            865..=879 => self.close_urgently(),
            880..=929 => self.retire(),
            930..=949 => return self.inspect(),
            950..=957 => self.jump_clock(),
            958..=965 => self.still_clock(),
            966..=977 => self.fill_front(),
            978..=989 => self.hold_budget(),
            990..=991 => {
                self.faults.note(Fault::Renumbered);
                self.ids.renumber(&mut self.dice);
            }
            _ => self.change_buffers(),
        }
        Ok(())
    }

    fn adopt(&mut self) {
        if self.live.len() >= self.conns_wanted {
            return;
        }
        let (peer, socket) = self.shard.connect();
        let index = self.conns.len();
        let heartbeat = Duration::from_millis(self.dice.between(1000, 8000).into());
        let now = self.shard.now();
        let (server, tls) = self.dice.chance(SECURE).then(|| secure::pair(&mut self.dice)).unzip();
        let format = self.drawn_format();
        let tells_positions = format == Format::Sse && self.dice.chance(1 << 15);
        let mut conn = Conn::new(peer, format, tells_positions, heartbeat, now);
        conn.tls = tls;
        conn.renumbered = self.ids.renumbered();
        let mut read_ahead = Vec::new();
        if self.dice.chance(1 << 14) {
            conn.say_hello(&mut self.dice, 1);
            let most = conn.incoming.unsent.len();
            let bytes = self.dice.between(1, u32::try_from(most).unwrap_or(1)) as usize;
            read_ahead = conn.incoming.unsent.drain(..bytes).collect();
            conn.ahead = bytes as u64;
        }
        let tls = server.map(|session| {
            let sealed_ahead = self.seal_ahead(&mut conn);
            Box::new(TlsAdoption { session, sealed_ahead })
        });
        let device = device_of(index);
        let priority = [Priority::Normal, self.drawn_priority()][self.dice.index(2)];
        let origin = Origin::of(format);
        let ticket = index as u64;
        let adoption = Adoption {
            socket,
            ticket,
            device,
            heartbeat,
            priority,
            origin,
            publish_limited: true,
            positions: tells_positions.then(Vec::new),
            read_ahead,
            tls,
        };
        self.conns.push(conn);
        let (capacity, low) = self.draw_buffers();
        self.shard.net().set_send_buffer(peer, capacity, low);
        if self.offer(adoption) {
            self.live.push(index);
        } else {
            self.conns[index].phase = Phase::Over;
        }
    }

    /// The sealed bytes that come with the adoption.
    fn seal_ahead(&mut self, conn: &mut Conn) -> Vec<u8> {
        let Some(tls) = &mut conn.tls else { return Vec::new() };
        tls.skip_plain(conn.ahead);
        if self.dice.chance(1 << 15) {
            return Vec::new();
        }
        conn.say_hello(&mut self.dice, 2);
        let plaintext: Vec<u8> = conn.incoming.unsent.drain(..).collect();
        let Some(tls) = &mut conn.tls else { return Vec::new() };
        tls.seal(&plaintext, &mut self.dice, &mut 0);
        tls.take_ahead(self.dice.below(100) as usize)
    }

    /// Each run has some connections of each format.
    fn drawn_format(&mut self) -> Format {
        let formats =
            [Format::Stream, Format::WsProtobuf, Format::WsJson, Format::Sse, Format::Sse];
        formats[self.dice.index(formats.len())]
    }

    fn drawn_priority(&mut self) -> Priority {
        Priority::ALL[self.dice.index(Priority::COUNT)]
    }

    fn draw_buffers(&mut self) -> (usize, usize) {
        let capacity = 64_usize << self.dice.below(9);
        (capacity, capacity >> self.dice.between(1, 3))
    }

    fn change_buffers(&mut self) {
        if let Some(index) = self.dice.pick(&self.live).copied() {
            let (capacity, low) = self.draw_buffers();
            let peer = self.conns[index].peer;
            self.shard.net().set_send_buffer(peer, capacity, low);
        }
    }

    /// A frame for one connection alone; `None` if the queue has no room.
    pub(super) fn reply(&mut self, says: Says) -> (Box<[u8]>, u32) {
        let bytes = self.dice.below(60) as usize;
        let frame = self.book.answer(bytes, says);
        let number = self.book.enter(frame.clone(), false, None, None);
        self.book.sent[number as usize].says = says;
        (frame.into_boxed_slice(), number)
    }

    fn broadcast(&mut self) {
        let Some((message, number)) = self.message() else { return };
        if !self.push(Command::Broadcast(message)) {
            return;
        }
        for index in &self.live {
            if self.conns[*index].is_welcome && self.conns[*index].phase == Phase::Open {
                self.conns[*index].outgoing.pushes.push_back(number);
            }
        }
    }

    fn send(&mut self) {
        let Some(index) = self.pick_open() else { return };
        let Some(conn) = self.conns[index].id else { return };
        let (item, number) = if self.dice.chance(1 << 14) {
            let Some((message, number)) = self.message() else { return };
            (Item::Message(message), number)
        } else {
            let (frame, number) = self.reply(Says::Nothing);
            (Item::Frame(frame), number)
        };
        if self.push(Command::Send(conn, item)) {
            let (what, position) = (DirectWhat::Frame(number), self.book.position - 1);
            let direct = Direct { what, position, left: None };
            self.conns[index].outgoing.directs.push_back(direct);
        }
    }

    /// Sends commands for a connection that has gone. Another connection may have its slot by now.
    fn address_the_dead(&mut self) {
        let Some(index) = (!self.conns.is_empty()).then(|| {
            let newest = self.conns.len().min(100);
            self.conns.len() - 1 - self.dice.index(newest)
        }) else {
            return;
        };
        let conn = &self.conns[index];
        let id = match (conn.id, conn.phase) {
            (Some(id), Phase::Ended(_) | Phase::Over) => id,
            (Some(id), Phase::Offered | Phase::Open) => foreign(id),
            (None, _) => return,
        };
        let topic = self.dice.index(self.topics.len());
        let (reply, _) = self.reply(Says::Nothing);
        match self.dice.below(6) {
            0 | 1 => {
                let is_pushed = self.push(Command::Send(id, Item::Frame(reply)));
                self.book.gone += u64::from(is_pushed);
            }
            2 if !self.topics[topic].is_retiring => {
                if self.push(Command::Subscribe { conn: id, topic: topic_of(topic), reply }) {
                    self.topics[topic].count(id);
                }
            }
            3 if !self.topics[topic].is_retiring => {
                let resume = self.dice.below(self.resumes_begun + 1);
                self.push_lost_part(id, topic, resume);
            }
            4 => {
                self.push(Command::Evict(id, CloseReason::Replaced));
            }
            _ => {
                let _ = self
                    .shard
                    .mailbox()
                    .try_urgent(Urgent::Close(id, CloseReason::ClosedByOperator));
            }
        }
    }

    fn evict(&mut self) {
        let Some(index) = self.pick_open() else { return };
        let Some(conn) = self.conns[index].id else { return };
        if self.push(Command::Evict(conn, CloseReason::Replaced)) {
            let position = self.book.position - 1;
            self.conns[index].asked.push(CloseReason::Replaced);
            self.conns[index].closed_behind.get_or_insert(position);
        }
    }

    fn close_urgently(&mut self) {
        for _ in 0..=self.dice.below(3) {
            let Some(index) = self.pick_open() else { return };
            let Some(conn) = self.conns[index].id else { return };
            let urgent = Urgent::Close(conn, CloseReason::ClosedByOperator);
            if self.shard.mailbox().try_urgent(urgent).is_ok() {
                self.conns[index].asked.push(CloseReason::ClosedByOperator);
            } else {
                self.faults.note(Fault::ReservedFull);
            }
        }
    }

    /// Looks at connections and compares the answer with the model.
    fn inspect(&mut self) -> Result<(), String> {
        let answer = Arc::new(Mutex::new(None::<InspectPage>));
        let slot = Arc::clone(&answer);
        let reply = Box::new(move |page| *slot.lock().expect("no one panicked") = Some(page));
        let topic = self.dice.index(self.topics.len());
        let what = match self.dice.below(3) {
            0 => InspectWhat::All { cursor: self.dice.below(20), limit: 10 },
            1 => InspectWhat::Topic { topic: topic_of(topic), cursor: 0, limit: 100 },
            _ => match self.pick_open().and_then(|index| self.conns[index].id) {
                Some(id) => InspectWhat::One(id),
                None => return Ok(()),
            },
        };
        if self.shard.mailbox().try_urgent(Urgent::Inspect(Inspect { what, reply })).is_err() {
            self.faults.note(Fault::ReservedFull);
            return Ok(());
        }
        self.turn()?;
        let page = answer.lock().expect("no one panicked").take().ok_or("no answer to a look")?;
        for info in page.connections {
            let conn = self.conns.get(info.device.0 as usize);
            let conn = conn.ok_or_else(|| format!("a look shows {:?}", info.id))?;
            if conn.id.is_some_and(|id| id != info.id) {
                return Err(format!("a look shows {:?}, the device has {:?}", info.id, conn.id));
            }
            if conn.format != info.origin.format() {
                return Err(format!("a look shows {:?} with {:?}", info.id, info.origin.format()));
            }
            if conn.tls.is_some() != (info.transport == Transport::Tls) {
                return Err(format!("a look shows {:?} with {:?}", info.id, info.transport));
            }
        }
        Ok(())
    }

    fn jump_clock(&mut self) {
        if self.clock_still_turns > 0 {
            return;
        }
        self.faults.note(Fault::ClockJump);
        let most_ms = if self.dice.chance(1 << 13) { 20_000 } else { 1500 };
        let by = Duration::from_millis(self.dice.between(100, most_ms).into());
        self.shard.net().jump(by);
    }

    fn still_clock(&mut self) {
        self.faults.note(Fault::ClockStill);
        self.clock_still_turns = self.dice.between(1, 40).max(self.clock_still_turns);
        self.shard.net().hold_clock(true);
    }

    fn fill_front(&mut self) {
        self.faults.note(Fault::FrontFull);
        self.front_full_turns = self.dice.between(1, 60);
        self.shard.front_mut().set_room(0);
    }

    fn hold_budget(&mut self) {
        if self.foreign > 0 {
            return;
        }
        let share = Share::ALL[self.dice.index(Share::COUNT)];
        let budget = self.shard.budget();
        let left = budget.bytes_max_of(share).saturating_sub(budget.used_of(share));
        let bytes = left.saturating_sub(self.dice.below(3000) as usize);
        if bytes > 0 && self.shard.budget().take(share, bytes) {
            self.faults.note(Fault::BudgetHeld);
            (self.foreign_share, self.foreign) = (share, bytes);
            self.foreign_turns = self.dice.between(1, 30);
        }
    }

    /// Takes all reports and checks that each is allowed.
    pub(super) fn take_reports(&mut self) -> Result<(), String> {
        for report in self.shard.front_mut().take() {
            self.take_report(report)?;
        }
        self.welcome();
        self.go_on_with_resumes();
        Ok(())
    }

    /// Greets adopted connections, as far as the queue has room.
    fn welcome(&mut self) {
        for index in std::mem::take(&mut self.to_welcome) {
            let (Some(id), Phase::Open) = (self.conns[index].id, self.conns[index].phase) else {
                continue;
            };
            let (reply, number) = self.reply(Says::Welcome);
            if !self.push(Command::Welcome(id, reply)) {
                self.to_welcome.push(index);
                continue;
            }
            let (what, position) = (DirectWhat::Frame(number), self.book.position - 1);
            let conn = &mut self.conns[index];
            conn.is_welcome = true;
            conn.outgoing.directs.push_back(Direct { what, position, left: None });
        }
    }

    fn take_report(&mut self, report: Report) -> Result<(), String> {
        match report {
            Report::Adopted { conn, ticket } => {
                let index = index_of(ticket)?;
                let model = &mut self.conns[index];
                if model.phase != Phase::Offered {
                    return Err(format!("{conn:?} is adopted while {:?}", model.phase));
                }
                self.ids.enter(conn, model.renumbered)?;
                if self.freed.contains(&conn.slot()) {
                    self.faults.note(Fault::SlotReuse);
                }
                (model.id, model.phase) = (Some(conn), Phase::Open);
                self.to_welcome.push(index);
            }
            Report::Refused { ticket, .. } => {
                let model = &mut self.conns[index_of(ticket)?];
                if model.phase != Phase::Offered {
                    return Err(format!("refused while {:?}", model.phase));
                }
                model.phase = Phase::Over;
                let peer = model.peer;
                self.live.retain(|other| self.conns[*other].phase != Phase::Over);
                self.shard.net().bury(peer);
            }
            Report::Received { conn, device, body, .. } => {
                let model = &mut self.conns[device.0 as usize];
                if model.phase != Phase::Open || model.id != Some(conn) {
                    return Err(format!("a frame of {conn:?} while {:?}", model.phase));
                }
                let consumed = model.consumed(self.shard.net().link_of(model.peer));
                let expected = model.incoming.bodies.front();
                if expected.is_some_and(|(end, due)| *end <= consumed && due[..] == body[..]) {
                    model.incoming.bodies.pop_front();
                } else if !model.outgoing.is_wild {
                    return Err(format!("{conn:?} sent {body:?}, not {expected:?}"));
                }
            }
            Report::ResumeNext { conn, topic, resume, after } => {
                self.take_resume_next(conn, topic, resume, after)?;
            }
            Report::ResumeRefused { conn, topic, resume } => {
                let model = self.conns.iter_mut().find(|model| model.id == Some(conn));
                if !model.is_some_and(|model| model.refused.remove(&(topic.0 as usize, resume))) {
                    return Err(format!("{conn:?} is refused resume {resume} of {topic:?}"));
                }
            }
            Report::NotEntered { conn, topic } | Report::Left { conn, topic } => {
                self.topics[topic.0 as usize].uncount(conn)?;
            }
            Report::Closed { conn, device, reason, topics, .. } => {
                self.take_closed(conn, device.0 as usize, reason, &topics)?;
            }
            Report::Retired { topic } => {
                let model = &mut self.topics[topic.0 as usize];
                if !std::mem::take(&mut model.is_retiring) {
                    return Err(format!("{topic:?} is retired unasked"));
                }
            }
            Report::Drained { number } => self.take_drained(number)?,
        }
        Ok(())
    }

    fn take_closed(
        &mut self,
        conn: ConnId,
        index: usize,
        reason: CloseReason,
        topics: &[TopicId],
    ) -> Result<(), String> {
        self.check_end(index, conn, reason)?;
        self.conns[index].phase = Phase::Ended(reason);
        for topic in topics {
            self.topics[topic.0 as usize].uncount(conn)?;
        }
        self.conns[index].resumes.clear();
        self.conns[index].refused.clear();
        for topic in std::mem::take(&mut self.conns[index].topics) {
            self.topics[topic].members.retain(|other| *other != index);
        }
        Ok(())
    }
}

fn device_of(index: usize) -> DeviceRef {
    DeviceRef(u32::try_from(index).expect("fewer connections than 2^32"))
}

fn index_of(ticket: u64) -> Result<usize, String> {
    usize::try_from(ticket).map_err(|error| error.to_string())
}
