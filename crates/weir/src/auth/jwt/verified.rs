//! Signed tokens that were verified. A device that shows its token with each request costs one
//! verification.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use aws_lc_rs::digest::{SHA256, digest};
use weir_engine::{Footprint, rounded, rounded_table};

use crate::auth::ExpiringCredential;

/// The properties of valid tokens, by their digests.
///
/// Shape: two tables. When the young one is full, it replaces the old one. A token found in the old
/// one moves to the young one.
/// Limits: [`VERIFIED_MAX`] tokens, only valid ones, each until it ends or the keys are read again.
/// Cost: a SHA-256 of the token, and a lock under which nothing waits.
#[derive(Debug, Default)]
pub(super) struct Verified(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    /// The number of times that keys were read.
    era: u64,
    young: HashMap<Digest, Arc<ExpiringCredential>>,
    old: HashMap<Digest, Arc<ExpiringCredential>>,
}

type Digest = [u8; 32];

impl Verified {
    /// The properties of a token that was verified with the current keys and has not ended.
    pub(super) fn find(&self, token: &str, now_ms: u64) -> Option<Arc<ExpiringCredential>> {
        let digest = digest_of(token);
        let mut tables = self.lock();
        let expiring = match tables.young.get(&digest) {
            Some(expiring) => Arc::clone(expiring),
            None => {
                let expiring = tables.old.remove(&digest)?;
                tables.insert(digest, Arc::clone(&expiring));
                expiring
            }
        };
        (expiring.ends > now_ms).then_some(expiring)
    }

    /// The known tokens.
    pub(super) fn footprint(&self) -> Footprint {
        let tables = self.lock();
        let mut sum = Footprint::default();
        for table in [&tables.young, &tables.old] {
            let entry = size_of::<(Digest, Arc<ExpiringCredential>)>();
            let credentials = Footprint::of_each(table.len(), CREDENTIAL_BYTES);
            sum += credentials;
            sum.bytes += rounded_table(table.capacity(), entry);
        }
        sum
    }

    /// The current era. Take it before the keys with which a token is verified.
    pub(super) fn era(&self) -> u64 {
        self.lock().era
    }

    /// Stores a token's properties, unless keys were read again since `era`.
    pub(super) fn put(&self, token: &str, expiring: &Arc<ExpiringCredential>, era: u64) {
        let digest = digest_of(token);
        let mut tables = self.lock();
        if tables.era == era {
            tables.insert(digest, Arc::clone(expiring));
        }
    }

    /// Forgets all tokens, because the keys were read again.
    pub(super) fn forget(&self) {
        let mut tables = self.lock();
        *tables = Tables { era: tables.era + 1, ..Tables::default() };
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().expect("no panic happens under this lock")
    }
}

impl Tables {
    fn insert(&mut self, digest: Digest, expiring: Arc<ExpiringCredential>) {
        if self.young.len() >= VERIFIED_MAX / 2 {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(digest, expiring);
    }
}

fn digest_of(token: &str) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
}

/// A credential with the two counts of its `Arc`, and the id of its device.
const CREDENTIAL_BYTES: usize =
    rounded(size_of::<ExpiringCredential>() + 2 * size_of::<usize>()) + 32;

/// Some megabytes. With more devices, tokens are verified again.
const VERIFIED_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use weir_engine::Priority;

    use super::*;
    use crate::auth::Grant;
    use crate::base::model::AuthKind;

    fn expiring(ends: u64) -> Arc<ExpiringCredential> {
        Arc::new(ExpiringCredential {
            kind: AuthKind::Jwt,
            device: "d".into(),
            priority: Priority::Normal,
            grant: Arc::new(Grant::anonymous()),
            ends,
        })
    }

    #[test]
    fn a_token_is_known_until_it_ends_or_keys_change() {
        let verified = Verified::default();
        let era = verified.era();
        verified.put("a.b.c", &expiring(10), era);
        assert!(verified.find("a.b.c", 9).is_some());
        assert!(verified.find("a.b.d", 9).is_none());
        assert!(verified.find("a.b.c", 10).is_none());
        verified.forget();
        assert!(verified.find("a.b.c", 9).is_none());
        // Verified with the old keys, and stored late.
        verified.put("a.b.c", &expiring(10), era);
        assert!(verified.find("a.b.c", 9).is_none());
    }

    #[test]
    fn there_are_never_more_than_allowed_and_those_in_use_stay() {
        let verified = Verified::default();
        let (expiring, era) = (expiring(10), verified.era());
        verified.put("used", &expiring, era);
        for number in 0..3 * VERIFIED_MAX {
            verified.put(&number.to_string(), &expiring, era);
            if number % 100 == 0 {
                assert!(verified.find("used", 1).is_some());
            }
        }
        let tables = verified.lock();
        assert!(tables.young.len() + tables.old.len() <= VERIFIED_MAX);
    }
}
