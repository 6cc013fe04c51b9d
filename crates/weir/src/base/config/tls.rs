//! Sections `[tls]` and `[[tls.certificates]]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::duration;

/// Section `[tls]`: what holds for all that listens with TLS.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificates; the first one is for clients that name no host, or one that none is for.
    pub certificates: Vec<CertificateConfig>,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// PEM file of the authorities that sign clients' certificates; empty: none.
    pub client_ca: PathBuf,
    /// PEM file of their revocation lists; empty: none.
    pub client_crl: PathBuf,
    /// The part of a client's certificate that is its device id.
    pub client_identity: ClientIdentity,
    /// Protocols offered by ALPN, the preferred one first.
    pub alpn: Vec<String>,
    /// The secret that ticket keys are derived from; empty: a random one.
    pub ticket_secret: String,
    /// How long a ticket key is used.
    #[serde(with = "duration")]
    pub ticket_rotation: Duration,
    /// Sessions of TLS 1.2 that are kept for clients without tickets; 0: none.
    pub session_cache_max: usize,
    /// How often the files are looked at.
    #[serde(with = "duration")]
    pub reload_interval: Duration,
    /// Threads that compute handshakes; 0: one for each processor allowed.
    pub handshake_threads: usize,
    /// Handshakes that may wait for a thread.
    pub handshake_queue_max: usize,
    /// Whether the post-quantum key exchange X25519MLKEM768 is offered.
    pub post_quantum: bool,
    /// Whether the development certificate may be shown beyond loopback.
    pub development_certificate_anywhere: bool,
    /// Where the development certificate is kept; empty: where programs keep their state.
    pub development_directory: PathBuf,
}

/// One of `[[tls.certificates]]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateConfig {
    /// PEM file: the certificate, and behind it those that lead to the authority.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum TlsVersion {
    /// TLS 1.2, with AEAD suites only.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

/// Whether clients show a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// They are not asked.
    #[default]
    Off,
    /// They are asked; one that is shown has to be valid.
    Optional,
    /// Without a valid one the handshake fails.
    Required,
}

/// The part of a client's certificate that is its device id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientIdentity {
    /// None: a certificate lets through, and a token says who it is.
    #[default]
    None,
    /// The subject's common name.
    CommonName,
    /// The first DNS name among the subject's alternative names.
    SanDns,
    /// The first URI among them.
    SanUri,
}

impl TlsVersion {
    /// Every version.
    pub const ALL: [TlsVersion; 2] = [TlsVersion::Tls12, TlsVersion::Tls13];

    /// The word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        }
    }
}

impl ClientAuth {
    /// Every way.
    pub const ALL: [ClientAuth; 3] = [ClientAuth::Off, ClientAuth::Optional, ClientAuth::Required];

    /// The word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            ClientAuth::Off => "off",
            ClientAuth::Optional => "optional",
            ClientAuth::Required => "required",
        }
    }
}

impl ClientIdentity {
    /// Every part.
    pub const ALL: [ClientIdentity; 4] = [
        ClientIdentity::None,
        ClientIdentity::CommonName,
        ClientIdentity::SanDns,
        ClientIdentity::SanUri,
    ];

    /// The word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            ClientIdentity::None => "none",
            ClientIdentity::CommonName => "common_name",
            ClientIdentity::SanDns => "san_dns",
            ClientIdentity::SanUri => "san_uri",
        }
    }
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            certificates: Vec::new(),
            min_version: TlsVersion::default(),
            client_auth: ClientAuth::default(),
            client_ca: PathBuf::new(),
            client_crl: PathBuf::new(),
            client_identity: ClientIdentity::default(),
            alpn: vec!["weir.v1".to_owned()],
            ticket_secret: String::new(),
            ticket_rotation: Duration::from_secs(6 * 3_600),
            session_cache_max: 10_000,
            reload_interval: Duration::from_secs(5),
            handshake_threads: 0,
            handshake_queue_max: 4_096,
            post_quantum: true,
            development_certificate_anywhere: false,
            development_directory: PathBuf::new(),
        }
    }
}

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsConfig")
            .field("certificates", &self.certificates)
            .field("min_version", &self.min_version)
            .field("client_auth", &self.client_auth)
            .finish_non_exhaustive()
    }
}
