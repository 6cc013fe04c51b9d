//! An authority that signs certificates for tests, and writes them to files.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

use super::*;
use crate::base::clock::unix_time;

pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// A certificate to be signed.
#[derive(Default)]
pub(super) struct Leaf<'a> {
    pub(super) names: &'a [&'a str],
    pub(super) common_name: Option<&'a str>,
    pub(super) uris: &'a [&'a str],
    pub(super) serial: u64,
    pub(super) is_rsa: bool,
    /// Relative to now.
    pub(super) valid_secs: Option<i64>,
}

impl Authority {
    pub(super) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer, directory: tempfile::tempdir().unwrap() }
    }

    pub(super) fn certificate(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A file with this text.
    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub(super) fn bundle(&self) -> PathBuf {
        self.write("ca.pem", &self.issuer.pem())
    }

    pub(super) fn sign(&self, leaf: &Leaf<'_>) -> (rcgen::Certificate, KeyPair) {
        let names: Vec<String> = leaf.names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        for uri in leaf.uris {
            params.subject_alt_names.push(SanType::URI((*uri).try_into().unwrap()));
        }
        if let Some(name) = leaf.common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        if let Some(seconds) = leaf.valid_secs {
            let seconds = Duration::from_secs(seconds.unsigned_abs());
            let now = date_time_ymd(1970, 1, 1) + unix_time();
            params.not_after =
                if leaf.valid_secs < Some(0) { now - seconds } else { now + seconds };
        }
        params.serial_number = Some(SerialNumber::from(leaf.serial));
        let algorithm = if leaf.is_rsa { &PKCS_RSA_SHA256 } else { &PKCS_ECDSA_P256_SHA256 };
        let key = KeyPair::generate_for(algorithm).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Certificate and key for these names, as files called `file`.
    pub(super) fn files(&self, file: &str, names: &[&str]) -> CertificateConfig {
        self.files_of(file, &Leaf { names, ..Leaf::default() })
    }

    pub(super) fn files_of(&self, file: &str, leaf: &Leaf<'_>) -> CertificateConfig {
        let (certificate, key) = self.sign(leaf);
        CertificateConfig {
            certificate: self.write(&format!("{file}.pem"), &certificate.pem()),
            key: self.write(&format!("{file}.key"), &key.serialize_pem()),
        }
    }

    /// A client's certificate and key.
    pub(super) fn identity(
        &self,
        leaf: &Leaf<'_>,
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let (certificate, key) = self.sign(leaf);
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        (vec![certificate.der().clone()], key)
    }

    /// A revocation list with these serial numbers that ends `valid_secs` from now.
    pub(super) fn revocation_list(&self, revoked: &[u64], valid_secs: i64) -> String {
        let now = date_time_ymd(1970, 1, 1) + unix_time();
        let valid = Duration::from_secs(valid_secs.unsigned_abs());
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: now - Duration::from_secs(86_400),
            next_update: if valid_secs < 0 { now - valid } else { now + valid },
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}
