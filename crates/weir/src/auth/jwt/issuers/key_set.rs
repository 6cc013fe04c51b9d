//! JSON Web Key Sets (RFC 7517): the keys that may verify tokens.

use aws_lc_rs::digest::{Digest, SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::auth::jwt::keys::{Demands, Key, check_rsa_bits, ed25519, p256};
use crate::base::config::JwtAlgorithm;

/// The keys of a set.
pub(super) struct KeySet {
    pub(super) keys: Vec<Key>,
    /// The digest of each key's text.
    digests: Vec<Digest>,
    /// Keys of the set that verify no tokens here: of other algorithms and for other uses.
    pub(super) left_out: usize,
}

/// Why a text is no key set for us.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeySetError {
    #[error("the answer is no JSON Web Key Set: {0}")]
    NoSet(serde_json::Error),
    #[error("the answer has {0} keys that can verify tokens, more than {KEYS_MAX}")]
    TooMany(usize),
}

impl KeySet {
    /// Whether each key of another set is in this one, with the same text.
    pub(super) fn has_all(&self, other: &KeySet) -> bool {
        let has = |digest: &Digest| self.digests.iter().any(|own| own.as_ref() == digest.as_ref());
        other.digests.iter().all(has)
    }
}

#[derive(Deserialize)]
struct Set<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// The members of a key that we look at (RFC 7518 section 6, RFC 8037 section 2).
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    /// The private half, which must not be there.
    d: Option<IgnoredAny>,
}

/// Reads a key set. Each key that cannot verify tokens is left out.
///
/// Limits: [`KEYS_MAX`] keys.
/// Errors: it is no key set, or has too many keys.
pub(super) fn read(text: &[u8], demands: Demands<'_>) -> Result<KeySet, KeySetError> {
    let set: Set<'_> = serde_json::from_slice(text).map_err(KeySetError::NoSet)?;
    let found = set.keys.len();
    let usable =
        |text: &&RawValue| Some((key_of(text, demands)?, digest(&SHA256, text.get().as_bytes())));
    let (keys, digests): (Vec<Key>, Vec<Digest>) = set.keys.iter().filter_map(usable).unzip();
    match keys.len() {
        count if count > KEYS_MAX => Err(KeySetError::TooMany(count)),
        count => Ok(KeySet { keys, digests, left_out: found - count }),
    }
}

fn key_of(text: &RawValue, demands: Demands<'_>) -> Option<Key> {
    let jwk: Jwk = serde_json::from_str(text.get()).ok()?;
    let is_for_us = jwk.d.is_none()
        && jwk.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
        && jwk.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"))
        && jwk.kid.as_ref().is_none_or(|kid| kid.len() <= KID_BYTES_MAX);
    if !is_for_us {
        return None;
    }
    let (algorithm, decoding) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", None) => (JwtAlgorithm::Rs256, rsa(jwk.n.as_deref()?, jwk.e.as_deref()?)?),
        ("EC", Some("P-256")) => {
            let point = DecodingKey::from_ec_components(jwk.x.as_deref()?, jwk.y.as_deref()?);
            (JwtAlgorithm::Es256, p256(point.ok()?)?)
        }
        ("OKP", Some("Ed25519")) => {
            let point = DecodingKey::from_ed_components(jwk.x.as_deref()?);
            (JwtAlgorithm::EdDsa, ed25519(point.ok()?)?)
        }
        _ => return None,
    };
    // RFC 9864 has a second name for the last one.
    let is_named = |name: &str| {
        name == algorithm.name() || algorithm == JwtAlgorithm::EdDsa && name == "Ed25519"
    };
    if !jwk.alg.as_deref().is_none_or(is_named) {
        return None;
    }
    Some(Key::new(jwk.kid.as_deref(), algorithm, decoding, demands))
}

fn rsa(n: &str, e: &str) -> Option<DecodingKey> {
    let modulus = URL_SAFE_NO_PAD.decode(n).ok()?;
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    check_rsa_bits(8 * (modulus.len() - zeros)).ok()?;
    let exponent = URL_SAFE_NO_PAD.decode(e).ok()?;
    // Long exponents make a verification slow; 65537 is usual.
    let is_short = (1..=EXPONENT_BYTES_MAX).contains(&exponent.len());
    is_short.then(|| DecodingKey::from_rsa_components(n, e).ok()).flatten()
}

/// A token without a `kid` may need all of them.
pub(super) const KEYS_MAX: usize = 16;
const KID_BYTES_MAX: usize = 1024;
const EXPONENT_BYTES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jsonwebtoken::Algorithm;
    use serde_json::{Value, json};

    use super::*;

    const DEMANDS: Demands<'static> =
        Demands { issuer: "i", audience: "", leeway: Duration::from_secs(1) };

    fn ed() -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "x": "5yhNjJbu_t7ykjSU2dNHMLtgHt0tmGEkJwFNewFZ180"})
    }

    fn ec() -> Value {
        json!({"kty": "EC", "crv": "P-256", "x": "6mTwBObD1xop5NKDK7Ij5VP5tg99gxlNxM2RgiMjMhI",
               "y": "_zQrmLpFqw9ipP_3ven-8o3Xte5qZ6f46_zA47vtagw"})
    }

    fn rsa_of(bytes: usize) -> Value {
        let mut modulus = vec![0xA5; bytes];
        modulus[bytes - 1] = 1;
        json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode(modulus), "e": "AQAB"})
    }

    fn with(mut key: Value, name: &str, value: Value) -> Value {
        key[name] = value;
        key
    }

    fn algorithms(keys: &[Value]) -> (Vec<Algorithm>, usize) {
        let text = json!({ "keys": keys, "more": [1] }).to_string();
        let set = read(text.as_bytes(), DEMANDS).unwrap();
        let algorithms = set.keys.iter().flat_map(|key| key.validation.algorithms.clone());
        (algorithms.collect(), set.left_out)
    }

    #[test]
    fn each_key_has_the_algorithm_of_its_kind() {
        let keys = [rsa_of(256), ec(), ed(), with(ed(), "alg", json!("Ed25519"))];
        let expected = vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA, Algorithm::EdDSA];
        assert_eq!(algorithms(&keys), (expected, 0));
        let used = with(with(ed(), "use", json!("sig")), "key_ops", json!(["verify", "sign"]));
        assert_eq!(algorithms(&[used]), (vec![Algorithm::EdDSA], 0));
        assert_eq!(algorithms(&[]), (vec![], 0));
    }

    #[test]
    fn a_key_that_cannot_verify_tokens_is_left_out() {
        let secret = json!({"kty": "oct", "k": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"});
        for key in [
            secret.clone(),
            with(secret, "alg", json!("HS256")),
            with(ed(), "use", json!("enc")),
            with(ed(), "key_ops", json!(["sign"])),
            with(ed(), "alg", json!("ES256")),
            with(ed(), "crv", json!("X25519")),
            with(ed(), "x", json!("5yhN")),
            with(ed(), "x", json!(7)),
            with(ed(), "kid", json!("k".repeat(1025))),
            // Somebody has published his private key.
            with(ed(), "d", json!("5yhNjJbu_t7ykjSU2dNHMLtgHt0tmGEkJwFNewFZ180")),
            with(ec(), "crv", json!("P-384")),
            with(ec(), "y", json!("6mTwBObD1xop5NKDK7Ij5VP5tg99gxlNxM2RgiMjMhI")),
            rsa_of(255),
            rsa_of(1025),
            with(rsa_of(256), "alg", json!("RS512")),
            with(rsa_of(256), "alg", json!("PS256")),
            with(rsa_of(256), "e", json!("")),
            with(rsa_of(256), "e", json!("AQABAQAB")),
            json!("key"),
            json!({}),
        ] {
            assert_eq!(algorithms(&[key.clone(), ed()]), (vec![Algorithm::EdDSA], 1), "{key}");
        }
    }

    #[test]
    fn what_is_no_set_or_too_large_is_refused() {
        for text in ["", "<html>", "[]", "{}", "null", r#"{"keys": {}}"#, r#"{"keys": ["#] {
            let error = read(text.as_bytes(), DEMANDS).err().expect(text);
            assert!(matches!(error, KeySetError::NoSet(_)), "{text}: {error}");
        }
        let keys = |count| json!({ "keys": vec![ed(); count] }).to_string();
        assert_eq!(read(keys(16).as_bytes(), DEMANDS).unwrap().keys.len(), 16);
        let error = read(keys(17).as_bytes(), DEMANDS).err().unwrap().to_string();
        assert_eq!(error, "the answer has 17 keys that can verify tokens, more than 16");
        // Nested so deeply that a parser without a limit would overflow its stack.
        let deep = format!(r#"{{"keys": [{}"#, "[".repeat(100_000));
        assert!(read(deep.as_bytes(), DEMANDS).is_err());
    }
}
