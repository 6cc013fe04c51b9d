//! The broker that keeps everything in Redis 7: a single server, a primary with replicas, or Redis Cluster.
//!
//! | part | does | does not |
//! |---|---|---|
//! | `keys` | names keys and channels, and knows their slots | talk to Redis |
//! | `scripts` | what must happen in Redis at once (Lua) | decide when |
//! | `dial` | connects: TCP, TLS, user and password | try again |
//! | `requests` | gathers requests to one Redis node into pipelines | know what they mean |
//! | `subscriber` | keeps the subscriptions at one Redis node, and tells gaps | know other Redis nodes |
//! | `discovery`, `servers` | which Redis node has what; follow failovers and moved slots | know topics |
//! | `eviction` | tells if Redis may remove keys | change it |
//! | `look` | asks each Redis for its clock and its eviction policy, for operators | belong to a broker |
//! | `lineage` | lets topics move between the primaries of a Redis Cluster without a new epoch | move them |
//! | `client` | opens and closes, bounds what waits | know topics |
//! | `clock` | what Redis' clock shows at the latest | ask for it |
//! | `topics`, `devices`, `nodes`, `presence`, `sessions` | the contract's methods | talk to Redis themselves |
//! | `attendance` | which topics have subscribers, and who begins and ends their occupancy | talk to Redis itself |
//! | `dead` | lets the members and subscribers of dead nodes leave | decide which nodes live |
//! | `handover` | lets another process go on as this node | serve |
//! | `bare` | what a bare client sends to publish: for measuring | belong to the broker |
//!
//! Commands go through the `redis` crate's multiplexed connections. Subscriptions have connections of their own: see
//! `subscriber`.

mod attendance;
mod backoff;
mod bare;
mod claimed;
mod client;
mod clock;
mod counts;
mod dead;
mod devices;
mod dial;
mod discovery;
mod eviction;
mod handover;
mod health;
mod keys;
mod lineage;
mod look;
mod message;
mod nodes;
mod options;
mod presence;
mod present;
mod requests;
mod scripts;
mod servers;
mod sessions;
mod subscriber;
mod tls;
mod topics;
mod values;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinHandle;

pub use self::bare::PublishScript;
use self::client::Client;
use self::keys::Interest;
pub use self::look::{RedisAnswer, RedisInfo, ask_redis};
pub use self::options::RedisOptions;
use crate::contract::{Answer, Broker, BrokerCounts, Error, EventHandler, Published};
use crate::records::{
    Attendance, Batch, Claim, ConnectionNumber, Entry, History, HistoryQuery, Member, MemberPage,
    Name, Node, NodeNumber, NodeState, Occupancy, Position, Reach, RevocationId, Revocations,
    SessionId, StoredSession,
};

/// A broker in Redis. Dropped, it ends at once, and its node counts as living for some seconds.
pub struct RedisBroker {
    client: Arc<Client>,
    /// Follow Redis' failovers, renew what expires, and look for dead nodes.
    tasks: [JoinHandle<()>; 3],
}

impl RedisBroker {
    /// Connects, and joins the cluster.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: Redis cannot be reached. [`Error::Refused`]: an option cannot be. [`Error::OtherCluster`].
    pub async fn open(
        options: RedisOptions,
        handler: Arc<dyn EventHandler>,
    ) -> Result<RedisBroker, Error> {
        let client = Arc::new(Client::open(options, handler).await?);
        let (watching, renewing, looking) = (client.clone(), client.clone(), client.clone());
        let watching = tokio::spawn(async move { watching.servers.watch().await });
        let renewing = tokio::spawn(async move { renewing.renew().await });
        let looking = tokio::spawn(async move { looking.end_dead().await });
        let broker = RedisBroker { client, tasks: [watching, renewing, looking] };
        broker.client.begin().await?;
        Ok(broker)
    }
}

impl Broker for RedisBroker {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn counts(&self) -> BrokerCounts {
        self.client.context.counts.read()
    }

    fn number(&self) -> NodeNumber {
        NodeNumber(self.client.context.number.load(Ordering::Relaxed))
    }

    fn state(&self) -> Answer<'_, Option<NodeState>> {
        Box::pin(async { Ok(Some(self.client.node_state().await)) })
    }

    fn go_on(&self, state: NodeState) -> Answer<'_, ()> {
        Box::pin(async move { self.client.go_on_later(&state).await })
    }

    fn hush(&self) {
        let [_watching, renewing, looking] = &self.tasks;
        renewing.abort();
        looking.abort();
        self.client.servers.hush();
    }

    fn publish(&self, batches: Vec<Batch>) -> Answer<'_, Vec<Result<Published, Error>>> {
        Box::pin(async { Ok(self.client.publish_all(batches).await) })
    }

    fn join(&self, topics: Vec<Name>) -> Answer<'_, ()> {
        Box::pin(self.client.join_all(topics.into_iter().map(Interest::Topic).collect()))
    }

    fn leave(&self, topics: Vec<Name>) -> Answer<'_, ()> {
        Box::pin(self.client.leave_all(topics.into_iter().map(Interest::Topic).collect()))
    }

    fn read(&self, queries: Vec<HistoryQuery>) -> Answer<'_, Vec<History>> {
        Box::pin(self.client.read_all(queries))
    }

    fn tops(&self, topics: Vec<Name>) -> Answer<'_, Vec<Position>> {
        Box::pin(self.client.all_tops(topics))
    }

    fn claim(&self, claims: Vec<Claim>) -> Answer<'_, ()> {
        Box::pin(self.client.claim_all(claims))
    }

    fn release(&self, claims: Vec<Claim>) -> Answer<'_, ()> {
        Box::pin(self.client.release_all(claims))
    }

    fn to_device(&self, device: Name, message: Entry) -> Answer<'_, u32> {
        Box::pin(async move { self.client.send_to_device(device, &message).await })
    }

    fn to_all(&self, message: Entry) -> Answer<'_, Reach> {
        Box::pin(async move { self.client.send_to_all(&message).await })
    }

    fn to_node(&self, node: NodeNumber, payload: Vec<u8>) -> Answer<'_, bool> {
        Box::pin(async move { self.client.send_to_node(node, &payload).await })
    }

    fn revoke(&self, device: Name) -> Answer<'_, RevocationId> {
        Box::pin(self.client.revoke_device(device))
    }

    fn revocations(&self, after: Option<RevocationId>) -> Answer<'_, Revocations> {
        Box::pin(self.client.read_revocations(after))
    }

    fn announce(&self, node: Node) -> Answer<'_, ()> {
        Box::pin(self.client.announce_as(Some(node)))
    }

    fn nodes(&self) -> Answer<'_, Vec<Node>> {
        Box::pin(self.client.list_nodes())
    }

    fn retire(&self) -> Answer<'_, ()> {
        Box::pin(self.client.retire_all())
    }

    fn enter(&self, members: Vec<(Name, Member)>) -> Answer<'_, ()> {
        Box::pin(self.client.enter_all(members))
    }

    fn exit(&self, members: Vec<(Name, Member)>) -> Answer<'_, ()> {
        Box::pin(self.client.exit_members(members))
    }

    fn members(
        &self,
        topic: Name,
        after: Option<ConnectionNumber>,
        limit: usize,
    ) -> Answer<'_, MemberPage> {
        Box::pin(self.client.list_members(topic, after, limit))
    }

    fn attend(&self, topics: Vec<Attendance>) -> Answer<'_, Vec<Occupancy>> {
        Box::pin(self.client.attend_all(topics))
    }

    fn keep_sessions(&self, kept: Vec<StoredSession>, forgotten: Vec<SessionId>) -> Answer<'_, ()> {
        Box::pin(self.client.keep_all_sessions(kept, forgotten))
    }

    fn session(&self, id: SessionId) -> Answer<'_, Option<Vec<u8>>> {
        Box::pin(self.client.find_session(id))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.client.close().await;
            self.tasks.iter().for_each(JoinHandle::abort);
            Ok(())
        })
    }
}

impl Drop for RedisBroker {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
