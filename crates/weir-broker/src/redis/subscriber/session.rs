//! One connection of a subscriber, from its first byte to its last.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use redis::Cmd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::{Instant, interval_at, sleep_until};

use super::reply::Reply;
use super::{Request, Worker};
use crate::contract::{Error, Event};
use crate::records::{ConnectionNumber, Revocation, RevocationId};
use crate::redis::counts::count;
use crate::redis::dial::Stream;
use crate::redis::keys::Interest;
use crate::redis::message::Message;
use crate::redis::scripts::PROBE;

/// A new connection, with the commands that say who we are.
pub(super) type Dialed = (Box<dyn Stream>, Vec<Cmd>);

pub(super) struct Session<'a> {
    worker: &'a mut Worker,
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// What Redis has not answered.
    asked: VecDeque<Request>,
    /// The channel on which this connection hears itself.
    probe: String,
    /// Whether Redis does not know that channel here.
    lacks_probe: bool,
    has_heard: bool,
    /// Whether it has heard itself at all: then this Redis node takes requests and passes messages on.
    is_proven: bool,
    /// Whether that alone is missing before gaps are told.
    awaits_proof: bool,
    missed: u32,
    /// When what Redis has refused is tried again.
    again: Instant,
}

impl<'a> Session<'a> {
    pub(super) fn new(worker: &'a mut Worker, dialed: Dialed) -> Session<'a> {
        let (stream, introductions) = dialed;
        let (reader, writer) = tokio::io::split(stream);
        let mut asked = VecDeque::new();
        let mut output = Vec::new();
        for introduction in introductions {
            output.extend(introduction.get_packed_command());
            asked.push_back(Request::Introduction);
        }
        let mut session = Session {
            worker,
            reader,
            writer,
            input: Vec::new(),
            output,
            asked,
            probe: String::new(),
            lacks_probe: false,
            has_heard: false,
            is_proven: false,
            awaits_proof: false,
            missed: 0,
            again: Instant::now(),
        };
        session.subscribe_to_probe();
        session
    }

    /// Asks for a channel of its own, in a slot that this Redis node has.
    fn subscribe_to_probe(&mut self) {
        let slot = self.worker.place.slot.load(Ordering::Relaxed);
        self.probe = self.worker.context.keys.probe(slot, rand::random());
        command(&mut self.output, "SSUBSCRIBE", &self.probe);
        self.asked.push_back(Request::Probe);
    }

    /// The slot of that channel has moved.
    fn lose_probe(&mut self) {
        self.lacks_probe = true;
        self.worker.context.look.notify_one();
    }

    /// Runs it until it breaks, and says why; `None`: nobody asks any more.
    pub(super) async fn run(mut self) -> Option<String> {
        let every = self.worker.context.probe_every;
        let mut ticks = interval_at(Instant::now() + every, every);
        let mut proofs = interval_at(Instant::now() + AGAIN, AGAIN);
        loop {
            self.fill();
            self.input.reserve(READ_BYTES);
            let went = tokio::select! {
                read = self.reader.read_buf(&mut self.input) => match read {
                    Ok(0) => Err("Redis has closed the connection".to_owned()),
                    Ok(_) => self.digest(),
                    Err(error) => Err(error.to_string()),
                },
                written = self.writer.write(&self.output), if !self.output.is_empty() => {
                    match written {
                        Ok(bytes) => {
                            self.output.drain(..bytes);
                            Ok(())
                        }
                        Err(error) => Err(error.to_string()),
                    }
                }
                ask = self.worker.asked.recv(), if self.worker.unsent.len() < UNSENT_MAX => {
                    self.worker.handle(ask?);
                    Ok(())
                }
                _ = ticks.tick() => self.listen(),
                _ = proofs.tick(), if self.awaits_proof || self.lacks_probe => {
                    if std::mem::take(&mut self.lacks_probe) {
                        self.subscribe_to_probe();
                    } else {
                        self.send_probe();
                    }
                    Ok(())
                }
                () = sleep_until(self.again), if !self.worker.refused.is_empty() => {
                    self.try_again();
                    Ok(())
                }
            };
            if let Err(why) = went {
                return Some(why);
            }
        }
    }

    /// Writes what is to be sent, as far as Redis keeps up.
    fn fill(&mut self) {
        while self.asked.len() < ASKED_MAX
            && let Some(request) = self.worker.unsent.pop_front()
        {
            match &request {
                Request::Join(interest, serial) => {
                    let standing = self.worker.table.get(interest);
                    if standing.is_none_or(|standing| standing.serial != *serial) {
                        continue;
                    }
                    self.command("SSUBSCRIBE", interest);
                }
                Request::Leave(interest, _) => self.command("SUNSUBSCRIBE", interest),
                Request::Introduction | Request::Probe | Request::Restored => {}
            }
            self.asked.push_back(request);
            self.pass_markers();
        }
    }

    fn command(&mut self, verb: &str, interest: &Interest) {
        let (_, channel) = self.worker.context.keys.channel(interest);
        command(&mut self.output, verb, &channel);
    }

    /// Handles all that has come.
    fn digest(&mut self) -> Result<(), String> {
        let mut input = std::mem::take(&mut self.input);
        let mut start = 0;
        let went = loop {
            match Reply::decode(&input[start..]) {
                Ok(Some((reply, bytes))) => {
                    if let Err(why) = self.handle(&reply) {
                        break Err(why);
                    }
                    start += bytes;
                }
                Ok(None) => break Ok(()),
                Err(_) => break Err("that is not Redis' protocol".to_owned()),
            }
        };
        input.drain(..start);
        self.input = input;
        went
    }

    fn handle(&mut self, reply: &Reply<'_>) -> Result<(), String> {
        match *reply {
            Reply::Message { channel, payload } => self.deliver(channel, payload),
            Reply::Subscribed(channel) => match self.asked.pop_front() {
                Some(Request::Probe) if channel == self.probe.as_bytes() => self.send_probe(),
                Some(Request::Join(interest, serial)) if self.is_channel(&interest, channel) => {
                    self.subscribed(&interest, serial);
                }
                _ => return Err(OUT_OF_ORDER.to_owned()),
            },
            Reply::Unsubscribed(channel) => {
                if let Some(Request::Leave(interest, call)) = self.asked.front()
                    && self.is_channel(interest, channel)
                {
                    call.iter().for_each(|call| call.succeeded());
                    self.asked.pop_front();
                } else if channel == self.probe.as_bytes() {
                    self.lose_probe();
                } else {
                    self.unsubscribed(channel);
                }
            }
            Reply::Done => match self.asked.pop_front() {
                Some(Request::Introduction) => {}
                _ => return Err(OUT_OF_ORDER.to_owned()),
            },
            Reply::Refused(why) => match self.asked.pop_front() {
                Some(Request::Join(interest, serial)) => self.refused(interest, serial, why),
                Some(Request::Probe) if passes(why) => self.lose_probe(),
                // Nothing is lost by it: there is no such subscription, or it is elsewhere.
                Some(Request::Leave(_, call)) => call.iter().for_each(|call| call.succeeded()),
                _ => return Err(why.to_owned()),
            },
            Reply::Other => {}
        }
        self.pass_markers();
        Ok(())
    }

    fn is_channel(&self, interest: &Interest, channel: &[u8]) -> bool {
        self.worker.context.keys.channel(interest).1.as_bytes() == channel
    }

    fn pass_markers(&mut self) {
        while matches!(self.asked.front(), Some(Request::Restored)) {
            self.asked.pop_front();
            if self.is_proven {
                self.worker.restored();
            } else {
                self.awaits_proof = true;
            }
        }
    }

    fn subscribed(&mut self, interest: &Interest, serial: u64) {
        let standing = self.worker.table.get_mut(interest);
        let Some(standing) = standing.filter(|standing| standing.serial == serial) else { return };
        standing.stands = true;
        if standing.has_gap {
            count(&self.worker.context.counts.resubscriptions);
        }
        for call in standing.waiters.drain(..) {
            call.succeeded();
        }
    }

    /// Redis has ended a subscription unasked: its slot has moved.
    fn unsubscribed(&mut self, channel: &[u8]) {
        let Some(interest) = self.worker.context.keys.interest(channel) else { return };
        let Some(standing) = self.worker.table.get_mut(&interest) else { return };
        standing.stands = false;
        standing.has_gap = true;
        self.worker.has_gaps = true;
        let serial = standing.serial;
        self.put_off(interest, serial);
    }

    /// Redis refuses a subscription.
    fn refused(&mut self, interest: Interest, serial: u64, why: &str) {
        let standing = self.worker.table.get(&interest);
        if standing.is_none_or(|standing| standing.serial != serial) {
            return;
        }
        if passes(why) {
            self.put_off(interest, serial);
        } else if let Some(standing) = self.worker.table.remove(&interest) {
            tracing::warn!(why, "Redis refuses a subscription");
            for call in standing.waiters {
                call.failed(Error::Refused(why.to_owned()));
            }
        }
    }

    /// Tries it again later, if it has not moved to another Redis node until then.
    fn put_off(&mut self, interest: Interest, serial: u64) {
        if self.worker.refused.is_empty() {
            self.again = Instant::now() + AGAIN;
        }
        self.worker.refused.push((interest, serial));
        self.worker.context.look.notify_one();
    }

    fn try_again(&mut self) {
        for (interest, serial) in std::mem::take(&mut self.worker.refused) {
            self.worker.unsent.push_back(Request::Join(interest, serial));
        }
        self.worker.unsent.push_back(Request::Restored);
    }

    /// Some failovers leave a connection open on which nothing comes any more. Only a message shows that one is heard.
    fn listen(&mut self) -> Result<(), String> {
        if self.has_heard {
            self.missed = 0;
        } else {
            self.missed += 1;
            count(&self.worker.context.counts.probes_missed);
            if self.missed >= MISSED_MAX {
                return Err("the connection does not hear its own messages".to_owned());
            }
        }
        self.has_heard = false;
        self.send_probe();
        Ok(())
    }

    fn send_probe(&self) {
        // A primary that has become a replica may still pass messages on, for as long as replication works.
        let probe = PROBE.run([&self.probe].into_iter());
        let until = Instant::now() + self.worker.context.timeout;
        self.worker.lane.send(probe, until);
    }

    fn deliver(&mut self, channel: &[u8], payload: &[u8]) {
        if channel == self.probe.as_bytes() {
            self.has_heard = true;
            self.is_proven = true;
            if std::mem::take(&mut self.awaits_proof) {
                self.worker.restored();
            }
            return;
        }
        let interest = self.worker.context.keys.interest(channel);
        if let Some(interest @ Interest::Topic(_)) = &interest {
            self.worker.tell_gap(interest);
        }
        let context = &self.worker.context;
        let event = match (interest, Message::decode(payload)) {
            (Some(Interest::Topic(topic)), Some(Message::Messages { epoch, messages })) => {
                Event::Messages { topic, epoch, messages }
            }
            (Some(Interest::Topic(topic)), Some(Message::Presence { joined, left })) => {
                Event::Presence { topic, joined, left }
            }
            (Some(Interest::Device(device)), Some(Message::Plain(payload))) => {
                Event::ToDevice { device, payload }
            }
            (Some(Interest::Device(device)), Some(Message::Evicted { connection, node })) => {
                if node != context.instance {
                    return;
                }
                Event::Evicted { device, connection: ConnectionNumber(connection) }
            }
            (Some(Interest::Node(_)), Some(Message::Plain(payload))) => Event::ToNode(payload),
            (Some(Interest::All), Some(Message::Plain(payload))) => Event::ToAll(payload),
            (Some(Interest::Revocations), Some(Message::Revoked { id, device })) => {
                let id = RevocationId(id.0, id.1);
                Event::Revoked(Revocation { id, device: device.into() })
            }
            (_, _) => {
                count(&context.counts.unknown_messages);
                return;
            }
        };
        context.handler.handle(event);
    }
}

/// Whether what Redis refuses now may succeed soon, here or elsewhere.
fn passes(why: &str) -> bool {
    let code = why.split(' ').next().unwrap_or_default();
    matches!(code, "MOVED" | "ASK" | "CLUSTERDOWN" | "TRYAGAIN" | "LOADING" | "MASTERDOWN")
}

/// Writes a command with one argument.
fn command(output: &mut Vec<u8>, verb: &str, channel: &str) {
    let (verb_bytes, channel_bytes) = (verb.len(), channel.len());
    output.extend_from_slice(
        format!("*2\r\n${verb_bytes}\r\n{verb}\r\n${channel_bytes}\r\n{channel}\r\n").as_bytes(),
    );
}

const OUT_OF_ORDER: &str = "Redis answers what was not asked";
/// Requests that Redis has not answered: a batch of 512 keeps it and the network busy, and others' turn comes soon.
const ASKED_MAX: usize = 512;
/// Requests that may wait to be sent before nothing more is accepted.
const UNSENT_MAX: usize = 1 << 16;
/// Messages to itself that it may miss in a row.
const MISSED_MAX: u32 = 2;
/// Free space for a read.
const READ_BYTES: usize = 16 << 10;
/// After how long a refused subscription, or a first message to itself, is tried again.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(100);
