//! What was sealed under which nonce, for tests that hold a whole run against "never twice".

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};

/// One record that has been sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seal {
    /// Fingerprint of the key.
    pub key: u64,
    /// Sequence number.
    pub sequence: u64,
    /// The nonce, which is what must not come twice under a key.
    pub nonce: [u8; 12],
}

/// Begins to write down what this thread seals, anew if it did already.
pub fn record() {
    SEALS.set(Some(Vec::new()));
}

/// What this thread has sealed since [`record`] or the last call; nothing if it does not write it down.
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

thread_local! {
    static SEALS: RefCell<Option<Vec<Seal>>> = const { RefCell::new(None) };
}
