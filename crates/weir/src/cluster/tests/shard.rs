//! A scripted shard: carries out the commands of a router one at a time, and lets the simulated
//! clients hear what comes of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use weir_engine::{Command, ConnId, CreditKind, Detached, Item, Message, ReplayChunk, TopicId};
use weir_wire::v1::{self, ServerMessage, server_message::Kind};
use weir_wire::{ProstMessage, frame, hot};

use super::clients::{Clients, Heard};
use crate::base::mailboxes::Mailboxes;
use crate::topics::Router;

/// What a shard knows of its connections.
pub(super) struct Shard {
    index: usize,
    mailbox: Detached<OwnedFd>,
    open: BTreeSet<ConnId>,
    members: BTreeSet<(TopicId, ConnId)>,
    /// Per resume: its number, and its topic's name.
    resumes: BTreeMap<(ConnId, TopicId), (u32, String)>,
    /// Parts of resumes that are asked for: number of the resume, and behind which offset.
    asked: VecDeque<(ConnId, TopicId, (u32, u64))>,
    known: BTreeSet<TopicId>,
}

impl Shard {
    pub(super) fn new(index: usize, mailbox: Detached<OwnedFd>) -> Shard {
        Shard {
            index,
            mailbox,
            open: BTreeSet::new(),
            members: BTreeSet::new(),
            resumes: BTreeMap::new(),
            asked: VecDeque::new(),
            known: BTreeSet::new(),
        }
    }

    pub(super) fn open(&mut self, conn: ConnId) {
        self.open.insert(conn);
    }

    /// Carries out one command; `false` if there is none.
    pub(super) fn step(&mut self, router: &Router, clients: &mut Clients) -> bool {
        let Some(command) = self.mailbox.pop() else { return false };
        let kind = command.credit_kind();
        match command {
            Command::Subscribe { conn, topic, reply } => {
                self.known.insert(topic);
                let is_member = self.members.contains(&(topic, conn));
                let is_busy = is_member || self.resumes.contains_key(&(conn, topic));
                if is_busy || !self.open.contains(&conn) {
                    router.leave(topic, conn);
                } else {
                    self.members.insert((topic, conn));
                    clients.hear(conn, subscribed(&reply, false));
                }
            }
            Command::Resume(chunk) => self.resume(router, *chunk, clients),
            Command::Unsubscribe { conn, topic, reply } => {
                self.resumes.remove(&(conn, topic));
                if self.members.remove(&(topic, conn)) {
                    router.leave(topic, conn);
                }
                clients.hear(conn, rare(&reply));
            }
            Command::Publish(topic, message) => self.deliver(topic, &message, clients),
            Command::Retire(topic) => {
                assert!(self.members.iter().all(|(other, _)| *other != topic), "nobody is in it");
                assert!(self.known.remove(&topic), "only a shard that knows it is asked");
                router.retired(topic);
            }
            Command::Send(conn, Item::Frame(frame)) => clients.hear(conn, rare(&frame)),
            Command::Send(conn, Item::Message(message)) => {
                clients.hear(conn, presence(message.frame()));
            }
            other @ (Command::Adopt(_)
            | Command::AdoptPassed(_)
            | Command::Broadcast(_)
            | Command::Evict(..)
            | Command::Welcome(..)
            | Command::Drain(_)
            | Command::EndDrain(_)
            | Command::Inspect(_)) => panic!("the router does not push {other:?}"),
        }
        self.mailbox.return_credit(kind);
        true
    }

    fn deliver(&self, topic: TopicId, message: &Message, clients: &mut Clients) {
        let heard = all_heard(message.frame());
        for (_, conn) in self.members.iter().filter(|(other, _)| *other == topic) {
            for heard in &heard {
                clients.hear(*conn, heard.clone());
            }
        }
    }

    fn resume(&mut self, router: &Router, chunk: ReplayChunk, clients: &mut Clients) {
        let key = (chunk.conn, chunk.topic);
        let is_open = self.open.contains(&chunk.conn);
        let is_member = self.members.contains(&(chunk.topic, chunk.conn));
        if is_open && chunk.begin.is_some() && !chunk.is_last && is_member {
            return router.resume_refused(chunk.conn, chunk.topic, chunk.resume);
        }
        let running = match chunk.begin {
            Some(_) if is_member || self.resumes.contains_key(&key) || !is_open => None,
            Some(begin) => {
                let heard = subscribed(&begin.reply, false);
                let topic = heard.topic().to_owned();
                clients.hear(chunk.conn, heard);
                Some(topic)
            }
            None => {
                let running = self.resumes.get(&key).filter(|(number, _)| *number == chunk.resume);
                running.map(|(_, topic)| topic.clone())
            }
        };
        let Some(topic) = running else {
            if chunk.is_last {
                self.known.insert(chunk.topic);
                router.leave(chunk.topic, chunk.conn);
            }
            return;
        };
        for message in &chunk.messages {
            for heard in all_heard(message.frame()) {
                clients.hear(chunk.conn, heard);
            }
        }
        if chunk.is_last {
            self.known.insert(chunk.topic);
            self.resumes.remove(&key);
            self.members.insert((chunk.topic, chunk.conn));
        } else {
            self.resumes.insert(key, (chunk.resume, topic));
            self.asked.push_back((chunk.conn, chunk.topic, (chunk.resume, chunk.after)));
        }
    }

    /// Gives a connection the next part that it has asked for; `false`: there is none, or no credit.
    pub(super) fn resume_next(&mut self, router: &Router, mailboxes: &Mailboxes) -> bool {
        let Some((conn, topic, part)) = self.asked.pop_front() else { return false };
        let Some(credit) = mailboxes[self.index].try_credit(CreditKind::Control) else {
            self.asked.push_front((conn, topic, part));
            return false;
        };
        router.resume_next(credit, conn, topic, part);
        true
    }

    pub(super) fn close(&mut self, router: &Router, conn: ConnId) {
        self.open.remove(&conn);
        let of_conn = self.members.iter().filter(|(_, member)| *member == conn);
        let topics: Vec<TopicId> = of_conn.map(|(topic, _)| *topic).collect();
        for topic in topics {
            self.members.remove(&(topic, conn));
            router.leave(topic, conn);
        }
        self.resumes.retain(|key, _| key.0 != conn);
        router.end_resumes(conn);
    }
}

/// What a client hears of the frames of a message.
fn all_heard(mut frames: &[u8]) -> Vec<Heard> {
    let message = |push: hot::Push<'_>| {
        let hot::Payload::Text(text) = push.payload else { panic!("all messages are texts") };
        let (topic, text) = (push.topic.to_owned(), text.to_owned());
        Heard::Message { topic, offset: push.offset, text }
    };
    let mut heard = Vec::new();
    while let Some((body, taken)) = frame::decode(frames, 1 << 20).unwrap() {
        match hot::FromServer::decode(body).unwrap() {
            hot::FromServer::Push(push) => heard.push(message(push)),
            hot::FromServer::Batch(batch) => {
                heard.extend(batch.messages().map(|push| message(push.unwrap())));
            }
            hot::FromServer::Other => heard.push(subscribed(&frames[..taken], true)),
            other @ (hot::FromServer::Pong { .. } | hot::FromServer::Unknown) => {
                panic!("no message but {other:?}")
            }
        }
        frames = &frames[taken..];
    }
    heard
}

/// Who has entered and who has left.
fn presence(frame: &[u8]) -> Heard {
    let Kind::Presence(told) = decode(frame) else { panic!("nothing else goes to one connection") };
    let id = |member: &v1::Member| member.connection_id;
    let (joined, left) = (told.joined.iter().map(id), told.left.iter().map(id));
    let changes = left.map(|id| (id, false)).chain(joined.map(|id| (id, true))).collect();
    Heard::Presence { topic: told.topic, changes, missed: told.missed }
}

fn decode(frame: &[u8]) -> Kind {
    let (body, _) = frame::decode(frame, 1 << 20).unwrap().unwrap();
    ServerMessage::decode(body).unwrap().kind.unwrap()
}

fn subscribed(frame: &[u8], is_notice: bool) -> Heard {
    let Kind::Subscribed(subscribed) = decode(frame) else { panic!("only Subscribed comes here") };
    let (topic, position) = (subscribed.topic, subscribed.position.unwrap());
    Heard::Subscribed { topic, position, recovered: subscribed.recovered, is_notice }
}

/// An answer to one connection.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else comes is a failure")]
fn rare(frame: &[u8]) -> Heard {
    match decode(frame) {
        Kind::Unsubscribed(told) => Heard::Unsubscribed { topic: told.topic, reason: told.reason },
        Kind::Error(error) => Heard::Refused { topic: error.topic, code: error.code },
        other => panic!("{other:?} is no answer"),
    }
}
