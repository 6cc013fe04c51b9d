//! The settings of an upstream.

mod dns;
mod pool;
mod proxy;
mod secret;
mod tls;

use std::time::Duration;

use http::uri::Authority;

use crate::address::{Address, AddressError};
pub use dns::{DnsSettings, IpFamilies};
pub use pool::{EjectionSettings, PoolSettings, RetrySettings};
pub use proxy::ProxySettings;
pub(crate) use proxy::{ProxyKind, WORD_BYTES_MAX};
pub use secret::Secret;
pub use tls::TlsSettings;

/// How to reach a named service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The upstream's name in metrics, logs and errors.
    pub name: String,
    /// `host:port`, `srv:_service._proto.name` or `unix:/path`.
    pub addresses: Vec<String>,
    /// The `Host` of requests without one. Empty: name or address of the endpoint, with its port.
    pub host: String,
    /// The version of HTTP that the service speaks.
    pub protocol: Protocol,
    /// How names are looked up.
    pub dns: DnsSettings,
    /// `None`: plain.
    pub tls: Option<TlsSettings>,
    /// `None`: direct.
    pub proxy: Option<ProxySettings>,
    /// How long connecting may take, with name, proxy and handshake.
    pub connect_timeout: Duration,
    /// How long one try may wait for the head of its answer. A streamed body that moves on begins
    /// the time again; one that does not move for so long is ended.
    pub try_timeout: Duration,
    /// How long a request may take with all its tries, until the head of the answer. The time in
    /// which a streamed body moves does not count.
    pub deadline: Duration,
    /// How many connections there are.
    pub pool: PoolSettings,
    /// When a request is tried again.
    pub retry: RetrySettings,
    /// When an endpoint is set aside.
    pub ejection: EjectionSettings,
}

/// The version of HTTP that a service speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2, without an upgrade from HTTP/1.1.
    Http2,
}

/// A setting that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: allowed is {allowed}")]
pub struct SettingsError {
    /// The field of [`Settings`].
    pub key: &'static str,
    /// The value, but never a secret.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
}

impl Settings {
    /// The defaults, for the service `name` at `addresses`.
    pub fn new(name: &str, addresses: &[&str]) -> Settings {
        Settings {
            name: name.to_owned(),
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            host: String::new(),
            protocol: Protocol::default(),
            dns: DnsSettings::default(),
            tls: None,
            proxy: None,
            connect_timeout: Duration::from_secs(2),
            try_timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
            pool: PoolSettings::default(),
            retry: RetrySettings::default(),
            ejection: EjectionSettings::default(),
        }
    }

    /// Checks each value.
    ///
    /// Errors: the first value that is not allowed.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.addresses.is_empty() {
            return Err(SettingsError {
                key: "addresses",
                value: "[]".to_owned(),
                allowed: "at least one address".to_owned(),
            });
        }
        let addresses = self.parsed()?;
        let is_host = self.host.parse::<Authority>().is_ok() && !self.host.contains('@');
        if !self.host.is_empty() && !is_host {
            return Err(SettingsError {
                key: "host",
                value: format!("{:?}", self.host),
                allowed: "a host name, with or without a port".to_owned(),
            });
        }
        self.pool.check()?;
        self.retry.check()?;
        self.dns.check()?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check(&self.host, &addresses))?;
        self.proxy.as_ref().map_or(Ok(()), |proxy| proxy.check(&addresses))
    }

    /// The addresses.
    pub(crate) fn parsed(&self) -> Result<Vec<Address>, SettingsError> {
        let parse = |address: &String| {
            Address::parse(address).map_err(|wrong| SettingsError::address(address, wrong))
        };
        self.addresses.iter().map(parse).collect()
    }
}

impl SettingsError {
    fn address(address: &str, wrong: AddressError) -> SettingsError {
        SettingsError {
            key: "addresses",
            value: format!("{address:?}"),
            allowed: wrong.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
