//! `cargo xtask chaos`: has faults happen to a cluster of real processes, many times and at length.
//!
//! The tests of `tests/tests/chaos.rs` do it; their lines become a table.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};

use crate::process::{cargo, run as run_command, run_watched};

/// What to do, and how much of it.
pub(crate) struct Plan {
    /// Names of tests; none: all.
    faults: Vec<String>,
    /// Variables of the tests, with their values.
    sizes: [(&'static str, &'static str, u64); 5],
}

/// What came of one fault, all times together.
#[derive(Default)]
struct Outcome {
    well_after_ms: Vec<u64>,
    /// Sums of the other numbers, by name.
    sums: BTreeMap<String, u64>,
}

impl Plan {
    /// Reads the words behind `chaos`.
    pub(crate) fn read(words: &[&str]) -> anyhow::Result<Plan> {
        let mut plan = Plan { faults: Vec::new(), sizes: SIZES };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if let Some((_, _, size)) = plan.sizes.iter_mut().find(|(flag, _, _)| flag == word) {
                let value = words.next().with_context(|| format!("{word} needs a number"))?;
                *size = value.parse().with_context(|| format!("{value} is no number"))?;
            } else if word.starts_with('-') {
                let flags: Vec<_> = plan.sizes.iter().map(|(flag, _, _)| *flag).collect();
                bail!("{word} is not known; the options are {}", flags.join(", "));
            } else {
                plan.faults.push(word.replace('-', "_"));
            }
        }
        Ok(plan)
    }
}

/// Builds the programs as they are shipped, and has the faults happen one after the other.
pub(crate) fn run(root: &Path, plan: &Plan) -> anyhow::Result<()> {
    run_command(&mut cargo(root, "build --release --locked -p weir-server"))?;
    let faults = plan.faults.join(" ");
    let exact = if plan.faults.is_empty() { "" } else { "--exact" };
    let line = "test --release --locked -p weir-tests --test chaos --";
    let mut tests = cargo(root, &format!("{line} --nocapture --test-threads 1 {exact} {faults}"));
    for (_, variable, size) in plan.sizes {
        tests.env(variable, size.to_string());
    }
    let mut outcomes = Outcomes::default();
    let result = run_watched(&mut tests, |line| outcomes.look(line));
    outcomes.show();
    result
}

/// What came of the faults, in the order in which they happened.
#[derive(Default)]
struct Outcomes(Vec<(String, Outcome)>);

impl Outcomes {
    /// Reads a line of a test: `chaos FAULT name=number …`, perhaps behind the name of the test.
    fn look(&mut self, line: &str) {
        let Some((_, line)) = line.split_once("chaos ") else { return };
        let Some((fault, numbers)) = line.split_once(' ') else { return };
        let number = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let numbers: Option<Vec<(String, u64)>> = numbers.split_whitespace().map(number).collect();
        let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else { return };
        let index = self.0.iter().position(|(known, _)| known == fault).unwrap_or_else(|| {
            self.0.push((fault.to_owned(), Outcome::default()));
            self.0.len() - 1
        });
        let (_, outcome) = &mut self.0[index];
        for (name, value) in numbers {
            match name.as_str() {
                "well_after_ms" => outcome.well_after_ms.push(value),
                _ => *outcome.sums.entry(name).or_default() += value,
            }
        }
    }

    fn show(&mut self) {
        println!("\nseconds until all was well again: least, median, most; sums of all runs");
        println!(
            "{:<24} {:>4} {:>20} {:>9} {:>12} {:>13} {:>8} {:>16}",
            "fault",
            "runs",
            "well after",
            "messages",
            "losses told",
            "losses untold",
            "repeated",
            "connections lost"
        );
        for (fault, outcome) in &mut self.0 {
            outcome.well_after_ms.sort_unstable();
            let times = &outcome.well_after_ms;
            #[expect(clippy::cast_precision_loss, reason = "some minutes")]
            let seconds = |index: usize| times.get(index).map_or(0.0, |ms| *ms as f64 / 1000.0);
            let last = times.len().saturating_sub(1);
            let well =
                format!("{:.2} {:.2} {:.2}", seconds(0), seconds(times.len() / 2), seconds(last));
            let sum = |name: &str| outcome.sums.get(name).copied().unwrap_or(0);
            println!(
                "{:<24} {:>4} {:>20} {:>9} {:>12} {:>13} {:>8} {:>16}",
                fault.replace('_', "-"),
                times.len(),
                well,
                sum("messages"),
                sum("told"),
                sum("untold"),
                sum("repeated"),
                sum("lost_connections"),
            );
        }
    }
}

/// Each option with the variable of the tests, and what it is without the option.
const SIZES: [(&str, &str, u64); 5] = [
    ("--times", "WEIR_CHAOS_TIMES", 10),
    ("--clients", "WEIR_CHAOS_CLIENTS", 3000),
    ("--rate", "WEIR_CHAOS_RATE", 300),
    ("--topics", "WEIR_CHAOS_TOPICS", 50),
    ("--races", "WEIR_CHAOS_RACES", 10_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_faults_and_sizes() {
        let plan = Plan::read(&["node-killed", "--clients", "30", "cut"]).expect("a plan");
        assert_eq!(plan.faults, ["node_killed", "cut"]);
        let clients = plan.sizes.iter().find(|(flag, _, _)| *flag == "--clients");
        assert_eq!(clients.map(|(_, _, size)| *size), Some(30));
        assert!(Plan::read(&["--clients"]).is_err());
        assert!(Plan::read(&["--color", "1"]).is_err());
    }

    #[test]
    fn lines_of_tests_are_summed_up() {
        let mut outcomes = Outcomes::default();
        for line in [
            "test cut ... chaos cut well_after_ms=30 messages=5 told=0",
            "chaos cut well_after_ms=20 messages=6 told=1",
            "error: chaos is everywhere",
        ] {
            outcomes.look(line);
        }
        let [(fault, outcome)] = &outcomes.0[..] else { panic!("one fault") };
        assert_eq!((fault.as_str(), &outcome.well_after_ms[..]), ("cut", &[30, 20][..]));
        assert_eq!((outcome.sums["messages"], outcome.sums["told"]), (11, 1));
    }
}
