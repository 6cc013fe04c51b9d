//! Looking up secrets in constant time: the time does not show how close a wrong secret came.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use subtle::ConstantTimeEq;

/// Values by secret.
///
/// Shape: a hash table with a random key from the start, so that no attacker can choose a secret's
/// place.
/// Cost: one hash of the shown secret and, if its place is taken, one comparison in constant time.
/// It is the same with one secret as with a hundred thousand.
pub(crate) struct Secrets<T> {
    hasher: RandomState,
    table: HashTable<(Box<[u8]>, T)>,
}

impl<T> Secrets<T> {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), table: HashTable::new() }
    }

    /// Adds a secret; an existing one keeps its value.
    pub(crate) fn insert(&mut self, secret: &[u8], value: T) {
        if self.find(secret).is_some() {
            return;
        }
        let hash = self.hasher.hash_one(secret);
        let rehash = |(secret, _): &(Box<[u8]>, T)| self.hasher.hash_one(secret.as_ref());
        self.table.insert_unique(hash, (secret.into(), value), rehash);
    }

    /// All secrets, with their values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        self.table.iter().map(|(secret, value)| (&**secret, value))
    }

    /// The value of a secret.
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
