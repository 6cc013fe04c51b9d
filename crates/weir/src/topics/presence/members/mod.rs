//! The members of one topic, and the changes that others have not been told of.

mod handover;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_broker::Name;
use weir_engine::{Budget, ConnId, Footprint, Share, rounded, rounded_table};

/// The members of a topic whose class has presence.
///
/// A connection is a member from its `Subscribed` on, also while it resumes the topic. Each of its
/// subscriptions counts until its shard reports that it was not made, or has ended.
///
/// Shape: some 150 bytes for each member, with a device id of 24 bytes.
/// Limits: [`Places`], of all topics together. Of a connection without a place only its id is kept,
/// and it is not listed. What watchers are to hear is charged to the byte budget.
#[derive(Debug, Default)]
pub(in crate::topics) struct Members {
    present: BTreeMap<ConnId, Present>,
    /// Connections of each device.
    devices: HashMap<Name, u32, foldhash::fast::RandomState>,
    /// Members that hear who enters and leaves.
    watchers: BTreeSet<ConnId>,
    /// Connections that found no place, and their subscriptions.
    unlisted: BTreeMap<ConnId, u32>,
    /// Members that others have not been told of, or perhaps not.
    entered: BTreeMap<ConnId, Told>,
    /// Connections that others have been told of, and that have left.
    left: BTreeMap<ConnId, Left>,
    /// The broker is told once more of all members from this one on.
    again: Option<ConnId>,
    /// What watchers are to hear of each connection: whether it has entered, or left.
    news: BTreeMap<ConnId, (Name, bool)>,
    /// Watchers have missed something.
    has_missed: bool,
    /// The topic is listed among those with changes, or taken from there.
    pub(super) is_listed: bool,
    /// Those that have left and of which the broker is being told.
    leaving: Vec<(ConnId, Name)>,
    /// Watchers are being told what there was to tell.
    is_telling: bool,
}

/// What is kept of a connection that becomes a member.
#[derive(Debug)]
pub(in crate::topics) struct Newcomer {
    pub(super) device: Name,
    pub(super) _place: Place,
}

/// Counts the members of all topics on this node.
#[derive(Debug)]
pub(super) struct Places {
    used: AtomicUsize,
    max: AtomicUsize,
    /// Connections that found none.
    unlisted: AtomicUsize,
}

/// Counts one member for as long as it lives.
#[derive(Debug)]
pub(super) struct Place(Arc<Places>);

#[derive(Debug)]
struct Present {
    newcomer: Newcomer,
    /// Its subscriptions.
    count: u32,
}

#[derive(Debug)]
struct Left {
    newcomer: Newcomer,
    told: Told,
}

/// What others know of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// The broker did not answer, or has lost what it knew. It is told the change, whatever happens meanwhile.
    Perhaps,
}

/// Changes on their way to the broker. Those that have left come first.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    left: Vec<(ConnId, Newcomer)>,
    entered: Vec<(ConnId, Name)>,
    /// Members that the broker was told of before.
    again: Vec<(ConnId, Name)>,
}

/// What watchers are to hear.
#[derive(Debug)]
pub(super) struct News {
    pub(super) joined: Vec<(ConnId, Name)>,
    pub(super) left: Vec<(ConnId, Name)>,
    pub(super) missed: bool,
    pub(super) watchers: Vec<ConnId>,
}

/// Some members of a topic on this node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MembersPage {
    /// In the order of their ids.
    pub(crate) members: Vec<(ConnId, Name)>,
    pub(crate) is_last: bool,
    pub(crate) connections: usize,
    pub(crate) devices: usize,
    /// Whether all connections in the topic are listed.
    pub(crate) is_complete: bool,
}

impl Members {
    /// The members, and the bytes that the whole occupies. The nodes of trees are taken as two thirds
    /// full.
    pub(in crate::topics) fn footprint(&self) -> Footprint {
        let devices = rounded_table(self.devices.capacity(), size_of::<(Name, u32)>());
        let names = self.devices.keys().map(|name| rounded(name.len() + 2 * size_of::<usize>()));
        let trees = [
            (self.present.len(), size_of::<(ConnId, Present)>()),
            (self.watchers.len(), size_of::<ConnId>()),
            (self.unlisted.len(), size_of::<(ConnId, u32)>()),
            (self.entered.len(), size_of::<(ConnId, Told)>()),
            (self.left.len(), size_of::<(ConnId, Left)>()),
            (self.news.len(), size_of::<(ConnId, (Name, bool))>()),
        ];
        let leaving = rounded(self.leaving.capacity() * size_of::<(ConnId, Name)>());
        let trees = trees.map(|(len, entry)| len * (entry + 1) * 3 / 2);
        let own = rounded(size_of::<Members>());
        let bytes = own + devices + leaving + names.sum::<usize>() + trees.iter().sum::<usize>();
        Footprint::new(self.present.len(), bytes)
    }
}

impl Places {
    pub(super) fn new(max: usize) -> Arc<Places> {
        let [used, unlisted] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        Arc::new(Places { used, max: AtomicUsize::new(max), unlisted })
    }

    /// Changes the limit for further members.
    pub(super) fn limit(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn unlisted(&self) -> usize {
        self.unlisted.load(Ordering::Relaxed)
    }

    /// A topic had `before` connections that found no place, and has `after`.
    pub(super) fn note_unlisted(&self, before: usize, after: usize) {
        self.unlisted.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// `None`: all places are in use.
    pub(super) fn take(self: &Arc<Places>) -> Option<Place> {
        let max = self.max.load(Ordering::Relaxed);
        let has_room = |used: usize| (used < max).then_some(used + 1);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, has_room);
        taken.ok().map(|_| Place(Arc::clone(self)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Members {
    pub(super) fn has(&self, conn: ConnId) -> bool {
        self.present.contains_key(&conn)
    }

    pub(in crate::topics) fn watches(&self, conn: ConnId) -> bool {
        self.watchers.contains(&conn)
    }

    pub(super) fn has_watchers(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Whether the topic is needed until the others have been told.
    pub(in crate::topics) fn has_to_tell(&self) -> bool {
        self.is_listed
    }

    /// Whether there is something to tell.
    pub(super) fn has_changes(&self) -> bool {
        let Members { entered, left, again, news, has_missed, .. } = self;
        !(entered.is_empty() && left.is_empty() && news.is_empty())
            || again.is_some()
            || *has_missed
    }

    /// Counts a subscription. `newcomer` is needed unless the connection is a member. `false`: it
    /// is not listed.
    pub(super) fn enter(
        &mut self,
        conn: ConnId,
        newcomer: Option<Newcomer>,
        (watches, has_broker): (bool, bool),
    ) -> bool {
        if let Some(present) = self.present.get_mut(&conn) {
            present.count += 1;
            self.watch(conn, watches);
            return true;
        }
        let Some(newcomer) = newcomer else {
            *self.unlisted.entry(conn).or_default() += 1;
            return false;
        };
        let before = self.unlisted.remove(&conn).unwrap_or(0);
        *self.devices.entry(Name::clone(&newcomer.device)).or_default() += 1;
        self.present.insert(conn, Present { newcomer, count: before + 1 });
        self.watch(conn, watches);
        if has_broker || self.has_watchers() {
            match self.left.get(&conn) {
                // Others still believe that it is here.
                Some(Left { told: Told::Nothing, .. }) => {
                    self.left.remove(&conn);
                }
                Some(Left { told: Told::Perhaps, .. }) | None => {
                    self.entered.insert(conn, Told::Nothing);
                }
            }
        }
        true
    }

    /// Whether a member hears who enters and leaves.
    pub(super) fn watch(&mut self, conn: ConnId, watches: bool) {
        match watches {
            true => self.watchers.insert(conn),
            false => self.watchers.remove(&conn),
        };
    }

    /// Counts a subscription less. The last one ends the membership.
    pub(super) fn exit(&mut self, conn: ConnId, has_broker: bool) {
        if let Some(present) = self.present.get_mut(&conn) {
            present.count -= 1;
            if present.count == 0 {
                self.remove(conn, has_broker);
            }
        } else if let Some(count) = self.unlisted.get_mut(&conn) {
            *count -= 1;
            if *count == 0 {
                self.unlisted.remove(&conn);
            }
        }
    }

    /// Connections that are not listed.
    pub(super) fn unlisted(&self) -> usize {
        self.unlisted.len()
    }

    /// Removes the connections of a shard that has ended.
    pub(super) fn forget_shard(&mut self, shard: usize, has_broker: bool) {
        self.unlisted.retain(|conn, _| conn.shard() != shard);
        let of_shard = self.present.keys().filter(|conn| conn.shard() == shard);
        for conn in of_shard.copied().collect::<Vec<_>>() {
            self.remove(conn, has_broker);
        }
    }

    fn remove(&mut self, conn: ConnId, has_broker: bool) {
        let Some(Present { newcomer, .. }) = self.present.remove(&conn) else { return };
        if let Some(count) = self.devices.get_mut(&newcomer.device) {
            *count -= 1;
            if *count == 0 {
                self.devices.remove(&newcomer.device);
            }
        }
        self.watchers.remove(&conn);
        match self.entered.remove(&conn) {
            Some(Told::Nothing) => {}
            Some(Told::Perhaps) => {
                self.left.insert(conn, Left { newcomer, told: Told::Perhaps });
            }
            None if has_broker || self.has_watchers() => {
                self.left.entry(conn).or_insert(Left { newcomer, told: Told::Nothing });
            }
            None => {}
        }
        if !has_broker && !self.has_watchers() {
            // Nobody is left to be told.
            self.entered.clear();
            self.left.clear();
        }
        self.tidy();
    }

    /// Returns the memory after a rush.
    fn tidy(&mut self) {
        if self.devices.is_empty() && self.devices.capacity() > TABLE_KEPT {
            self.devices.shrink_to(0);
        }
    }

    /// All members are entered at the broker once more: it may have lost them.
    pub(super) fn enter_again(&mut self) {
        if !self.present.is_empty() {
            self.again = Some(ConnId::from_u64(0));
        }
        // It may have lost those, too, of which it was to hear that they have left. One that comes back is not there.
        self.left.values_mut().for_each(|left| left.told = Told::Perhaps);
    }

    /// Watchers may have missed something.
    pub(super) fn note_missed(&mut self) -> bool {
        let has_watchers = self.has_watchers();
        self.has_missed |= has_watchers;
        has_watchers
    }

    /// Takes some changes for the broker.
    pub(super) fn take_changes(&mut self, limit: usize) -> Changes {
        let mut changes = Changes::default();
        while changes.len() < limit
            && let Some((conn, left)) = self.left.pop_first()
        {
            changes.left.push((conn, left.newcomer));
        }
        while changes.len() < limit
            && let Some((conn, _)) = self.entered.pop_first()
        {
            if let Some(present) = self.present.get(&conn) {
                changes.entered.push((conn, Name::clone(&present.newcomer.device)));
            }
        }
        if let Some(from) = self.again.filter(|_| changes.len() < limit) {
            let room = limit - changes.len();
            let mut present =
                self.present.range(from..).filter(|(conn, _)| !self.entered.contains_key(conn));
            let named = |(conn, present): (&ConnId, &Present)| {
                (*conn, Name::clone(&present.newcomer.device))
            };
            changes.again = present.by_ref().take(room).map(named).collect();
            self.again = present.next().map(|(conn, _)| *conn);
        }
        changes
    }

    /// The same for the broker: those that have left are known until [`Members::end_telling`].
    pub(super) fn take_for_broker(&mut self, limit: usize) -> Changes {
        let changes = self.take_changes(limit);
        self.leaving.extend(changes.left().map(|(conn, device)| (conn, Name::clone(device))));
        changes
    }

    /// The broker and the watchers have been told, or what could not be told was given back.
    pub(super) fn end_telling(&mut self) {
        (self.leaving, self.is_telling) = (Vec::new(), false);
    }

    /// Takes back changes that the broker may not have carried out.
    pub(super) fn give_back(&mut self, changes: Changes) {
        let Changes { left, entered, again } = changes;
        for (conn, newcomer) in left {
            self.left.insert(conn, Left { newcomer, told: Told::Perhaps });
        }
        for (conn, _) in entered {
            if self.present.contains_key(&conn) {
                self.entered.insert(conn, Told::Perhaps);
            }
            if let Some(left) = self.left.get_mut(&conn) {
                left.told = Told::Perhaps;
            }
        }
        if let Some((first, _)) = again.first() {
            self.again = Some(self.again.map_or(*first, |from| from.min(*first)));
        }
    }

    /// Without a broker the changes are what watchers hear.
    pub(super) fn hear_changes(&mut self, budget: &Budget) {
        let changes = self.take_changes(usize::MAX);
        for (conn, newcomer) in changes.left {
            self.hear((conn, newcomer.device), false, budget);
        }
        for entered in changes.entered {
            self.hear(entered, true, budget);
        }
    }

    /// Keeps what watchers are to hear of a connection: the last thing counts. Without room in the
    /// budget they are told that they have missed something.
    pub(super) fn hear(
        &mut self,
        (conn, device): (ConnId, Name),
        has_entered: bool,
        budget: &Budget,
    ) {
        if !self.has_watchers() {
            return;
        }
        let bytes = news_bytes(&device);
        let known = self.news.get_mut(&conn).filter(|known| known.0 == device);
        if let Some(known) = known {
            known.1 = has_entered;
        } else if budget.take(Share::Messages, bytes) {
            if let Some((device, _)) = self.news.insert(conn, (device, has_entered)) {
                budget.give(Share::Messages, news_bytes(&device));
            }
        } else {
            self.drop_news(budget);
            self.has_missed = true;
        }
    }

    fn drop_news(&mut self, budget: &Budget) {
        for (device, _) in std::mem::take(&mut self.news).into_values() {
            budget.give(Share::Messages, news_bytes(&device));
        }
    }

    /// Takes what watchers are to hear; `None`: nothing.
    pub(super) fn take_news(&mut self, budget: &Budget) -> Option<News> {
        let news = std::mem::take(&mut self.news);
        for (device, _) in news.values() {
            budget.give(Share::Messages, news_bytes(device));
        }
        let missed = std::mem::take(&mut self.has_missed);
        if !self.has_watchers() || (news.is_empty() && !missed) {
            return None;
        }
        self.is_telling = true;
        let (mut joined, mut left) = (Vec::new(), Vec::new());
        for (conn, (device, has_entered)) in news {
            let list = if has_entered { &mut joined } else { &mut left };
            list.push((conn, device));
        }
        Some(News { joined, left, missed, watchers: self.watchers.iter().copied().collect() })
    }

    pub(super) fn page(&self, after: Option<ConnId>, limit: usize) -> MembersPage {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut members = self.present.range((from, Bound::Unbounded));
        let named =
            |(conn, present): (&ConnId, &Present)| (*conn, Name::clone(&present.newcomer.device));
        MembersPage {
            members: members.by_ref().take(limit).map(named).collect(),
            is_last: members.next().is_none(),
            connections: self.present.len(),
            devices: self.devices.len(),
            is_complete: self.unlisted.is_empty(),
        }
    }
}

impl Changes {
    pub(crate) fn len(&self) -> usize {
        self.left.len() + self.entered.len() + self.again.len()
    }

    /// Members that have left.
    pub(crate) fn left(&self) -> impl Iterator<Item = (ConnId, &Name)> {
        self.left.iter().map(|(conn, newcomer)| (*conn, &newcomer.device))
    }

    /// Members that have entered, or may have been lost.
    pub(crate) fn entered(&self) -> impl Iterator<Item = (ConnId, &Name)> {
        self.entered.iter().chain(&self.again).map(|(conn, device)| (*conn, device))
    }
}

/// What a connection of which watchers are to hear occupies.
fn news_bytes(device: &Name) -> usize {
    64 + device.len()
}

/// Unused entries that a table may keep.
const TABLE_KEPT: usize = 64;
