//! The configuration of rustls: suites, groups, versions, sessions.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{self as provider, cipher_suite as suite, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ProducesTickets, ResolvesServerCert, StoresServerSessions};
use rustls::{KeyLog, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

use crate::base::config::{TlsConfig, TlsVersion};

/// The common parts of two configurations with different orders of suites.
pub(super) struct Parts {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    pub(super) certificates: Arc<dyn ResolvesServerCert>,
    pub(super) tickets: Arc<dyn ProducesTickets>,
    pub(super) sessions: Arc<dyn StoresServerSessions>,
    pub(super) key_log: Arc<dyn KeyLog>,
}

impl Parts {
    /// A configuration with a provider's suites, in their order.
    pub(super) fn server_config(
        &self,
        config: &TlsConfig,
        provider: &Arc<CryptoProvider>,
    ) -> Arc<ServerConfig> {
        let versions: &[&SupportedProtocolVersion] = match config.min_version {
            TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            TlsVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let mut server = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(versions)
            .expect("there are suites and groups for every version")
            .with_client_cert_verifier(Arc::clone(&self.verifier))
            .with_cert_resolver(Arc::clone(&self.certificates));
        server.ignore_client_order = true;
        server.session_storage = Arc::clone(&self.sessions);
        server.ticketer = Arc::clone(&self.tickets);
        server.alpn_protocols = config.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        server.key_log = Arc::clone(&self.key_log);
        server.enable_secret_extraction = true;
        server.max_early_data_size = 0;
        server.send_half_rtt_data = false;
        // Two, since a client may use each only once. If a storm refuses its first try, it can make
        // a second one.
        server.send_tls13_tickets = 2;
        Arc::new(server)
    }
}

/// The cryptography, with ChaCha20-Poly1305 before or after AES.
pub(super) fn provider(config: &TlsConfig, chacha_first: bool) -> Arc<CryptoProvider> {
    let cipher_suites = if chacha_first { CHACHA_FIRST } else { AES_FIRST };
    let mut kx_groups: Vec<&'static dyn SupportedKxGroup> =
        vec![kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1];
    if config.post_quantum {
        kx_groups.insert(0, kx_group::X25519MLKEM768);
    }
    Arc::new(CryptoProvider {
        cipher_suites: cipher_suites.to_vec(),
        kx_groups,
        ..provider::default_provider()
    })
}

/// Whether AES is cheaper than ChaCha20 on this machine.
pub(super) fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    has_aes
}

/// AES-128 before AES-256: a third less work for each byte, and no known attack threatens either.
const AES_FIRST: &[SupportedCipherSuite] = &[
    suite::TLS13_AES_128_GCM_SHA256,
    suite::TLS13_AES_256_GCM_SHA384,
    suite::TLS13_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

const CHACHA_FIRST: &[SupportedCipherSuite] = &[
    suite::TLS13_CHACHA20_POLY1305_SHA256,
    suite::TLS13_AES_128_GCM_SHA256,
    suite::TLS13_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
];
