//! Inspecting and closing connections for the operator.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use weir_engine::{ConnId, ConnectionInfo, InspectWhat, Urgent};
use weir_wire::CloseReason;

use crate::base::handover::HandingOver;
use crate::base::mailboxes::{ANSWER_TIMEOUT, Mailboxes, inspect, urgent, urgent_in_time};
use crate::core::handle::{Connection, ConnectionCursor, ConnectionQuery, ShardSilent};
use crate::core::state::SharedState;
use crate::limits::sources::Source;

/// Closes that wait for room in a shard's queue, with the shard.
type Closings = Vec<(usize, JoinHandle<()>)>;

impl SharedState {
    pub(crate) async fn connections(
        &self,
        query: &ConnectionQuery,
    ) -> Result<(Vec<Connection>, Option<ConnectionCursor>), ShardSilent> {
        match &query.device {
            Some(device) => self.connections_of(device, query).await,
            None => self.walk(query).await,
        }
    }

    pub(crate) async fn connection(&self, id: ConnId) -> Result<Option<Connection>, ShardSilent> {
        let Some(mailbox) = self.mailboxes().get(id.shard()) else { return Ok(None) };
        let silent = ShardSilent { shard: id.shard() };
        let page = inspect(mailbox, InspectWhat::One(id)).await.ok_or(silent)?;
        Ok(page.connections.into_iter().next().and_then(|info| self.name(info)))
    }

    pub(crate) async fn check_shards(&self) -> Result<(), ShardSilent> {
        for (shard, mailbox) in self.mailboxes().iter().enumerate() {
            let nothing = InspectWhat::All { cursor: 0, limit: 0 };
            inspect(mailbox, nothing).await.ok_or(ShardSilent { shard })?;
        }
        Ok(())
    }

    pub(crate) async fn close(&self, id: ConnId) -> Result<bool, ShardSilent> {
        let is_there = self.connection(id).await?.is_some();
        if is_there {
            let close = Urgent::Close(id, CloseReason::ClosedByOperator);
            let is_taken = urgent_in_time(self.mailbox(id.shard()), close).await;
            // Behind the shut door, the shard may never carry it out.
            if !is_taken || self.door.pass(|| ()).is_err() {
                return Err(ShardSilent { shard: id.shard() });
            }
        }
        Ok(is_there)
    }

    pub(crate) async fn device(&self, id: &str) -> Result<Option<Vec<Connection>>, ShardSilent> {
        let Some(conns) = self.devices.connections_of(id) else { return Ok(None) };
        let mut connections = Vec::with_capacity(conns.len());
        for conn in conns {
            connections.extend(self.connection(conn).await?);
        }
        Ok(Some(connections))
    }

    pub(crate) async fn revoke(&self, id: &str) -> Result<bool, ShardSilent> {
        // While another process takes over, no shard carries anything out.
        let waiting = self.revoke_soon(id).map_err(|HandingOver| ShardSilent { shard: 0 })?;
        let Some(waiting) = waiting else { return Ok(false) };
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        for (shard, closing) in waiting {
            if timeout_at(deadline, closing).await.is_err() {
                return Err(ShardSilent { shard });
            }
        }
        // Likewise; the process that goes on closes them.
        let passed = self.door.pass(|| ());
        passed.map_err(|HandingOver| ShardSilent { shard: 0 })?;
        Ok(true)
    }

    /// The same without waiting; `None` if the device is unknown. Returns the closes that wait for
    /// room in a shard's queue, which go on by themselves.
    ///
    /// Errors: the devices are being handed over. It is carried out afterwards.
    pub(in crate::core) fn revoke_soon(&self, id: &str) -> Result<Option<Closings>, HandingOver> {
        self.questions.forget(id);
        let Some(conns) = self.devices.revoke(id)? else { return Ok(None) };
        let mut waiting = Vec::new();
        for conn in conns {
            let close = Urgent::Close(conn, CloseReason::Revoked);
            if self.mailbox(conn.shard()).try_urgent(close).is_err() {
                // No record names the connection any more, so nothing else would close it. A task
                // of its own goes on even if the caller has gone, or has got an error after the
                // timeout.
                let closing = tokio::spawn(close_revoked(Arc::clone(self.mailboxes()), conn));
                waiting.push((conn.shard(), closing));
            }
        }
        Ok(Some(waiting))
    }

    /// The connections of a device, oldest first. The cursor counts the connections of earlier
    /// pages.
    async fn connections_of(
        &self,
        device: &str,
        query: &ConnectionQuery,
    ) -> Result<(Vec<Connection>, Option<ConnectionCursor>), ShardSilent> {
        let conns = self.devices.connections_of(device).unwrap_or_default();
        let from = query.cursor.map_or(0, |place| place.cursor);
        let wanted = u32::try_from(query.limit.max(1)).unwrap_or(u32::MAX);
        let end = from.saturating_add(wanted);
        let mut connections = Vec::new();
        for conn in conns.iter().skip(from as usize).take(wanted as usize) {
            connections.extend(self.connection(*conn).await?);
        }
        if let Some(topic) = &query.topic {
            connections.retain(|connection| connection.topics.contains(topic));
        }
        let next = ConnectionCursor { shard: 0, cursor: end };
        Ok((connections, (conns.len() > end as usize).then_some(next)))
    }

    /// Goes from shard to shard until the page is full.
    async fn walk(
        &self,
        query: &ConnectionQuery,
    ) -> Result<(Vec<Connection>, Option<ConnectionCursor>), ShardSilent> {
        let topic = match query.topic.as_deref().map(|name| self.router.id(name)) {
            Some(None) => return Ok((Vec::new(), None)),
            Some(Some(topic)) => Some(topic),
            None => None,
        };
        let mut found = Vec::new();
        let wanted = query.limit.max(1);
        let first = ConnectionCursor { shard: 0, cursor: 0 };
        let ConnectionCursor { mut shard, mut cursor } = query.cursor.unwrap_or(first);
        while let Some(mailbox) = self.mailboxes().get(shard as usize) {
            if found.len() >= wanted {
                return Ok((found, Some(ConnectionCursor { shard, cursor })));
            }
            let limit = wanted - found.len();
            let what = match topic {
                Some(topic) => InspectWhat::Topic { topic, cursor, limit },
                None => InspectWhat::All { cursor, limit },
            };
            let silent = ShardSilent { shard: shard as usize };
            let page = inspect(mailbox, what).await.ok_or(silent)?;
            let named = page.connections.into_iter().filter_map(|info| self.name(info));
            // The topic may have ended meanwhile, and its id may name another topic.
            found.extend(named.filter(|connection| {
                query.topic.as_ref().is_none_or(|topic| connection.topics.contains(topic))
            }));
            match page.next_cursor {
                Some(next) => cursor = next,
                None => (shard, cursor) = (shard + 1, 0),
            }
        }
        Ok((found, None))
    }

    /// Replaces ids by names; `None` if no device record names the connection any more, because it
    /// is closing.
    fn name(&self, info: ConnectionInfo) -> Option<Connection> {
        // As long as the record names the connection, its client keeps its name. So the record is
        // asked last.
        let client = self.clients.name(info.origin.client());
        let device = self.devices.id_of(info.device, info.id)?;
        let topics = info.topics.iter().filter_map(|topic| self.router.name(*topic)).collect();
        let counted = self.admission.source(info.origin);
        let source = counted.or(info.peer.map(|peer| Source::of(peer.ip())));
        let source = source.map(|source| source.to_string());
        Some(Connection { info, device, source, client, topics })
    }
}

async fn close_revoked(mailboxes: Arc<Mailboxes>, conn: ConnId) {
    urgent(&mailboxes[conn.shard()], Urgent::Close(conn, CloseReason::Revoked)).await;
}
