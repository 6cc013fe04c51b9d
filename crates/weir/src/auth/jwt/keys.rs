//! The keys of signed tokens. Each is for one algorithm. Those of the configuration are in files.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::rsa;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ED25519, UnparsedPublicKey};
use jsonwebtoken::crypto::aws_lc;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use zeroize::Zeroizing;

use crate::base::config::{JwtAlgorithm, JwtConfig, JwtKeyConfig};

/// One key and its use.
pub(super) struct Key {
    kid: Option<Box<str>>,
    pub(super) decoding: DecodingKey,
    /// Its only algorithm, and the required claims of its tokens.
    pub(super) validation: Validation,
}

/// What tokens must have, whichever key has signed them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demands<'a> {
    /// Empty: any.
    pub(super) issuer: &'a str,
    /// Empty: none.
    pub(super) audience: &'a str,
    pub(super) leeway: Duration,
}

/// A file of `[auth.jwt]` that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("auth.jwt.keys[{index}].file = {file:?}: {why}")]
pub struct JwtKeyError {
    /// The index in the list.
    pub index: usize,
    /// The file.
    pub file: PathBuf,
    /// The error.
    pub why: String,
}

impl Key {
    pub(super) fn new(
        kid: Option<&str>,
        algorithm: JwtAlgorithm,
        decoding: DecodingKey,
        demands: Demands<'_>,
    ) -> Key {
        install_provider();
        Key { kid: kid.map(Box::from), decoding, validation: validation(demands, algorithm) }
    }

    /// Whether this key may have signed a token with this `kid`.
    pub(super) fn may_be(&self, kid: Option<&str>) -> bool {
        self.kid.as_deref().is_none_or(|own| Some(own) == kid)
    }
}

/// Reads all keys.
///
/// Errors: the first file that cannot be used.
pub(super) fn read(config: &JwtConfig) -> Result<Vec<Key>, JwtKeyError> {
    let JwtConfig { issuer, audience, leeway, .. } = config;
    let demands = Demands { issuer, audience, leeway: *leeway };
    install_provider();
    let read = |(index, key): (usize, &JwtKeyConfig)| {
        let decoding = read_key(key).map_err(|why| {
            let file = key.file.clone();
            JwtKeyError { index, file, why }
        })?;
        Ok(Key::new(key.kid.as_deref(), key.algorithm, decoding, demands))
    };
    config.keys.iter().enumerate().map(read).collect()
}

/// The key, if it is a point of P-256.
pub(super) fn p256(decoding: DecodingKey) -> Option<DecodingKey> {
    let point = decoding.try_get_as_bytes().ok()?;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).parse().ok()?;
    Some(decoding)
}

/// The key, if it is one of Ed25519.
pub(super) fn ed25519(decoding: DecodingKey) -> Option<DecodingKey> {
    let point = decoding.try_get_as_bytes().ok()?;
    UnparsedPublicKey::new(&ED25519, point).parse().ok()?;
    Some(decoding)
}

/// Checks the length of an RSA key's modulus.
pub(super) fn check_rsa_bits(bits: usize) -> Result<(), String> {
    match (RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits) {
        true => Ok(()),
        false => {
            let allowed = format!("allowed are {RSA_BITS_MIN} to {RSA_BITS_MAX}");
            Err(format!("holds an RSA key of {bits} bits; {allowed}"))
        }
    }
}

pub(super) fn install_provider() {
    // An error means that a provider is installed already. It is this one, since nothing else
    // installs one.
    let _ = aws_lc::DEFAULT_PROVIDER.install_default();
}

fn validation(demands: Demands<'_>, algorithm: JwtAlgorithm) -> Validation {
    let Demands { issuer, audience, leeway } = demands;
    let mut validation = Validation::new(match algorithm {
        JwtAlgorithm::Hs256 => Algorithm::HS256,
        JwtAlgorithm::Rs256 => Algorithm::RS256,
        JwtAlgorithm::Es256 => Algorithm::ES256,
        JwtAlgorithm::EdDsa => Algorithm::EdDSA,
    });
    validation.leeway = leeway.as_secs();
    validation.validate_nbf = true;
    let mut required = vec!["exp"];
    if !issuer.is_empty() {
        validation.set_issuer(&[issuer]);
        required.push("iss");
    }
    // Without an audience here, a token with an audience is refused: it is for another program.
    if !audience.is_empty() {
        validation.set_audience(&[audience]);
        required.push("aud");
    }
    validation.set_required_spec_claims(&required);
    validation
}

fn read_key(key: &JwtKeyConfig) -> Result<DecodingKey, String> {
    let bytes = read_file(&key.file).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("has more than {FILE_BYTES_MAX} bytes, so it is no key"));
    }
    let not_pem = |kind: &str| {
        format!(
            "holds no {kind} public key in PEM (BEGIN PUBLIC KEY), as {} needs",
            key.algorithm.name()
        )
    };
    match key.algorithm {
        JwtAlgorithm::Hs256 => {
            let secret = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
            if secret.len() < SECRET_BYTES_MIN {
                let bytes = secret.len();
                return Err(format!(
                    "holds a secret of {bytes} bytes; HS256 needs {SECRET_BYTES_MIN} at least (openssl rand -hex 32)"
                ));
            }
            Ok(DecodingKey::from_secret(secret))
        }
        JwtAlgorithm::Rs256 => {
            let decoding = DecodingKey::from_rsa_pem(&bytes).map_err(|_| not_pem("RSA"))?;
            let der = decoding.try_get_as_bytes().map_err(|_| not_pem("RSA"))?;
            let public = rsa::PublicKey::from_der(der).map_err(|_| not_pem("RSA"))?;
            check_rsa_bits(8 * public.modulus_len())?;
            Ok(decoding)
        }
        JwtAlgorithm::Es256 => {
            let decoding = DecodingKey::from_ec_pem(&bytes).map_err(|_| not_pem("P-256"))?;
            p256(decoding).ok_or_else(|| not_pem("P-256"))
        }
        JwtAlgorithm::EdDsa => {
            let decoding = DecodingKey::from_ed_pem(&bytes).map_err(|_| not_pem("Ed25519"))?;
            ed25519(decoding).ok_or_else(|| not_pem("Ed25519"))
        }
    }
}

/// Reads at most one byte more than a key may have.
fn read_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX + 1));
    let mut file = File::open(path)?.take(FILE_BYTES_MAX as u64 + 1);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The longest key, with room for text around it.
const FILE_BYTES_MAX: usize = 64 * 1024;
/// As long as the hash (RFC 7518 section 3.2).
const SECRET_BYTES_MIN: usize = 32;
/// RFC 7518 section 3.3.
const RSA_BITS_MIN: usize = 2048;
/// Longer keys take too long to verify.
const RSA_BITS_MAX: usize = 8192;
