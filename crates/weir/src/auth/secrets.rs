//! Finding what a secret stands for without telling, by the time it takes, how close a wrong one came.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use subtle::ConstantTimeEq;

/// Values by secret.
///
/// Shape: a hash table under a key drawn at the start, so that nobody can choose a secret by its place.
/// Cost: one hash of what is shown and, where the table has something in that place, one comparison in constant time:
/// the same with one secret as with a hundred thousand.
pub(crate) struct Secrets<T> {
    hasher: RandomState,
    table: HashTable<(Box<[u8]>, T)>,
}

impl<T> Secrets<T> {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), table: HashTable::new() }
    }

    /// Enters a secret; one that is there already keeps its value.
    pub(crate) fn insert(&mut self, secret: &[u8], value: T) {
        if self.find(secret).is_some() {
            return;
        }
        let hash = self.hasher.hash_one(secret);
        let rehash = |(secret, _): &(Box<[u8]>, T)| self.hasher.hash_one(secret.as_ref());
        self.table.insert_unique(hash, (secret.into(), value), rehash);
    }

    /// What a secret stands for.
    pub(crate) fn find(&self, shown: &[u8]) -> Option<&T> {
        let is_same = |(secret, _): &(Box<[u8]>, T)| bool::from(secret.ct_eq(shown));
        self.table.find(self.hasher.hash_one(shown), is_same).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_is_found_and_the_first_value_stays() {
        let mut secrets = Secrets::new();
        for number in 0..10_000 {
            secrets.insert(format!("secret-{number}").as_bytes(), number);
        }
        secrets.insert(b"secret-7", 0);
        for number in [0, 7, 9_999] {
            assert_eq!(secrets.find(format!("secret-{number}").as_bytes()), Some(&number));
        }
        for wrong in ["", "secret-", "secret-70000", "Secret-7", "secret-7 "] {
            assert_eq!(secrets.find(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
