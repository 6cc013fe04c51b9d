//! Section `[cluster]`.

use std::path::PathBuf;
use std::time::Duration;

use super::keys::{MINUTE, Raw, SECOND, Value};

crate::config_table! {
    /// Section `[cluster]`: what makes several nodes one gateway.
    pub struct ClusterConfig {
        /// Where the Redis is that holds the nodes together: `redis://[[user]:password@]host[:port][/database]`,
        /// `rediss://…` over TLS, or a list: a primary with its replicas, or some servers of a Redis
        /// Cluster. Empty: this node works alone. Redis must not evict (`maxmemory-policy
        /// noeviction`).
        redis: RedisUrls, allowed("redis://… or rediss://…; several only of one Redis; \"\" for none"),
            secret();
        /// The user of Redis, where its URL names none. Empty: the default user.
        user: String, allowed("\"\" if a URL names a user; needs a password");
        /// The password, where the URL has none.
        password: String, allowed("\"\" if a URL has one"), secret();
        /// PEM file of the authorities that sign the certificate of a Redis over TLS. Empty: those
        /// that the machine trusts.
        ca: PathBuf, allowed("\"\" without rediss://");
        /// What all keys and channels in Redis begin with: several clusters can share a Redis.
        prefix: String = "weir".to_owned(),
            allowed("1 to {PREFIX_BYTES_MAX} visible ASCII characters without braces and *");
        /// The name of the cluster. A node whose cluster has another name than those that use the
        /// prefix already is refused at the start. Empty: the prefix is the name.
        id: String, allowed("at most {NAME_BYTES_MAX} visible ASCII characters");
        /// The name of this node in lists and logs. It need not be unique: numbers tell nodes
        /// apart. Empty: the name of the host.
        node: String, allowed("at most {NAME_BYTES_MAX} visible ASCII characters");
        /// How long Redis may take for a call, except for publishing. Then what needed it is
        /// refused with `busy`, or tried again.
        timeout: Duration = Duration::from_millis(500), range(10..=10 * SECOND);
        /// How long a publish may take, waiting and attempts included. Then it is answered with 503
        /// `uncertain`: Redis may have carried it out. Longer than a failover that clients should
        /// not notice, shorter than publishers wait.
        publish_timeout: Duration = Duration::from_secs(2),
            allowed("cluster.timeout to {PUBLISH_TIMEOUT_MAX:?}");
        /// Requests that may wait for Redis. One more is refused with `busy`: a second of a fast
        /// Redis.
        // Each takes some 300 bytes beside its message.
        waiting_max: usize = 65_536, range(1..=1_000_000), unit("requests");
        /// Bytes of messages that may wait for Redis.
        waiting_bytes_max: usize = 32 << 20, unit("bytes"),
            allowed("limits.frame_bytes_max to {WAITING_BYTES_MAX}");
        /// How long calls wait, in microseconds, to leave together while others are under way: one
        /// system call for many saves CPU time here and in Redis. 0: not at all.
        // A round trip on one machine takes about as long.
        flush_delay_us: u32 = 100, range(0..=10_000), unit("microseconds");
        /// Replicas that must have a message before its publish counts as done (`WAIT`). With 0 the
        /// primary alone decides, and a failover may lose what it has accepted last; subscribers
        /// are then told. More costs a trip to the replicas.
        wait_replicas: u32, range(0..=REPLICAS_MAX), unit("replicas");
        /// How long a node that is not heard of counts as alive. Shorter, and a short trouble of
        /// the network ends its devices' claims; longer, and the dead are listed for longer.
        node_ttl: Duration = Duration::from_secs(6),
            allowed("four times cluster.timeout to {NODE_TTL_MAX:?}");
        /// How long the members of a node that is no longer alive stay in the presence of topics,
        /// beyond `node_ttl`. Time in which no node can reach Redis does not count. Shorter, and a
        /// room is told of all that leave and enter when a node is away for a moment.
        presence_kept: Duration = Duration::from_secs(30), range(SECOND..=10 * MINUTE);
        /// How long a node goes on listening to a topic that its last subscriber has left, so that
        /// short visits do not reach Redis. 0: not at all.
        leave_delay: Duration = Duration::from_secs(30), range(0..=10 * MINUTE);
    }
}

/// Servers of one Redis, as URLs, which may hold passwords.
///
/// Shape: in a file a text or a list of texts; in a text commas separate them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisUrls(pub Vec<String>);

weir_wire::named_enum! {
    /// To what something belongs: a topic with its offsets, its epoch and its messages; stored
    /// sessions of TLS.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Scope {
        /// To one node: the others do not know it.
        Node = "node",
        /// To all nodes of the cluster together.
        Cluster = "cluster",
    }
}

crate::config_words!(Scope);

impl ClusterConfig {
    /// Whether this node belongs to a cluster.
    pub fn is_set(&self) -> bool {
        !self.redis.0.is_empty()
    }

    /// The name of the cluster, as configured or by default.
    pub fn id(&self) -> &str {
        if self.id.is_empty() { &self.prefix } else { &self.id }
    }

    /// The name of this node, as configured or by default.
    pub fn node(&self) -> String {
        if !self.node.is_empty() {
            return self.node.clone();
        }
        let system = rustix::system::uname();
        let mut name = system.nodename().to_string_lossy().into_owned();
        name.retain(|character| character.is_ascii_graphic());
        name.truncate(NAME_BYTES_MAX);
        name
    }
}

impl Value for RedisUrls {
    fn kind(&self) -> String {
        "a URL or a list of URLs".to_owned()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        if let Some(text) = raw.as_str() {
            return self.read_text(text);
        }
        let texts =
            raw.as_array().map(|items| items.iter().map(|item| item.as_str().map(str::to_owned)));
        let urls: Option<Vec<String>> = texts.and_then(Iterator::collect);
        let is_read = urls.is_some();
        if let Some(urls) = urls {
            self.0 = urls;
        }
        is_read
    }

    fn read_text(&mut self, text: &str) -> bool {
        let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
        self.0 = urls.map(str::to_owned).collect();
        true
    }

    fn show(&self) -> Option<String> {
        Some(Raw::from(self.0.join(",")).to_string())
    }
}

/// URLs may hold passwords: only their number is shown.
impl std::fmt::Debug for RedisUrls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({} URLs)", self.0.len())
    }
}

/// Every key carries it.
pub(super) const PREFIX_BYTES_MAX: usize = 64;
/// Every answer of the list of nodes carries it.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// Publishers do not wait for longer.
pub(super) const PUBLISH_TIMEOUT_MAX: Duration = Duration::from_millis(MINUTE);
/// More is a sign that Redis does not follow.
pub(super) const WAITING_BYTES_MAX: usize = 1 << 30;
/// More replicas than a primary has.
const REPLICAS_MAX: u64 = 16;
/// So long a device may seem present whose node is dead.
pub(super) const NODE_TTL_MAX: Duration = Duration::from_millis(MINUTE);
/// Servers to begin with; a Redis Cluster names the others.
pub(super) const URLS_MAX: usize = 64;
/// A user's name, a password and a host.
pub(super) const URL_BYTES_MAX: usize = 2_048;
