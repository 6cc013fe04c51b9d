//! The rules between keys, and the reason for each.

mod activation;
mod admin;
mod auth;
mod calls;
mod classes;
mod cluster;
mod hooks;
mod jwt;
mod origins;
mod receivers;
mod routes;
mod telemetry;
mod tls;
mod udp;
mod upstreams;

use std::fmt::Display;
use std::time::Duration;

use http::uri::PathAndQuery;
use ipnet::{IpNet, Ipv4Net};

use super::keys::{self, ConfigError, DAY};
use super::{
    BUDGET_BYTES_MIN, Config, ConnectionConfig, FRONT_MAX, TOKEN_BYTES_MAX, WATERMARK_BYTES_MAX,
};
use crate::Resources;
use crate::base::host::is_host;
pub(crate) use auth::TOKENS_MAX;
pub(crate) use classes::is_pattern;

impl Config {
    /// Checks every value and the rules between them.
    ///
    /// Errors: the first wrong key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_for(&Resources::detect())
    }

    pub(super) fn validate_for(&self, resources: &Resources) -> Result<(), ConfigError> {
        keys::check("", self)?;
        self.check_listen()?;
        self.check_auth()?;
        self.check_jwt()?;
        self.check_admin()?;
        self.check_threads(resources.processors.len())?;
        self.check_memory(resources)?;
        self.check_heartbeats()?;
        self.check_watermarks()?;
        self.check_derived_budget(resources)?;
        self.check_tcp()?;
        self.check_tls()?;
        check_hosts("http.hosts", &self.http.hosts)?;
        self.check_udp()?;
        self.check_origins()?;
        self.check_cluster()?;
        self.check_activation()?;
        self.check_upstreams()?;
        self.check_hooks()?;
        self.check_routes()?;
        self.check_calls()?;
        self.check_receivers()?;
        self.check_telemetry()?;
        self.check_classes(self.retention_bytes(resources))
    }

    fn check_listen(&self) -> Result<(), ConfigError> {
        if self.listen.doors().iter().all(|(_, addrs)| addrs.is_empty()) {
            let allowed =
                "at least one address, here or in listen.tls, listen.http or listen.https";
            return Err(error("listen.tcp", "[]", allowed));
        }
        self.check_proxy_networks()
    }

    fn check_proxy_networks(&self) -> Result<(), ConfigError> {
        for (index, network) in self.listen.proxy_networks.iter().enumerate() {
            let key = format!("listen.proxy_networks[{index}]");
            let mapped = mapped(network);
            if network.prefix_len() == 0 || mapped.is_some_and(|mapped| mapped.prefix_len() == 0) {
                let allowed = "only the networks of your proxies: this one contains every address, so \
                               anyone could claim any address in a PROXY header";
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
                let allowed = format!("\"{mapped}\": IPv4 peers are compared in this form");
                return Err(error(&key, format_args!("\"{network}\""), allowed));
            }
        }
        Ok(())
    }

    fn check_threads(&self, processors: usize) -> Result<(), ConfigError> {
        // More threads than processors only help in trials.
        let (max, threads) = ((processors * 4).min(FRONT_MAX), self.threads.front);
        if threads > max {
            return Err(error("threads.front", threads, format_args!("0 to {max}")));
        }
        Ok(())
    }

    fn check_memory(&self, resources: &Resources) -> Result<(), ConfigError> {
        let memory = &self.memory;
        let min = self.budget_bytes_min();
        if memory.budget_bytes != 0 && memory.budget_bytes < min {
            let allowed = format!(
                "0 (a quarter of the memory), or at least {min}: the larger of 1 MiB and eight times \
                 connection.high_watermark_bytes"
            );
            return Err(error("memory.budget_bytes", memory.budget_bytes, allowed));
        }
        let limit = resources.budget_bytes(memory) / 2;
        if memory.retention_bytes > limit {
            let allowed = format!(
                "0 (a quarter of the budget) to {limit}, half of the budget (memory.budget_bytes): the rest \
                 is for messages on their way"
            );
            let depends_on = &["memory.budget_bytes"];
            let error = error("memory.retention_bytes", memory.retention_bytes, allowed);
            return Err(ConfigError { depends_on, ..error });
        }
        Ok(())
    }

    /// On a small machine, a quarter of the memory may be too little.
    fn check_derived_budget(&self, resources: &Resources) -> Result<(), ConfigError> {
        let (budget, min) = (resources.budget_bytes(&self.memory), self.budget_bytes_min());
        if budget >= min {
            return Ok(());
        }
        let (memory, limit) = (resources.memory_bytes, resources.memory_limit);
        let value =
            format!("{} ({budget}, a quarter of {memory}: {limit})", self.memory.budget_bytes);
        let allowed = format!(
            "at least {min}: the larger of 1 MiB and eight times connection.high_watermark_bytes; set this \
             key, or lower that one"
        );
        let depends_on = &["connection.high_watermark_bytes"];
        Err(ConfigError { depends_on, ..error("memory.budget_bytes", value, allowed) })
    }

    fn budget_bytes_min(&self) -> usize {
        // A quarter of the budget is for messages that wait for slow connections.
        BUDGET_BYTES_MIN.max(self.connection.high_watermark_bytes.saturating_mul(8))
    }

    /// The bytes that all topics together may retain.
    pub(crate) fn retention_bytes(&self, resources: &Resources) -> usize {
        match self.memory.retention_bytes {
            0 => resources.budget_bytes(&self.memory) / 4,
            bytes => bytes,
        }
    }

    fn check_heartbeats(&self) -> Result<(), ConfigError> {
        let ConnectionConfig { heartbeat, heartbeat_min, heartbeat_max, .. } = self.connection;
        let why = ", not below connection.heartbeat_min";
        within_time(
            "connection.heartbeat_max",
            heartbeat_max,
            heartbeat_min,
            Duration::from_millis(DAY),
            why,
        )
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
        let frame = self.limits.frame_bytes_max;
        let (min, max) = (low + frame, WATERMARK_BYTES_MAX + frame);
        if !(min..=max).contains(&high) {
            let allowed = format!(
                "{min} (low_watermark_bytes + limits.frame_bytes_max, so that no single message stalls a connection) to {max}"
            );
            let depends_on = &["limits.frame_bytes_max", "connection.low_watermark_bytes"];
            let error = error("connection.high_watermark_bytes", high, allowed);
            return Err(ConfigError { depends_on, ..error });
        }
        Ok(())
    }

    fn check_tcp(&self) -> Result<(), ConfigError> {
        let above = self.connection.stall_timeout + Duration::from_millis(1);
        let why = ": above connection.stall_timeout, or the kernel ends a stalled connection without a close reason";
        within_time(
            "tcp.user_timeout",
            self.tcp.user_timeout,
            above,
            Duration::from_millis(DAY),
            why,
        )
        .map_err(|error| ConfigError { depends_on: &["connection.stall_timeout"], ..error })
    }
}

/// Rules of a list of names that requests may carry as `Host`.
fn check_hosts(key: &str, hosts: &[String]) -> Result<(), ConfigError> {
    match hosts.iter().position(|host| !is_host(host)) {
        Some(index) => {
            let allowed = "a host name with or without a port, as in the header Host: gate.example or \
                           gate.example:7090";
            Err(error(&format!("{key}[{index}]"), format_args!("{:?}", hosts[index]), allowed))
        }
        None => Ok(()),
    }
}

/// Whether a text is a path for requests, perhaps with a query.
fn is_request_path(path: &str, bytes_max: usize) -> bool {
    let fits = path.starts_with('/') && path.len() <= bytes_max && !path.contains('#');
    fits && PathAndQuery::try_from(path).is_ok()
}

fn error(key: &str, value: impl Display, allowed: impl Display) -> ConfigError {
    let (value, allowed) = (value.to_string(), allowed.to_string());
    ConfigError { key: key.to_owned(), value, allowed, depends_on: &[] }
}

/// The IPv4 network that an IPv6 network of mapped addresses stands for.
fn mapped(network: &IpNet) -> Option<Ipv4Net> {
    let IpNet::V6(network) = network else { return None };
    let prefix = network.prefix_len().checked_sub(96)?;
    Ipv4Net::new(network.network().to_ipv4_mapped()?, prefix).ok()
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

#[cfg(test)]
mod tests;
