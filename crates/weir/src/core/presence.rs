//! Who is in a topic, on all nodes.

use weir_broker::{ConnectionNumber, Error, Name};
use weir_engine::ConnId;

use crate::core::state::SharedState;

/// Some connections in a topic.
#[derive(Debug)]
pub(crate) struct MembersFound {
    /// In the order of their ids.
    pub(crate) members: Vec<(ConnId, Name)>,
    pub(crate) is_last: bool,
    /// How many there are in all.
    pub(crate) connections: u64,
    pub(crate) devices: u64,
    /// Whether every node lists all its members.
    pub(crate) is_complete: bool,
    /// Whether they may be on several nodes.
    pub(crate) is_cluster: bool,
}

impl SharedState {
    /// Connections in a topic behind `after`, at most `limit`.
    ///
    /// Errors: the broker does not answer for a topic of the cluster.
    pub(crate) async fn members(
        &self,
        topic: &str,
        after: Option<ConnId>,
        limit: usize,
    ) -> Result<MembersFound, Error> {
        let is_cluster = self.router.destination(topic).class().is_cluster;
        let Some(cluster) = self.cluster.as_ref().filter(|_| is_cluster) else {
            let page = self.router.members(topic, after, limit);
            return Ok(MembersFound {
                members: page.members,
                is_last: page.is_last,
                connections: page.connections as u64,
                devices: page.devices as u64,
                is_complete: page.is_complete,
                is_cluster,
            });
        };
        let after = after.map(|conn| ConnectionNumber(conn.to_u64()));
        let asked = cluster.broker().members(Name::from(topic), after, limit);
        let (page, nodes) = tokio::try_join!(asked, self.nodes())?;
        let members = page.members.into_iter();
        let lists_all = |unlisted: Option<u64>| unlisted.is_none_or(|unlisted| unlisted == 0);
        Ok(MembersFound {
            members: members
                .map(|member| (ConnId::from_u64(member.connection.0), member.device))
                .collect(),
            is_last: page.is_last,
            connections: page.connections,
            devices: page.devices,
            is_complete: nodes.iter().all(|node| lists_all(node.presence_unlisted())),
            is_cluster,
        })
    }
}
