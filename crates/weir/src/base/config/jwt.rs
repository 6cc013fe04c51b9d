//! Section `[auth.jwt]`.

use std::path::PathBuf;
use std::time::Duration;

use super::RATE_MAX;
use super::keys::{DAY, MINUTE, SECOND};

crate::config_table! {
    /// Section `[auth.jwt]`: tokens that other backends issue and sign (RFC 7519).
    pub struct JwtConfig {
        /// The required value of the claim `iss`. Empty: any value. Set it if the keys also sign
        /// tokens for other programs than Weir.
        issuer: String, allowed("at most {WORD_BYTES_MAX} bytes");
        /// A value that the claim `aud` must have or contain. Empty: a token with an audience is
        /// refused, because it is meant for another program.
        audience: String, allowed("at most {WORD_BYTES_MAX} bytes");
        /// The greatest accepted difference between the issuer's clock and ours: a token is valid
        /// this much earlier and longer. Synchronised clocks agree within a second.
        // Larger differences should be repaired.
        leeway: Duration = Duration::from_secs(30), range(0..=5 * MINUTE), reason(" (5 minutes)");
        /// Length of such a token. Long tokens cost memory before their device is known. A token
        /// with many claims and an RSA signature has some 2 KiB.
        // A shorter token could not hold an RSA signature; the greatest value is the default frame.
        token_bytes_max: usize = 8192, range(512..=65_536), unit("bytes");
        /// Invalid signed tokens that all datagrams together may show in a second, since source
        /// addresses of datagrams can be forged. The default costs a tenth of a processor with
        /// ES256. Beyond it, tokens that were not verified recently are refused for a while
        /// (`rate_limited`). 0: no limit.
        datagram_failures_per_second: u32 = 1_000, range(0..=RATE_MAX), unit("failures a second");
        /// Interval at which the files of the keys are checked. A changed file is read once it
        /// stays the same for one check, or at once on SIGHUP. If it cannot be used, the keys
        /// loaded before stay.
        reload_interval: Duration = Duration::from_secs(60), range(SECOND..=DAY);
        /// The claim with the device id, a text. A token without this claim is refused.
        device_claim: String = "sub".to_owned(),
            allowed("1 to {CLAIM_BYTES_MAX} bytes, each of the four different");
        /// The claim with the topics of the token: at most 16 patterns, as in `[[topic_classes]]`,
        /// with `{device}` for its own device. Without the claim, the token permits everything that
        /// the classes permit. No claim permits more than the classes.
        topics_claim: String = "topics".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// The claim with labels: at most 16 texts. Labels that a class names have an effect.
        labels_claim: String = "labels".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// The claim with the priority of the connections: `high`, `normal` or `low`.
        priority_claim: String = "priority".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// Keys that sign such tokens. Without keys no such token is accepted. Only in the file.
        // Room for the old and new keys of a few issuers.
        keys: Vec<JwtKeyConfig>, range(0..=16), unit("keys"),
            reason(": a token without a kid may need all of them");
    }
}

crate::config_table! {
    /// One of `[[auth.jwt.keys]]`.
    pub struct JwtKeyConfig in "tables [[auth.jwt.keys]], each with an algorithm and a file" {
        /// The only algorithm for this key, whatever the token says.
        algorithm: JwtAlgorithm, example("\"ES256\""), needed();
        /// PEM file of the public key (`BEGIN PUBLIC KEY`): RSA of 2048 to 8192 bits for RS256,
        /// P-256 for ES256, Ed25519 for EdDSA. For HS256 the secret itself, 32 bytes at least.
        file: PathBuf, allowed("not empty"), example("\"/etc/weir/issuer.pem\""), needed();
        /// The name of the key in tokens (`kid`). Absent: the key may have signed any token.
        kid: Option<String>, example("\"2026-11\""),
            allowed("1 to {WORD_BYTES_MAX} bytes, no two alike");
    }
}

weir_wire::named_enum! {
    /// The signature algorithm of a token.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum JwtAlgorithm {
        /// HMAC with SHA-256 and a secret that both sides know.
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

/// For each of these texts, and for the claims that they are compared with.
pub(super) const WORD_BYTES_MAX: usize = 1024;
pub(super) const CLAIM_BYTES_MAX: usize = 128;
