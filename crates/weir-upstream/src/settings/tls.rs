//! TLS to an upstream.

use std::path::PathBuf;

use rustls_pki_types::ServerName;

use super::SettingsError;
use crate::address::Address;

/// TLS to an upstream. The files are read again when they change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// PEM file of the authorities that sign the service's certificate. `None`: those that browsers
    /// trust.
    pub ca: Option<PathBuf>,
    /// PEM file of the certificate that the gateway shows, with its chain.
    pub certificate: Option<PathBuf>,
    /// PEM file of that certificate's private key.
    pub key: Option<PathBuf>,
    /// The name that the service's certificate must have. Empty: the upstream's `host`, else name or
    /// address of the endpoint.
    pub server_name: String,
}

impl TlsSettings {
    pub(super) fn check(&self, host: &str, addresses: &[Address]) -> Result<(), SettingsError> {
        let error = |key, value: String, allowed: &str| {
            Err(SettingsError { key, value, allowed: allowed.to_owned() })
        };
        match (&self.certificate, &self.key) {
            (Some(_), None) => {
                let allowed = "the PEM file of the key of tls_certificate";
                return error("tls_key", "\"\"".to_owned(), allowed);
            }
            (None, Some(_)) => {
                let allowed = "the PEM file of the certificate that belongs to tls_key";
                return error("tls_certificate", "\"\"".to_owned(), allowed);
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        let name = self.server_name.as_str();
        if !name.is_empty() && ServerName::try_from(name).is_err() {
            let allowed = "the DNS name or IP address of the service's certificate";
            return error("tls_server_name", format!("{name:?}"), allowed);
        }
        let is_unix = |address: &Address| matches!(address, Address::Unix(_));
        if name.is_empty() && host.is_empty() && addresses.iter().any(is_unix) {
            let allowed = "the name of the service's certificate, since a unix socket has none";
            return error("tls_server_name", "\"\"".to_owned(), allowed);
        }
        Ok(())
    }
}
