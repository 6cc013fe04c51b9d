//! The configuration: tables of keys with their defaults and ranges. `validate` checks how they fit
//! together.

mod access_log;
mod activation;
mod admin;
mod auth;
mod calls;
mod classes;
mod cluster;
mod connection;
mod hooks;
mod http;
mod jwt;
pub mod keys;
mod limits;
mod listen;
mod routes;
mod telemetry;
mod tls;
mod udp;
mod upstreams;
mod validate;

use std::time::Duration;

use self::keys::{DAY, time};
pub use access_log::{AccessLogConfig, AccessLogFormat};
pub use activation::ActivationConfig;
pub(crate) use admin::{ADMIN_NAME_CHARS_MAX, ADMIN_NAMES_TAKEN};
pub use admin::{AdminConfig, AdminScope, AdminTokenConfig};
pub use auth::{AuthConfig, Right, ServiceConfig, TokenConfig};
pub(crate) use calls::METHOD_BYTES_MAX;
pub use calls::{CallProtocol, CallRouteConfig, CallsConfig};
pub use classes::{Actor, TopicClass};
pub use cluster::{ClusterConfig, RedisUrls, Scope};
pub use connection::ConnectionConfig;
pub use hooks::{
    ConnectHookConfig, HooksConfig, NoticeEvent, OnFailure, PublishHookConfig, ReceiverConfig,
    RefreshHookConfig, SubscribeHookConfig,
};
pub(crate) use hooks::{HOOK_SECRET_BYTES_MAX, HOOK_SECRET_BYTES_MIN, PATH_BYTES_MAX};
pub use http::HttpConfig;
pub use jwt::{JwtAlgorithm, JwtConfig, JwtIssuerConfig, JwtKeyConfig};
pub use keys::{ConfigError, DurationError, parse_duration};
pub use limits::LimitsConfig;
pub use listen::ListenConfig;
pub(crate) use routes::{OWN_PATHS, PREFIX_BYTES_MAX};
pub use routes::{RouteAuth, RouteConfig};
pub use telemetry::TelemetryConfig;
pub use tls::{CertificateConfig, ClientAuth, ClientIdentity, TlsConfig, TlsVersion};
pub use udp::UdpConfig;
pub use upstreams::{DnsFamilies, UpstreamConfig, UpstreamProtocol};
pub(crate) use upstreams::{UPSTREAM_NAME_CHARS_MAX, UPSTREAMS_MAX};
pub(crate) use validate::{TOKENS_MAX, is_pattern};

crate::config_table! {
    /// All settings of a gateway.
    ///
    /// Shape: one table for each section of the configuration file. The defaults listen on loopback
    /// and admit anonymous devices there.
    /// Limits: [`Config::validate`] names the key, the value and the allowed values.
    pub struct Config {
        /// The addresses on which the gateway listens.
        listen: ListenConfig;
        /// The devices and services that may connect.
        auth: AuthConfig;
        /// Access to the admin API: publishing, lists, metrics.
        admin: AdminConfig;
        /// Threads and processors.
        threads: ThreadsConfig;
        /// How shards use the kernel.
        engine: EngineConfig;
        /// Memory for messages that wait for sockets, and for messages that topics keep.
        memory: MemoryConfig;
        /// Limits on numbers and sizes. A request beyond a limit is refused and counted.
        limits: LimitsConfig;
        /// Times and watermarks of a connection.
        connection: ConnectionConfig;
        /// Options of the devices' sockets.
        tcp: TcpConfig;
        /// Certificates, sessions and handshakes of `listen.tls` and `listen.https`.
        tls: TlsConfig;
        /// HTTP, on `listen.http` and `listen.https`.
        http: HttpConfig;
        /// Datagrams, on `listen.udp`.
        udp: UdpConfig;
        /// A log with a line for each HTTP request.
        access_log: AccessLogConfig;
        /// What makes several nodes one gateway; see docs/cluster.md.
        cluster: ClusterConfig;
        /// How devices get their tokens.
        activation: ActivationConfig;
        /// Traces for an OpenTelemetry collector.
        telemetry: TelemetryConfig;
        /// Rules for the topics whose names match a pattern.
        ///
        /// The first pattern that matches a topic's name counts. If none matches, messages leave at
        /// once, are not kept, and only services and the admin API may publish. Only the file can
        /// set classes.
        topic_classes: Vec<TopicClass>, range(0..=CLASSES_MAX), unit("classes"),
            reason(": a new topic's name is compared with them all"),
            allowed("at most {CLASSES_MAX}, each with a pattern of its own"), reload();
        /// Services that the gateway calls, each with a name. Only the file can set them.
        upstreams: Vec<UpstreamConfig>, range(0..=UPSTREAMS_MAX), unit("upstreams"),
            reason(": each has its own connections and figures"), reload();
        /// Services that are asked about devices; see docs/hooks.md.
        hooks: Box<HooksConfig>;
        /// Calls of devices to backends, and of backends to devices; see docs/calls.md.
        calls: CallsConfig;
    }
}

crate::config_table! {
    /// Section `[threads]`.
    pub struct ThreadsConfig {
        /// Shards: threads that hold connections. 0: one for each processor that affinity mask and
        /// cgroup quota allow.
        /// More than processors help only with `engine.own_descriptors`.
        shards: usize, range(0..=SHARDS_MAX), unit("threads");
        /// Threads for handshakes, the router and the admin API. 0: chosen by the number of
        /// processors.
        front: usize, unit("threads"),
            allowed("up to four for each processor and {FRONT_MAX} at most");
        /// Whether each shard stays on one processor of the inherited affinity mask. Turn it off if
        /// other programs use the same processors.
        pin: bool = true;
    }
}

crate::config_table! {
    /// Section `[engine]`.
    pub struct EngineConfig {
        /// Whether each shard has a descriptor table of its own. The limit on open files then
        /// counts for each shard, and once more for all that is not settled. So a process holds as
        /// many connections as all its shards together: under a limit of 20,000, about 19,980 for
        /// each of `threads.shards`. Needs Linux 5.9.
        own_descriptors: bool;
    }
}

crate::config_table! {
    /// Section `[memory]`.
    pub struct MemoryConfig {
        /// Bytes that may wait for sockets, for all connections together, divided into shares: see
        /// below. If bytes for slow connections need more than their share, the connections that
        /// hold the most are closed. 0: a quarter of the memory that the kernel lets the process
        /// have. The smallest limit counts: the machine's memory, `memory.max` and `memory.high` of
        /// the cgroup and of those above it, `RLIMIT_AS`, `RLIMIT_DATA`, and the commit limit if
        /// the kernel does not overcommit. The line `listening` in the log names it.
        budget_bytes: usize, unit("bytes"),
            allowed(
                "0 or at least {BUDGET_BYTES_MIN} and eight times connection.high_watermark_bytes"
            );
        /// Part of the budget in which all topics together may keep messages for clients that
        /// resume. Each topic removes its own oldest messages. 0: a quarter of the budget.
        retention_bytes: usize, unit("bytes"),
            allowed("0 or at most half of memory.budget_bytes");
    }
}

crate::config_table! {
    /// Section `[tcp]`.
    pub struct TcpConfig {
        /// Unsent bytes in the kernel above which a socket accepts no more (`TCP_NOTSENT_LOWAT`).
        /// Keep it small: with a large value a stall shows late, and messages are old when they are
        /// sent.
        notsent_lowat_bytes: u32 = 16 * 1024, range(1_024..=16 << 20), unit("bytes");
        /// Send buffer of a socket (`SO_SNDBUF`). The kernel doubles it and caps it by
        /// `net.core.wmem_max`. The granted size is printed at the start.
        // The kernel raises a smaller value to its own minimum, and caps a larger one.
        send_buffer_bytes: usize = 64 * 1024, range(4_096..=64 << 20), unit("bytes");
        /// Receive buffer of a socket (`SO_RCVBUF`). The kernel doubles it and caps it by
        /// `net.core.rmem_max`.
        recv_buffer_bytes: usize = 64 * 1024, range(4_096..=64 << 20), unit("bytes");
        /// How long sent bytes may stay unacknowledged. Then the kernel ends the connection
        /// (`TCP_USER_TIMEOUT`).
        user_timeout: Duration = Duration::from_secs(60),
            allowed("above connection.stall_timeout, to {}", time(DAY));
    }
}

impl Config {
    /// Whether devices without a token are admitted: as configured, or else if all of `listen.tcp`,
    /// `listen.tls`, `listen.http` and `listen.https` are on loopback.
    pub fn admits_anonymous(&self) -> bool {
        let exposed = || self.listen.exposed().is_some();
        self.auth.anonymous.unwrap_or_else(|| !exposed())
    }

    /// To what the topics of a class belong: as configured, or to the cluster if there is one.
    pub fn scope(&self, class: &TopicClass) -> Scope {
        let default = if self.cluster.is_set() { Scope::Cluster } else { Scope::Node };
        class.scope.unwrap_or(default)
    }
}

/// A signed token with its claims has at most a few KiB.
const TOKEN_BYTES_MAX: usize = 4_096;
/// A connection's id has 8 bits for the index of the shard.
const SHARDS_MAX: u64 = 256;
/// Front threads.
const FRONT_MAX: usize = 256;
/// No server has more names.
const HOSTS_MAX: u64 = 256;
const HOSTS_REASON: &str = ": every request is compared with all of them";
/// The name of a new topic is compared with each class.
pub(crate) const CLASSES_MAX: u64 = 256;
/// Per second or per minute, as the token buckets count: more than one machine handles.
const RATE_MAX: u64 = 1_000_000;
/// With less, a few messages on their way would be too many.
const BUDGET_BYTES_MIN: usize = 1 << 20;
/// A connection to a device needs no more.
const WATERMARK_BYTES_MAX: usize = 256 << 20;
/// Deadlines count in clock ticks of this many milliseconds.
const TICK: u64 = 100;
const _: () = assert!(weir_engine::TICK.as_millis() == TICK as u128);

#[cfg(test)]
mod tests;
