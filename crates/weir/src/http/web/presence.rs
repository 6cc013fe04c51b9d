//! `GET /v1/topics/{topic}/presence` of both APIs: who is in a topic, in pages.

use serde::Serialize;
use utoipa::ToSchema;
use weir_engine::ConnId;

use super::problem::Problem;
use super::query::Query;
use crate::core::presence::MembersFound;
use crate::core::state::SharedState;

/// A page of the connections in a topic.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Presence)]
pub(crate) struct PresenceView {
    topic: String,
    /// How many connections are in the topic, on all pages.
    connections: u64,
    /// How many devices have them. In a cluster a very large topic may count a device once for each
    /// of its nodes.
    devices: u64,
    /// In the order of their ids.
    members: Vec<MemberView>,
    /// `after` of the next page; `null` on the last one.
    #[schema(required, pattern = "^[0-9a-f]{16}$")]
    next_after: Option<String>,
    /// `false`: a node has more members than `limits.presence_members_max`, and does not list all.
    complete: bool,
}

/// A connection in a topic.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Member)]
struct MemberView {
    device: String,
    /// Its id: 16 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    connection: String,
    /// The number of its node; only in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u16, required = false)]
    node: Option<u16>,
}

/// The requested page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageAsked {
    after: Option<ConnId>,
    limit: usize,
}

impl PageAsked {
    pub(crate) fn of(query: Option<&str>) -> Result<PageAsked, Problem> {
        let query = Query::parse(query, &["limit", "after"])?;
        let after = query.value("after").map(connection).transpose()?;
        Ok(PageAsked { after, limit: query.limit()? })
    }
}

impl PresenceView {
    /// The caller may see it, and the topic's class has presence.
    ///
    /// Errors: the broker does not answer for a topic of the cluster.
    pub(crate) async fn look(
        shared: &SharedState,
        topic: String,
        asked: PageAsked,
    ) -> Result<PresenceView, Problem> {
        let found = shared.members(&topic, asked.after, asked.limit).await;
        let found = found.map_err(|_| Problem::unknown_to_broker(&topic))?;
        let MembersFound { members, is_last, connections, devices, is_complete, is_cluster } =
            found;
        let last = members.last().filter(|_| !is_last);
        let next_after = last.map(|(conn, _)| conn.to_string());
        let view = |(conn, device): &(ConnId, weir_broker::Name)| MemberView {
            device: device.as_ref().to_owned(),
            connection: conn.to_string(),
            node: is_cluster.then_some(conn.node()),
        };
        let members = members.iter().map(view).collect();
        let complete = is_complete;
        Ok(PresenceView { topic, connections, devices, members, next_after, complete })
    }

    /// The bytes of the answer, about.
    pub(crate) fn bytes(&self) -> usize {
        let of_member = |member: &MemberView| MEMBER_BYTES + member.device.len();
        PAGE_BYTES + self.topic.len() + self.members.iter().map(of_member).sum::<usize>()
    }
}

fn connection(text: &str) -> Result<ConnId, Problem> {
    let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.parse().ok().filter(|_| is_id).ok_or_else(|| {
        let detail = format!("after is {text:?}; it is a connection's id, 16 hexadecimal digits");
        Problem::field("after", detail)
    })
}

/// A member and a page as JSON, beside the names.
const MEMBER_BYTES: usize = 64;
const PAGE_BYTES: usize = 128;
