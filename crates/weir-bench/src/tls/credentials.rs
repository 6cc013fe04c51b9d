//! Certificates for one run: a CA, and the certificates of server and clients.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256,
};
use toml::{Table, Value};

/// Certificates and keys, all in PEM.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    /// The CA that signs the other certificates.
    pub(crate) ca: String,
    /// The server's chain.
    pub(crate) chain: String,
    /// The server's key.
    pub(crate) key: String,
    /// A client's certificate and key.
    pub(crate) client: String,
}

/// Kind of a server's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyKind {
    /// ECDSA on P-256.
    Ecdsa,
    /// RSA with 2,048 bits.
    Rsa,
}

impl KeyKind {}

impl Credentials {
    /// Makes credentials for a server of that name on this machine.
    pub(crate) fn make(kind: KeyKind, server_name: &str) -> Result<Credentials> {
        let mut params = named("weir-bench CA")?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let algorithm = match kind {
            KeyKind::Ecdsa => &PKCS_ECDSA_P256_SHA256,
            KeyKind::Rsa => &PKCS_RSA_SHA256,
        };
        let key = KeyPair::generate_for(algorithm)?;
        let mut names = vec![server_name.to_owned()];
        names.extend(["localhost", "127.0.0.1"].map(str::to_owned));
        names.dedup();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, server_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let chain = params.signed_by(&key, &ca)?.pem();
        let client_key = KeyPair::generate()?;
        let mut params = named("weir-bench client")?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client = params.signed_by(&client_key, &ca)?.pem() + &client_key.serialize_pem();
        Ok(Credentials { ca: ca.pem(), chain, key: key.serialize_pem(), client })
    }

    /// Writes the files to the server's directory.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        for (name, content) in
            [(CHAIN_FILE, &self.chain), (KEY_FILE, &self.key), (CA_FILE, &self.ca)]
        {
            let path = directory.join(name);
            fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// File names of the server's chain and key.
    pub(crate) fn files() -> (&'static str, &'static str) {
        (CHAIN_FILE, KEY_FILE)
    }

    /// The server's configuration: table `tls`, with files in the directory where it runs.
    pub(crate) fn settings(demand_client: bool) -> Table {
        let mut certificate = Table::new();
        certificate.insert("certificate".to_owned(), CHAIN_FILE.into());
        certificate.insert("key".to_owned(), KEY_FILE.into());
        let mut tls = Table::new();
        tls.insert("certificates".to_owned(), Value::Array(vec![certificate.into()]));
        if demand_client {
            tls.insert("client_auth".to_owned(), "required".into());
            tls.insert("client_ca".to_owned(), CA_FILE.into());
        }
        tls
    }
}

fn named(name: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

const CHAIN_FILE: &str = "server.pem";
const KEY_FILE: &str = "server.key";
const CA_FILE: &str = "ca.pem";
