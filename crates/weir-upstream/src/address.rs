//! An address of an upstream, as text has it.

use std::net::SocketAddr;

/// An address as the settings have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// An IP address and a port.
    Socket(SocketAddr),
}

/// Text that is no address.
#[derive(Debug, thiserror::Error)]
#[error("host:port, srv:_service._proto.name or unix:/path")]
pub(crate) struct AddressError;

impl Address {
    /// Errors: text that is no address.
    pub(crate) fn parse(text: &str) -> Result<Address, AddressError> {
        text.parse().map(Address::Socket).map_err(|_| AddressError)
    }
}
