//! Types that the parts of TLS share: versions, ciphers, and the results of sealing and opening.

/// Protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// Cipher of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-128-GCM; in TLS 1.3 with SHA-256.
    Aes128Gcm,
    /// AES-256-GCM; in TLS 1.3 with SHA-384.
    Aes256Gcm,
    /// ChaCha20-Poly1305; in TLS 1.3 with SHA-256.
    ChaCha20Poly1305,
}

/// Keys of one direction in TLS 1.2.
#[derive(Clone, Copy)]
pub struct Keys12<'a> {
    /// As long as the cipher asks for.
    pub key: &'a [u8],
    /// 12 bytes. With GCM the first four are the salt, and the last eight XOR the sequence number are the explicit
    /// nonce (as rustls has it, whose series is continued).
    pub iv: &'a [u8],
}

/// What [`Session::open`](super::Session::open) found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Bytes at the beginning of the input that are plaintext now.
    pub plaintext: usize,
    /// Bytes of the input that were whole records; what is behind them is the beginning of one, for the next call.
    pub used: usize,
    /// The peer has said `close_notify`: what it sends after that is not looked at.
    pub is_end: bool,
}

/// No more records can be sealed under the keys: TLS 1.2 has come to the limit of its cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the keys have sealed as many records as their cipher permits")]
pub struct Exhausted;
