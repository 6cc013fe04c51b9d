//! The promises of every store. Each is a function that fails if a store breaks it.
//!
//! [`conformance!`](crate::conformance!) makes a test of each. Every promise takes a function that
//! makes an empty store. None depends on real time, because each passes its own times.

mod administration;
mod lifetimes;
mod limits;
mod memory;
mod races;
mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use administration::*;
pub use lifetimes::*;
pub use limits::*;
pub use memory::Memory;
pub use races::*;
pub use tokens::*;

use crate::contract::{Answer, Store};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Proof, Put, Refusal, Revoked,
    Serial,
};

/// Makes an empty store.
///
/// Every async closure that returns an `Arc<dyn Store>` implements it.
pub trait Make: AsyncFn() -> Arc<dyn Store> {}

impl<F: AsyncFn() -> Arc<dyn Store>> Make for F {}

/// Makes a test of each promise: `weir_store::conformance!(make)`. `make` is an async function that
/// returns an empty store as `Arc<dyn Store>`. `make, but the order of serials` leaves that promise
/// out, for a server with another order.
#[macro_export]
macro_rules! conformance {
    ($make:path) => {
        $crate::conformance! { $make, but the order of serials }
        $crate::conformance! { $make: serials_are_in_the_order_of_their_bytes }
    };
    ($make:path, but the order of serials) => {
        $crate::conformance! { $make:
            devices_are_added_and_found
            an_import_is_repeated_with_changes
            a_revoked_device_comes_back_by_a_new_key_alone
            items_of_an_import_take_effect_in_their_order
            a_revocation_says_what_it_found
            a_revocation_ends_everything
            devices_are_listed_in_pages
            a_page_begins_behind_any_serial
            seen_never_falls
            devices_are_counted
            a_key_gives_a_token
            refusals_have_their_reasons
            every_item_has_its_own_answer
            items_for_one_device_take_effect_in_their_order
            checks_answer_in_their_order
            a_holder_is_as_its_device_is_now
            a_token_ends_when_it_ends
            the_token_before_has_its_time_of_grace
            grace_prolongs_nothing
            two_tokens_are_valid_at_most
            a_token_gives_the_next_one
            a_token_in_grace_gives_the_next_one
            sweeping_changes_nothing
            sweeping_removes_what_has_ended
            racing_activations_stand_in_a_row
            racing_refreshes_with_one_token_end_it
            racing_refreshes_without_grace_have_one_winner
            racing_revocations_have_one_winner
            racing_imports_have_one_winner
            a_revocation_beats_what_races_with_it
            a_changed_key_beats_what_races_with_it
            nothing_is_lost_between_writers_of_one_device
            no_check_that_begins_after_a_revocation_finds_a_token
            writers_of_many_devices_do_not_disturb_each_other
            batches_may_be_empty
            batches_may_be_large
            serials_are_told_apart_by_their_bytes
            labels_may_be_anything
            times_may_be_anything
        }
    };
    ($make:path: $($promise:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                $crate::conformance::$promise(&$make).await;
            }
        )+
    };
}

/// A moment in 2026. Most events of these tests happen then.
const NOW: Millis = 1_790_000_000_000;
/// The life of most tokens in these tests.
const DAY: Millis = 86_400_000;
/// The grace in these tests.
const GRACE: Millis = 60_000;

/// Returns the one answer to a batch of one item.
async fn one<T>(answer: Answer<'_, Vec<T>>) -> T {
    let mut answers = answer.await.expect("the store answers");
    assert_eq!(answers.len(), 1, "one item has one answer");
    answers.remove(0)
}

async fn many<T>(answer: Answer<'_, Vec<T>>, items: usize) -> Vec<T> {
    let answers = answer.await.expect("the store answers");
    assert_eq!(answers.len(), items, "each item has one answer");
    answers
}

fn serial(text: &str) -> Serial {
    Serial::new(text).expect("a serial")
}

/// A hash that belongs to this number only.
fn hash(number: u64) -> Hash {
    let mut bytes = [0x5a; 32];
    // Mixed, so that hashes have another order than their numbers.
    bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    Hash(bytes)
}

/// The hash of a device key. No token has the same hash.
fn key(number: u64) -> Hash {
    let Hash(mut bytes) = hash(number);
    bytes[31] = 0xa5;
    Hash(bytes)
}

fn entry(name: &str, key_number: u64, labels: &[(&str, &str)]) -> DeviceEntry {
    DeviceEntry { serial: serial(name), key: key(key_number), labels: map(labels) }
}

fn map(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A request for token number `token` for a day, with key number `key_number`.
fn activation(name: &str, key_number: u64, token: u64) -> Issue {
    wanted(Proof::Key { serial: serial(name), key: key(key_number) }, token, NOW)
}

/// A request for token number `token` for a day, with token number `shown`.
fn refresh(shown: u64, token: u64) -> Issue {
    wanted(Proof::Token(hash(shown)), token, NOW)
}

fn wanted(proof: Proof, token: u64, now: Millis) -> Issue {
    Issue { proof, token: hash(token), now, expires: now + DAY, grace_until: now + GRACE }
}

/// A store with these devices, each with the number of its key.
async fn with(make: &impl Make, devices: &[(&str, u64)]) -> Arc<dyn Store> {
    let store = make().await;
    let entries: Vec<_> = devices.iter().map(|(name, key)| entry(name, *key, &[])).collect();
    let puts = many(store.put(entries, NOW), devices.len()).await;
    assert!(puts.iter().all(|put| *put == Put::Added), "the store was empty: {puts:?}");
    store
}

async fn issue(store: &Arc<dyn Store>, issue: Issue) -> Result<Issued, Refusal> {
    one(store.issue(vec![issue])).await
}

async fn put(store: &Arc<dyn Store>, entry: DeviceEntry) -> Put {
    one(store.put(vec![entry], NOW)).await
}

async fn check(store: &Arc<dyn Store>, token: u64, now: Millis) -> Option<Holder> {
    one(store.check(vec![hash(token)], now)).await
}

async fn find(store: &Arc<dyn Store>, name: &str) -> Device {
    one(store.find(vec![serial(name)])).await.expect("a device")
}

async fn revoke(store: &Arc<dyn Store>, name: &str) -> Revoked {
    one(store.revoke(vec![serial(name)])).await
}

async fn list(store: &Arc<dyn Store>, after: Option<&str>, limit: usize) -> Vec<String> {
    let page = Page { after: after.map(serial), limit };
    let devices = store.list(page).await.expect("the store answers");
    devices.iter().map(|device| device.serial.as_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn make() -> Arc<dyn Store> {
        Arc::new(Memory::new())
    }

    crate::conformance!(make);
}
