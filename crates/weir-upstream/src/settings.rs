//! The settings of an upstream.

use std::time::Duration;

use crate::address::{Address, AddressError};

/// How to reach a named service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The upstream's name in metrics, logs and errors.
    pub name: String,
    /// `host:port`, `srv:_service._proto.name` or `unix:/path`.
    pub addresses: Vec<String>,
    /// The `Host` of requests without one. Empty: the endpoint's own address.
    pub host: String,
    /// The version of HTTP that the service speaks.
    pub protocol: Protocol,
    /// How long connecting may take, with name, proxy and handshake.
    pub connect_timeout: Duration,
    /// How long one try may wait for the head of its answer.
    pub try_timeout: Duration,
    /// How long a request may take with all its tries, until the head of the answer.
    pub deadline: Duration,
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
            connect_timeout: Duration::from_secs(2),
            try_timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
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
        for address in &self.addresses {
            Address::parse(address).map_err(|wrong| SettingsError::address(address, wrong))?;
        }
        Ok(())
    }
}

impl SettingsError {
    pub(crate) fn address(address: &str, wrong: AddressError) -> SettingsError {
        SettingsError {
            key: "addresses",
            value: format!("{address:?}"),
            allowed: wrong.to_string(),
        }
    }
}
