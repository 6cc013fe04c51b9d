//! The toolbox of the project: every task that laptops and CI must do alike is a command here.
//!
//! `main` reads the command line; each command has a file. `steps` runs the steps of a command and
//! prints a summary. `rules` are the house rules; they read the repository as text, and start only
//! git and `cargo metadata`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a tool for the terminal")]

mod bench;
mod book;
mod chaos;
mod docs;
mod fuzz;
mod golang;
mod maven;
mod package;
mod plot;
mod process;
mod profile;
mod python;
mod rules;
mod scaling;
mod sdk;
mod slowest;
mod steps;
mod test;

use std::process::ExitCode;

use anyhow::{Context, bail};

const USAGE: &str = "\
The toolbox of the project.

usage: cargo xtask COMMAND

commands:
  test                     run every check: house rules, formatting, lints, documentation, tests
  test --quick             run the most important checks in some minutes: house rules, formatting, lints,
                           unit tests, the simulator with few seeds, and an end-to-end test for each transport
  rules                    check the house rules alone
  book                     make a book of docs/, into target/book/html
  fuzz TARGET [SECONDS]    run a fuzz target (default: 60 seconds; 0: until you stop it or it finds a fault)
  bench [NAME…]            measure Weir beside other servers, and write docs/benchmarks/DATE.md; a run that was
                           stopped continues (--minutes 8: begin no piece after that time; --built: use the
                           programs that are there; --quick: everything as small as possible, for the tests)
  chaos [FAULT…]           have faults happen to a cluster of real processes, as tests/tests/chaos.rs names them
                           (--times 10 --clients 3000 --rate 300 --topics 50 --races 10000)
  profile SCENARIO …       run a scenario of weir-bench with the words behind it, such as broadcast --tls, draw a
                           flame graph of its server into target/profiles, and list the largest functions
  package                  build the Debian package and its bill of materials, into target/package; then install,
                           upgrade, remove and purge it on this machine, as root
  docs                     write the generated documents and the Rust documentation
  scaling                  simulate losses of nodes, and write docs/scaling.md and docs/scaling.svg
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> anyhow::Result<()> {
    let root = process::root();
    match words {
        ["test"] => test::run(&root),
        ["test", "--quick"] => test::run_quick(&root),
        ["rules"] => test::rules(&root),
        ["book"] => book::run(&root),
        ["fuzz", target] => fuzz::run(&root, target, fuzz::SECONDS_DEFAULT),
        ["fuzz", target, seconds] => {
            let seconds =
                seconds.parse().with_context(|| format!("{seconds} is not a number of seconds"))?;
            fuzz::run(&root, target, seconds)
        }
        ["bench", words @ ..] => bench::run(&root, &bench::Plan::read(words)?),
        ["chaos", words @ ..] => chaos::run(&root, &chaos::Plan::read(words)?),
        ["package"] => package::run(&root),
        ["docs"] => docs::run(&root),
        ["profile", scenario, words @ ..] => profile::run(&root, scenario, words),
        ["scaling"] => scaling::run(&root),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => bail!("no such command: {:?}\n\n{USAGE}", words.join(" ")),
    }
}
