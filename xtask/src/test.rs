//! `cargo xtask test`: runs all checks that a change must pass, cheap ones first.
//!
//! Dependencies are built only twice: as metadata (clippy, rustdoc), and as code (programs, tests).
//! So programs and tests use one feature set, the one of the tests. It differs from the shipped one
//! only by `sim` of weir-engine, `conformance` of weir-store and `otlp`; clippy checks both sets.

use std::path::Path;

use anyhow::bail;

use crate::bench;
use crate::docs;
use crate::golang;
use crate::maven;
use crate::process::{FEATURES, cargo, program, run as run_command, run_watched, succeeds};
use crate::python;
use crate::rules::{self, Repository};
use crate::sdk;
use crate::slowest::Slowest;
use crate::steps::{Failed, Steps};

/// Runs all steps and prints the summary.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    // The failure is in `steps`, which reports it.
    let _ = run_steps(root, &mut steps);
    steps.finish()
}

/// Runs the most important checks, for use between two changes.
pub(crate) fn run_quick(root: &Path) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    // The failure is in `steps`, which reports it.
    let _ = run_quick_steps(root, &mut steps);
    steps.finish()
}

/// Checks the house rules alone.
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
    steps.run("tools", || install(root, &TOOLS))?;
    steps.run("Python packages", || python::install(root))?;
    steps.run("database for tests", || maven::build(root))?;
    steps.run("conformance suite for HTTP/2", || golang::build(root))?;
    look_at_text(root, steps)?;
    steps.run("clippy, as shipped", || {
        run_command(&mut cargo(root, "clippy --locked --workspace --lib --bins -- -D warnings"))
    })?;
    steps.run("rustdoc", || docs::rustdoc(root, "-D warnings"))?;
    steps.run("programs", || docs::build_programs(root))?;
    steps.run("generated documents", || docs::check(root))?;
    steps.run("sdk/js", || sdk::check(root))?;
    steps.run("dashboard", || sdk::check_dashboard(root))?;
    let mut slowest = Slowest::default();
    let result = steps.run("tests", || run_tests(root, "", &mut slowest));
    slowest.show();
    result?;
    steps.run("beside other servers", || bench::run(root, &bench::Plan::quick()))
}

fn run_quick_steps(root: &Path, steps: &mut Steps) -> Result<(), Failed> {
    look_at_text(root, steps)?;
    steps.run("programs", || docs::build_programs(root))?;
    steps.run("generated documents", || docs::check(root))?;
    let mut slowest = Slowest::default();
    steps.run("unit tests", || run_tests(root, "--lib --bins", &mut slowest))?;
    steps.run("simulator", || {
        let line = format!("test --locked --workspace {FEATURES} --test simulation -- {SIMULATED}");
        run_command(cargo(root, &line).env("WEIR_SIM_SEEDS", QUICK_SEEDS))
    })?;
    steps.run("each transport", || {
        let programs = TRANSPORTS.map(|(program, _)| format!("--test {program}")).join(" ");
        let tests = TRANSPORTS.map(|(_, test)| test).join(" ");
        run_tests(root, &format!("{programs} -- --exact {tests}"), &mut slowest)
    })
}

/// The checks that run no tests.
fn look_at_text(root: &Path, steps: &mut Steps) -> Result<(), Failed> {
    steps.run("house rules", || rules(root))?;
    steps.run("format", || run_command(&mut cargo(root, "fmt --all --check")))?;
    steps.run("clippy, as tested", || {
        let line = format!("clippy --locked --workspace --all-targets {FEATURES} -- -D warnings");
        run_command(&mut cargo(root, &line))
    })
}

/// Runs `cargo test` for the whole workspace, so that the features do not depend on the selected
/// tests.
fn run_tests(root: &Path, which: &str, slowest: &mut Slowest) -> anyhow::Result<()> {
    let mut tests = cargo(root, &format!("test --locked --workspace {FEATURES} {which}"));
    tests.env("INSTA_UPDATE", "no").env("RUST_BACKTRACE", "1");
    run_watched(&mut tests, |line| slowest.look(line))
}

/// The simulator test of the quick run, and its number of seeds.
const SIMULATED: &str = "--exact nothing_is_lost_leaked_or_late_whatever_happens";
const QUICK_SEEDS: &str = "32";

/// An end-to-end test for each transport: the test program, and the test.
const TRANSPORTS: [(&str, &str); 6] = [
    ("serve", "a_message_to_a_topic_reaches_its_subscribers_and_nobody_else"),
    ("live_ends", "who_is_revoked_is_told_in_every_way"),
    ("http_clients", "curl_asks_and_publishes"),
    ("tls_openssl", "the_name_chooses_the_certificate"),
    ("udp_clients", "a_device_activates_calls_and_publishes_over_both_families"),
    ("devices", "the_row_add_abc_activates_by_the_request_of_the_article"),
];

/// Installs the missing ones of these programs: each with the arguments that print its version, and
/// its Debian package.
pub(crate) fn install(root: &Path, tools: &[(&str, &str, &str)]) -> anyhow::Result<()> {
    for &(tool, version, package) in tools {
        let is_there = || succeeds(&mut program(root, tool, version));
        if is_there() {
            continue;
        }
        println!("{package} is missing; trying to install it");
        // Both fail without apt or without permission; the second check below decides.
        let _ = run_command(&mut program(root, "apt-get", "update"));
        let _ = run_command(&mut program(root, "apt-get", &format!("install --yes {package}")));
        if !is_there() {
            bail!("{package} is needed: please install it");
        }
    }
    Ok(())
}

/// Each program with the arguments that print its version, and its Debian package.
const TOOLS: [(&str, &str, &str); 25] = [
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
    ("nginx", "-v", "nginx-light"),
    ("redis-server", "--version", "redis-server"),
    // `wrk --version` prints the version, but fails.
    ("which", "wrk", "wrk"),
    ("haproxy", "-v", "haproxy"),
    ("dnsmasq", "--version", "dnsmasq-base"),
    ("tinyproxy", "-v", "tinyproxy-bin"),
    ("squid", "-v", "squid"),
    ("which", "microsocks", "microsocks"),
    ("which", "nc", "netcat-openbsd"),
    ("which", "ip", "iproute2"),
    ("which", "xxd", "xxd"),
    ("systemd-socket-activate", "--version", "systemd"),
    ("prometheus", "--version", "prometheus"),
    ("strace", "--version", "strace"),
];
