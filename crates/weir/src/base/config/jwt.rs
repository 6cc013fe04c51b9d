//! Section `[auth.jwt]`.

use std::path::PathBuf;
use std::time::Duration;

use super::RATE_MAX;
use super::keys::{DAY, MINUTE, SECOND};

crate::config_table! {
    /// Section `[auth.jwt]`: tokens that other programs issue and sign (RFC 7519).
    pub struct JwtConfig {
        /// Required value of the claim `iss`. Empty: any issuer. Set it if the keys also sign
        /// tokens for other uses.
        issuer: String, allowed("at most {WORD_BYTES_MAX} bytes");
        /// Value that the claim `aud` must equal or contain. Empty: a token with an audience is
        /// refused, because it is meant for another program.
        audience: String, allowed("at most {WORD_BYTES_MAX} bytes");
        /// Largest difference between the issuer's clock and ours. A token is valid this much
        /// earlier and longer than it says. Synchronised clocks agree within a second.
        // Clocks with a larger difference need mending.
        leeway: Duration = Duration::from_secs(30), range(0..=5 * MINUTE), reason(" (5 minutes)");
        /// Length of a signed token. Long tokens cost memory before their owner is known. A token
        /// with many claims and an RSA signature has some 2 KiB.
        // A shorter token could not hold an RSA signature; the longest is a default frame.
        token_bytes_max: usize = 8192, range(512..=65_536), unit("bytes");
        /// Invalid signed tokens per second in all datagrams together, since source addresses can
        /// be forged. The default costs a tenth of a processor with ES256. Beyond it, tokens that
        /// were not verified recently are refused for a while (`rate_limited`). 0: no limit.
        datagram_failures_per_second: u32 = 1_000, range(0..=RATE_MAX), unit("failures a second");
        /// How often the key files are checked for changes. A changed file is read when the next
        /// check finds it unchanged again, or at once on SIGHUP. If it cannot be used, the loaded
        /// keys stay.
        reload_interval: Duration = Duration::from_secs(60), range(SECOND..=DAY);
        /// Claim that names the device: a text that can be a device id. A token without it is
        /// refused.
        device_claim: String = "sub".to_owned(),
            allowed("1 to {CLAIM_BYTES_MAX} bytes, each of the four another one");
        /// Claim that lists the topics that the token may use: at most 16 patterns, as in
        /// `[[topic_classes]]`, with `{device}` for its own device. A token without the claim may
        /// use all topics that classes permit. The claim never permits more than the classes.
        topics_claim: String = "topics".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// Claim that lists labels: at most 16 texts. Only labels that a class names count.
        labels_claim: String = "labels".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// Claim with the priority of the token's connections: `high`, `normal` or `low`.
        priority_claim: String = "priority".to_owned(), allowed("1 to {CLAIM_BYTES_MAX} bytes");
        /// Keys with which tokens are signed. Without keys and issuers, no signed token is accepted.
        /// Only the file can set them.
        // Enough for old and new keys of a few issuers.
        keys: Vec<JwtKeyConfig>, range(0..=16), unit("keys"),
            reason(": a token without a kid may need all of them");
        /// Issuers whose keys the gateway fetches. Only the file can set them.
        issuers: Vec<JwtIssuerConfig>, range(0..=16), unit("issuers"),
            reason(": each fetches its own keys"), reload();
    }
}

impl JwtConfig {
    /// Whether signed tokens can be valid.
    pub(crate) fn has_keys(&self) -> bool {
        !self.keys.is_empty() || !self.issuers.is_empty()
    }
}

crate::config_table! {
    /// One of `[[auth.jwt.keys]]`.
    pub struct JwtKeyConfig in "tables [[auth.jwt.keys]], each with an algorithm and a file" {
        /// The key's only algorithm, whatever a token says.
        algorithm: JwtAlgorithm, example("\"ES256\""), needed();
        /// PEM file of the public key (`BEGIN PUBLIC KEY`): RSA of 2048 to 8192 bits for RS256,
        /// P-256 for ES256, Ed25519 for EdDSA. For HS256, a file with the secret itself, at least
        /// 32 bytes.
        file: PathBuf, allowed("not empty"), example("\"/etc/weir/issuer.pem\""), needed();
        /// The key's name in tokens (`kid`). Absent: the key may verify any token.
        kid: Option<String>, example("\"2026-11\""),
            allowed("1 to {WORD_BYTES_MAX} bytes, no two alike");
    }
}

crate::config_table! {
    /// One of `[[auth.jwt.issuers]]`: an issuer whose keys the gateway fetches.
    pub struct JwtIssuerConfig
        in "tables [[auth.jwt.issuers]], each with an issuer and an upstream"
    {
        /// Value of the claim `iss` in this issuer's tokens. Only its own keys verify them, and
        /// they verify no other token.
        issuer: String, needed(), example("\"https://login.example\""),
            allowed("1 to {WORD_BYTES_MAX} bytes, no two alike, and not auth.jwt.issuer");
        /// The upstream that has the keys, as a JSON Web Key Set (RFC 7517). It decides which tokens
        /// are valid: use TLS beyond a trusted network.
        upstream: String, needed(), example("\"api\""),
            allowed("the name of one of [[upstreams]]");
        /// Path of the key set, with its query if it has one.
        path: String = "/.well-known/jwks.json".to_owned(),
            allowed("a path that begins with /, of {KEYS_PATH_BYTES_MAX} bytes at most");
        /// Value that the claim `aud` must equal or contain. Empty: `auth.jwt.audience`.
        audience: String, allowed("at most {WORD_BYTES_MAX} bytes");
        /// The keys are fetched again after this time. `max-age` of the answer's `Cache-Control` can
        /// shorten it, down to `fetch_interval`.
        refresh: Duration = Duration::from_secs(3600), range(SECOND..=DAY);
        /// A token whose `kid` is unknown has the keys fetched at once, but only one does in this
        /// time. Later ones are told to come back (`rate_limited`).
        fetch_interval: Duration = Duration::from_secs(10), range(SECOND..=10 * MINUTE);
        /// How long a fetch may take.
        fetch_timeout: Duration = Duration::from_secs(5), range(10..=MINUTE);
        /// While the keys cannot be fetched, the last ones stay in use for this long after
        /// `refresh`. Then the issuer's tokens are told to come back (`store_unavailable`).
        // Longer than an outage; shorter than a stolen key is of use.
        keys_kept: Duration = Duration::from_secs(24 * 3600), range(0..=30 * DAY);
    }
}

weir_wire::named_enum! {
    /// The algorithm of a signature.
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

/// Bytes of an issuer, an audience or a key's name.
pub(super) const WORD_BYTES_MAX: usize = 1024;
pub(super) const CLAIM_BYTES_MAX: usize = 128;
pub(super) const KEYS_PATH_BYTES_MAX: usize = 1024;
