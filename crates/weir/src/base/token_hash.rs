//! Tokens of the admin API: making one, and the hash that the configuration holds in its place.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The SHA-256 of a secret.
///
/// A token with enough random bits needs no slower hash: nobody can try them all.
pub(crate) type Digest = [u8; 32];

/// The hash of a token, in the form of `hash` in `[[admin.tokens]]`.
pub fn token_hash(token: &str) -> String {
    let digits = digest_of(token).map(|byte| format!("{byte:02x}"));
    format!("{PREFIX}{}", digits.concat())
}

/// A new token of the admin API: 256 random bits in base64url, 43 characters.
///
/// Errors: the system has no random bytes.
pub fn new_admin_token() -> std::io::Result<String> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(std::io::Error::other)?;
    Ok(URL_SAFE_NO_PAD.encode(bits))
}

pub(crate) fn digest_of(secret: &str) -> Digest {
    let mut sum = Digest::default();
    sum.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    sum
}

/// Reads what [`token_hash`] writes; upper case is allowed too.
pub(crate) fn parse(hash: &str) -> Option<Digest> {
    let digits = hash.strip_prefix(PREFIX)?.as_bytes();
    let mut sum = Digest::default();
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != sum.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in sum.iter_mut().zip(pairs) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
    }
    Some(sum)
}

const PREFIX: &str = "sha256:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        // FIPS 180-2, appendix B.1.
        let hash = token_hash("abc");
        let expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash, expected);
        assert_eq!(parse(&hash), Some(digest_of("abc")));
        let digits = &hash[PREFIX.len()..];
        assert_eq!(parse(&format!("{PREFIX}{}", digits.to_uppercase())), Some(digest_of("abc")));
        for wrong in [
            "",
            "sha256:",
            digits,
            &hash[..hash.len() - 1],
            &format!("{hash}0"),
            &format!("sha256:{}", &digits.replace('b', "g")),
            &format!("sha256:+{}", &digits[1..]),
            &format!("SHA256:{digits}"),
            &format!("{hash} "),
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_two_new_tokens_are_alike() {
        let (one, other) = (new_admin_token().unwrap(), new_admin_token().unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 43 && one.bytes().all(|byte| byte.is_ascii_graphic()), "{one}");
    }
}
