//! The endpoints that stand behind the addresses of an upstream.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::address::Address;
use crate::error::DialError;
use crate::settings::{Settings, SettingsError};

/// Something to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    Tcp(SocketAddr),
}

/// The current endpoints of an upstream.
pub(crate) struct Names {
    endpoints: Arc<[Endpoint]>,
}

impl Endpoint {
    /// The authority for requests to this endpoint.
    pub(crate) fn authority(&self) -> String {
        match self {
            Endpoint::Tcp(addr) => addr.to_string(),
        }
    }
}

impl Names {
    /// Errors: an address that is none.
    pub(crate) fn new(settings: &Settings) -> Result<Names, SettingsError> {
        let endpoints = settings.addresses.iter().map(|address| {
            let parsed = Address::parse(address);
            let Address::Socket(addr) =
                parsed.map_err(|wrong| SettingsError::address(address, wrong))?;
            Ok(Endpoint::Tcp(addr))
        });
        Ok(Names { endpoints: endpoints.collect::<Result<_, _>>()? })
    }

    /// The endpoints that are known now: the same `Arc` as long as they have not changed. Waits only
    /// for the first look-up. Later look-ups go on beside the calls.
    pub(crate) async fn endpoints(&self) -> Result<Arc<[Endpoint]>, DialError> {
        Ok(Arc::clone(&self.endpoints))
    }
}
