//! Which device a token leads to, in memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::records::Hash;

/// Leads from tokens to the rows of their devices, which alone say what is valid: what leads to a row that does not know
/// the token is as good as nothing. A table on disk would cost each activation a page of it, in no order.
///
/// Shape: 16 bytes for each token that a device knows, two for each device at the most.
/// Cost: 17 to 40 bytes a token; filled anew when the file is opened, from each device that has been activated.
#[derive(Default)]
pub(super) struct TokenIndex(Mutex<HashTable<Lead>>);

/// Eight bytes of the token's hash, and the device's row. Several may begin alike.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lead {
    start: u64,
    device: i64,
}

impl TokenIndex {
    /// Has a token lead to a device. It may be done before that is committed, and twice.
    pub(super) fn add(&self, token: &Hash, device: i64) {
        let lead = Lead { start: start_of(token), device };
        let mut leads = self.leads();
        if leads.find(lead.start, |other| *other == lead).is_none() {
            leads.insert_unique(lead.start, lead, |lead| lead.start);
        }
    }

    /// Forgets it: to be done when that is committed.
    pub(super) fn remove(&self, token: &Hash, device: i64) {
        let lead = Lead { start: start_of(token), device };
        if let Ok(found) = self.leads().find_entry(lead.start, |other| *other == lead) {
            found.remove();
        }
    }

    /// Rows that may know a token: with rare exceptions one or none.
    pub(super) fn find(&self, token: &Hash) -> Vec<i64> {
        let start = start_of(token);
        let leads = self.leads();
        let same = leads.iter_hash(start).filter(|lead| lead.start == start);
        same.map(|lead| lead.device).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.leads().len()
    }

    fn leads(&self) -> MutexGuard<'_, HashTable<Lead>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes are uniform as they are, and nobody without the secret chooses one.
fn start_of(token: &Hash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = token.0;
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}
