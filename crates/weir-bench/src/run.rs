//! Runs a command: a scenario with its report, or one of the bench's own processes.

use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::cli::{BaselineArgs, Cli, Command, HttpBaseline, Process};
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
        Command::Idle(args) => {
            present(args.run.json, Report::new("idle"), |report| scenario::idle::run(&args, report))
        }
        Command::Broadcast(args) => present(args.run.json, Report::new("broadcast"), |report| {
            scenario::broadcast::run(&args, report)
        }),
        Command::Stall(args) => present(args.run.json, Report::new("stall"), |report| {
            scenario::stall::run(&args, report)
        }),
        Command::Echo(args) => {
            present(args.run.json, Report::new("echo"), |report| scenario::echo::run(&args, report))
        }
        Command::Room(args) => {
            present(args.run.json, Report::new("room"), |report| scenario::room::run(&args, report))
        }
        Command::Resume(args) => present(args.run.json, Report::new("resume"), |report| {
            scenario::resume::run(&args, report)
        }),
        Command::Churn(args) => present(args.run.json, Report::new("churn"), |report| {
            scenario::churn::run(&args, report)
        }),
        Command::Priorities(args) => present(args.run.json, Report::new("priorities"), |report| {
            scenario::priorities::run(&args, report)
        }),
        Command::Conflate(args) => present(args.run.json, Report::new("conflate"), |report| {
            scenario::conflate::run(&args, report)
        }),
        Command::Handshake(args) => present(args.run.json, Report::new("handshake"), |report| {
            scenario::handshake::run(&args, report)
        }),
        Command::Storm(args) => present(args.run.json, Report::new("storm"), |report| {
            scenario::storm::run(&args, report)
        }),
        Command::Siege(args) => present(args.run.json, Report::new("siege"), |report| {
            scenario::siege::run(&args, report)
        }),
        Command::Http(args) => {
            present(args.run.json, Report::new("http"), |report| scenario::http::run(&args, report))
        }
        Command::Publish(args) => present(args.run.json, Report::new("publish"), |report| {
            scenario::publish::run(&args, report)
        }),
        Command::Udp(args) => {
            present(args.run.json, Report::new("udp"), |report| scenario::udp::run(&args, report))
        }
        Command::Activate(args) => present(args.run.json, Report::new("activate"), |report| {
            scenario::activate::run(&args, report)
        }),
        Command::Stages(args) => present(args.run.json, Report::new("stages"), |report| {
            scenario::stages::run(&args, report)
        }),
        Command::Cluster(args) => present(args.run.json, Report::new("cluster"), |report| {
            scenario::cluster::run(&args, report)
        }),
        Command::Baseline(BaselineArgs { server: Some(server), .. }) => {
            answer_bare(server)?;
            Ok(true)
        }
        Command::Baseline(args) => present(args.run.json, Report::new("baseline"), |report| {
            scenario::baseline::run(&args, report)
        }),
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
        HttpBaseline::HttpEpoll { server, answer } => {
            baseline::http::run(&server, answer.as_deref())
        }
        HttpBaseline::HttpHyper { server, h2 } => baseline::hyper::run(&server, h2),
    }
}

/// Runs one of the bench's own processes until its work is done.
fn serve(process: Process) -> Result<()> {
    match process {
        Process::Worker => {
            let input = std::io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .context("cannot take standard input")?;
            Worker::new(input, std::io::stdout())?.run()
        }
        Process::Attack => attack::run(),
        Process::Discard => baseline::discard::run(),
        Process::Udp { style } => baseline::udp::run(style),
        Process::Exchange { script } => baseline::exchange::run(script),
        Process::Memory => baseline::memory::run(std::io::stdin(), std::io::stdout()),
        Process::Gateway => embedded::run(),
        Process::Baseline { trigger } => baseline::run(trigger),
    }
}

/// Runs a scenario and writes its report, even after an error; returns whether it succeeded.
fn present(
    json: bool,
    mut report: Report,
    scenario: impl FnOnce(&mut Report) -> Result<()>,
) -> Result<bool> {
    spawn::clean_up_on_signals()?;
    let result = scenario(&mut report);
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
