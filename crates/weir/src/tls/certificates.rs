//! The gateway's certificates: read from PEM files, checked, and selected by the name that a client
//! asks for.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{InconsistentKeys, SignatureScheme};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use zeroize::Zeroizing;

use super::TlsError;
use super::signing::{Elsewhere, SigningKeys};
use crate::base::config::CertificateConfig;

/// The certificates and their names.
///
/// Shape: certificates in the order of the configuration, and their indices by name.
/// Cost: a selection is one look-up, or two for a wildcard.
#[derive(Debug)]
pub(super) struct Certificates {
    /// Never empty.
    keys: Vec<Arc<CertifiedKey>>,
    by_name: HashMap<Box<str>, Vec<usize>>,
    /// By the part after `*.`.
    by_wildcard: HashMap<Box<str>, Vec<usize>>,
}

/// A certificate with its key, names and end.
pub(super) struct Loaded {
    pub(super) key: CertifiedKey,
    /// Lower case.
    pub(super) names: Vec<String>,
    /// Seconds since 1970.
    pub(super) not_after: i64,
}

impl Certificates {
    pub(super) fn new(loaded: Vec<Loaded>) -> Certificates {
        let (mut by_name, mut by_wildcard) = (HashMap::new(), HashMap::new());
        let mut keys = Vec::new();
        for (index, Loaded { key, names, .. }) in loaded.into_iter().enumerate() {
            for name in names {
                let (map, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut by_wildcard, parent),
                    None => (&mut by_name, name.as_str()),
                };
                let places: &mut Vec<usize> = map.entry(Box::from(name)).or_default();
                places.push(index);
            }
            keys.push(Arc::new(key));
        }
        Certificates { keys, by_name, by_wildcard }
    }

    /// The first certificate for the name that the client can check; without one for the name, the
    /// first of all.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Arc<CertifiedKey> {
        let fits = |index: &usize| self.keys[*index].key.choose_scheme(schemes).is_some();
        let named = name.and_then(|name| {
            let parent = || name.split_once('.').and_then(|(_, it)| self.by_wildcard.get(it));
            self.by_name.get(name).or_else(parent)
        });
        let chosen = match named {
            Some(places) => places.iter().copied().find(fits).or(places.first().copied()),
            None => (0..self.keys.len()).find(fits),
        };
        Arc::clone(&self.keys[chosen.unwrap_or(0)])
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.choose(hello.server_name(), hello.signature_schemes()))
    }
}

impl Loaded {
    /// Reads and checks one of `[[tls.certificates]]`.
    pub(super) fn read(
        key_path: &str,
        config: &CertificateConfig,
        provider: &CryptoProvider,
        signing_keys: Option<&SigningKeys>,
    ) -> Result<Loaded, TlsError> {
        let (chain_path, path) = (config.certificate.as_path(), config.key.as_path());
        let chain = read_certificates(&format!("{key_path}.certificate"), chain_path)?;
        let at_chain =
            |what: String| TlsError::new(&format!("{key_path}.certificate"), chain_path, what);
        let at_key = |what: String| TlsError::new(&format!("{key_path}.key"), path, what);
        let leaf = parse(&chain[0]).map_err(at_chain)?;
        let names = dns_names(&leaf).map_err(at_chain)?;
        let not_after = leaf.validity().not_after.timestamp();
        let elsewhere = signing_keys.map_or(Ok(None), |signing_key| signing_key(config));
        let elsewhere =
            elsewhere.map_err(|error| at_key(format!("the key cannot be had: {error}")))?;
        let signer: Arc<dyn SigningKey> = match elsewhere {
            Some(key) => Arc::new(Elsewhere::new(key, config)),
            None => read_key(path, provider).map_err(at_key)?,
        };
        let key = CertifiedKey::new(chain, signer);
        match key.keys_match() {
            // A key outside of files need not know its public part.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(error) => {
                let chain = chain_path.display();
                return Err(at_key(format!(
                    "the key does not belong to the certificate in {chain} ({error})"
                )));
            }
        }
        Ok(Loaded { key, names, not_after })
    }
}

/// The private key of a PEM file.
fn read_key(path: &Path, provider: &CryptoProvider) -> Result<Arc<dyn SigningKey>, String> {
    let pem = read_file(path).map_err(|error| format!("cannot be read: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| no_key(&error))?;
    let key = provider.key_provider.load_private_key(key);
    key.map_err(|error| format!("the key is of no kind that can be used here: {error}"))
}

/// All certificates of a PEM file, at least one.
pub(super) fn read_certificates(
    key: &str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    read_pem(key, path, "BEGIN CERTIFICATE")
}

/// All items of one kind in a PEM file, at least one.
pub(super) fn read_pem<T: PemObject>(
    key: &str,
    path: &Path,
    kind: &str,
) -> Result<Vec<T>, TlsError> {
    let error = |what: String| TlsError::new(key, path, what);
    let pem = read_file(path).map_err(|cause| error(format!("cannot be read: {cause}")))?;
    let items: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&pem).collect();
    let items = items.map_err(|cause| error(no_pem(&cause)))?;
    if items.is_empty() {
        return Err(error(format!("holds no \"{kind}\" section")));
    }
    Ok(items)
}

/// Reads the file, which may be a key, so that no buffer leaves a copy behind.
fn read_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut file = fs::File::open(path)?;
    let bytes = file.metadata()?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "it has {bytes} bytes, and {FILE_BYTES_MAX} at most are read"
        )));
    }
    // Bytes appended meanwhile count at the next look.
    let mut read = Zeroizing::new(Vec::with_capacity(usize::try_from(bytes).unwrap_or(0) + 1));
    file.by_ref().take(bytes).read_to_end(&mut read)?;
    Ok(read)
}

/// The end of a certificate, in seconds since 1970.
pub(super) fn expires(certificate: &CertificateDer<'_>) -> Result<i64, String> {
    Ok(parse(certificate)?.validity().not_after.timestamp())
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    let parsed = X509Certificate::from_der(certificate);
    parsed
        .map(|(_, parsed)| parsed)
        .map_err(|error| format!("the first certificate cannot be read: {error}"))
}

fn dns_names(leaf: &X509Certificate<'_>) -> Result<Vec<String>, String> {
    let names = leaf
        .subject_alternative_name()
        .map_err(|error| format!("its subject alternative names cannot be read: {error}"))?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        // No client asks for these by SNI.
        GeneralName::OtherName(..)
        | GeneralName::RFC822Name(_)
        | GeneralName::X400Address(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EDIPartyName(_)
        | GeneralName::URI(_)
        | GeneralName::IPAddress(_)
        | GeneralName::RegisteredID(_)
        | GeneralName::Invalid(..) => None,
    });
    Ok(names.collect())
}

fn no_key(error: &pem::Error) -> String {
    if matches!(error, pem::Error::NoItemsFound) {
        return "holds no private key: \"BEGIN PRIVATE KEY\", \"BEGIN EC PRIVATE KEY\" or \"BEGIN RSA PRIVATE KEY\", \
                without a passphrase"
            .to_owned();
    }
    no_pem(error)
}

fn no_pem(error: &pem::Error) -> String {
    if let pem::Error::MissingSectionEnd { end_marker } = error {
        let section = String::from_utf8_lossy(end_marker);
        return format!("is no PEM file: the section \"{section}\" has no end");
    }
    format!("is no PEM file: {error}")
}

/// Chains and bundles of authorities are smaller; revocation lists of a large fleet come near.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
