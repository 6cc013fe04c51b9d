//! Where the commands that connect find a gateway unless they are told: where its configuration has it listen.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::config::load;
use crate::config::{CONFIG_VARIABLE, Settings};

/// Where devices connect, with TLS or without.
pub(crate) fn of_devices(file: Option<PathBuf>, with_tls: bool) -> Result<String> {
    let is_configured = file.is_some() || std::env::var_os(CONFIG_VARIABLE).is_some();
    let listen = load(file)?.gateway.listen;
    let (key, addrs) =
        if with_tls { ("listen.tls", &listen.tls) } else { ("listen.tcp", &listen.tcp) };
    match addrs.first() {
        Some(addr) => connectable(key, *addr),
        // Where somebody has a gateway with another configuration, most likely.
        None if with_tls && !is_configured => Ok(TLS.to_string()),
        None if !with_tls && !listen.tls.is_empty() => bail!(
            "listen.tcp is empty, and listen.tls is not: add --tls --ca FILE, or name an address by --addr"
        ),
        None => bail!("{key} is empty: name an address by --addr"),
    }
}

/// Where the admin API is.
pub(crate) fn of_admin(settings: &Settings) -> Result<String> {
    match settings.gateway.listen.admin {
        Some(addr) => connectable("listen.admin", addr),
        None => bail!("listen.admin is switched off: name an address by --admin"),
    }
}

/// The address to connect to on this machine: loopback for "any".
pub(crate) fn reachable(addr: SocketAddr) -> SocketAddr {
    let ip = addr.ip();
    let ip = match (ip.is_unspecified(), ip.is_ipv4()) {
        (true, true) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        (true, false) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        (false, _) => ip,
    };
    SocketAddr::new(ip, addr.port())
}

fn connectable(key: &str, addr: SocketAddr) -> Result<String> {
    if addr.port() == 0 {
        bail!(
            "{key} is {addr}, which stands for any free port: name the address that the gateway prints"
        );
    }
    Ok(reachable(addr).to_string())
}

/// Where the documents have a gateway listen with TLS.
const TLS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7_443);
