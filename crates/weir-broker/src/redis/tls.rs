//! TLS to Redis, with the one TLS library of Weir.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::contract::Error;

/// Makes TLS connections to servers whose certificates come from these authorities (PEM), or from those that browsers
/// know.
pub(super) fn connector(authorities: Option<&[u8]>) -> Result<TlsConnector, Error> {
    let mut roots = RootCertStore::empty();
    match authorities {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(refused)?;
                roots.add(certificate).map_err(refused)?;
            }
            if roots.is_empty() {
                return Err(refused("no certificate of an authority is given"));
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn refused(why: impl ToString) -> Error {
    Error::Refused(format!("TLS to Redis: {}", why.to_string()))
}
