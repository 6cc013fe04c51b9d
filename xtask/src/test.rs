//! `cargo xtask test`: everything that must hold before a change is taken, cheap checks first.
//!
//! Dependencies are built twice and no more: once as metadata (clippy, rustdoc), once as code (programs, tests). So
//! programs and tests are built with one feature set, that of the tests, which differs from the shipped one only by
//! `sim` of weir-engine and `conformance` of weir-store; clippy looks at both sets.

use std::path::Path;

use anyhow::bail;

use crate::docs;
use crate::golang;
use crate::maven;
use crate::process::{cargo, program, run as run_command, succeeds};
use crate::python;
use crate::rules::{self, Repository};
use crate::sdk;
use crate::steps::{Failed, Steps};

/// Runs all steps and prints the summary.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    // The failure is in `steps`, which reports it.
    let _ = run_steps(root, &mut steps);
    steps.finish()
}

/// The house rules alone.
pub(crate) fn rules(root: &Path) -> anyhow::Result<()> {
    let repository = Repository::read(root)?;
    let findings = rules::check(&repository)?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!("{count} findings against the house rules (xtask/src/rules)"),
    }
}

fn run_steps(root: &Path, steps: &mut Steps) -> Result<(), Failed> {
    steps.run("tools", || tools(root))?;
    steps.run("Python packages", || python::install(root))?;
    steps.run("database for tests", || maven::build(root))?;
    steps.run("conformance suite for HTTP/2", || golang::build(root))?;
    steps.run("house rules", || rules(root))?;
    steps.run("format", || run_command(&mut cargo(root, "fmt --all --check")))?;
    steps.run("clippy, as tested", || {
        run_command(&mut cargo(root, "clippy --locked --workspace --all-targets -- -D warnings"))
    })?;
    steps.run("clippy, as shipped", || {
        run_command(&mut cargo(root, "clippy --locked --workspace --lib --bins -- -D warnings"))
    })?;
    steps.run("rustdoc", || docs::rustdoc(root, "-D warnings"))?;
    steps.run("programs", || docs::build_programs(root))?;
    steps.run("generated documents", || docs::check(root))?;
    steps.run("sdk/js", || sdk::check(root))?;
    steps.run("tests", || {
        let mut tests = cargo(root, "test --locked --workspace");
        run_command(tests.env("INSTA_UPDATE", "no").env("RUST_BACKTRACE", "1"))
    })
}

/// Makes sure of the programs that tests call beside our own.
fn tools(root: &Path) -> anyhow::Result<()> {
    for (tool, version, package) in TOOLS {
        let is_there = || succeeds(&mut program(root, tool, version));
        if is_there() {
            continue;
        }
        println!("{package} is not there; trying to install it");
        // Both fail where there is no apt or no permission; what counts is the second look below.
        let _ = run_command(&mut program(root, "apt-get", "update"));
        let _ = run_command(&mut program(root, "apt-get", &format!("install --yes {package}")));
        if !is_there() {
            bail!("the tests need {package}: please install it");
        }
    }
    Ok(())
}

/// Each with the words that ask for its version, and the package of Debian that has it.
const TOOLS: [(&str, &str, &str); 13] = [
    ("curl", "--version", "curl"),
    ("openssl", "version", "openssl"),
    ("python3", "--version", "python3"),
    ("python3", "-m ensurepip --version", "python3-venv"),
    ("go", "version", "golang-go"),
    ("node", "--version", "nodejs"),
    ("npm", "--version", "npm"),
    ("chromium", "--version", "chromium"),
    ("h2load", "--version", "nghttp2-client"),
    ("java", "--version", "openjdk-17-jdk-headless"),
    ("mvn", "--version", "maven"),
    ("redis-server", "--version", "redis-server"),
    // Asked for its version it tells it, and fails.
    ("which", "wrk", "wrk"),
];
