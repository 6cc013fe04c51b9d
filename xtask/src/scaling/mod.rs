//! `cargo xtask scaling`: how long a cluster needs until all clients are back after a loss.
//!
//! A simulation in virtual time, which writes its tables into `docs/scaling.md` and draws
//! `docs/scaling.svg`. A seed decides everything, and no clock is read.
//!
//! | part | does |
//! |---|---|
//! | `costs` | what was measured, and what is assumed |
//! | `clients` | the delays of clients |
//! | `limits` | the settings of nodes, and which limits were met |
//! | `node` | a node: accept, admission, queue of handshakes |
//! | `redis` | Redis, and the claims that nodes send it |
//! | `run` | one run from the loss to the last client |
//! | `report` | tables and lines |

mod clients;
mod costs;
mod limits;
mod node;
mod redis;
mod report;
mod run;

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

/// Runs the simulation and writes both files.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    for (path, text) in written(root)? {
        fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// Checks that both files are as the simulation writes them.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    for (path, text) in written(root)? {
        if fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?
            != text
        {
            bail!("{path} is out of date: run cargo xtask scaling");
        }
    }
    Ok(())
}

/// The files with what the simulation gives.
fn written(root: &Path) -> anyhow::Result<[(&'static str, String); 2]> {
    let (tables, plot) = report::report();
    let page =
        fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let (head, rest) = page.split_once(BEGIN).with_context(|| format!("{PAGE} has no {BEGIN}"))?;
    let (_, tail) = rest.split_once(END).with_context(|| format!("{PAGE} has no {END}"))?;
    Ok([(PAGE, format!("{head}{BEGIN}\n\n{tables}\n{END}{tail}")), (PLOT, plot)])
}

const PAGE: &str = "docs/scaling.md";
const PLOT: &str = "docs/scaling.svg";
/// Between these lines of the page stand the tables.
const BEGIN: &str = "<!-- Written by cargo xtask scaling. -->";
const END: &str = "<!-- End of what is written. -->";
