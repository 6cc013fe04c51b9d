//! `cargo xtask bench`: measures Weir beside other servers, and how its costs grow, and writes the
//! report.
//!
//! Every piece is one command. Its result is kept in `target/bench`, so a run that was stopped
//! continues with the next piece.
//!
//! | part | does |
//! |---|---|
//! | `pieces` | what is measured, by which command |
//! | `prepare` | installs and builds what the pieces need |
//! | `results` | runs pieces, keeps results, and finds figures in them |
//! | `beside` | tables and bars of the other servers |
//! | `scale` | lines of costs against sizes |
//! | `promises` | rows of the articles and of SPECIFICATION.md |
//! | `report` | puts the report together |

mod beside;
mod pieces;
mod prepare;
mod promises;
mod report;
mod results;
mod scale;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::process::{beside_programs, output, program};
use pieces::Piece;
use results::Results;

/// What to measure.
pub(crate) struct Plan {
    /// Names of pieces or of their groups; none: all.
    names: Vec<String>,
    /// Everything as small as possible, with the programs that tests use.
    is_quick: bool,
    /// Use the programs that are there.
    is_built: bool,
    /// Begin no piece after this time.
    time_max: Option<Duration>,
}

impl Plan {
    /// Reads the words behind `bench`.
    pub(crate) fn read(words: &[&str]) -> anyhow::Result<Plan> {
        let mut plan = Plan { names: Vec::new(), is_quick: false, is_built: false, time_max: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--quick" => plan.is_quick = true,
                "--built" => plan.is_built = true,
                "--minutes" => {
                    let minutes: u64 = words.next().context("--minutes needs a number")?.parse()?;
                    plan.time_max = Some(Duration::from_secs(60 * minutes));
                }
                _ if word.starts_with('-') => {
                    bail!("{word} is not known; the options are --quick, --built and --minutes")
                }
                _ => plan.names.push((*word).to_owned()),
            }
        }
        Ok(plan)
    }

    /// The small run of the tests.
    pub(crate) fn quick() -> Plan {
        Plan { names: Vec::new(), is_quick: true, is_built: true, time_max: None }
    }

    fn wants(&self, piece: &Piece) -> bool {
        self.names.is_empty()
            || self.names.iter().any(|name| *name == piece.name || *name == piece.group.name())
    }
}

/// Measures what is missing, and writes the report.
pub(crate) fn run(root: &Path, plan: &Plan) -> anyhow::Result<()> {
    let programs = prepare::programs(root, plan.is_quick, plan.is_built)?;
    let all = pieces::all(plan.is_quick);
    for name in &plan.names {
        if !all.iter().any(|piece| piece.name == *name || piece.group.name() == name) {
            let names: Vec<&str> = all.iter().map(|piece| piece.name.as_str()).collect();
            bail!(
                "there is no piece {name}; the groups are peers, articles, scale and promises, the \
                   pieces {}",
                names.join(", ")
            );
        }
    }
    let directory = directory(root, plan.is_quick)?;
    let mut results = Results::open(&directory, &all)?;
    let started = now();
    let wanted: Vec<&Piece> = all.iter().filter(|piece| plan.wants(piece)).collect();
    let mut failed = Vec::new();
    for (number, piece) in wanted.iter().enumerate() {
        if results.has(&piece.name) {
            continue;
        }
        if plan.time_max.is_some_and(|most| started.elapsed() > most) {
            println!("the time is over: the next call continues with {}", piece.name);
            break;
        }
        println!("[{} of {}] {}", number + 1, wanted.len(), piece.name);
        let began = now();
        match results.measure(root, &programs, piece) {
            Ok(()) => println!("    {:.0} s", began.elapsed().as_secs_f64()),
            Err(error) => {
                println!("    FAILED: {error:#}");
                failed.push(piece.name.as_str());
            }
        }
    }
    let (place, date) = if plan.is_quick {
        (directory, "quick".to_owned())
    } else {
        (root.join("docs/benchmarks"), output(&mut program(root, "date", "--utc +%F"))?)
    };
    report::write(root, &place, date.trim(), &all, &results)?;
    match failed.as_slice() {
        [] => Ok(()),
        names => bail!("not measured: {}", names.join(", ")),
    }
}

/// Where results are kept: those of other sources are not mixed with these.
fn directory(root: &Path, is_quick: bool) -> anyhow::Result<std::path::PathBuf> {
    let all = beside_programs(root, "bench");
    if is_quick {
        let quick = all.join("quick");
        // Nothing of an earlier run.
        let _ = fs::remove_dir_all(&quick);
        return Ok(quick);
    }
    // A commit of what is changed; nothing if nothing is.
    let changed = output(&mut program(root, "git", "stash create"))?;
    let commit = if changed.trim().is_empty() { "HEAD" } else { changed.trim() };
    let line = format!("rev-parse {commit}:crates {commit}:bench {commit}:Cargo.lock");
    let sources = output(&mut program(root, "git", &line))?;
    let names = sources.split_whitespace().map(|name| name.get(..12).unwrap_or(name));
    Ok(all.join(names.collect::<Vec<_>>().join("-")))
}

#[expect(clippy::disallowed_methods, reason = "pieces are timed for people")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let plan = Plan::read(&["peers", "--minutes", "7", "--built"]).expect("a plan");
        assert_eq!(plan.names, ["peers"]);
        assert_eq!(plan.time_max, Some(Duration::from_secs(420)));
        assert!(plan.is_built && !plan.is_quick);
        assert!(Plan::read(&["--slow"]).is_err());
        assert!(Plan::read(&["--minutes"]).is_err());
    }
}
