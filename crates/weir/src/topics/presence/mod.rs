//! Presence: who is in a topic, and the messages that tell watchers of it.
//!
//! A connection is entered under its topic's lock before its `Subscribed` is pushed. So a client
//! that asks for the list after `Subscribed` misses nothing: what the list lacks comes as
//! `Presence`. Changes are collected for a tick, and their net effect is told. In a cluster they go
//! to the broker, which tells all nodes, this one included; without one they go to watchers here.

mod members;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::coop;
use tokio::time::sleep;
use weir_broker::{Member, Name};
use weir_engine::handover::NotUnderstood;
use weir_engine::{Command, ConnId, Item, Message, Nanos, Priority};
use weir_wire::handover;
use weir_wire::v1;
use weir_wire::v1::server_message::Kind;

use super::handover::Shards;
use super::{Router, SeededBug, State, Subscriber, Topic, lock};
use crate::base::frames;
use crate::base::mailboxes::{Publisher, try_credit};
use crate::observe::counters::PresenceOutcome;
pub(crate) use members::Changes;
pub(super) use members::{Members, Newcomer};
use members::{MembersPage, News, Places};

/// The presence of all topics.
pub(super) struct Presence {
    places: Arc<Places>,
    /// Topics with something to tell, each once.
    changed: Mutex<VecDeque<Arc<Topic>>>,
    filled: Notify,
}

impl Presence {
    pub(super) fn new(members_max: usize) -> Presence {
        let places = Places::new(members_max);
        Presence { places, changed: Mutex::default(), filled: Notify::new() }
    }

    pub(super) fn limit(&self, members_max: usize) {
        self.places.limit(members_max);
    }

    fn list(&self, topic: &Arc<Topic>) {
        lock(&self.changed).push_back(Arc::clone(topic));
        self.filled.notify_one();
    }
}

impl State {
    fn members(&mut self) -> &mut Members {
        self.extra_mut().members.get_or_insert_default()
    }
}

impl Router {
    /// Takes a place for a connection that subscribes to a topic with presence. `false`: it wants
    /// to hear who enters, and there is no place for it.
    pub(super) fn make_place(
        &self,
        state: &mut State,
        subscriber: &mut Subscriber,
        device: Option<Name>,
    ) -> bool {
        if state.members().has(subscriber.conn) {
            return true;
        }
        let place = device.and_then(|device| Some((device, self.presence.places.take()?)));
        subscriber.newcomer = place.map(|(device, place)| Newcomer { device, _place: place });
        subscriber.newcomer.is_some() || !subscriber.presence
    }

    /// Counts a subscription that is about to be answered.
    pub(super) fn enter_presence(
        &self,
        topic: &Arc<Topic>,
        state: &mut State,
        subscriber: &mut Subscriber,
    ) {
        if !topic.class().presence {
            return;
        }
        let (conn, newcomer) = (subscriber.conn, subscriber.newcomer.take());
        let ways = (subscriber.presence, topic.class().is_cluster);
        self.change_members(topic, state, |members| {
            if !members.enter(conn, newcomer, ways) {
                self.counters.count_presence(PresenceOutcome::Unlisted, 1);
            }
        });
    }

    /// Counts a subscription less.
    pub(super) fn exit_presence(&self, topic: &Arc<Topic>, state: &mut State, conn: ConnId) {
        if topic.class().presence {
            let has_broker = topic.class().is_cluster;
            self.change_members(topic, state, |members| members.exit(conn, has_broker));
        }
    }

    /// A connection hears no more of who enters. Its presence ends when its shard reports that.
    pub(super) fn end_watch(&self, topic: &Topic, state: &mut State, conn: ConnId) {
        if topic.class().presence {
            state.members().watch(conn, false);
        }
    }

    /// A shard has ended, and all its connections with it.
    pub(crate) fn forget_shard(&self, shard: usize) {
        for topic in self.topics_with(|class| class.presence) {
            let (mut state, has_broker) = (topic.lock(), topic.class().is_cluster);
            self.change_members(&topic, &mut state, |members| {
                members.forget_shard(shard, has_broker);
            });
        }
    }

    fn change_members(
        &self,
        topic: &Arc<Topic>,
        state: &mut State,
        change: impl FnOnce(&mut Members),
    ) {
        let members = state.members();
        let before = members.unlisted();
        change(members);
        self.presence.places.note_unlisted(before, members.unlisted());
        self.list_changes(topic, state);
    }

    fn list_changes(&self, topic: &Arc<Topic>, state: &mut State) {
        let members = state.members();
        if members.has_changes() && !std::mem::replace(&mut members.is_listed, true) {
            self.presence.list(topic);
        }
    }

    /// Members of a topic on this node.
    ///
    /// Cost: copies a page under the topic's lock.
    pub(crate) fn members(&self, name: &str, after: Option<ConnId>, limit: usize) -> MembersPage {
        let topic = self.find(name).filter(|topic| topic.class().presence);
        let page = topic.map(|topic| topic.lock().members().page(after, limit));
        page.unwrap_or(MembersPage { is_last: true, is_complete: true, ..MembersPage::default() })
    }

    /// The members of a topic of another process.
    pub(super) fn import_members(
        &self,
        export: handover::v1::TopicPresence,
        shards: Shards,
    ) -> Result<Members, NotUnderstood> {
        Members::import(export, shards, &self.presence.places, &self.budget)
    }

    /// A connection of another process that becomes a member.
    pub(super) fn import_newcomer(&self, device: &str) -> Newcomer {
        self.presence.places.newcomer(device)
    }

    /// Lists a topic of another process that has something to tell, or was telling it.
    pub(super) fn list_imported(&self, topic: &Arc<Topic>, state: &mut State) {
        let members = state.extra.as_mut().and_then(|extra| extra.members.as_mut());
        let Some(members) = members else { return };
        members.is_listed |= members.has_changes();
        if members.is_listed {
            self.presence.list(topic);
        }
    }

    /// Members of all topics on this node.
    pub(crate) fn member_count(&self) -> usize {
        self.presence.places.used()
    }

    /// Connections in topics of this node that are not listed.
    pub(crate) fn unlisted_count(&self) -> usize {
        self.presence.places.unlisted()
    }

    /// What the broker tells of a topic.
    pub(crate) fn handle_presence(&self, name: &str, joined: Vec<Member>, left: Vec<Member>) {
        // Who is here is asked again when the router serves again.
        let Some(topic) = self.find(name) else { return };
        if !topic.class().presence || !topic.class().is_cluster {
            return;
        }
        let mut state = topic.lock();
        if self.is_deaf() {
            return;
        }
        let members = left.into_iter().map(|member| (member, false));
        for (member, has_entered) in members.chain(joined.into_iter().map(|member| (member, true)))
        {
            let conn = ConnId::from_u64(member.connection.0);
            state.members().hear((conn, member.device), has_entered, &self.budget);
        }
        self.list_changes(&topic, &mut state);
    }

    /// The broker may have lost the members of this topic, and its watchers may have missed some.
    pub(super) fn check_presence(&self, topic: &Arc<Topic>, state: &mut State) {
        if !topic.class().presence {
            return;
        }
        state.members().enter_again();
        if state.members().note_missed() {
            self.counters.count_presence(PresenceOutcome::Missed, 1);
        }
        self.list_changes(topic, state);
    }

    /// All members are entered at the broker once more.
    pub(crate) fn enter_all_again(&self) {
        for topic in self.topics_with(|class| class.presence && class.is_cluster) {
            let mut state = topic.lock();
            if self.is_deaf() {
                return;
            }
            state.members().enter_again();
            self.list_changes(&topic, &mut state);
        }
    }

    /// Waits until a topic has something to tell.
    pub(crate) async fn presence_due(&self) {
        while lock(&self.presence.changed).is_empty() {
            self.presence.filled.notified().await;
        }
    }

    /// Takes the topics that have something to tell. Each goes back by [`Router::end_presence`].
    pub(crate) fn take_presence(&self) -> VecDeque<Arc<Topic>> {
        if self.is_still() {
            return VecDeque::new();
        }
        std::mem::take(&mut *lock(&self.presence.changed))
    }

    /// Changes of a topic for the broker, at most `limit`.
    pub(crate) fn presence_changes(&self, topic: &Topic, limit: usize) -> Changes {
        let mut state = topic.lock();
        match topic.class().is_cluster && !self.is_still() {
            true => state.members().take_for_broker(limit),
            false => Changes::default(),
        }
    }

    /// Takes back changes that the broker may not have carried out.
    pub(crate) fn give_back_presence(&self, topic: &Topic, changes: Changes) {
        if !self.is_seeded(SeededBug::LostPresence) {
            topic.lock().members().give_back(changes);
        }
    }

    /// The changes of a topic have been told, as far as that was possible.
    pub(crate) fn end_presence(&self, topic: &Arc<Topic>) {
        let mut state = topic.lock();
        let members = state.members();
        if self.is_still() {
            return self.presence.list(topic);
        }
        members.end_telling();
        members.is_listed = members.has_changes();
        if members.is_listed {
            return self.presence.list(topic);
        }
        self.end_if_idle(topic, &mut state);
    }

    /// Tells the watchers of a topic what there is to tell. Waits for credits, and holds no lock
    /// meanwhile. Nobody who has left hears it.
    pub(crate) async fn tell_watchers(&self, topic: &Arc<Topic>) {
        let Some((messages, watchers)) = self.news_of(topic) else { return };
        for conn in watchers {
            for message in &messages {
                let mut pause = PAUSE_MIN;
                while !self.tell(topic, conn, message) {
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            coop::consume_budget().await;
        }
    }

    /// Pushes a message to a connection, if it still watches the topic; `false`: there is no
    /// credit.
    fn tell(&self, topic: &Topic, conn: ConnId, message: &Arc<Message>) -> bool {
        // Publishes go first.
        let mailbox = &self.mailboxes[conn.shard()];
        let credit = try_credit(mailbox, Priority::Normal, Publisher::Device);
        let mut state = topic.lock();
        if !state.members().watches(conn) {
            return true;
        }
        if self.is_still() {
            return false;
        }
        let Some(credit) = credit else { return false };
        credit.push(Command::Send(conn, Item::Message(Arc::clone(message))));
        true
    }

    /// What watchers are to hear, as messages. Without room in the budget they will hear that they
    /// have missed something.
    fn news_of(&self, topic: &Topic) -> Option<(Vec<Arc<Message>>, Vec<ConnId>)> {
        let mut state = topic.lock();
        if self.is_still() {
            return None;
        }
        if !topic.class().is_cluster {
            state.members().hear_changes(&self.budget);
        }
        let news = state.members().take_news(&self.budget)?;
        let formats = state.formats;
        drop(state);
        let (joined, left) = (news.joined.len(), news.left.len());
        let mut messages = Vec::new();
        let mut watchers = Vec::new();
        let bytes_max = FRAME_BYTES.min(self.frame_bytes_max);
        for frame in frames_of(&topic.name, news, (bytes_max, &mut watchers)) {
            let message = Message::new(&self.budget, frame.into_vec(), Nanos::now(), None);
            let encoded = message.filter(|made| formats.encode_ahead(made, &self.counters));
            let Some(message) = encoded else {
                topic.lock().members().note_missed();
                self.counters.count_presence(PresenceOutcome::Missed, 1);
                return None;
            };
            messages.push(message);
        }
        self.counters.count_presence(PresenceOutcome::Joined, joined);
        self.counters.count_presence(PresenceOutcome::Left, left);
        Some((messages, watchers))
    }
}

/// `Presence` in frames of bounded length; the watchers go to `watchers`.
fn frames_of(
    topic: &str,
    news: News,
    (bytes_max, watchers): (usize, &mut Vec<ConnId>),
) -> Vec<Box<[u8]>> {
    *watchers = news.watchers;
    let member = |(conn, device): (ConnId, Name)| v1::Member {
        device_id: device.as_ref().to_owned(),
        connection_id: conn.to_u64(),
    };
    let empty =
        |missed| v1::Presence { topic: topic.to_owned(), missed, ..v1::Presence::default() };
    let (mut frames, mut next, mut bytes) = (Vec::new(), empty(news.missed), topic.len());
    let left = news.left.into_iter().map(|left| (member(left), false));
    for (member, is_in) in left.chain(news.joined.into_iter().map(|joined| (member(joined), true)))
    {
        let more = MEMBER_BYTES + member.device_id.len();
        let is_begun = !(next.joined.is_empty() && next.left.is_empty());
        if is_begun && bytes + more > bytes_max {
            let full = std::mem::replace(&mut next, empty(false));
            frames.push(frames::encode(Kind::Presence(full)));
            bytes = topic.len();
        }
        bytes += more;
        if is_in { &mut next.joined } else { &mut next.left }.push(member);
    }
    frames.push(frames::encode(Kind::Presence(next)));
    frames
}

/// Members of some 400 devices with ids of 24 bytes.
const FRAME_BYTES: usize = 16 * 1024;
/// A member beside its device's id.
const MEMBER_BYTES: usize = 14;
/// A turn of a busy shard takes about this long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);

#[cfg(test)]
mod tests;
