//! Changes who is in a topic, and tells it to the nodes that have joined the topic.

use tokio::time::Instant;

use super::LinkId;
use super::presence::Change;
use super::state::State;
use crate::contract::{Error, Event};
use crate::records::{Member, Name, by_topic};

impl State {
    /// Carries out a node's call: members enter topics, or exit.
    pub(super) fn change(
        &mut self,
        (id, call): (LinkId, u64),
        (members, enters): (Vec<(Name, Member)>, bool),
        now: Instant,
    ) -> Result<(), Error> {
        if enters && !self.presence.has(id) {
            // From now on there is something to look for.
            self.links.values().for_each(|link| link.wake.notify_one());
        }
        let mut went = Ok(());
        for (topic, members) in by_topic(members) {
            if !self.presence.begin_call(id, &topic, call) {
                went = Err(Error::Refused("a later call was carried out".to_owned()));
                continue;
            }
            for members in members.chunks(CHUNK) {
                let connections = members.iter().map(|member| member.connection);
                let change = match enters {
                    true => self.presence.enter(id, &topic, members),
                    false => self.presence.exit(id, &topic, connections),
                };
                self.tell_change(&topic, change, now);
            }
        }
        went
    }

    /// Lets all members of a node leave, as a call of the node.
    pub(super) fn exit_by_call(&mut self, id: LinkId, call: u64, now: Instant) {
        for (topic, _) in self.presence.of(id) {
            self.presence.begin_call(id, &topic, call);
        }
        self.exit_all(id, now);
    }

    /// Takes all members of a node out.
    pub(super) fn exit_all(&mut self, id: LinkId, now: Instant) {
        for (topic, connections) in self.presence.of(id) {
            for connections in connections.chunks(CHUNK) {
                let change = self.presence.exit(id, &topic, connections.iter().copied());
                self.tell_change(&topic, change, now);
            }
        }
    }

    /// Takes the members of nodes out that have been dead for too long, if it is time to look. `by` is the node that looks.
    pub(super) fn look(&mut self, by: LinkId, now: Instant) {
        if self.presence.due(&self.nodes).is_none_or(|due| due > now) {
            return;
        }
        for id in self.presence.look(&self.nodes, now) {
            self.exit_all(id, now);
            self.end_attendance(id, by);
            if self.links.contains_key(&id) {
                self.presence.end(id);
            }
        }
    }

    fn tell_change(&mut self, topic: &Name, change: Change, now: Instant) {
        let Change { joined, left } = change;
        if !joined.is_empty() || !left.is_empty() {
            let event = Event::Presence { topic: Name::clone(topic), joined, left };
            self.tell(&event, now, |link| link.topics.contains(topic));
        }
    }
}

/// Members at once: if each replaces another one, their event is full.
const CHUNK: usize = Event::MEMBERS_MAX / 2;
