//! Captures the application traffic secrets of TLS 1.3 while rustls computes them.
//!
//! rustls gives up keys, but only a [`KeyLog`] sees the secrets from which later keys are derived.
//! All connections of a configuration share that log. A handshake runs on one thread without a
//! pause, so the thread tells them apart.

use std::cell::RefCell;
use std::mem;

use aws_lc_rs::hkdf::{HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use rustls::KeyLog;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Both secrets of one connection, as far as they are known. Wiped when dropped.
#[derive(Default, Zeroize, ZeroizeOnDrop)]
pub(crate) struct TrafficSecrets {
    pub(crate) server: Secret,
    pub(crate) client: Secret,
}

/// One secret; empty until it is known.
#[derive(Default, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Secret {
    bytes: Vec<u8>,
}

/// The key log of all our configurations.
#[derive(Debug)]
pub(crate) struct Capture;

/// Runs `handshake` on this thread and stores the secrets that it logs.
pub(crate) fn capture<R>(secrets: &mut TrafficSecrets, handshake: impl FnOnce() -> R) -> R {
    /// Takes the secrets back, even after a panic.
    struct Guard<'a>(&'a mut TrafficSecrets);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            *self.0 = SINK.take().unwrap_or_default();
        }
    }
    SINK.replace(Some(mem::take(secrets)));
    let _guard = Guard(secrets);
    handshake()
}

impl KeyLog for Capture {
    fn will_log(&self, label: &str) -> bool {
        matches!(label, SERVER | CLIENT)
    }

    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        SINK.with_borrow_mut(|sink| {
            let Some(secrets) = sink else { return };
            match label {
                SERVER => secrets.server.keep(secret),
                CLIENT => secrets.client.keep(secret),
                _ => {}
            }
        });
    }
}

impl Secret {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn keep(&mut self, secret: &[u8]) {
        self.bytes.zeroize();
        self.bytes = secret.to_vec();
    }

    /// Whether the secret's first key and IV are these (RFC 8446 section 7.3).
    pub(crate) fn makes(&self, key: &[u8], iv: &[u8]) -> bool {
        self.expands_to(b"key", key) && self.expands_to(b"iv", iv)
    }

    fn expands_to(&self, label: &[u8], expected: &[u8]) -> bool {
        let hash = match self.bytes.len() {
            32 => HKDF_SHA256,
            48 => HKDF_SHA384,
            _ => return false,
        };
        let (Ok(bytes), Ok(label_bytes)) =
            (u8::try_from(expected.len()), u8::try_from(label.len()))
        else {
            return false;
        };
        // HkdfLabel: length, "tls13 " and the label, an empty context.
        let info = [&[0, bytes, LABEL_PREFIX_BYTES + label_bytes], LABEL_PREFIX, label, &[0]];
        let secret = Prk::new_less_safe(hash, &self.bytes);
        let mut expanded = [0; EXPANDED_BYTES_MAX];
        let Some(expanded) = expanded.get_mut(..expected.len()) else { return false };
        let is_filled =
            secret.expand(&info, Length(expected.len())).and_then(|okm| okm.fill(expanded)).is_ok();
        let is_same = bool::from(subtle::ConstantTimeEq::ct_eq(&*expanded, expected));
        expanded.zeroize();
        is_filled && is_same
    }
}

#[derive(Debug, Clone, Copy)]
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

thread_local! {
    static SINK: RefCell<Option<TrafficSecrets>> = const { RefCell::new(None) };
}

const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";
const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const LABEL_PREFIX: &[u8] = b"tls13 ";
const LABEL_PREFIX_BYTES: u8 = 6;
/// No key is longer.
const EXPANDED_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8448 section 3, "derive write traffic keys for application data" of the server.
    #[test]
    fn keys_are_recognised() {
        let mut secret = Secret::default();
        secret.keep(&hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643"));
        let (key, iv) = (hex("9f02283b6c9c07efc26bb9f2ac92e356"), hex("cf782b88dd83549aadf1e984"));
        assert!(secret.makes(&key, &iv));
        assert!(!secret.makes(&iv, &key));
        assert!(!secret.makes(&key, &key));
        assert!(!Secret::default().makes(&key, &iv));
    }

    #[test]
    fn each_handshake_has_its_own() {
        let (mut first, mut second) = (TrafficSecrets::default(), TrafficSecrets::default());
        Capture.log(SERVER, &[], &[9; 32]);
        capture(&mut first, || Capture.log(SERVER, &[], &[1; 32]));
        capture(&mut second, || Capture.log(CLIENT, &[], &[2; 32]));
        capture(&mut first, || Capture.log(CLIENT, &[], &[3; 32]));
        Capture.log(CLIENT, &[], &[9; 32]);
        let all = [&first.server, &first.client, &second.server, &second.client];
        let first_bytes = all.map(|secret| secret.bytes().first().copied());
        assert_eq!(first_bytes, [Some(1), Some(3), None, Some(2)]);
    }

    fn hex(text: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digit).collect()
    }
}
