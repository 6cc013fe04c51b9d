//! The shard under the simulated network: many seeds, every kind of fault, and seeded bugs.
//!
//! One seed again: `WEIR_SIM_SEED=17 cargo test -p weir-engine --test simulation -- --nocapture`. More seeds, or longer
//! ones: `WEIR_SIM_SEEDS=5000`, `WEIR_SIM_EVENTS=100000`. Other ones: `WEIR_SIM_FIRST=5000`.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weir_engine::sim::{Failure, Fault, SeededBug, Summary, run_seed};
use weir_wire::CloseReason;

/// Seeds of the plain test run, and events of each.
///
/// Source: of 48 seeds, 13 found the seeded bug that is hardest to find, `EarlyPosition`; the next one, `EarlySkip`, was
/// found by 33. So 128 seeds find a bug that is ten times as hard with 97 in 100.
const SEEDS: u64 = 128;
const EVENTS: u64 = 10_000;

/// A seeded bug is found within so many seeds.
const SEEDS_TO_FIND: u64 = 16;

const THREADS: usize = 2;

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Runs these seeds until one fails; the sums of those that did not.
fn run_seeds(seeds: Range<u64>, events: u64) -> Result<Summary, Failure> {
    let next = AtomicU64::new(seeds.start);
    let run_some = || {
        let mut total = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(total);
            }
            match run_seed(seed, events, None) {
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

/// What was done, in lines.
fn lines(seeds: u64, summary: &Summary) -> String {
    let mut lines = vec![
        format!("{seeds} seeds, {} events, {} turns", summary.events, summary.turns),
        format!("{} s of virtual time", summary.lasted.as_secs()),
        format!("{} connections, {} bytes sent", summary.adopted, summary.sent_bytes),
        format!("{} messages delivered, {} items dropped", summary.delivered, summary.dropped),
    ];
    let [skipped, replaced] = summary.slow;
    lines
        .push(format!("{skipped} skipped, {replaced} replaced, {} parts asked for", summary.parts));
    lines.push(format!("{} pauses of those that sent too fast", summary.pauses));
    let closed = CloseReason::ALL.iter().zip(summary.closed).filter(|(_, count)| *count > 0);
    lines.extend(closed.map(|(reason, count)| format!("  closed {reason}: {count}")));
    let faults = Fault::ALL.map(|fault| (fault, summary.faults.count(fault)));
    lines.extend(faults.map(|(fault, count)| format!("  fault {fault:?}: {count}")));
    lines.join("\n")
}

#[test]
fn nothing_is_lost_leaked_or_late_whatever_happens() {
    let events = number_from("WEIR_SIM_EVENTS").unwrap_or(EVENTS);
    if let Some(seed) = number_from("WEIR_SIM_SEED") {
        match run_seed(seed, events, None) {
            Ok(summary) => return println!("{}", lines(1, &summary)),
            Err(failure) => panic!("{failure}"),
        }
    }
    let seeds = number_from("WEIR_SIM_SEEDS").unwrap_or(SEEDS);
    let first = number_from("WEIR_SIM_FIRST").unwrap_or(0);
    match run_seeds(first..first + seeds, events) {
        Ok(summary) => {
            println!("{}", lines(seeds, &summary));
            let [skipped, replaced] = summary.slow;
            assert!(skipped > 0 && replaced > 0 && summary.parts > 0, "every policy and resumes");
            assert!(summary.pauses > 0, "some send too fast");
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
fn seeded_bugs_are_found() {
    let next = AtomicUsize::new(0);
    let find_some = || {
        while let Some(bug) = SeededBug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found =
                (0..SEEDS_TO_FIND).find_map(|seed| run_seed(seed, EVENTS, Some(*bug)).err());
            match found {
                Some(failure) => println!("{bug:?} is found: {failure}"),
                None => panic!("{bug:?} is not found in {SEEDS_TO_FIND} seeds"),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(find_some);
        }
    });
}
