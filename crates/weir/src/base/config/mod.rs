//! What can be configured: plain sections with defaults. `validate` checks them before anything starts.

mod access_log;
mod activation;
mod classes;
mod duration;
mod http;
mod jwt;
mod tls;
mod udp;
mod validate;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use weir_engine::Priority;

use crate::base::model::AuthKind;

pub use access_log::{AccessLogConfig, AccessLogFormat};
pub use activation::ActivationConfig;
pub use classes::{Actor, TopicClass};
pub use duration::{DurationError, parse_duration};
pub use http::HttpConfig;
pub use jwt::{JwtAlgorithm, JwtConfig, JwtKeyConfig};
pub use tls::{CertificateConfig, ClientAuth, ClientIdentity, TlsConfig, TlsVersion};
pub use udp::UdpConfig;
pub use validate::ConfigError;
pub(crate) use validate::is_pattern;

/// All that can be configured of a gateway.
///
/// Shape: one section for each heading of the configuration file; the defaults listen on loopback and admit anyone
/// there.
/// Limits: [`Config::validate`] names the key, the value and what is allowed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where to listen.
    pub listen: ListenConfig,
    /// Who may connect.
    pub auth: AuthConfig,
    /// Who may use the admin API.
    pub admin: AdminConfig,
    /// Threads and processors.
    pub threads: ThreadsConfig,
    /// The byte budget.
    pub memory: MemoryConfig,
    /// Counts and sizes.
    pub limits: LimitsConfig,
    /// Times and watermarks of a connection.
    pub connection: ConnectionConfig,
    /// Socket options.
    pub tcp: TcpConfig,
    /// Certificates and sessions of what listens with TLS.
    pub tls: TlsConfig,
    /// Limits of HTTP, and whose pages may use the public API.
    pub http: HttpConfig,
    /// Datagrams: activation, calls and small publishes.
    pub udp: UdpConfig,
    /// A line for each request that comes by HTTP.
    pub access_log: AccessLogConfig,
    /// How devices get their tokens, where a store of devices was given ([`crate::GatewayBuilder::devices`]).
    pub activation: ActivationConfig,
    /// What holds for the topics whose names fit a pattern; the first that fits counts.
    pub topic_classes: Vec<TopicClass>,
}

/// Section `[listen]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenConfig {
    /// Where devices connect. `[::]` takes IPv4 too. Port 0: a free one.
    pub tcp: Vec<SocketAddr>,
    /// Where devices connect with TLS, likewise; by default nowhere.
    pub tls: Vec<SocketAddr>,
    /// Where HTTP is spoken, likewise; none: nowhere.
    pub http: Vec<SocketAddr>,
    /// Where HTTP is spoken over TLS, likewise; by default nowhere.
    pub https: Vec<SocketAddr>,
    /// Where datagrams are answered; `[::]` takes IPv4 too, none: nowhere.
    pub udp: Vec<SocketAddr>,
    /// Where the admin API listens; none: it does not. In the file an empty string stands for none.
    #[serde(deserialize_with = "addr_or_empty")]
    pub admin: Option<SocketAddr>,
    /// Networks of proxies, such as `10.0.0.0/8`: a connection from there begins with a PROXY header, version 1 or 2,
    /// which tells where it really comes from. From elsewhere none is read.
    pub proxy_networks: Vec<IpNet>,
    /// Connections that the kernel may hold ready to be accepted (`listen(2)`; `net.core.somaxconn` caps it).
    pub accept_backlog: u32,
}

/// Section `[auth]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// Whether devices without a token are admitted; absent: if all listeners but the admin API's are on loopback.
    pub anonymous: Option<bool>,
    /// Tokens that admit.
    pub tokens: Vec<TokenConfig>,
    /// Tokens of backend services.
    pub services: Vec<ServiceConfig>,
    /// Tokens that other backends issue.
    pub jwt: JwtConfig,
    /// How long before its credentials end a connection is told.
    #[serde(with = "duration")]
    pub expiring_notice: Duration,
    /// Tokens that admit nobody which one source may show in a second, where they are to be verified or asked for; 0: as
    /// many as it likes. Beyond, its tokens are not looked at for a while, but those that are known here.
    pub failures_per_source_per_second: u32,
    /// Those that it may show at once after a silence.
    pub failures_per_source_burst: u32,
    /// Kinds of credentials whose device ids are not looked up among those of [`crate::TokenSource::state`].
    ///
    /// Otherwise an id that is known there is its device's own: who claims it without a token, with one for any device, or
    /// with a signed one is refused, and so is a certificate of a device that is shut out.
    pub unchecked_ids: Vec<AuthKind>,
}

/// One of `[[auth.tokens]]`.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// The secret.
    pub token: String,
    /// The only device id that it may claim; absent: any.
    #[serde(default)]
    pub device: Option<String>,
    /// When it is the turn of its connections.
    #[serde(default, with = "classes::by_name")]
    pub priority: Priority,
    /// Words that topic classes can grant rights to.
    #[serde(default)]
    pub labels: Vec<String>,
}

/// One of `[[auth.services]]`: a backend program that connects like a device, or calls the admin API.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// The secret.
    pub token: String,
    /// Its name; its connections carry it as their device id.
    pub name: String,
    /// What it may do.
    pub may: Vec<Right>,
}

/// What a service may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Subscribe to any topic whose class names services, as all do unless told otherwise.
    Subscribe,
    /// Publish: to such topics on a connection, and to whatever it likes by the admin API.
    Publish,
    /// See the events of connections.
    Events,
}

impl Right {
    /// Every right.
    pub const ALL: [Right; 3] = [Right::Subscribe, Right::Publish, Right::Events];

    /// The word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Right::Subscribe => "subscribe",
            Right::Publish => "publish",
            Right::Events => "events",
        }
    }
}

/// Section `[admin]`.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// Bearer token; empty: none, on loopback only.
    pub token: String,
    /// Host names that requests may carry beside the listen address and the names of loopback.
    pub hosts: Vec<String>,
}

/// Section `[threads]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadsConfig {
    /// Shards; 0: one for each processor allowed.
    pub shards: usize,
    /// Front threads; 0: from the number of processors. Read by whoever makes the runtime.
    pub front: usize,
    /// Whether shards are pinned, each to a processor of the inherited affinity mask.
    pub pin: bool,
}

/// Section `[memory]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Bytes that may wait for sockets; 0: a quarter of [`crate::Resources::memory_bytes`].
    pub budget_bytes: usize,
    /// Bytes of the budget that all topics together may retain for those who come back; 0: a quarter,
    /// and at most half.
    pub retention_bytes: usize,
}

/// Section `[limits]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Settled connections.
    pub connections_max: usize,
    /// Connections that have not said `Hello` yet, or wait to be taken over.
    pub unsettled_connections_max: usize,
    /// Connections of one device; one more replaces the oldest.
    pub connections_per_device_max: usize,
    /// Topics that exist at one time; half of them may be topics that nobody is in and that keep messages.
    pub topics_max: usize,
    /// Topics that one connection may be in.
    pub topics_per_connection_max: usize,
    /// Length of a topic name.
    pub topic_bytes_max: usize,
    /// Length of a device id.
    pub device_id_bytes_max: usize,
    /// Length of a frame, from a device or to it.
    pub frame_bytes_max: usize,
    /// Length of the frame, or of the message of a WebSocket, that holds `Hello`; no more than `frame_bytes_max` counts.
    pub hello_bytes_max: usize,
    /// Connections from one address (of IPv6: from one /64), settled or not; 0: as many as come.
    pub connections_per_source_max: usize,
    /// Connects that one address may make in a second; 0: as many as come.
    pub connects_per_source_per_second: u32,
    /// Connects that one address may make at once after a silence.
    pub connects_per_source_burst: u32,
    /// Messages that one device's connection may publish in a second; 0: as many as it likes.
    pub publishes_per_second: u32,
    /// Messages that it may publish at once after a silence.
    pub publish_burst: u32,
    /// Other frames that one device's connection may send in a second; 0: as many as it likes.
    pub frames_per_second: u32,
    /// Such frames that it may send at once after a silence; at least twice `topics_per_connection_max` count.
    pub frame_burst: u32,
    /// Keys of one topic that a shard keeps the newest message of, for slow connections.
    pub conflation_keys_max: usize,
}

/// Section `[connection]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionConfig {
    /// From accept to a whole `Hello`.
    #[serde(with = "duration")]
    pub hello_timeout: Duration,
    /// From the first byte of a frame to its last.
    #[serde(with = "duration")]
    pub frame_timeout: Duration,
    /// How long a connection may stay above the high watermark.
    #[serde(with = "duration")]
    pub stall_timeout: Duration,
    /// How long a shutdown takes to say goodbye to all.
    #[serde(with = "duration")]
    pub drain_timeout: Duration,
    /// Interval of the signs of life for devices that do not ask for one.
    #[serde(with = "duration")]
    pub heartbeat: Duration,
    /// The shortest that a device may ask for.
    #[serde(with = "duration")]
    pub heartbeat_min: Duration,
    /// The longest that a device may ask for.
    #[serde(with = "duration")]
    pub heartbeat_max: Duration,
    /// At or below this a stalled connection has recovered.
    pub low_watermark_bytes: usize,
    /// Above this a connection is stalled.
    pub high_watermark_bytes: usize,
}

/// Section `[tcp]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpConfig {
    /// `TCP_NOTSENT_LOWAT`: unsent bytes in the kernel above which a socket takes no more.
    pub notsent_lowat_bytes: u32,
    /// `SO_SNDBUF`; the kernel doubles it.
    pub send_buffer_bytes: usize,
    /// `SO_RCVBUF`; the kernel doubles it.
    pub recv_buffer_bytes: usize,
    /// `TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged.
    #[serde(with = "duration")]
    pub user_timeout: Duration,
}

impl Config {
    /// Whether devices without a token are admitted: as configured, or if all listen on loopback.
    pub fn admits_anonymous(&self) -> bool {
        let exposed = || self.listen.exposed().is_some();
        self.auth.anonymous.unwrap_or_else(|| !exposed())
    }
}

impl LimitsConfig {
    /// The limit on `Hello` that is in force.
    pub(crate) fn hello_bytes_max(&self) -> usize {
        self.hello_bytes_max.min(self.frame_bytes_max)
    }
}

impl ListenConfig {
    /// Whether anything listens with TLS.
    pub(crate) fn has_tls(&self) -> bool {
        !self.tls.is_empty() || !self.https.is_empty()
    }

    /// What strangers may connect to, with the keys, in the order of the file.
    pub(crate) fn doors(&self) -> [(&'static str, &[SocketAddr]); 4] {
        [
            ("listen.tcp", &self.tcp),
            ("listen.tls", &self.tls),
            ("listen.http", &self.http),
            ("listen.https", &self.https),
        ]
    }

    /// The first address that is reached from elsewhere, and the key that it stands under.
    pub(crate) fn exposed(&self) -> Option<(&'static str, SocketAddr)> {
        self.doors().into_iter().find_map(|(key, addrs)| {
            addrs.iter().find(|addr| !addr.ip().is_loopback()).map(|addr| (key, *addr))
        })
    }
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            tcp: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7070))],
            tls: Vec::new(),
            http: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))],
            https: Vec::new(),
            udp: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7070))],
            admin: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7090))),
            proxy_networks: Vec::new(),
            accept_backlog: 4096,
        }
    }
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            anonymous: None,
            tokens: Vec::new(),
            services: Vec::new(),
            jwt: JwtConfig::default(),
            expiring_notice: Duration::from_secs(60),
            failures_per_source_per_second: 1_000,
            failures_per_source_burst: 5_000,
            unchecked_ids: Vec::new(),
        }
    }
}

impl Default for ThreadsConfig {
    fn default() -> Self {
        Self { shards: 0, front: 0, pin: true }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            connections_max: 1_000_000,
            unsettled_connections_max: 16_384,
            connections_per_device_max: 1,
            topics_max: 1_000_000,
            topics_per_connection_max: 64,
            topic_bytes_max: 255,
            device_id_bytes_max: 128,
            frame_bytes_max: 64 * 1024,
            hello_bytes_max: 16 * 1024,
            connections_per_source_max: 0,
            connects_per_source_per_second: 0,
            connects_per_source_burst: 256,
            publishes_per_second: 100,
            publish_burst: 200,
            frames_per_second: 100,
            frame_burst: 1000,
            conflation_keys_max: 4096,
        }
    }
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            hello_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(60),
            heartbeat_min: Duration::from_secs(15),
            heartbeat_max: Duration::from_secs(15 * 60),
            low_watermark_bytes: 32 * 1024,
            high_watermark_bytes: 128 * 1024,
        }
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            notsent_lowat_bytes: 16 * 1024,
            send_buffer_bytes: 64 * 1024,
            recv_buffer_bytes: 64 * 1024,
            user_timeout: Duration::from_secs(60),
        }
    }
}

impl std::fmt::Debug for TokenConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenConfig").field("device", &self.device).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ServiceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceConfig")
            .field("name", &self.name)
            .field("may", &self.may)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for AdminConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = if self.token.is_empty() { "none" } else { "set" };
        f.debug_struct("AdminConfig").field("token", &token).field("hosts", &self.hosts).finish()
    }
}

fn addr_or_empty<'de, D: Deserializer<'de>>(input: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(input)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        serde::de::Error::custom(format_args!(
            "{text:?} is no address: allowed is an IP address and a port, or an empty string for none"
        ))
    })
}

#[cfg(test)]
mod tests;
