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
    /// As many bytes as the cipher needs.
    pub key: &'a [u8],
    /// 12 bytes. With GCM the first four are the salt. The last eight XOR the sequence number are
    /// the explicit nonce, as in rustls, whose series we continue.
    pub iv: &'a [u8],
}

/// The result of [`Session::open`](super::Session::open).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Bytes at the beginning of the input that are plaintext now.
    pub plaintext: usize,
    /// Bytes of the input that were whole records. The bytes behind them begin a record, and belong
    /// to the next call.
    pub used: usize,
    /// Whether the peer has sent `close_notify`. Later bytes are ignored.
    pub is_end: bool,
}

/// The keys can seal no more records: TLS 1.2 has reached the limit of its cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the keys have sealed as many records as their cipher permits")]
pub struct Exhausted;
