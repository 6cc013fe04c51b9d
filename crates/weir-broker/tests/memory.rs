//! The broker in memory keeps every promise on a paused clock, and those about races on real threads.

use std::sync::Arc;
use std::time::Duration;

use weir_broker::conformance::{Cluster, HELD_BACK};
use weir_broker::memory::{Chances, Memory, MemoryOptions, NewEpoch, NodeOptions};
use weir_broker::{Answer, Broker, EventHandler, Scope};

struct Nodes(Memory);

impl Cluster for Nodes {
    fn open<'a>(
        &'a self,
        name: &'a str,
        connections_per_device_max: usize,
        handler: Arc<dyn EventHandler>,
    ) -> Answer<'a, Arc<dyn Broker>> {
        let options = NodeOptions { connections_per_device_max, ..NodeOptions::default() };
        let node = self.0.node(name, options, handler);
        Box::pin(async { Ok(node) })
    }

    fn presence_kept(&self) -> Duration {
        KEPT
    }

    fn break_connections(&self) -> Answer<'_, ()> {
        self.0.set_reachable(false);
        self.0.set_reachable(true);
        Box::pin(async { Ok(()) })
    }

    fn hold_back<'a>(&'a self, call: Answer<'a, ()>) -> Answer<'a, ()> {
        Box::pin(async {
            let late = Chances { late: 1.0, late_max: LATE_MAX, ..Chances::default() };
            self.0.set_chances(HELD_BACK, late);
            let answer = call.await;
            self.0.set_chances(HELD_BACK, Chances::default());
            answer
        })
    }

    fn deliver(&self) -> Answer<'_, ()> {
        Box::pin(async {
            tokio::time::sleep(LATE_MAX).await;
            Ok(())
        })
    }

    fn fail_over(&self, lost_max: u64) -> Answer<'_, ()> {
        self.0.fail_over(lost_max, NewEpoch::GoesOn);
        Box::pin(async { Ok(()) })
    }
}

/// Loses subscriptions alone, and begins offsets again after a failover.
struct Others(Nodes);

impl Cluster for Others {
    fn open<'a>(
        &'a self,
        name: &'a str,
        connections_per_device_max: usize,
        handler: Arc<dyn EventHandler>,
    ) -> Answer<'a, Arc<dyn Broker>> {
        self.0.open(name, connections_per_device_max, handler)
    }

    fn presence_kept(&self) -> Duration {
        KEPT
    }

    fn break_connections(&self) -> Answer<'_, ()> {
        for name in ["one", "two"] {
            self.0.0.lose_subscriptions(name, &Scope::All);
        }
        Box::pin(async { Ok(()) })
    }

    fn hold_back<'a>(&'a self, call: Answer<'a, ()>) -> Answer<'a, ()> {
        self.0.hold_back(call)
    }

    fn deliver(&self) -> Answer<'_, ()> {
        self.0.deliver()
    }

    fn fail_over(&self, lost_max: u64) -> Answer<'_, ()> {
        self.0.0.fail_over(lost_max, NewEpoch::BeginsAgain);
        Box::pin(async { Ok(()) })
    }
}

/// How long members outlive their node.
const KEPT: Duration = Duration::from_secs(5);

/// How late a request is at most that is held back.
const LATE_MAX: Duration = Duration::from_secs(3);

fn memory() -> Memory {
    Memory::new(&MemoryOptions { presence_kept: KEPT, ..MemoryOptions::default() })
}

async fn make() -> Arc<dyn Cluster> {
    Arc::new(Nodes(memory()))
}

async fn make_other() -> Arc<dyn Cluster> {
    Arc::new(Others(Nodes(memory())))
}

mod on_a_paused_clock {
    weir_broker::conformance!(super::make, on a paused clock);
}

mod with_other_failures {
    weir_broker::conformance!(super::make_other, on a paused clock);
}

mod on_threads {
    weir_broker::conformance! {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        super::make:
        a_topic_has_one_order
        a_joined_node_misses_nothing
        racing_claims_leave_the_newest
        revocations_are_read_in_pages
        broken_connections_come_back
        nothing_is_missed_without_notice
        a_node_closes_in_order
    }
}
