//! What every store promises, kept by MongoDB, and by Redis before it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weir_store::{CacheOptions, Cached, Mongo, MongoOptions, Store};
use weir_tests::{Database, Redis};

/// One for all tests of this program: each makes a database of its own in it.
fn database() -> &'static Database {
    static DATABASE: OnceLock<Database> = OnceLock::new();
    DATABASE.get_or_init(|| Database::start().expect("a database"))
}

fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start().expect("Redis"))
}

/// A store in a database that nobody else uses.
async fn mongo() -> Arc<dyn Store> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let options = MongoOptions {
        uri: database().uri(),
        database: format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed)),
        timeout: Duration::from_secs(180),
        ..MongoOptions::default()
    };
    Arc::new(Mongo::new(&options).await.expect("good options"))
}

/// The same, behind entries of Redis that nobody else uses.
async fn cached() -> Arc<dyn Store> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let options = CacheOptions {
        redis: redis().url(),
        prefix: format!("test{}:", NUMBER.fetch_add(1, Ordering::Relaxed)),
        timeout: Duration::from_secs(180),
        ..CacheOptions::default()
    };
    Arc::new(Cached::new(mongo().await, &options).expect("good options"))
}

/// All promises but one: `serials_are_in_the_order_of_their_bytes` depends on how the server orders `_id`, and the one
/// of these tests compares UTF-16 where MongoDB compares bytes.
macro_rules! promises {
    ($make:path) => {
        weir_store::conformance! { $make:
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
}

mod promises_of_mongodb {
    use super::mongo;

    promises!(mongo);
}

mod promises_of_the_cache {
    use super::cached;

    promises!(cached);
}
