//! Presence in Redis: a set for each topic and node, which counts as long as its node lives.

use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;

use redis::Value;
use tokio::time::Instant;

use super::client::Client;
use super::devices::{RECORD_KEPT, hex};
use super::keys::Slot;
use super::scripts::{MEMBERS, PRESENCE};
use super::servers::Request;
use super::values::{array, damaged, int, text};
use crate::contract::Error;
use crate::records::{ConnectionNumber, Member, MemberPage, Name};

impl Client {
    /// Enters members, or takes them out.
    pub(super) async fn change_presence(
        &self,
        members: Vec<(Name, Member)>,
        enters: bool,
    ) -> Result<(), Error> {
        let (_permit, until) = self.admit(members.len())?;
        let mut by_topic: BTreeMap<Name, Vec<Member>> = BTreeMap::new();
        for (topic, member) in members {
            by_topic.entry(topic).or_default().push(member);
        }
        if enters {
            let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
            present.extend(by_topic.keys().cloned());
        }
        let request = |(topic, members): (&Name, &Vec<Member>)| {
            let place = self.keys.place(topic);
            let keys = ['m', 'u'].map(|kind| place.part(kind, &self.context.instance));
            let mut command = PRESENCE.run(keys.iter());
            command.arg(u8::from(enters)).arg(RECORD_KEPT.as_millis().to_string());
            for member in members {
                command.arg(hex(member.connection)).arg(&*member.device);
            }
            Request { slot: place.slot, command }
        };
        let answers = self.servers.run(by_topic.iter().map(request).collect(), 0, until).await;
        for (topic, answer) in by_topic.keys().zip(answers) {
            if int(&answer?).map_err(damaged)? == 0 {
                self.present.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
            }
        }
        Ok(())
    }

    pub(super) async fn list_members(
        &self,
        topic: Name,
        after: Option<ConnectionNumber>,
        limit: usize,
    ) -> Result<MemberPage, Error> {
        let (_permit, until) = self.admit(1)?;
        let place = self.keys.place(&topic);
        let nodes = self.living(until).await?;
        let keys: Vec<_> =
            nodes.iter().flat_map(|node| ['m', 'u'].map(|kind| place.part(kind, node))).collect();
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
        let keys = self.presence_keys();
        self.present.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for keys in keys.chunks(CHUNK) {
            let request = |(slot, key): &(Slot, String)| {
                let mut command = redis::cmd("UNLINK");
                command.arg(key);
                Request { slot: *slot, command }
            };
            let until = Instant::now() + self.timeout;
            let answers = self.servers.run(keys.iter().map(request).collect(), 0, until).await;
            answers.into_iter().try_for_each(|answer| answer.map(drop))?;
        }
        Ok(())
    }

    /// The keys of this node's presence.
    pub(super) fn presence_keys(&self) -> Vec<(Slot, String)> {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = present.iter().flat_map(|topic| {
            let place = self.keys.place(topic);
            ['m', 'u'].map(|kind| (place.slot, place.part(kind, &self.context.instance)))
        });
        keys.collect()
    }
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
    for member in members {
        let member = text(member)?;
        let (connection, device) = member.split_at_checked(16).ok_or("a member is cut")?;
        let connection = u64::from_str_radix(connection, 16).map_err(|error| error.to_string())?;
        let device = names.entry(device).or_insert_with(|| device.into()).clone();
        found.push(Member { connection: ConnectionNumber(connection), device });
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

/// Up to so many devices those that are at several nodes count once. Beyond it telling them apart would hold up Redis.
const TOLD_APART_MAX: usize = 20_000;
/// Requests at once, where nobody waits.
const CHUNK: usize = 500;
