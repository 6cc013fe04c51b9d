//! Runs a command: a scenario with its report, or one of the bench's own processes.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::cli::{BaselineArgs, Cli, Command, HttpBaseline, Process};
use crate::holder::Holder;
use crate::report::Report;
use crate::worker::Worker;
use crate::{attack, baseline, embedded, process, scenario, spawn, workers};

/// Runs the command of the command line.
pub(crate) fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs a subcommand; returns whether it succeeded.
fn run(command: Command) -> Result<bool> {
    process::raise_open_files()?;
    match command {
        Command::Idle(args) => present("idle", args.run.json, &args, scenario::idle::run),
        Command::Million(args) => present("million", args.run.json, &args, scenario::million::run),
        Command::Broadcast(args) => {
            present("broadcast", args.run.json, &args, scenario::broadcast::run)
        }
        Command::Stall(args) => present("stall", args.run.json, &args, scenario::stall::run),
        Command::Echo(args) => present("echo", args.run.json, &args, scenario::echo::run),
        Command::Room(args) => present("room", args.run.json, &args, scenario::room::run),
        Command::Resume(args) => present("resume", args.run.json, &args, scenario::resume::run),
        Command::Churn(args) => present("churn", args.run.json, &args, scenario::churn::run),
        Command::Priorities(args) => {
            present("priorities", args.run.json, &args, scenario::priorities::run)
        }
        Command::Conflate(args) => {
            present("conflate", args.run.json, &args, scenario::conflate::run)
        }
        Command::Handshake(args) => {
            present("handshake", args.run.json, &args, scenario::handshake::run)
        }
        Command::Storm(args) => present("storm", args.run.json, &args, scenario::storm::run),
        Command::Siege(args) => present("siege", args.run.json, &args, scenario::siege::run),
        Command::Http(args) => present("http", args.run.json, &args, scenario::http::run),
        Command::Proxy(args) => present("proxy", args.run.json, &args, scenario::proxy::run),
        Command::Balance(args) => present("balance", args.run.json, &args, scenario::balance::run),
        Command::Hooks(args) => present("hooks", args.run.json, &args, scenario::hooks::run),
        Command::Publish(args) => present("publish", args.run.json, &args, scenario::publish::run),
        Command::Udp(args) => present("udp", args.run.json, &args, scenario::udp::run),
        Command::Call(args) => present("call", args.run.json, &args, scenario::call::run),
        Command::Activate(args) => {
            present("activate", args.run.json, &args, scenario::activate::run)
        }
        Command::Stages(args) => present("stages", args.run.json, &args, scenario::stages::run),
        Command::Upgrade(args) => present("upgrade", args.run.json, &args, scenario::upgrade::run),
        Command::Cluster(args) => present("cluster", args.run.json, &args, scenario::cluster::run),
        Command::Peers(args) => present("peers", args.run.json, &args, scenario::peers::run),
        Command::Baseline(BaselineArgs { server: Some(server), .. }) => {
            answer_bare(server)?;
            Ok(true)
        }
        Command::Baseline(args) => {
            present("baseline", args.run.json, &args, scenario::baseline::run)
        }
        Command::Process(process) => {
            set_parent_process_death_signal(Some(Signal::KILL))
                .context("cannot ask to die with the parent")?;
            serve(process)?;
            Ok(true)
        }
    }
}

/// Runs a bare HTTP server until the process is killed.
fn answer_bare(server: HttpBaseline) -> Result<()> {
    match server {
        HttpBaseline::HttpEpoll { server, answer, content_bytes } => {
            baseline::http::run(&server, answer.as_deref(), content_bytes)
        }
        HttpBaseline::HttpHyper { server, h2 } => baseline::hyper::run(&server, h2),
    }
}

/// Runs one of the bench's own processes until its work is done.
fn serve(process: Process) -> Result<()> {
    match process {
        Process::Worker => Worker::new(standard_input()?, std::io::stdout())?.run(),
        Process::Holder => Holder::new(standard_input()?, std::io::stdout()).run(),
        Process::Attack => attack::run(),
        Process::Discard => baseline::discard::run(),
        Process::Udp { style } => baseline::udp::run(style),
        Process::Exchange { script } => baseline::exchange::run(script),
        Process::Memory => baseline::memory::run(std::io::stdin(), std::io::stdout()),
        Process::Gateway => embedded::run(),
        Process::Baseline { trigger } => baseline::run(trigger),
    }
}

fn standard_input() -> Result<OwnedFd> {
    std::io::stdin().as_fd().try_clone_to_owned().context("cannot take standard input")
}

/// Runs a scenario and writes its report, even after an error; returns whether it succeeded.
fn present<A>(
    name: &'static str,
    json: bool,
    args: &A,
    scenario: impl FnOnce(&A, &mut Report) -> Result<()>,
) -> Result<bool> {
    spawn::clean_up_on_signals()?;
    let mut report = Report::new(name);
    let result = scenario(args, &mut report);
    workers::end_progress();
    if let Err(error) = result {
        report.fail(format!("{error:#}"));
    }
    report.close();
    let mut out = std::io::stdout().lock();
    report.write_table(&mut out)?;
    if json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    }
    for error in report.errors() {
        complain(error);
    }
    Ok(report.is_ok())
}

#[expect(clippy::print_stderr, reason = "the last word of a program that failed")]
fn complain(error: &str) {
    eprintln!("weir-bench: {error}");
}
