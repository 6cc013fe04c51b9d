//! An index in memory from tokens to devices.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::contract::StoreMemory;
use crate::records::Hash;

/// Leads from tokens to the rows of their devices. Only the rows say which tokens are valid; an
/// entry for a row that does not know the token has no effect. A table on disk would cost each
/// activation a page in random order.
///
/// Shape: 16 bytes for each token that a device knows, at most two tokens for each device.
/// Cost: 17 to 40 bytes a token. When the file is opened, the index is filled again from each
/// activated device.
#[derive(Default)]
pub(super) struct TokenIndex(Mutex<HashTable<Lead>>);

/// Eight bytes of the token's hash, and the device's row. Hashes of several tokens may begin alike.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lead {
    start: u64,
    device: i64,
}

impl TokenIndex {
    /// Adds a token's device. The caller may do this before the commit, and twice.
    pub(super) fn add(&self, token: &Hash, device: i64) {
        let lead = Lead { start: start_of(token), device };
        let mut leads = self.leads();
        if leads.find(lead.start, |other| *other == lead).is_none() {
            leads.insert_unique(lead.start, lead, |lead| lead.start);
        }
    }

    /// Removes a token. The caller does this after the commit.
    pub(super) fn remove(&self, token: &Hash, device: i64) {
        let lead = Lead { start: start_of(token), device };
        if let Ok(found) = self.leads().find_entry(lead.start, |other| *other == lead) {
            found.remove();
        }
    }

    /// Rows that may know a token: none or one, with rare exceptions.
    pub(super) fn find(&self, token: &Hash) -> Vec<i64> {
        let start = start_of(token);
        let leads = self.leads();
        let same = leads.iter_hash(start).filter(|lead| lead.start == start);
        same.map(|lead| lead.device).collect()
    }

    /// The tokens, and the bytes of the table.
    pub(super) fn memory(&self) -> StoreMemory {
        let leads = self.leads();
        StoreMemory { entries: leads.len(), bytes: leads.allocation_size() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.leads().len()
    }

    fn leads(&self) -> MutexGuard<'_, HashTable<Lead>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes are uniform already, and nobody without the secret can choose one.
fn start_of(token: &Hash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = token.0;
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}
