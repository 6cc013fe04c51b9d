//! Questions about the tokens of new connections, as fast as they are answered, beside connections without
//! a token.

use std::time::Duration;

use anyhow::Result;
use toml::Table;

use super::super::{AT_ONCE, Setup};
use super::{TOKEN, knows_all};
use crate::backend::Host;
use crate::cli::HooksArgs;
use crate::protocol::{ChurnPlan, HelloPlan, Streams, Ways};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::{Lags, median, real};
use crate::workers::Churned;

/// The results of a round.
struct Round {
    churned: Churned,
    cpu: Duration,
    questions: u64,
}

/// Runs rounds with and without questions in turn.
pub(super) fn run(args: &HooksArgs, setup: &Setup, report: &mut Report) -> Result<()> {
    report.set("connections", args.questions);
    let host = Host::start()?;
    let asked = host.backend(knows_all())?;
    let mut settings = Table::new();
    super::ask(&mut settings, &asked)?;
    let target = Target::start(&args.target(), setup.server_cpus.as_ref(), &settings)?;
    let mut workers = setup.workers(1)?;
    let plan = setup.plan(target.addr, args.size, Streams::Count(1));
    let mut plan = ChurnPlan {
        addr: target.addr,
        source: plan.source,
        hello: HelloPlan::default(),
        topic: String::new(),
        rate: AT_ONCE,
        count: args.questions,
        hold_ms: 0,
        ways: Ways { window: Some(args.run.connect_window), ..Ways::default() },
    };
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for turn in crate::workers::turns(args.rounds, 2) {
        let (token, rounds) = if turn == 0 { (TOKEN, &mut known) } else { ("", &mut unknown) };
        plan.hello = HelloPlan { token: token.to_owned(), subscribe: false };
        let (cpu, before) = (Target::cpu(target.pid)?, asked.requests());
        let churned = workers.churn(&plan)?;
        let cpu = Target::cpu(target.pid)?.saturating_sub(cpu);
        rounds.push(Round { churned, cpu, questions: asked.requests() - before });
    }
    fill(report, &known, &unknown);
    drop(workers);
    target.stop(report);
    Ok(())
}

fn fill(report: &mut Report, known: &[Round], unknown: &[Round]) {
    let per_second = |one: &Round| {
        let Churned { tally, .. } = &one.churned;
        (tally.seconds > 0.0).then(|| real(tally.welcomed) / tally.seconds)
    };
    let us = |one: &Round| {
        let welcomed = one.churned.tally.welcomed;
        (welcomed > 0).then(|| one.cpu.as_secs_f64() * 1e6 / real(welcomed))
    };
    let questions: u64 = known.iter().map(|one| one.questions).sum();
    let welcomed: u64 = known.iter().map(|one| one.churned.tally.welcomed).sum();
    report.set("questions", questions);
    report.set("welcomed", welcomed);
    report.figure("questions_per_second", median(known.iter().filter_map(per_second)));
    report.figure("connects_per_second_alone", median(unknown.iter().filter_map(per_second)));
    report.figure("cpu_us_per_question", median(known.iter().filter_map(us)));
    report.figure("cpu_us_per_connect_alone", median(unknown.iter().filter_map(us)));
    let mut connects = Lags::new();
    known.iter().for_each(|one| connects.add(&one.churned.connects.counts()));
    report.figure("connect_p50_ms", connects.quantile_ms(0.5));
    report.figure("connect_p99_ms", connects.quantile_ms(0.99));
    for one in known.iter().chain(unknown) {
        let failed = &one.churned.tally.failed;
        report.check(failed.is_empty(), || format!("connections that failed: {failed:?}"));
    }
    report.check(questions >= welcomed, || {
        format!("{questions} questions came for {welcomed} connections with tokens of their own")
    });
}
