//! Notes which nonce sealed which record, so that tests can prove that no nonce is used twice.
//! Tests can also make records shorter here, so that a short message takes several.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::record::PLAINTEXT_BYTES_MAX;

/// One sealed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seal {
    /// Fingerprint of the key.
    pub key: u64,
    /// Sequence number.
    pub sequence: u64,
    /// The nonce, which must not come twice under a key.
    pub nonce: [u8; 12],
}

/// Begins to note what this thread seals, and forgets earlier notes.
pub fn record() {
    SEALS.set(Some(Vec::new()));
}

/// The records that this thread has sealed since [`record`] or the last call; none if it does not
/// note them.
pub fn take() -> Vec<Seal> {
    SEALS.with_borrow_mut(|seals| seals.as_mut().map(std::mem::take).unwrap_or_default())
}

pub(super) fn note(key: &[u8], sequence: u64, nonce: [u8; 12]) {
    SEALS.with_borrow_mut(|seals| {
        if let Some(seals) = seals {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            seals.push(Seal { key: hasher.finish(), sequence, nonce });
        }
    });
}

/// Lets this thread seal no more than `bytes` of plaintext in a record (1 at least).
pub fn set_plaintext_bytes_max(bytes: usize) {
    PLAINTEXT_MAX.set(bytes.clamp(1, PLAINTEXT_BYTES_MAX));
}

/// The most plaintext in a record of this thread.
pub fn plaintext_bytes_max() -> usize {
    PLAINTEXT_MAX.get()
}

thread_local! {
    static PLAINTEXT_MAX: Cell<usize> = const { Cell::new(PLAINTEXT_BYTES_MAX) };
    static SEALS: RefCell<Option<Vec<Seal>>> = const { RefCell::new(None) };
}
