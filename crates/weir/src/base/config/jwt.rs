//! Section `[auth.jwt]`.

use std::path::PathBuf;
use std::time::Duration;

use super::RATE_MAX;
use super::keys::{DAY, MINUTE, SECOND};

crate::config_table! {
    /// Section `[auth.jwt]`: tokens that other backends issue and sign (RFC 7519).
    pub struct JwtConfig {
        /// What the claim `iss` has to be. Empty: anything. Say it where the keys are used for more
        /// than Weir.
        issuer: String, allowed("at most {WORD_BYTES_MAX} bytes");
        /// What the claim `aud` has to be, or to hold. Empty: a token with an audience is refused,
        /// as it is for somebody else.
        audience: String, allowed("at most {WORD_BYTES_MAX} bytes");
        /// How far the issuer's clock may be from ours: a token is good so much earlier and longer
        /// than it says. Clocks that are synchronised agree within a second.
        // Clocks that are further apart are to be mended.
        leeway: Duration = Duration::from_secs(30), range(0..=5 * MINUTE), reason(" (5 minutes)");
        /// Length of such a token. Long ones cost memory before it is known whose they are; one
        /// with many claims and an RSA signature has some 2 KiB.
        // A shorter one could not hold an RSA signature; the longest is a default frame.
        token_bytes_max: usize = 8192, range(512..=65_536), unit("bytes");
        /// Signed tokens that admit nobody which all datagrams together may show in a second, as
        /// their addresses can be forged: the default costs a tenth of a processor with ES256.
        /// Beyond, those that were not verified lately are refused for a while (`rate_limited`). 0:
        /// as many as come.
        datagram_failures_per_second: u32 = 1_000, range(0..=RATE_MAX), unit("failures a second");
        /// How often the files of the keys are looked at. What has changed is used as soon as a
        /// look finds nothing newer, or at once on SIGHUP; if it cannot be used, what was loaded
        /// before stays.
        reload_interval: Duration = Duration::from_secs(60), range(SECOND..=DAY);
        /// The claim that names the device: a text that can be a device id. A token without it is
        /// refused.
        device_claim: String = "sub".to_owned(),
            allowed("1 to {CLAIM_BYTES_MAX} bytes, each of the four another one");
        /// The claim that lists the topics that the token is good for: at most 16 patterns, as in
        /// `[[topic_classes]]`, with `{device}` for its own device. A token without it is good for
        /// all that classes permit; none permits more.
        topics_claim: String = "topics".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// The claim that lists labels: at most 16 texts. Those that a class names count.
        labels_claim: String = "labels".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// The claim that says when it is the turn of its connections: `high`, `normal` or `low`.
        priority_claim: String = "priority".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// Keys that such tokens are signed with. None: no such token is taken. Only in the file.
        // Old and new keys of a few issuers.
        keys: Vec<JwtKeyConfig>, range(0..=16), unit("keys"),
            reason(": a token without a kid may have all tried");
    }
}

crate::config_table! {
    /// One of `[[auth.jwt.keys]]`.
    pub struct JwtKeyConfig in "tables [[auth.jwt.keys]], each with an algorithm and a file" {
        /// The only algorithm that it is used with, whatever a token says of itself.
        algorithm: JwtAlgorithm, example("\"ES256\""), needed();
        /// PEM file of the public key (`BEGIN PUBLIC KEY`): RSA of 2048 to 8192 bits for RS256,
        /// P-256 for ES256, Ed25519 for EdDSA. For HS256 the secret itself, 32 bytes at least.
        file: PathBuf, allowed("not empty"), example("\"/etc/weir/issuer.pem\""), needed();
        /// The name that tokens call it by (`kid`). Absent: any token may be signed with it.
        kid: Option<String>, example("\"2026-11\""),
            allowed("1 to {WORD_BYTES_MAX} bytes, no two alike");
    }
}

weir_wire::named_enum! {
    /// How a token is signed.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum JwtAlgorithm {
        /// HMAC with SHA-256, under a secret that both sides have.
        Hs256 = "HS256",
        /// RSA (PKCS #1 v1.5) with SHA-256.
        Rs256 = "RS256",
        /// ECDSA over P-256 with SHA-256.
        #[default]
        Es256 = "ES256",
        /// Ed25519.
        EdDsa = "EdDSA",
    }
}

crate::config_words!(JwtAlgorithm);

/// As in any of these, and in what it is compared with.
pub(super) const WORD_BYTES_MAX: usize = 1024;
pub(super) const CLAIM_BYTES_MAX: usize = 128;
