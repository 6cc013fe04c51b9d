//! An authority that signs certificates, and writes them where the server and its clients read them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, date_time_ymd,
};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;

/// Signs whatever is asked, in a directory of its own that goes when it is dropped.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// A signed certificate with its key.
pub struct Leaf {
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
    /// DER.
    pub der: Vec<u8>,
}

impl Authority {
    /// A new one; its own certificate is in `ca.pem`.
    pub fn new() -> Result<Authority> {
        let mut params = CertificateParams::default();
        // Of a name of its own: who trusts another authority shall not even know this one.
        let number = AUTHORITIES.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("authority {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let authority = Authority { issuer, directory: tempfile::tempdir()? };
        authority.write("ca.pem", &authority.issuer.pem())?;
        Ok(authority)
    }

    /// A certificate for a name, which is its subject's common name too.
    pub fn sign(&self, name: &str, is_rsa: bool) -> Result<Leaf> {
        self.sign_params(name, is_rsa, |_| ())
    }

    /// The same, good until the year begins.
    pub fn sign_until(&self, name: &str, year: i32) -> Result<Leaf> {
        self.sign_params(name, false, |params| params.not_after = date_time_ymd(year, 1, 1))
    }

    /// The same, good for so long from now on.
    #[expect(clippy::disallowed_methods, reason = "a certificate ends at a time of the wall clock")]
    pub fn sign_for(&self, name: &str, length: Duration) -> Result<Leaf> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let end = date_time_ymd(1970, 1, 1) + now + length;
        self.sign_params(name, false, |params| params.not_after = end)
    }

    fn sign_params(
        &self,
        name: &str,
        is_rsa: bool,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Result<Leaf> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let algorithm = if is_rsa { &PKCS_RSA_SHA256 } else { &PKCS_ECDSA_P256_SHA256 };
        let key = KeyPair::generate_for(algorithm)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Leaf {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().to_vec(),
        })
    }

    /// Signs for `name`, writes `FILE.pem` and `FILE.key`, and answers with what a configuration says of them.
    pub fn files(&self, file: &str, name: &str, is_rsa: bool) -> Result<String> {
        self.put(file, &self.sign(name, is_rsa)?)?;
        Ok(format!(
            "[[tls.certificates]]\ncertificate = {:?}\nkey = {:?}\n",
            self.path(&format!("{file}.pem")),
            self.path(&format!("{file}.key"))
        ))
    }

    /// Puts certificate and key in place of those that are there.
    pub fn put(&self, file: &str, leaf: &Leaf) -> Result<()> {
        self.write(&format!("{file}.pem"), &leaf.certificate)?;
        self.write(&format!("{file}.key"), &leaf.key)
    }

    /// Puts a file in place of one that is there, in one step.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        std::fs::write(self.path("new"), text)?;
        Ok(std::fs::rename(self.path("new"), self.path(name))?)
    }

    /// Where a file lies.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its own certificate.
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// What a client of rustls needs to trust what it signs. It resumes no sessions: each time it is shown a certificate.
    pub fn client(&self) -> Result<Arc<ClientConfig>> {
        self.client_as(None)
    }

    /// The same, which shows a certificate of its own.
    pub fn client_as(&self, leaf: Option<&Leaf>) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der())?;
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut client = match leaf {
            None => builder.with_no_client_auth(),
            Some(leaf) => {
                let chain = vec![CertificateDer::from(leaf.der.clone())];
                let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes())?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        client.resumption = Resumption::disabled();
        Ok(Arc::new(client))
    }
}

static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);
