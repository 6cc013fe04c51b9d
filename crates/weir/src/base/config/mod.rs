//! What can be configured: tables of keys with their defaults and ranges. `validate` checks how
//! they fit together.

mod access_log;
mod activation;
mod auth;
mod classes;
mod connection;
mod http;
mod jwt;
pub mod keys;
mod limits;
mod listen;
mod tls;
mod udp;
mod validate;

use std::time::Duration;

use self::keys::{DAY, time};
pub use access_log::{AccessLogConfig, AccessLogFormat};
pub use activation::ActivationConfig;
pub use auth::{AuthConfig, Right, ServiceConfig, TokenConfig};
pub use classes::{Actor, TopicClass};
pub use connection::ConnectionConfig;
pub use http::HttpConfig;
pub use jwt::{JwtAlgorithm, JwtConfig, JwtKeyConfig};
pub use keys::{ConfigError, DurationError, parse_duration};
pub use limits::LimitsConfig;
pub use listen::ListenConfig;
pub use tls::{CertificateConfig, ClientAuth, ClientIdentity, TlsConfig, TlsVersion};
pub use udp::UdpConfig;
pub(crate) use validate::is_pattern;

crate::config_table! {
    /// All that can be configured of a gateway.
    ///
    /// Shape: one table for each section of the configuration file; the defaults listen on loopback
    /// and admit anyone there.
    /// Limits: [`Config::validate`] names the key, the value and what is allowed.
    pub struct Config {
        /// Where the gateway listens.
        listen: ListenConfig;
        /// Who may connect, as a device or as a service of yours.
        auth: AuthConfig;
        /// Who may use the admin API: publishing, lists, metrics.
        admin: AdminConfig;
        /// Threads and processors.
        threads: ThreadsConfig;
        /// Memory for what waits to be sent, and for what is kept for those who come back.
        memory: MemoryConfig;
        /// How many and how large. What is over a limit is refused, and counted.
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
        /// A line for each request that comes by HTTP.
        access_log: AccessLogConfig;
        /// How devices get their tokens.
        activation: ActivationConfig;
        /// What holds for the topics whose names fit a pattern.
        ///
        /// The first pattern that fits a topic's name counts. Where none fits, messages leave at
        /// once, are not kept, and come from services and the admin API only. Only in the file.
        topic_classes: Vec<TopicClass>, range(0..=CLASSES_MAX), unit("classes"),
            reason(": a new topic's name is compared with all"),
            allowed("at most {CLASSES_MAX}, each with names of its own");
    }
}

crate::config_table! {
    /// Section `[admin]`.
    pub struct AdminConfig {
        /// Bearer token that requests to the admin API must carry. Empty: none.
        token: String, secret(),
            allowed(
                "at most {TOKEN_BYTES_MAX} bytes; not empty if listen.admin is not on loopback"
            );
        /// Names that requests to the admin API may carry as `Host`, beside the listen address and
        /// the names of loopback: a guard against web pages that reach it through a name of their
        /// own.
        hosts: Vec<String>, range(0..=HOSTS_MAX), unit("names"), reason(HOSTS_REASON);
    }
}

crate::config_table! {
    /// Section `[threads]`.
    pub struct ThreadsConfig {
        /// Threads that hold connections. 0: one for each processor that affinity mask and cgroup
        /// quota allow.
        shards: usize, unit("threads"),
            allowed("up to four for each processor and {SHARDS_MAX} at most");
        /// Threads for handshakes, the router and the admin API. 0: from the number of processors.
        front: usize, unit("threads"),
            allowed("up to four for each processor and {SHARDS_MAX} at most");
        /// Whether each shard stays on one processor of the inherited affinity mask. Turn it off
        /// where other programs compete for the same processors.
        pin: bool = true;
    }
}

crate::config_table! {
    /// Section `[memory]`.
    pub struct MemoryConfig {
        /// Bytes that may wait for sockets, all connections together, in shares: see below. When
        /// what waits for slow connections needs more than its share, the connections that hold the
        /// most are closed. 0: a quarter of the memory that the kernel lets the process have. The
        /// smallest limit counts: the machine's memory, `memory.max` and `memory.high` of the
        /// cgroup and those above it, `RLIMIT_AS`, `RLIMIT_DATA`, and the commit limit where
        /// nothing is overcommitted. The line `listening` in the log says which.
        budget_bytes: usize, unit("bytes"),
            allowed(
                "0 or at least {BUDGET_BYTES_MIN} and eight times connection.high_watermark_bytes"
            );
        /// Part of the budget that the topics of all classes may keep together for those who come
        /// back; each topic lets go of its own oldest. 0: a quarter of the budget.
        retention_bytes: usize, unit("bytes"),
            allowed("0 or at most half of memory.budget_bytes");
    }
}

crate::config_table! {
    /// Section `[tcp]`.
    pub struct TcpConfig {
        /// Unsent bytes in the kernel above which a socket takes no more (`TCP_NOTSENT_LOWAT`).
        /// Small, or a stall shows late and what is sent is stale.
        notsent_lowat_bytes: u32 = 16 * 1024, range(1_024..=16 << 20), unit("bytes");
        /// Send buffer of a socket (`SO_SNDBUF`). The kernel doubles it, and caps it by
        /// `net.core.wmem_max`; what it granted is printed at the start.
        // The kernel raises less to its own minimum, and caps more.
        send_buffer_bytes: usize = 64 * 1024, range(4_096..=64 << 20), unit("bytes");
        /// Receive buffer of a socket (`SO_RCVBUF`). The kernel doubles it, and caps it by
        /// `net.core.rmem_max`.
        recv_buffer_bytes: usize = 64 * 1024, range(4_096..=64 << 20), unit("bytes");
        /// How long sent bytes may stay unacknowledged before the kernel ends the connection
        /// (`TCP_USER_TIMEOUT`).
        user_timeout: Duration = Duration::from_secs(60),
            allowed("above connection.stall_timeout, to {}", time(DAY));
    }
}

impl Config {
    /// Whether devices without a token are admitted: as configured, or if all listen on loopback.
    pub fn admits_anonymous(&self) -> bool {
        let exposed = || self.listen.exposed().is_some();
        self.auth.anonymous.unwrap_or_else(|| !exposed())
    }
}

/// A signed token with its claims has a few KiB at the most.
const TOKEN_BYTES_MAX: usize = 4_096;
/// A shard's index stands in 8 bits of a connection's id.
const SHARDS_MAX: usize = 256;
/// More names than a server goes by.
const HOSTS_MAX: u64 = 256;
const HOSTS_REASON: &str = ": requests are looked for in all of them";
/// A new topic's name is compared with each.
const CLASSES_MAX: u64 = 256;
/// A second, or a minute, as buckets count: more than one machine takes in.
const RATE_MAX: u64 = 1_000_000;
/// Below this a handful of messages on their way is too much.
const BUDGET_BYTES_MIN: usize = 1 << 20;
/// One connection that may hold more than this is no connection to a device.
const WATERMARK_BYTES_MAX: usize = 256 << 20;
/// Deadlines are kept in ticks of so many milliseconds.
const TICK: u64 = 100;
const _: () = assert!(weir_engine::TICK.as_millis() == TICK as u128);

#[cfg(test)]
mod tests;
