//! Section `[auth.jwt]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::duration;

/// Section `[auth.jwt]`: tokens that other backends issue and sign (RFC 7519).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JwtConfig {
    /// What signs them; none: no such token is taken.
    pub keys: Vec<JwtKeyConfig>,
    /// What `iss` has to be; empty: anything.
    pub issuer: String,
    /// What `aud` has to be or to hold; empty: there must be none.
    pub audience: String,
    /// How far clocks may be apart.
    #[serde(with = "duration")]
    pub leeway: Duration,
    /// The longest token.
    pub token_bytes_max: usize,
    /// Signed tokens that admit nobody which all datagrams together may show in a second; 0: as many as come.
    pub datagram_failures_per_second: u32,
    /// How often the files of the keys are looked at.
    #[serde(with = "duration")]
    pub reload_interval: Duration,
    /// The claim that names the device.
    pub device_claim: String,
    /// The claim that lists the topics that it is good for.
    pub topics_claim: String,
    /// The claim that lists labels.
    pub labels_claim: String,
    /// The claim that says when it is its turn.
    pub priority_claim: String,
}

/// One of `[[auth.jwt.keys]]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtKeyConfig {
    /// The name that tokens call it by; absent: it may be that of any token.
    #[serde(default)]
    pub kid: Option<String>,
    /// The only algorithm that it is used with.
    pub algorithm: JwtAlgorithm,
    /// PEM file of the public key; for HS256 the secret itself.
    pub file: PathBuf,
}

/// How a token is signed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum JwtAlgorithm {
    /// HMAC with SHA-256, under a secret that both sides have.
    #[serde(rename = "HS256")]
    Hs256,
    /// RSA (PKCS #1 v1.5) with SHA-256.
    #[serde(rename = "RS256")]
    Rs256,
    /// ECDSA over P-256 with SHA-256.
    #[default]
    #[serde(rename = "ES256")]
    Es256,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl JwtAlgorithm {
    /// Every one.
    pub const ALL: [JwtAlgorithm; 4] =
        [JwtAlgorithm::Hs256, JwtAlgorithm::Rs256, JwtAlgorithm::Es256, JwtAlgorithm::EdDsa];

    /// The word in the configuration and in tokens.
    pub const fn name(self) -> &'static str {
        match self {
            JwtAlgorithm::Hs256 => "HS256",
            JwtAlgorithm::Rs256 => "RS256",
            JwtAlgorithm::Es256 => "ES256",
            JwtAlgorithm::EdDsa => "EdDSA",
        }
    }
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            issuer: String::new(),
            audience: String::new(),
            leeway: Duration::from_secs(30),
            token_bytes_max: 8192,
            datagram_failures_per_second: 1_000,
            reload_interval: Duration::from_secs(60),
            device_claim: "sub".to_owned(),
            topics_claim: "topics".to_owned(),
            labels_claim: "labels".to_owned(),
            priority_claim: "priority".to_owned(),
        }
    }
}
