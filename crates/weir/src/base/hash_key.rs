//! Keys of hash tables in which strangers choose the entries.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher13;
use weir_engine::handover::NotUnderstood;

use super::handover::refused;

/// The key of a hash: random from the start, so that strangers cannot choose places in a table. A
/// process that takes the table over takes the key with it, and everything stays at its place.
///
/// Shape: 128 bits for SipHash-1-3, with which the standard library hashes.
pub(crate) struct HashKey([AtomicU64; 2]);

impl HashKey {
    pub(crate) fn random() -> HashKey {
        HashKey(rand::random::<[u64; 2]>().map(AtomicU64::new))
    }

    /// Its two halves. They are secret.
    pub(crate) fn export(&self) -> Vec<u64> {
        self.halves().into()
    }

    /// Takes another key. Nothing may have been hashed yet.
    pub(crate) fn import(&self, halves: &[u64]) -> Result<(), NotUnderstood> {
        let &[one, two] = halves else {
            return Err(refused("the halves of a hash key", halves.len() as u64));
        };
        self.0[0].store(one, Ordering::Relaxed);
        self.0[1].store(two, Ordering::Relaxed);
        Ok(())
    }

    fn halves(&self) -> [u64; 2] {
        self.0.each_ref().map(|half| half.load(Ordering::Relaxed))
    }
}

impl BuildHasher for HashKey {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        let [one, two] = self.halves();
        SipHasher13::new_with_keys(one, two)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_moves_hashes_alike() {
        let (one, other) = (HashKey::random(), HashKey::random());
        assert_ne!(one.hash_one("device"), other.hash_one("device"));
        other.import(&one.export()).unwrap();
        assert_eq!(one.hash_one("device"), other.hash_one("device"));
        assert_ne!(one.hash_one("device"), one.hash_one("devicf"));
        for halves in [&[][..], &[1], &[1, 2, 3]] {
            assert!(other.import(halves).is_err());
        }
    }
}
