//! Presence in Redis: a set for each topic and node, which counts as long as its node lives.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::client::Client;
use super::devices::{RECORD_KEPT, RENEW_PAUSE, hex};
use super::message::member;
use super::present::{Present, Stay};
use super::scripts::{FORGET, MEMBERS, PRESENCE};
use super::servers::Request;
use super::values::{array, damaged, int, text};
use crate::contract::{Error, Event};
use crate::records::{ConnectionNumber, Member, MemberPage, Name, by_topic};

/// A call that enters members, from its begin to its end, however it ends.
pub(super) struct Entering<'a> {
    client: &'a Client,
    stay: Stay,
    topics: Vec<Name>,
}

impl Entering<'_> {
    pub(super) fn stay(&self) -> &Stay {
        &self.stay
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.client.present().end_entering(&self.stay, self.topics.iter());
    }
}

impl Client {
    pub(super) fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn enter_all(&self, members: Vec<(Name, Member)>) -> Result<(), Error> {
        let (_permit, until) = self.admit(members.len())?;
        let topics = &by_topic(members);
        let interruptions = self.context.interruptions.load(Ordering::Relaxed);
        let (entering, unwritten) = self.begin_entering(topics.keys(), interruptions);
        if !unwritten.is_empty() {
            self.write_index(&entering.stay, &unwritten, until).await?;
            self.present().written(&unwritten, interruptions);
        }
        let answers = self.change("enter", topics, &entering.stay, until).await;
        answers.into_iter().try_for_each(|(_, left)| left.map(drop))
    }

    /// Begins a call that enters members. Gives the topics that are to be written to the index first.
    pub(super) fn begin_entering<'a>(
        &self,
        topics: impl IntoIterator<Item = &'a Name>,
        interruptions: u64,
    ) -> (Entering<'_>, Vec<(Name, u64)>) {
        let topics: Vec<Name> = topics.into_iter().cloned().collect();
        let mut present = self.present();
        let unwritten = present.begin_entering(topics.iter(), interruptions);
        (Entering { client: self, stay: present.stay(), topics }, unwritten)
    }

    pub(super) async fn exit_members(&self, members: Vec<(Name, Member)>) -> Result<(), Error> {
        let (_permit, until) = self.admit(members.len())?;
        let topics = by_topic(members);
        let (stay, mut marks) = {
            let present = self.present();
            let marks = topics.keys().filter_map(|topic| Some((topic, present.mark(topic)?)));
            (present.stay(), marks.collect::<HashMap<_, _>>())
        };
        let answers = self.change("exit", &topics, &stay, until).await;
        let mut emptied = Vec::new();
        let mut went = Ok(());
        for (topic, left) in answers {
            match left {
                Ok(0) => {
                    let mark = marks.remove(topic);
                    let entry = mark.and_then(|mark| self.present().emptied(topic, &mark));
                    emptied.extend(entry.map(|entry| (topic.clone(), entry)));
                }
                Ok(_) => {}
                Err(error) => went = Err(error),
            }
        }
        self.forget(&stay, emptied, until).await;
        went
    }

    /// Changes the members of topics, in pieces; how many are left in its topic after each.
    async fn change<'a>(
        &self,
        what: &str,
        topics: &'a BTreeMap<Name, Vec<Member>>,
        stay: &Stay,
        until: Instant,
    ) -> Vec<(&'a Name, Result<i64, Error>)> {
        let pieces = topics
            .iter()
            .flat_map(|(topic, members)| members.chunks(PIECE).map(move |piece| (topic, piece)));
        let pieces: Vec<_> = pieces.collect();
        let call = Some(self.present().next_call());
        let request = |(topic, members): &(&Name, &[Member])| {
            let stays = (stay.name.as_str(), stay.before.as_deref());
            let mut request = self.change_request((what, call), topic, stays);
            for member in *members {
                request.command.arg(hex(member.connection)).arg(&*member.device);
            }
            request
        };
        let answers = self.servers.run(pieces.iter().map(request).collect(), 0, until).await;
        let left = |answer: Result<Value, Error>| int(&answer?).map_err(damaged);
        pieces.iter().zip(answers).map(|((topic, _), answer)| (*topic, left(answer))).collect()
    }

    /// The begin of a request that changes the members of a topic. Calls for this node have a number; those that end
    /// the stay of another one have none.
    pub(super) fn change_request(
        &self,
        (what, call): (&str, Option<u64>),
        topic: &Name,
        (stay, before): (&str, Option<&str>),
    ) -> Request {
        let place = self.keys.place(topic);
        let mut keys = vec![place.part('m', stay), place.part('u', stay)];
        keys.extend(call.map(|_| place.part('q', &self.context.instance)));
        keys.extend(before.map(|before| place.part('m', before)));
        let mut command = PRESENCE.run(keys.iter());
        command.arg(what).arg(RECORD_KEPT.as_millis().to_string()).arg(place.key('c'));
        command.arg(call.map(|call| call.to_string()).unwrap_or_default());
        Request { slot: place.slot, command }
    }

    /// Writes topics to the index, before members enter.
    pub(super) async fn write_index(
        &self,
        stay: &Stay,
        entries: &[(Name, u64)],
        until: Instant,
    ) -> Result<(), Error> {
        let index = self.keys.place(&stay.name.as_str().into());
        let write = |entries: &[(Name, u64)]| {
            let mut command = redis::cmd("ZADD");
            // What comes late does not replace what is newer.
            command.arg(index.key('x')).arg("GT");
            for (topic, entry) in entries {
                command.arg(*entry).arg(&**topic);
            }
            command
        };
        let mut commands: Vec<Cmd> = entries.chunks(CHUNK).map(write).collect();
        commands.push(prolong(&index.key('x')));
        let request = |command| Request { slot: index.slot, command };
        let requests = commands.into_iter().map(request).collect();
        let answers = self.servers.run(requests, 0, until).await;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Takes topics without members out of the index. What fails has its turn again when expiry is renewed.
    pub(super) async fn forget(&self, stay: &Stay, entries: Vec<(Name, u64)>, until: Instant) {
        for entries in entries.chunks(CHUNK) {
            let request = self.forget_request(&stay.name, entries);
            if self.run_one(request.slot, request.command, until).await.is_err() {
                let mut present = self.present();
                for (topic, entry) in entries {
                    present.remember(stay, topic, *entry);
                }
            }
        }
    }

    pub(super) fn forget_request(&self, stay: &str, entries: &[(Name, u64)]) -> Request {
        let index = self.keys.place(&stay.into());
        let mut command = FORGET.run([index.key('x')].iter());
        for (topic, entry) in entries {
            command.arg(*entry).arg(&**topic);
        }
        Request { slot: index.slot, command }
    }

    pub(super) async fn list_members(
        &self,
        topic: Name,
        after: Option<ConnectionNumber>,
        limit: usize,
    ) -> Result<MemberPage, Error> {
        let (_permit, until) = self.admit(1)?;
        let place = self.keys.place(&topic);
        let stays = self.living_stays(until).await?;
        let keys: Vec<_> =
            stays.iter().flat_map(|stay| ['m', 'u'].map(|kind| place.part(kind, stay))).collect();
        let mut command = MEMBERS.run(keys.iter());
        command
            .arg(after.map_or_else(|| "-".to_owned(), hex))
            .arg(limit.saturating_add(1))
            .arg(TOLD_APART_MAX);
        let answer = self.run_one(place.slot, command, until).await?;
        page(&answer, limit).map_err(damaged)
    }

    /// Takes all members of this node out.
    pub(super) async fn exit_all(&self) -> Result<(), Error> {
        let (stay, call) = {
            let mut present = self.present();
            (present.stay(), present.next_call())
        };
        while self.end_some((&stay.name, Some(call)), Instant::now() + self.timeout).await? {}
        self.present().clear();
        Ok(())
    }

    /// Prolongs what is kept of this node's presence, and takes topics out of the index that have no members any more.
    pub(super) async fn renew_presence(&self) {
        let (stay, topics) = {
            let present = self.present();
            (present.stay(), present.topics())
        };
        let index = self.keys.place(&stay.name.as_str().into());
        let request = Request { slot: index.slot, command: prolong(&index.key('x')) };
        let _ = self.run_one(request.slot, request.command, Instant::now() + self.timeout).await;
        for topics in topics.chunks(CHUNK) {
            let marks: Vec<_> = topics.iter().map(|topic| self.present().mark(topic)).collect();
            let requests = topics.iter().flat_map(|topic| {
                self.renew_attendance(topic, &stay.name).unwrap_or_else(|| {
                    let place = self.keys.place(topic);
                    ['u', 'm'].map(|kind| {
                        let command = prolong(&place.part(kind, &stay.name));
                        Request { slot: place.slot, command }
                    })
                })
            });
            let until = Instant::now() + self.timeout;
            // What fails has its turn again long before its end.
            let answers = self.servers.run(requests.collect(), 0, until).await;
            let members = answers.chunks_exact(2).map(|answers| &answers[1]);
            let mut emptied = Vec::new();
            for ((topic, mark), members) in topics.iter().zip(marks).zip(members) {
                if let (Some(mark), Ok(Value::Int(0))) = (mark, members) {
                    let entry = self.present().emptied(topic, &mark);
                    emptied.extend(entry.map(|entry| (topic.clone(), entry)));
                }
            }
            self.forget(&stay, emptied, until).await;
            tokio::time::sleep(RENEW_PAUSE).await;
        }
    }
}

/// Keeps a key for as long as a new one.
fn prolong(key: &str) -> Cmd {
    let mut command = redis::cmd("PEXPIRE");
    command.arg(key).arg(RECORD_KEPT.as_millis().to_string());
    command
}

/// Reads the answer of `scripts/members.lua`.
fn page(answer: &Value, limit: usize) -> Result<MemberPage, String> {
    let [connections, devices, members @ ..] = array(answer)? else {
        return Err("a page is cut".to_owned());
    };
    let count = |value| u64::try_from(int(value)?).map_err(|error| error.to_string());
    // Many members have the same few devices' names on a page: each is kept once.
    let mut names: HashMap<&str, Name> = HashMap::new();
    let mut found = Vec::with_capacity(members.len());
    for written in members {
        let written = text(written)?;
        let (connection, device) =
            member(written).ok_or_else(|| format!("{written:?} is no member"))?;
        let device = names.entry(device).or_insert_with(|| device.into()).clone();
        found.push(Member { connection, device });
    }
    // Each node's are in order.
    found.sort_by_key(|member| member.connection);
    let is_last = found.len() <= limit;
    found.truncate(limit);
    Ok(MemberPage {
        members: found,
        is_last,
        connections: count(connections)?,
        devices: count(devices)?,
    })
}

/// Members at once: if each replaces one of this stay and one of the stay before, their event is full.
pub(super) const PIECE: usize = Event::MEMBERS_MAX / 3;
/// Up to so many devices those that are at several nodes count once. To tell them apart takes Redis a microsecond each,
/// for every page.
const TOLD_APART_MAX: usize = 2000;
/// Topics at once, where their names alone matter, or nobody waits.
const CHUNK: usize = 500;
