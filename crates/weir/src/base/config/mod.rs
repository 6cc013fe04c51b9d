//! The configuration: tables of keys with their defaults and ranges. `validate` checks the rules
//! between keys.

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
    /// The configuration of a gateway.
    ///
    /// Shape: one table for each section of the configuration file. The defaults listen on loopback
    /// and admit anyone there.
    /// Limits: [`Config::validate`] names the key, the value and the allowed values.
    pub struct Config {
        /// The listeners' addresses.
        listen: ListenConfig;
        /// The credentials of devices and services.
        auth: AuthConfig;
        /// Access to the admin API: publishing, lists, metrics.
        admin: AdminConfig;
        /// Threads and processors.
        threads: ThreadsConfig;
        /// Memory for messages that wait to be sent, and for retained messages.
        memory: MemoryConfig;
        /// Limits on numbers and sizes. Whatever exceeds a limit is refused and counted.
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
        /// One line for each HTTP request.
        access_log: AccessLogConfig;
        /// The way devices get their tokens.
        activation: ActivationConfig;
        /// The rules for the topics whose names match a pattern.
        ///
        /// The first matching pattern counts. If none matches, messages leave at once, are not
        /// retained, and come only from services and the admin API. Only in the file.
        topic_classes: Vec<TopicClass>, range(0..=CLASSES_MAX), unit("classes"),
            reason(": a new topic's name is compared with them all"),
            allowed("at most {CLASSES_MAX}, each with a pattern of its own");
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
        /// Further names that requests to the admin API may carry as `Host`. The listen address and
        /// the names of loopback are always permitted. The check stops web pages that reach the API
        /// through a name of their own.
        hosts: Vec<String>, range(0..=HOSTS_MAX), unit("names"), reason(HOSTS_REASON);
    }
}

crate::config_table! {
    /// Section `[threads]`.
    pub struct ThreadsConfig {
        /// Threads that hold connections. 0: one for each processor that the affinity mask and the
        /// cgroup quota allow.
        shards: usize, unit("threads"),
            allowed("up to four for each processor and {SHARDS_MAX} at most");
        /// Threads for handshakes, the router and the admin API. 0: derived from the number of
        /// processors.
        front: usize, unit("threads"),
            allowed("up to four for each processor and {SHARDS_MAX} at most");
        /// Whether each shard stays on one processor of the inherited affinity mask. Turn it off if
        /// other programs compete for the same processors.
        pin: bool = true;
    }
}

crate::config_table! {
    /// Section `[memory]`.
    pub struct MemoryConfig {
        /// Bytes that may wait for the sockets of all connections together, divided into shares:
        /// see below. If slow connections need more than their share, the connections that hold the
        /// most are closed. 0: a quarter of the memory that the kernel lets the process have. The
        /// smallest limit counts: the machine's memory, `memory.max` and `memory.high` of the
        /// cgroup and those above it, `RLIMIT_AS`, `RLIMIT_DATA`, and the commit limit if the
        /// kernel does not overcommit. The line `listening` in the log names it.
        budget_bytes: usize, unit("bytes"),
            allowed(
                "0 or at least {BUDGET_BYTES_MIN} and eight times connection.high_watermark_bytes"
            );
        /// The part of the budget for the retained messages of all topics together. Each topic
        /// removes its own oldest messages. 0: a quarter of the budget.
        retention_bytes: usize, unit("bytes"),
            allowed("0 or at most half of memory.budget_bytes");
    }
}

crate::config_table! {
    /// Section `[tcp]`.
    pub struct TcpConfig {
        /// Unsent bytes in the kernel above which a socket takes no more (`TCP_NOTSENT_LOWAT`). If
        /// it is large, a stall shows late and old messages are sent.
        notsent_lowat_bytes: u32 = 16 * 1024, range(1_024..=16 << 20), unit("bytes");
        /// Send buffer of a socket (`SO_SNDBUF`). The kernel doubles it and caps it with
        /// `net.core.wmem_max`. The granted size is printed at the start.
        // The kernel raises smaller values to its own minimum and caps larger ones.
        send_buffer_bytes: usize = 64 * 1024, range(4_096..=64 << 20), unit("bytes");
        /// Receive buffer of a socket (`SO_RCVBUF`). The kernel doubles it and caps it with
        /// `net.core.rmem_max`.
        recv_buffer_bytes: usize = 64 * 1024, range(4_096..=64 << 20), unit("bytes");
        /// Time that sent bytes may stay unacknowledged before the kernel ends the connection
        /// (`TCP_USER_TIMEOUT`).
        user_timeout: Duration = Duration::from_secs(60),
            allowed("above connection.stall_timeout, to {}", time(DAY));
    }
}

impl Config {
    /// Whether devices without a token are admitted: as configured, or if all listeners are on
    /// loopback.
    pub fn admits_anonymous(&self) -> bool {
        let exposed = || self.listen.exposed().is_some();
        self.auth.anonymous.unwrap_or_else(|| !exposed())
    }
}

/// A signed token with its claims has at most a few KiB.
const TOKEN_BYTES_MAX: usize = 4_096;
/// A shard's index has 8 bits in a connection's id.
const SHARDS_MAX: usize = 256;
/// No server has more names.
const HOSTS_MAX: u64 = 256;
const HOSTS_REASON: &str = ": every request is compared with them";
/// A new topic's name is compared with each.
const CLASSES_MAX: u64 = 256;
/// Per second or per minute, as buckets count. One machine takes in less.
const RATE_MAX: u64 = 1_000_000;
/// With less, a few messages would use up the budget.
const BUDGET_BYTES_MIN: usize = 1 << 20;
/// No connection to a device should hold more.
const WATERMARK_BYTES_MAX: usize = 256 << 20;
/// The unit of deadlines, in milliseconds.
const TICK: u64 = 100;
const _: () = assert!(weir_engine::TICK.as_millis() == TICK as u128);

#[cfg(test)]
mod tests;
