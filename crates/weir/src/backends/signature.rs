//! The signature of requests to hooks.

use aws_lc_rs::hmac;
use http::HeaderValue;

/// The header that carries the signature.
pub(crate) const SIGNATURE: &str = "weir-signature";

/// Signs a request: `t=SECONDS,v1=HEX`, where HEX is the HMAC-SHA256 of `SECONDS.BODY`.
///
/// Shape: the seconds are since 1970, so that a receiver can refuse old requests; HEX has 64 lower
/// case digits.
pub(crate) fn sign(secret: &[u8], unix_seconds: u64, body: &[u8]) -> HeaderValue {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    context.update(format!("{unix_seconds}.").as_bytes());
    context.update(body);
    let tag = context.sign();
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("t={unix_seconds},v1={hex}"))
        .expect("digits, letters and signs may stand in a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figure is that of `printf '%s' '1700000000.{"hook":"connect"}' | openssl dgst -sha256
    /// -hmac 'a secret of at least thirty-two bytes'`.
    #[test]
    fn the_signature_is_that_of_openssl() {
        let secret = b"a secret of at least thirty-two bytes";
        let signed = sign(secret, 1_700_000_000, br#"{"hook":"connect"}"#);
        assert_eq!(
            signed,
            "t=1700000000,v1=2553315e8fc606cf798b8378da3eae5b21ff8fa1b0f009943ee455fd6c35113a"
        );
    }
}
