//! The members of a topic for another process, and from one.

use std::collections::HashMap;
use std::sync::Arc;

use weir_broker::Name;
use weir_engine::handover::NotUnderstood;
use weir_engine::{Budget, ConnId, Share};
use weir_wire::handover::v1;

use super::{Left, Members, Newcomer, Place, Places, Present, Told, news_bytes};
use crate::base::handover::refused;
use crate::topics::handover::Shards;

impl Told {
    fn of(is_perhaps_told: bool) -> Told {
        if is_perhaps_told { Told::Perhaps } else { Told::Nothing }
    }
}

impl Places {
    /// A place for a member of another process, even beyond the limit.
    pub(in crate::topics::presence) fn take_anyway(self: &Arc<Places>) -> Place {
        self.used.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Place(Arc::clone(self))
    }

    /// The same with its device.
    pub(in crate::topics::presence) fn newcomer(self: &Arc<Places>, device: &str) -> Newcomer {
        Newcomer { device: Name::from(device), _place: self.take_anyway() }
    }
}

impl Newcomer {
    pub(in crate::topics) fn device(&self) -> &str {
        &self.device
    }
}

impl Members {
    /// What the broker or watchers are being told is exported as something that they have perhaps
    /// been told.
    pub(in crate::topics) fn export(&self) -> v1::TopicPresence {
        let member = |conn: &ConnId, device: &str, count| v1::TopicMember {
            connection: conn.to_u64(),
            device: device.to_owned(),
            count,
        };
        let present = self.present.iter();
        let change = |conn: &ConnId, device: &str, told: Told| v1::TopicChange {
            connection: conn.to_u64(),
            device: device.to_owned(),
            is_perhaps_told: told == Told::Perhaps,
        };
        let is_leaving = |conn: &ConnId| self.leaving.iter().any(|(other, _)| other == conn);
        let left = self.left.iter().filter(|(conn, _)| !is_leaving(conn));
        let left = left.map(|(conn, left)| change(conn, &left.newcomer.device, left.told));
        let leaving = self.leaving.iter();
        let leaving = leaving.map(|(conn, device)| change(conn, device, Told::Perhaps));
        let news = self.news.iter().map(|(conn, (device, has_entered))| v1::TopicNews {
            connection: conn.to_u64(),
            device: device.as_ref().to_owned(),
            has_entered: *has_entered,
        });
        v1::TopicPresence {
            present: present
                .map(|(conn, present)| member(conn, &present.newcomer.device, present.count))
                .collect(),
            watchers: self.watchers.iter().map(|conn| conn.to_u64()).collect(),
            unlisted: self.unlisted.iter().map(|(conn, count)| member(conn, "", *count)).collect(),
            entered: self.entered.iter().map(|(conn, told)| change(conn, "", *told)).collect(),
            left: left.chain(leaving).collect(),
            again: self.again.map(ConnId::to_u64),
            news: news.collect(),
            has_missed: self.has_missed || self.is_telling,
            is_listed: self.is_listed,
        }
    }

    pub(in crate::topics::presence) fn import(
        export: v1::TopicPresence,
        shards: Shards,
        places: &Arc<Places>,
        budget: &Budget,
    ) -> Result<Members, NotUnderstood> {
        let conn = |id: u64| shards.conn("topic_presence.connection", id);
        let mut members = Members {
            has_missed: export.has_missed,
            is_listed: export.is_listed,
            again: export.again.map(ConnId::from_u64),
            ..Members::default()
        };
        // Connections of the same device share its name.
        let mut names: HashMap<String, Name, foldhash::fast::RandomState> = HashMap::default();
        for v1::TopicMember { connection, device, count } in export.present {
            let name = names.entry(device).or_insert_with_key(|device| device.as_str().into());
            let newcomer = Newcomer { device: Name::clone(name), _place: places.take_anyway() };
            *members.devices.entry(Name::clone(name)).or_default() += 1;
            let before = members.present.insert(conn(connection)?, Present { newcomer, count });
            if count == 0 || before.is_some() {
                return Err(refused("topic_presence.present", connection));
            }
        }
        members.watchers = export.watchers.into_iter().map(conn).collect::<Result<_, _>>()?;
        for v1::TopicMember { connection, count, .. } in export.unlisted {
            if count == 0 {
                return Err(refused("topic_presence.unlisted", connection));
            }
            members.unlisted.insert(conn(connection)?, count);
        }
        for change in export.entered {
            members.entered.insert(conn(change.connection)?, Told::of(change.is_perhaps_told));
        }
        for change in export.left {
            let (newcomer, told) =
                (places.newcomer(&change.device), Told::of(change.is_perhaps_told));
            members.left.insert(conn(change.connection)?, Left { newcomer, told });
        }
        for v1::TopicNews { connection, device, has_entered } in export.news {
            // The broker tells of members on all nodes.
            let conn = ConnId::from_u64(connection);
            if members.news.insert(conn, (device.as_str().into(), has_entered)).is_some() {
                return Err(refused("topic_presence.news", connection));
            }
            budget.overdraw(Share::Messages, news_bytes(&Name::from(device)));
        }
        places.note_unlisted(0, members.unlisted());
        Ok(members)
    }
}
