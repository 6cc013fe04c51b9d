//! What every broker promises, each promise a function that fails if a broker breaks it.
//!
//! [`conformance!`](crate::conformance!) makes a test of each. All of them take what makes an empty [`Cluster`]. None
//! depends on the machine's speed: what has to come is waited for, and what must not come would have come before
//! something that is waited for.

mod attendance;
mod devices;
mod failures;
mod history;
mod nodes;
mod peer;
mod presence;
mod revocations;
mod sessions;
mod topics;

use std::sync::Arc;
use std::time::Duration;

pub use self::attendance::*;
pub use self::devices::*;
pub use self::failures::*;
pub use self::history::*;
pub use self::nodes::*;
pub use self::presence::*;
pub use self::revocations::*;
pub use self::sessions::*;
pub use self::topics::*;
use crate::contract::{Answer, Broker, EventHandler};

/// A broker without nodes, and what happens to it.
pub trait Cluster: Send + Sync {
    /// Opens a node. It dies when the last reference to it is dropped: without a word, as a process that is killed. Its
    /// announcement counts for some seconds, at least two.
    fn open<'a>(
        &'a self,
        name: &'a str,
        connections_per_device_max: usize,
        handler: Arc<dyn EventHandler>,
    ) -> Answer<'a, Arc<dyn Broker>>;

    /// How long members outlive their node after its announcement, while other nodes can reach the broker. At least two
    /// seconds.
    fn presence_kept(&self) -> Duration;

    /// Breaks the connections of all nodes to the broker. They may connect again at once.
    fn break_connections(&self) -> Answer<'_, ()>;

    /// Lets a node make a call that changes presence, and holds the request back until [`Cluster::deliver`]: the call
    /// gets no answer. The node is the one named [`HELD_BACK`]. What it asks afterwards may arrive. Only for
    /// [`a_late_call_changes_nothing`] and [`a_lost_answer_about_an_occupancy_is_given_again`].
    fn hold_back<'a>(&'a self, call: Answer<'a, ()>) -> Answer<'a, ()>;

    /// Delivers what was held back. It has been carried out when this returns.
    fn deliver(&self) -> Answer<'_, ()>;

    /// Makes the broker lose the newest messages of each topic, at least one and at most this many, and break all
    /// connections: as a primary that fails before its replica has everything. Only for
    /// [`lost_messages_end_the_epoch`].
    fn fail_over(&self, lost_max: u64) -> Answer<'_, ()>;
}

/// The name of a node whose requests can be held back.
pub const HELD_BACK: &str = "late";

/// Makes an empty cluster.
///
/// Every async closure that gives an `Arc<dyn Cluster>` is one.
pub trait Make: AsyncFn() -> Arc<dyn Cluster> {}

impl<F: AsyncFn() -> Arc<dyn Cluster>> Make for F {}

/// Makes a test of each promise: `weir_broker::conformance!(make)`, with an async function `make` that gives an empty
/// cluster as `Arc<dyn Cluster>`.
///
/// `make, but failovers and late calls` leaves these promises out, for a broker whose tests for them stand elsewhere.
/// `make, on a paused clock` runs each test on one thread, with the clock of tokio paused.
#[macro_export]
macro_rules! conformance {
    ($make:path) => {
        $crate::conformance! { $make, but failovers and late calls }
        $crate::conformance! { #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            $make: lost_messages_end_the_epoch a_late_call_changes_nothing
                a_lost_answer_about_an_occupancy_is_given_again
        }
    };
    ($make:path, but failovers and late calls) => {
        $crate::conformance! { @all #[tokio::test(flavor = "multi_thread", worker_threads = 2)] $make }
    };
    ($make:path, on a paused clock) => {
        $crate::conformance! { @all #[tokio::test(start_paused = true)] $make }
        $crate::conformance! { #[tokio::test(start_paused = true)]
            $make: lost_messages_end_the_epoch a_late_call_changes_nothing
                a_lost_answer_about_an_occupancy_is_given_again
        }
    };
    (@all #[$test:meta] $make:path) => {
        $crate::conformance! { #[$test] $make:
            offsets_follow_each_other
            messages_reach_the_nodes_that_have_joined
            bytes_arrive_as_they_are
            batches_of_many_topics_go_together
            a_topic_has_one_order
            a_batch_again_changes_nothing
            an_old_batch_is_refused
            batches_of_two_nodes_are_different
            idempotency_keys_are_remembered
            a_joined_node_misses_nothing
            topics_are_joined_and_left
            a_dead_node_is_not_subscribed
            what_is_not_retained_has_positions
            an_unknown_topic_gets_an_epoch
            what_is_kept_is_read_in_parts
            many_topics_are_asked_at_once
            as_many_are_kept_as_wanted
            old_messages_go
            history_outlives_its_publisher
            the_newest_connections_stay
            several_connections_of_a_device_count
            uncounted_connections_only_hear
            an_older_connection_yields_though_it_comes_later
            claims_are_made_again
            released_connections_do_not_count
            messages_reach_a_device
            messages_to_a_device_have_keys
            racing_claims_leave_the_newest
            claims_of_a_dead_node_do_not_count
            claims_of_a_retired_node_do_not_count
            nodes_are_listed
            nodes_that_end_are_not_listed
            messages_reach_all_nodes
            messages_reach_one_node
            members_are_listed_in_pages
            members_enter_and_exit
            members_of_a_node_that_ends_are_not_listed
            many_members_are_listed
            changes_of_presence_are_told
            what_does_not_change_is_not_told
            a_connection_has_one_device
            many_changes_are_told_in_pieces
            members_of_a_dead_node_leave
            a_node_that_is_away_for_less_keeps_its_members
            a_node_that_was_away_for_long_enters_again
            members_of_a_retired_node_leave
            presence_outlives_broken_connections
            an_occupancy_begins_once_and_ends_once
            a_dead_node_attends_nothing
            a_retired_node_attends_nothing
            revocations_are_told_and_kept
            revocations_are_read_in_pages
            sessions_are_found_at_every_node
            sessions_are_forgotten
            sessions_end_with_their_time
            a_session_has_a_largest_size
            broken_connections_come_back
            nothing_is_missed_without_notice
            a_revocation_survives_broken_connections
            a_node_closes_in_order
        }
    };
    (#[$test:meta] $make:path: $($promise:ident)+) => {
        $(
            #[$test]
            async fn $promise() {
                $crate::conformance::$promise(&$make).await;
            }
        )+
    };
}

async fn cluster(make: &impl Make) -> Arc<dyn Cluster> {
    make().await
}
