//! Changes who is in a topic, and tells it to the nodes that have joined the topic.

use tokio::time::Instant;

use super::LinkId;
use super::presence::Change;
use super::state::State;
use crate::contract::Event;
use crate::records::{Member, Name, by_topic};

impl State {
    pub(super) fn enter(&mut self, id: LinkId, members: Vec<(Name, Member)>, now: Instant) {
        if !self.presence.has(id) {
            // From now on there is something to look for.
            self.links.values().for_each(|link| link.wake.notify_one());
        }
        for (topic, members) in by_topic(members) {
            for members in members.chunks(CHUNK) {
                let change = self.presence.enter(id, &topic, members);
                self.tell_change(&topic, change, now);
            }
        }
    }

    pub(super) fn exit(&mut self, id: LinkId, members: Vec<(Name, Member)>, now: Instant) {
        for (topic, members) in by_topic(members) {
            for members in members.chunks(CHUNK) {
                let connections = members.iter().map(|member| member.connection);
                let change = self.presence.exit(id, &topic, connections);
                self.tell_change(&topic, change, now);
            }
        }
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

    /// Takes the members of nodes out that have been dead for too long, if it is time to look.
    pub(super) fn look(&mut self, now: Instant) {
        if self.presence.due(&self.nodes).is_none_or(|due| due > now) {
            return;
        }
        for id in self.presence.look(&self.nodes, now) {
            self.exit_all(id, now);
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
