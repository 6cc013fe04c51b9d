//! Finds the addresses of a gateway for the commands that connect to it. They are the listeners of
//! its configuration, unless an option names an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::config::load;
use crate::config::{CONFIG_VARIABLE, Settings};

/// How a device reaches a gateway, and what admits it there.
#[derive(Debug)]
pub(crate) struct ForDevices {
    pub(crate) addr: String,
    /// A token of the configuration. `None`: anonymous devices are admitted.
    pub(crate) token: Option<String>,
}

/// The address of the first listener for devices, with TLS or without. If `needs_token`, also a
/// token that admits `device`, or any device.
///
/// A token that is bound to a device is taken only for that device: connecting with it closes the
/// device's own connection.
pub(crate) fn of_devices(
    file: Option<PathBuf>,
    with_tls: bool,
    needs_token: bool,
    device: Option<&str>,
) -> Result<ForDevices> {
    let is_configured = file.is_some() || std::env::var_os(CONFIG_VARIABLE).is_some();
    let config = load(file)?.gateway;
    let addr = listener(&config, with_tls, is_configured)?;
    if !needs_token || config.admits_anonymous() {
        return Ok(ForDevices { addr, token: None });
    }
    let tokens = || config.auth.tokens.iter();
    let own = tokens().find(|token| device.is_some() && token.device.as_deref() == device);
    let any = || tokens().find(|token| token.device.is_none());
    match own.or_else(any) {
        Some(found) => Ok(ForDevices { addr, token: Some(found.token.clone()) }),
        None => bail!(
            "anonymous devices are not admitted, and no token in auth.tokens fits: set WEIR_TOKEN, \
             or name the device of such a token with --device"
        ),
    }
}

fn listener(config: &weir::Config, with_tls: bool, is_configured: bool) -> Result<String> {
    let listen = &config.listen;
    let (key, addrs) =
        if with_tls { ("listen.tls", &listen.tls) } else { ("listen.tcp", &listen.tcp) };
    match addrs.first() {
        Some(addr) => connectable(key, *addr),
        // Without a configuration, the gateway probably runs with another one, as in the documents.
        None if with_tls && !is_configured => Ok(TLS.to_string()),
        None if !with_tls && !listen.tls.is_empty() => bail!(
            "listen.tcp is empty, but listen.tls is not: add --tls --ca FILE, or name an address with --addr"
        ),
        None => bail!("{key} is empty: name an address with --addr"),
    }
}

/// The address of the admin API.
pub(crate) fn of_admin(settings: &Settings) -> Result<String> {
    match settings.gateway.listen.admin {
        Some(addr) => connectable("listen.admin", addr),
        None => bail!("listen.admin is switched off: name an address with --admin"),
    }
}

/// The address for a connection from this machine: loopback in place of the unspecified address.
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
            "{key} = {addr} means any free port: name the address that the gateway prints at its start"
        );
    }
    Ok(reachable(addr).to_string())
}

/// The TLS address in the examples of the documents.
const TLS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7_443);
