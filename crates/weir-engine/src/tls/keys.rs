//! Keys of TLS 1.3, derived from a traffic secret, and the next secret (RFC 8446 section 7).

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::protocol::Cipher;
use crate::sys::aead::{Algorithm, Hash, NONCE_BYTES, hkdf_expand};

/// The longest key.
pub(super) const KEY_BYTES_MAX: usize = 32;

/// The longest secret, that of SHA-384.
pub(super) const SECRET_BYTES_MAX: usize = 48;

pub(super) const IV_BYTES: usize = NONCE_BYTES;

/// Key and IV of the records in one direction.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(super) struct Keys {
    /// As many bytes as the cipher needs, then zeros.
    pub(super) key: [u8; KEY_BYTES_MAX],
    pub(super) iv: [u8; IV_BYTES],
}

/// Whether a key and an IV are those of a TLS 1.3 traffic secret.
///
/// Cost: two derivations, about 1 µs.
pub fn are_derived(cipher: Cipher, secret: &[u8], key: &[u8], iv: &[u8]) -> bool {
    if secret.len() != cipher.secret_bytes() {
        return false;
    }
    let keys = traffic_keys(cipher, secret);
    keys.key[..cipher.key_bytes()] == *key && keys.iv == *iv
}

/// Key and IV of a traffic secret (section 7.3).
pub(super) fn traffic_keys(cipher: Cipher, secret: &[u8]) -> Keys {
    let mut keys = Keys { key: [0; KEY_BYTES_MAX], iv: [0; IV_BYTES] };
    expand_label(cipher, secret, b"key", &mut keys.key[..cipher.key_bytes()]);
    expand_label(cipher, secret, b"iv", &mut keys.iv);
    keys
}

/// Turns a traffic secret into the one that follows it (section 7.2).
pub(super) fn ratchet(cipher: Cipher, secret: &mut [u8]) {
    let mut next = [0; SECRET_BYTES_MAX];
    let bytes = secret.len();
    expand_label(cipher, secret, b"traffic upd", &mut next[..bytes]);
    secret.copy_from_slice(&next[..bytes]);
    next.zeroize();
}

impl Cipher {
    pub(super) const fn key_bytes(self) -> usize {
        match self {
            Cipher::Aes128Gcm => 16,
            Cipher::Aes256Gcm | Cipher::ChaCha20Poly1305 => 32,
        }
    }

    /// Bytes of a traffic secret of TLS 1.3.
    pub(super) const fn secret_bytes(self) -> usize {
        match self {
            Cipher::Aes128Gcm | Cipher::ChaCha20Poly1305 => 32,
            Cipher::Aes256Gcm => 48,
        }
    }

    pub(super) const fn is_gcm(self) -> bool {
        match self {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => true,
            Cipher::ChaCha20Poly1305 => false,
        }
    }

    pub(super) const fn algorithm(self) -> Algorithm {
        match self {
            Cipher::Aes128Gcm => Algorithm::Aes128Gcm,
            Cipher::Aes256Gcm => Algorithm::Aes256Gcm,
            Cipher::ChaCha20Poly1305 => Algorithm::ChaCha20Poly1305,
        }
    }

    const fn hash(self) -> Hash {
        match self {
            Cipher::Aes128Gcm | Cipher::ChaCha20Poly1305 => Hash::Sha256,
            Cipher::Aes256Gcm => Hash::Sha384,
        }
    }
}

/// HKDF-Expand-Label with an empty context (section 7.1), into at most one secret's worth of bytes.
fn expand_label(cipher: Cipher, secret: &[u8], label: &[u8], out: &mut [u8]) {
    let mut info = [0; INFO_BYTES_MAX];
    let bytes = [
        &[0, small(out.len())],
        [small(LABEL_PREFIX.len() + label.len())].as_slice(),
        LABEL_PREFIX,
        label,
        &[0],
    ]
    .into_iter()
    .fold(0, |at, part| {
        info[at..at + part.len()].copy_from_slice(part);
        at + part.len()
    });
    hkdf_expand(cipher.hash(), secret, &info[..bytes], out);
}

/// Lengths here are those of secrets and labels.
fn small(bytes: usize) -> u8 {
    u8::try_from(bytes).expect("no longer than a secret")
}

const LABEL_PREFIX: &[u8] = b"tls13 ";
/// Two bytes of length, the label behind its length, an empty context.
const INFO_BYTES_MAX: usize = 2 + 1 + LABEL_PREFIX.len() + b"traffic upd".len() + 1;
