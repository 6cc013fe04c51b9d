//! A server configuration and a certificate for tests.

use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::keylog::Capture;

/// A certificate for `localhost`, and its key.
pub(crate) struct Certificate {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) pem: String,
    pub(crate) key: KeyPair,
}

impl Certificate {
    pub(crate) fn new() -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Self { der: cert.der().clone(), pem: cert.pem(), key: signing_key }
    }

    pub(crate) fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.serialize_der()).into()
    }

    /// With tickets, as in the product.
    pub(crate) fn server(&self) -> ServerConfig {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.der.clone()], self.key_der())
            .unwrap();
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(Capture);
        config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
        config
    }

    /// A client that trusts the certificate.
    pub(crate) fn client(&self, version: &'static SupportedProtocolVersion) -> ClientConfig {
        self.client_with(version, aws_lc_rs::DEFAULT_CIPHER_SUITES)
    }

    /// The same with these suites only.
    pub(crate) fn client_with(
        &self,
        version: &'static SupportedProtocolVersion,
        suites: &[SupportedCipherSuite],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider =
            CryptoProvider { cipher_suites: suites.to_vec(), ..aws_lc_rs::default_provider() };
        ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}
