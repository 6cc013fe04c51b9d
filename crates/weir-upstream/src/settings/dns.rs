//! How the names of an upstream are looked up.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::SettingsError;

/// How the names of an upstream are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSettings {
    /// Servers as `address` or `address:port`. Empty: those of the system, with its search list.
    pub servers: Vec<String>,
    /// The kinds of addresses that are looked up.
    pub families: IpFamilies,
    /// How long one look-up may take.
    pub timeout: Duration,
    /// The least time for which an answer counts, whatever its TTL.
    pub ttl_min: Duration,
    /// The longest time for which an answer counts, whatever its TTL.
    pub ttl_max: Duration,
    /// How long an answer is used after its time while no server answers.
    pub stale_max: Duration,
    /// Endpoints that are used at most.
    pub endpoints_max: usize,
}

/// The kinds of addresses that are looked up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IpFamilies {
    /// A and AAAA records.
    #[default]
    Both,
    /// A records.
    Ipv4,
    /// AAAA records.
    Ipv6,
}

impl Default for DnsSettings {
    fn default() -> DnsSettings {
        DnsSettings {
            servers: Vec::new(),
            families: IpFamilies::default(),
            timeout: Duration::from_secs(2),
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(300),
            stale_max: Duration::from_secs(86_400),
            endpoints_max: 128,
        }
    }
}

impl DnsSettings {
    /// The servers' addresses.
    pub(crate) fn server_addrs(&self) -> Result<Vec<SocketAddr>, SettingsError> {
        let addr = |text: &String| {
            let port = text.parse().map(|ip: IpAddr| SocketAddr::new(ip, DNS_PORT));
            let addr = text.parse().or(port).ok().filter(|addr: &SocketAddr| addr.port() != 0);
            addr.ok_or_else(|| SettingsError {
                key: "dns_servers",
                value: format!("{text:?}"),
                allowed: "an IP address, with or without a port".to_owned(),
            })
        };
        self.servers.iter().map(addr).collect()
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        self.server_addrs()?;
        if self.ttl_min > self.ttl_max {
            return Err(SettingsError {
                key: "dns_ttl_min",
                value: format!("{:?}", self.ttl_min),
                allowed: format!("at most dns_ttl_max ({:?})", self.ttl_max),
            });
        }
        Ok(())
    }
}

const DNS_PORT: u16 = 53;
