//! What values are allowed, and why.

mod activation;
mod auth;
mod classes;
mod http;
mod jwt;
mod origins;
mod tls;
mod udp;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};

use super::{AccessLogConfig, Config, ConnectionConfig};
use crate::Resources;
use crate::base::host::is_host;
pub(crate) use classes::is_pattern;

/// A value that is not allowed: the operator's to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: allowed is {allowed}")]
pub struct ConfigError {
    /// The key, with its section.
    pub key: String,
    /// The value that stands there; never a secret.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
    /// The keys that decide what is allowed here, if others do: the value may be one that nobody has set.
    pub depends_on: &'static [&'static str],
}

impl Config {
    /// Checks every value, and how they fit together.
    ///
    /// Errors: the first key at fault.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_for(&Resources::detect())
    }

    pub(super) fn validate_for(&self, resources: &Resources) -> Result<(), ConfigError> {
        self.check_listen()?;
        self.check_auth()?;
        self.check_jwt()?;
        self.check_admin()?;
        self.check_threads(resources.processors.len())?;
        self.check_memory(resources)?;
        self.check_limits()?;
        self.check_rates()?;
        self.check_times()?;
        self.check_watermarks()?;
        self.check_derived_budget(resources)?;
        self.check_tcp()?;
        self.check_tls()?;
        self.check_http()?;
        self.check_udp()?;
        self.check_origins()?;
        self.check_access_log()?;
        self.check_activation()?;
        self.check_classes(self.retention_bytes(resources))
    }

    fn check_listen(&self) -> Result<(), ConfigError> {
        if self.listen.doors().iter().all(|(_, addrs)| addrs.is_empty()) {
            let allowed =
                "at least one address, here or in listen.tls, listen.http or listen.https";
            return Err(error("listen.tcp", "[]", allowed));
        }
        // The kernel keeps the backlog in 32 bits and caps it with somaxconn; above 16 bits old ones wrap.
        within("listen.accept_backlog", self.listen.accept_backlog, 1..=65_535)?;
        self.check_proxy_networks()
    }

    fn check_proxy_networks(&self) -> Result<(), ConfigError> {
        let networks = &self.listen.proxy_networks;
        if networks.len() > NETWORKS_MAX {
            let value = format!("({} networks)", networks.len());
            let allowed = format!("at most {NETWORKS_MAX}: every accept looks through them");
            return Err(error("listen.proxy_networks", value, allowed));
        }
        for (index, network) in networks.iter().enumerate() {
            let key = format!("listen.proxy_networks[{index}]");
            let mapped = mapped(network);
            if network.prefix_len() == 0 || mapped.is_some_and(|mapped| mapped.prefix_len() == 0) {
                let allowed = "the networks of your proxies only: all the world is in this one, and anyone could \
                               claim any address in a PROXY header";
                return Err(error(&key, format_args!("\"{network}\""), allowed));
            }
            if network.trunc() != *network {
                let allowed = format!(
                    "\"{}\", or a longer prefix: the address has bits beyond the prefix",
                    network.trunc()
                );
                return Err(error(&key, format_args!("\"{network}\""), allowed));
            }
            if let Some(mapped) = mapped {
                let allowed = format!("\"{mapped}\": a peer over IPv4 is looked for as that");
                return Err(error(&key, format_args!("\"{network}\""), allowed));
            }
        }
        Ok(())
    }

    fn check_admin(&self) -> Result<(), ConfigError> {
        if self.admin.token.len() > TOKEN_BYTES_MAX {
            let value = format!("({} bytes)", self.admin.token.len());
            return Err(error("admin.token", value, format!("at most {TOKEN_BYTES_MAX} bytes")));
        }
        // Spaces around it are cut off what a request shows, and other bytes no client sends: it would never match.
        if !self.admin.token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let allowed = "printable ASCII without spaces, as it stands in a header";
            return Err(error("admin.token", "(hidden)", allowed));
        }
        check_hosts("admin.hosts", &self.admin.hosts)?;
        match self.listen.admin {
            Some(addr) if !addr.ip().is_loopback() && self.admin.token.is_empty() => {
                let allowed = format!(
                    "a token, since listen.admin = {addr} is not on loopback: whoever reaches it could publish"
                );
                let depends_on = &["listen.admin"];
                Err(ConfigError { depends_on, ..error("admin.token", "\"\"", allowed) })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_threads(&self, processors: usize) -> Result<(), ConfigError> {
        // More shards than processors only help to try things out; a connection's id names its shard in 8 bits.
        let max = (processors * 4).min(SHARDS_MAX);
        within("threads.shards", self.threads.shards, 0..=max)?;
        within("threads.front", self.threads.front, 0..=max)?;
        Ok(())
    }

    fn check_memory(&self, resources: &Resources) -> Result<(), ConfigError> {
        let memory = &self.memory;
        let min = self.budget_bytes_min();
        if memory.budget_bytes != 0 && memory.budget_bytes < min {
            let allowed = format!(
                "0 (a quarter of the memory), or at least {min}: 1 MiB, and eight stalled connections' worth"
            );
            return Err(error("memory.budget_bytes", memory.budget_bytes, allowed));
        }
        let limit = resources.budget_bytes(memory) / 2;
        if memory.retention_bytes > limit {
            let allowed = format!(
                "0 (a quarter of the budget) to {limit}, half of the budget (memory.budget_bytes): the rest is for what \
                 is on its way"
            );
            let depends_on = &["memory.budget_bytes"];
            let error = error("memory.retention_bytes", memory.retention_bytes, allowed);
            return Err(ConfigError { depends_on, ..error });
        }
        Ok(())
    }

    /// What a small machine has a quarter of may be too little.
    fn check_derived_budget(&self, resources: &Resources) -> Result<(), ConfigError> {
        let (budget, min) = (resources.budget_bytes(&self.memory), self.budget_bytes_min());
        if budget >= min {
            return Ok(());
        }
        let (memory, limit) = (resources.memory_bytes, resources.memory_limit);
        let value =
            format!("{} ({budget}, a quarter of {memory}: {limit})", self.memory.budget_bytes);
        let allowed = format!(
            "at least {min}: 1 MiB, and eight stalled connections' worth (connection.high_watermark_bytes); set it, or \
             lower that"
        );
        let depends_on = &["connection.high_watermark_bytes"];
        Err(ConfigError { depends_on, ..error("memory.budget_bytes", value, allowed) })
    }

    fn budget_bytes_min(&self) -> usize {
        // A quarter of the budget is for what waits for slow connections.
        BUDGET_BYTES_MIN.max(self.connection.high_watermark_bytes.saturating_mul(8))
    }

    /// What all topics together may retain.
    pub(crate) fn retention_bytes(&self, resources: &Resources) -> usize {
        match self.memory.retention_bytes {
            0 => resources.budget_bytes(&self.memory) / 4,
            bytes => bytes,
        }
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        // A shard numbers its connections in 24 bits, and all of them may meet on one.
        within("limits.connections_max", limits.connections_max, 1..=CONNECTIONS_MAX)?;
        within(
            "limits.unsettled_connections_max",
            limits.unsettled_connections_max,
            1..=1_000_000,
        )?;
        // A device's connections are walked one by one for every push to it.
        within("limits.connections_per_device_max", limits.connections_per_device_max, 1..=1_024)?;
        within("limits.topics_max", limits.topics_max, 1..=CONNECTIONS_MAX)?;
        // A connection's topics are walked when it leaves one.
        within("limits.topics_per_connection_max", limits.topics_per_connection_max, 1..=4_096)?;
        // Names travel in every message.
        within("limits.topic_bytes_max", limits.topic_bytes_max, 1..=1_024)?;
        within("limits.device_id_bytes_max", limits.device_id_bytes_max, 1..=1_024)?;
        // Below 1 KiB no Hello with a signed token fits; above 16 MiB one frame is a file, not a message.
        within("limits.frame_bytes_max", limits.frame_bytes_max, 1_024..=16 * 1024 * 1024)?;
        // A peer can have so many bytes kept before its credentials are known.
        within("limits.hello_bytes_max", limits.hello_bytes_max, 1_024..=16 * 1024 * 1024)?;
        // Each key that a shard keeps holds a message; a topic with more of them wants to be several.
        within("limits.conflation_keys_max", limits.conflation_keys_max, 1..=1_048_576)
    }

    fn check_rates(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let key = "limits.connections_per_source_max";
        within(key, limits.connections_per_source_max, 0..=CONNECTIONS_MAX)?;
        let key = "limits.connects_per_source_per_second";
        within(key, limits.connects_per_source_per_second, 0..=RATE_MAX)?;
        // Without a burst not even the first would get in.
        let key = "limits.connects_per_source_burst";
        within(key, limits.connects_per_source_burst, 1..=RATE_MAX)?;
        within("limits.publishes_per_second", limits.publishes_per_second, 0..=RATE_MAX)?;
        within("limits.publish_burst", limits.publish_burst, 1..=RATE_MAX)?;
        within("limits.frames_per_second", limits.frames_per_second, 0..=RATE_MAX)?;
        within("limits.frame_burst", limits.frame_burst, 1..=RATE_MAX)
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        let ConnectionConfig { heartbeat, heartbeat_min, heartbeat_max, .. } = self.connection;
        let timeouts = [
            ("connection.hello_timeout", self.connection.hello_timeout),
            ("connection.frame_timeout", self.connection.frame_timeout),
            ("connection.stall_timeout", self.connection.stall_timeout),
        ];
        for (key, value) in timeouts {
            // Deadlines are kept in ticks of 100 ms.
            within_time(key, value, TICK, HOUR, "")?;
        }
        within_time(
            "connection.drain_timeout",
            self.connection.drain_timeout,
            Duration::ZERO,
            HOUR,
            "",
        )?;
        within_time("connection.heartbeat_min", heartbeat_min, 2 * TICK, HOUR, "")?;
        let why = ", not below connection.heartbeat_min";
        within_time("connection.heartbeat_max", heartbeat_max, heartbeat_min, DAY, why)
            .map_err(|error| ConfigError { depends_on: &["connection.heartbeat_min"], ..error })?;
        let why = ", the bounds heartbeat_min and heartbeat_max";
        let depends_on: &[_] = if heartbeat < heartbeat_min {
            &["connection.heartbeat_min"]
        } else {
            &["connection.heartbeat_max"]
        };
        within_time("connection.heartbeat", heartbeat, heartbeat_min, heartbeat_max, why)
            .map_err(|error| ConfigError { depends_on, ..error })
    }

    fn check_watermarks(&self) -> Result<(), ConfigError> {
        let ConnectionConfig { low_watermark_bytes: low, high_watermark_bytes: high, .. } =
            self.connection;
        within("connection.low_watermark_bytes", low, 1_024..=WATERMARK_BYTES_MAX)?;
        let min = low + self.limits.frame_bytes_max;
        if !(min..=WATERMARK_BYTES_MAX + self.limits.frame_bytes_max).contains(&high) {
            let allowed = format!(
                "{min} (low_watermark_bytes + limits.frame_bytes_max, so that no single message stalls a connection) to {}",
                WATERMARK_BYTES_MAX + self.limits.frame_bytes_max
            );
            let depends_on = &["limits.frame_bytes_max", "connection.low_watermark_bytes"];
            let error = error("connection.high_watermark_bytes", high, allowed);
            return Err(ConfigError { depends_on, ..error });
        }
        Ok(())
    }

    fn check_access_log(&self) -> Result<(), ConfigError> {
        let log = &self.access_log;
        // At a million requests a second one in a million is still a line a second.
        within("access_log.sample", log.sample, 1..=1_000_000)?;
        let range = AccessLogConfig::QUEUE_BYTES_MIN..=AccessLogConfig::QUEUE_BYTES_MAX;
        within("access_log.queue_bytes", log.queue_bytes, range)
    }

    fn check_tcp(&self) -> Result<(), ConfigError> {
        let tcp = &self.tcp;
        within("tcp.notsent_lowat_bytes", tcp.notsent_lowat_bytes, 1_024..=16 * 1024 * 1024)?;
        // The kernel raises less to its own minimum, and caps more with wmem_max and rmem_max.
        within("tcp.send_buffer_bytes", tcp.send_buffer_bytes, 4_096..=BUFFER_BYTES_MAX)?;
        within("tcp.recv_buffer_bytes", tcp.recv_buffer_bytes, 4_096..=BUFFER_BYTES_MAX)?;
        let above = self.connection.stall_timeout + Duration::from_millis(1);
        let why = ": above connection.stall_timeout, or the kernel kills a stalled connection without a reason";
        within_time("tcp.user_timeout", tcp.user_timeout, above, DAY, why)
            .map_err(|error| ConfigError { depends_on: &["connection.stall_timeout"], ..error })
    }
}

/// Rules of a list of names that requests may carry as `Host`.
fn check_hosts(key: &str, hosts: &[String]) -> Result<(), ConfigError> {
    if hosts.len() > HOSTS_MAX {
        let allowed = format!("at most {HOSTS_MAX}: requests are looked for in all of them");
        return Err(error(key, format_args!("({} names)", hosts.len()), allowed));
    }
    match hosts.iter().position(|host| !is_host(host)) {
        Some(index) => {
            let allowed = "a host name with or without a port, as it stands in the header Host: gate.example or \
                           gate.example:7090";
            Err(error(&format!("{key}[{index}]"), format_args!("{:?}", hosts[index]), allowed))
        }
        None => Ok(()),
    }
}

fn error(key: &str, value: impl Display, allowed: impl Display) -> ConfigError {
    let (value, allowed) = (value.to_string(), allowed.to_string());
    ConfigError { key: key.to_owned(), value, allowed, depends_on: &[] }
}

/// The network of IPv4 addresses that one of mapped addresses stands for.
fn mapped(network: &IpNet) -> Option<Ipv4Net> {
    let IpNet::V6(network) = network else { return None };
    let prefix = network.prefix_len().checked_sub(96)?;
    Ipv4Net::new(network.network().to_ipv4_mapped()?, prefix).ok()
}

fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(error(key, value, format_args!("{} to {}", range.start(), range.end())))
}

fn within_time(
    key: &str,
    value: Duration,
    min: Duration,
    max: Duration,
    why: &str,
) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(error(key, format_args!("{value:?}"), format_args!("{min:?} to {max:?}{why}")))
}

/// A signed token with its claims has a few KiB at the most.
const TOKEN_BYTES_MAX: usize = 4_096;
/// A shard's index stands in 8 bits of a connection's id.
const SHARDS_MAX: usize = 256;
/// More names than a server goes by.
const HOSTS_MAX: usize = 256;
/// A shard numbers its connections, and the router its topics, in 24 bits.
const CONNECTIONS_MAX: usize = 1 << 24;
/// Every accept looks through the networks of proxies.
const NETWORKS_MAX: usize = 256;
/// A second, as buckets count: more than one machine takes in.
const RATE_MAX: u32 = 1_000_000;
/// Below this a handful of messages on their way is too much.
const BUDGET_BYTES_MIN: usize = 1024 * 1024;
/// One connection that may hold more than this is no connection to a device.
const WATERMARK_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What the kernel's own limits allow on large machines.
const BUFFER_BYTES_MAX: usize = 64 * 1024 * 1024;
const TICK: Duration = weir_engine::TICK;
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests;
