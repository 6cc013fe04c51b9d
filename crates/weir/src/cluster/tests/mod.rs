//! The cluster under simulation: three nodes with real routers, a broker in memory with faults, and
//! simulated clients that come, go, and move from node to node. Time is virtual.
//!
//! One seed again: `WEIR_SIM_SEED=17 cargo test -p weir --lib cluster::tests -- --nocapture`. More
//! seeds: `WEIR_SIM_SEEDS=5000`. Others: `WEIR_SIM_FIRST=5000`.

mod clients;
mod node;
mod presence;
mod run;
mod shard;
mod summary;
mod verify;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use weir_broker::memory::{Memory, MemoryOptions};

use crate::topics::SeededBug;
use node::{Accepted, Kept, Node};
use run::{Bug, Failure, Fault, run_seed};
use summary::Summary;

/// Seeds of the plain test run.
const SEEDS: u64 = 48;

/// A seeded bug is found within so many seeds.
const SEEDS_TO_FIND: u64 = 24;

const THREADS: usize = 2;

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Runs the seeds until one fails; the sums of those that did not.
fn run_seeds(seeds: Range<u64>) -> Result<Summary, Failure> {
    let next = AtomicU64::new(seeds.start);
    let run_some = || {
        let mut total = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(total);
            }
            match run_seed(seed, None) {
                Ok(summary) => total.add(&summary),
                Err(failure) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    return Err(failure);
                }
            }
        }
    };
    let mut total = Summary::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run_some)).collect();
        for thread in threads {
            total.add(&thread.join().expect("a failing run is returned")?);
        }
        Ok(total)
    })
}

#[test]
fn each_client_sees_each_message_in_order_and_once_or_is_told() {
    if let Some(seed) = number_from("WEIR_SIM_SEED") {
        match run_seed(seed, None) {
            Ok(summary) => return println!("{summary}"),
            Err(failure) => panic!("{failure}"),
        }
    }
    let seeds = number_from("WEIR_SIM_SEEDS").unwrap_or(SEEDS);
    let first = number_from("WEIR_SIM_FIRST").unwrap_or(0);
    match run_seeds(first..first + seeds) {
        Ok(summary) => {
            println!("{seeds} seeds from {first} on, {summary}");
            for fault in Fault::ALL {
                assert!(summary.faults[fault as usize] > 0, "no {fault:?} in {seeds} seeds");
            }
            let told = summary.told;
            let (reads, jumps) = (summary.resume_reads, summary.jumps);
            let told_of = [told.recovered, told.not_recovered, told.notices, told.refused];
            let present = [told.gaps, told.present, told.missed, reads, jumps];
            let all = told_of.into_iter().chain(present).collect::<Vec<_>>();
            assert!(all.iter().all(|count| *count > 0), "everything happens: {told:?}");
        }
        Err(failure) => panic!(
            "{failure}\nagain: WEIR_SIM_SEED={} cargo test -p weir --lib cluster::tests",
            failure.seed
        ),
    }
}

#[test]
fn a_seed_repeats() {
    for seed in 1..4 {
        let sums = [(); 2].map(|()| run_seed(seed, None).map(|summary| summary.sum).ok());
        assert_eq!(sums[0], sums[1], "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_leave_as_soon_as_the_broker_is_back() {
    let memory = Memory::new(&MemoryOptions::default());
    let node = Node::start(&memory, "a", (Kept { messages: 10, bytes: 1 << 20 }, None), 1);
    memory.set_reachable(false);
    let accepted = Accepted::default();
    assert!(node.publish("kept/1", "m", &accepted));
    // The pauses before attempts have grown to 320 ms.
    sleep(Duration::from_millis(400)).await;
    memory.set_reachable(true);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(accepted.lock().unwrap().len(), 1);
}

#[test]
fn seeded_bugs_are_found() {
    let of_router = SeededBug::ALL.map(Bug::Router);
    for bug in of_router.into_iter().chain([Bug::FailedOverEpoch, Bug::LatePresence]) {
        let found = (0..SEEDS_TO_FIND).find_map(|seed| run_seed(seed, Some(bug)).err());
        match found {
            Some(failure) => println!("{bug:?} is found: {failure}"),
            None => panic!("{bug:?} is not found in {SEEDS_TO_FIND} seeds"),
        }
    }
}
