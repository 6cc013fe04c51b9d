//! Clients' certificates: their verification, and the devices that they name.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use super::TlsError;
use super::certificates::{read_certificates, read_pem};
use crate::base::config::{ClientAuth, ClientIdentity, TlsConfig};

/// The reason why a valid client certificate admits no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoIdentity {
    /// The handshake does not check a resumed session again.
    #[error("the certificate has expired")]
    Expired,
    /// The certificate has no name in the part that `tls.client_identity` selects.
    #[error("the certificate does not hold the name that tls.client_identity asks for")]
    NoName,
    /// The name is longer than `limits.device_id_bytes_max`, or contains control characters.
    #[error("the name in the certificate is no device id")]
    BadName,
}

/// The device that a client's certificate names; `None` if it need not name one.
///
/// Cost: the certificate is parsed once, in place; the name is copied.
pub(super) fn identity(
    certificate: &CertificateDer<'_>,
    part: ClientIdentity,
    bytes_max: usize,
    now: Duration,
) -> Result<Option<String>, NoIdentity> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| NoIdentity::NoName)?;
    if u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0) < now.as_secs() {
        return Err(NoIdentity::Expired);
    }
    let name =
        match part {
            ClientIdentity::None => return Ok(None),
            ClientIdentity::CommonName => {
                let name = parsed.subject().iter_common_name().next();
                name.and_then(|name| name.as_str().ok())
            }
            ClientIdentity::SanDns => alternative(&parsed, |name| {
                if let GeneralName::DNSName(name) = name { Some(*name) } else { None }
            }),
            ClientIdentity::SanUri => alternative(&parsed, |name| {
                if let GeneralName::URI(name) = name { Some(*name) } else { None }
            }),
        };
    let name = name.ok_or(NoIdentity::NoName)?;
    if name.is_empty() || name.len() > bytes_max || name.contains(char::is_control) {
        return Err(NoIdentity::BadName);
    }
    Ok(Some(name.to_owned()))
}

fn alternative<'a>(
    parsed: &X509Certificate<'a>,
    pick: impl Fn(&GeneralName<'a>) -> Option<&'a str>,
) -> Option<&'a str> {
    let names = parsed.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(pick)
}

/// The verification of clients' certificates.
pub(super) struct Clients {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// A digest of everything that decides which clients are admitted.
    pub(super) policy: [u8; 32],
    /// The end of the first revocation list, in seconds since 1970.
    pub(super) crl_ends: Option<i64>,
}

impl Clients {
    /// Reads `tls.client_ca` and `tls.client_crl`.
    pub(super) fn read(
        config: &TlsConfig,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Clients, TlsError> {
        let mut policy = digest::Context::new(&digest::SHA256);
        policy.update(config.client_auth.name().as_bytes());
        if config.client_auth == ClientAuth::Off {
            let verifier = WebPkiClientVerifier::no_client_auth();
            return Ok(Clients { verifier, policy: finish(policy), crl_ends: None });
        }
        let at_ca = |what: String| TlsError::new("tls.client_ca", &config.client_ca, what);
        let authorities = read_certificates("tls.client_ca", &config.client_ca)?;
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            policy.update(authority);
            roots
                .add(authority.clone())
                .map_err(|error| at_ca(format!("an authority cannot be used: {error}")))?;
        }
        let mut verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let mut crl_ends = None;
        if !config.client_crl.as_os_str().is_empty() {
            let lists = read_lists(config, &authorities)?;
            lists.iter().for_each(|list| policy.update(list));
            crl_ends = lists.iter().filter_map(|list| next_update(list)).min();
            verifier = verifier.with_crls(lists).enforce_revocation_expiration();
        }
        if config.client_auth == ClientAuth::Optional {
            verifier = verifier.allow_unauthenticated();
        }
        let verifier = verifier.build().map_err(|error| {
            let what = format!("a list cannot be used: {error}");
            TlsError::new("tls.client_crl", &config.client_crl, what)
        })?;
        Ok(Clients { verifier, policy: finish(policy), crl_ends })
    }
}

/// The revocation lists, at least one of each authority. Without its list, all clients of an
/// authority would be refused.
fn read_lists(
    config: &TlsConfig,
    authorities: &[CertificateDer<'_>],
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let at_crl = |what: String| TlsError::new("tls.client_crl", &config.client_crl, what);
    let lists: Vec<CertificateRevocationListDer<'static>> =
        read_pem("tls.client_crl", &config.client_crl, "BEGIN X509 CRL")?;
    let mut issuers = Vec::with_capacity(lists.len());
    for list in &lists {
        let (_, parsed) = CertificateRevocationList::from_der(list)
            .map_err(|error| at_crl(format!("a list cannot be read: {error}")))?;
        issuers.push(parsed.tbs_cert_list.issuer.as_raw());
    }
    for authority in authorities {
        // It has been parsed before.
        let Ok((_, parsed)) = X509Certificate::from_der(authority) else { continue };
        if !issuers.contains(&parsed.subject().as_raw()) {
            let subject = parsed.subject();
            return Err(at_crl(format!(
                "holds no list of the authority \"{subject}\" of tls.client_ca: its clients would all be refused"
            )));
        }
    }
    Ok(lists)
}

fn next_update(list: &CertificateRevocationListDer<'_>) -> Option<i64> {
    let (_, parsed) = CertificateRevocationList::from_der(list).ok()?;
    parsed.next_update().map(|time| time.timestamp())
}

fn finish(digest: digest::Context) -> [u8; 32] {
    digest.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}
