//! The shard under the simulated network: many seeds, every kind of fault, and bugs planted to be found.
//!
//! One seed again: `WEIR_SIM_SEED=17 cargo test -p weir-engine --test simulation -- --nocapture`. More seeds, or longer
//! ones: `WEIR_SIM_SEEDS=5000`, `WEIR_SIM_EVENTS=100000`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_engine::sim::{Failure, Fault, Plant, Summary, run_seed};

/// Seeds of the plain test run, and events of each.
const SEEDS: u64 = 256;
const EVENTS: u64 = 10_000;

/// A planted bug is found within so many seeds.
const SEEDS_TO_FIND: u64 = 16;

const THREADS: usize = 2;

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Runs the seeds from 0 on until one fails; the sums of those that did not.
fn run_seeds(seeds: u64, events: u64) -> Result<Summary, Failure> {
    let next = AtomicU64::new(0);
    let total = Mutex::new(Summary::default());
    let failure = Mutex::new(None::<Failure>);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || failure.lock().unwrap().is_some() {
                        return;
                    }
                    match run_seed(seed, events, None) {
                        Ok(summary) => total.lock().unwrap().add(&summary),
                        Err(found) => *failure.lock().unwrap() = Some(found),
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap() {
        Some(failure) => Err(failure),
        None => Ok(total.into_inner().unwrap()),
    }
}

fn print(seeds: u64, summary: &Summary) {
    println!(
        "{seeds} seeds, {} events, {} turns, {} s of virtual time",
        summary.events,
        summary.turns,
        summary.lasted.as_secs()
    );
    println!(
        "{} connections, {} messages delivered, {} items dropped, {} bytes sent",
        summary.adopted, summary.delivered, summary.dropped, summary.sent_bytes
    );
    for (reason, count) in weir_wire::CloseReason::ALL.iter().zip(summary.closed) {
        if count > 0 {
            println!("  closed {reason}: {count}");
        }
    }
    for fault in Fault::ALL {
        println!("  fault {fault:?}: {}", summary.faults.count(fault));
    }
}

#[test]
fn nothing_is_lost_leaked_or_late_whatever_happens() {
    let events = number_from("WEIR_SIM_EVENTS").unwrap_or(EVENTS);
    if let Some(seed) = number_from("WEIR_SIM_SEED") {
        match run_seed(seed, events, None) {
            Ok(summary) => return print(1, &summary),
            Err(failure) => panic!("{failure}"),
        }
    }
    let seeds = number_from("WEIR_SIM_SEEDS").unwrap_or(SEEDS);
    match run_seeds(seeds, events) {
        Ok(summary) => {
            print(seeds, &summary);
            for fault in Fault::ALL {
                assert!(summary.faults.count(fault) > 0, "no {fault:?} in {seeds} seeds");
            }
        }
        Err(failure) => panic!(
            "{failure}\nagain: WEIR_SIM_SEED={} cargo test -p weir-engine --test simulation",
            failure.seed
        ),
    }
}

#[test]
fn planted_bugs_are_found() {
    for plant in Plant::ALL {
        let found = (0..SEEDS_TO_FIND).find_map(|seed| run_seed(seed, EVENTS, Some(plant)).err());
        match found {
            Some(failure) => println!("{plant:?} is found: {failure}"),
            None => panic!("{plant:?} is not found in {SEEDS_TO_FIND} seeds"),
        }
    }
}
