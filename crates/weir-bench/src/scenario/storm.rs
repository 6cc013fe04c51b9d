//! `storm`: many clients reconnect at once over TLS. Connections that receive messages must not
//! notice.

use anyhow::Result;
use serde_json::json;
use toml::Table;

use super::beside::{Beside, Phase, fill_lags, fill_messages};
use super::sampler::growth;
use super::{AT_ONCE, RESUMED_SLACK, Setup, resumed_share};
use crate::cli::StormArgs;
use crate::clock;
use crate::explained::Explained;
use crate::protocol::{ChurnPlan, HelloPlan, Streams, Ways};
use crate::publish::HttpSink;
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::real;
use crate::stats::whole;
use crate::tls::TlsPlan;
use crate::worker::topic;
use crate::workers::Churned;

/// Clients that connect at the same time while each connects for the first time.
const KNOWING_WINDOW: u32 = 64;

/// Runs the scenario.
pub(crate) fn run(args: &StormArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("connections", args.connections);
    report.set("returning", args.returning);
    report.set("retry_ms", args.retry_ms);
    report.set("size", args.size);
    report.set("rate", args.rate);
    report.set("seconds", args.seconds);
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &Table::new())?;
    let mut held = setup.workers(args.connections)?;
    let plan = setup.plan(target.addr, args.size, Streams::Count(1));
    held.open(&plan, |_, plan| plan)?;
    let topic = topic(&setup.topic_prefix, 0);
    let mut run = Beside {
        held,
        others: setup.workers(1)?,
        plan: ChurnPlan {
            addr: target.addr,
            source: plan.source.wrapping_add(1),
            hello: HelloPlan { subscribe: false, ..plan.hello.unwrap_or_default() },
            topic: String::new(),
            rate: AT_ONCE,
            count: args.returning.into(),
            hold_ms: whole(args.seconds * 1000.0),
            ways: Ways { tls: plan.tls, retry_ms: Some(args.retry_ms), ..Ways::default() },
        },
        sink: HttpSink::new(target.another_http(), vec![topic]),
        seqs: vec![0],
        rate: args.rate,
        size: args.size,
    };
    let known = become_known(&mut run)?;
    report.check(known.tally.welcomed == run.plan.count, || {
        format!(
            "before: {} of {} were welcomed: {:?}",
            known.tally.welcomed, run.plan.count, known.tally.failed
        )
    });
    let quiet = run.phase(args.quiet_seconds, |_, _| Ok(()))?;
    let (before, cpu) = (target.metrics()?, Target::cpu(target.pid)?);
    let began = clock::monotonic();
    let mut churned = Churned::default();
    let storm = run.phase(args.seconds, |others, plan| {
        churned = others.churn(plan)?;
        Ok(())
    })?;
    let seconds = (clock::monotonic() - began).as_secs_f64();
    let cpu = Target::cpu(target.pid)?.saturating_sub(cpu);
    let after = target.metrics()?;
    Explained::fill(Explained::ask(&mut target.http)?, report);
    fill_others(report, args, &churned);
    let resume = run.plan.ways.tls.as_ref().map_or(0.0, |tls| tls.resume);
    check_others(report, args.returning.into(), resume, &churned);
    report.figure("cpu_share", Some(cpu.as_secs_f64() / seconds));
    report.set("closed", json!(growth(&before, &after, "weir_connections_closed_total", "reason")));
    fill_held(report, &quiet, &storm);
    setup.describe(report);
    run.held.close()?;
    drop(run);
    target.stop(report);
    Ok(())
}

/// Each returning client connects once, gets its tickets and leaves.
fn become_known(run: &mut Beside) -> Result<Churned> {
    let tls = run.plan.ways.tls.clone().map(|tls| TlsPlan { resume: 0.0, ..tls });
    let ways = Ways { tls, window: Some(KNOWING_WINDOW), ..Ways::default() };
    run.others.churn(&ChurnPlan { hold_ms: 0, ways, ..run.plan.clone() })
}

fn fill_others(report: &mut Report, args: &StormArgs, churned: &Churned) {
    let tally = &churned.tally;
    report.set("settled", tally.welcomed);
    report.set("refused", tally.refused.values().sum::<u64>());
    report.set("refused_by", json!(tally.refused));
    report.set("lost", lost(args.returning.into(), churned));
    report.set("failed_by", json!(tally.failed));
    report.set("storm_handshakes", json!(tally.handshakes));
    report.figure("storm_resumed_share", resumed_share(&tally.handshakes));
    report.figure("settle_p50_ms", churned.connects.quantile_ms(0.5));
    report.figure("settle_p99_ms", churned.connects.quantile_ms(0.99));
    report.figure("settle_max_ms", churned.connects.max_ms());
    let rate = (tally.seconds > 0.0).then(|| real(tally.welcomed) / tally.seconds);
    report.figure("settled_per_second", rate);
    report.figure("begin_late_max_ms", Some(real(tally.late_max_us) / 1000.0));
}

/// Clients that are missing in the end: never welcomed, or closed after the welcome.
fn lost(returning: u64, churned: &Churned) -> u64 {
    let closed: u64 = churned.tally.failed.values().sum();
    returning.saturating_sub(churned.tally.welcomed).max(closed)
}

/// Checks that all returning clients have settled, and that as many resumed as planned. A refused
/// client takes its ticket with it.
fn check_others(report: &mut Report, returning: u64, resume: f64, churned: &Churned) {
    let tally = &churned.tally;
    let lost = lost(returning, churned);
    report.check(lost == 0, || {
        format!("{lost} of {returning} returning clients are missing: {:?}", tally.failed)
    });
    let (resumed, refused) =
        (resumed_share(&tally.handshakes), tally.refused.values().sum::<u64>());
    let slack = RESUMED_SLACK + real(refused) / real(returning.max(1));
    report.check(resumed.is_none_or(|share| share >= resume - slack), || {
        format!("{resumed:?} of the returning clients resumed a session, not {resume}")
    });
}

fn fill_held(report: &mut Report, quiet: &Phase, storm: &Phase) {
    fill_messages(report, quiet, storm);
    let tally = &storm.totals.tally;
    report.set("established_lost", tally.lost());
    report.set("established_closed", tally.closed);
    fill_lags(report, quiet, "during the storm", storm);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_come_back_fails_the_run() {
        let mut churned = Churned::default();
        churned.tally.welcomed = 10;
        churned.tally.handshakes.insert("v s - resumed".to_owned(), 9);
        churned.tally.handshakes.insert("v s g full".to_owned(), 1);
        let errors = |churned: &Churned, resume| {
            let mut report = Report::new("storm");
            check_others(&mut report, 10, resume, churned);
            report.errors().len()
        };
        assert_eq!(errors(&churned, 0.9), 0);
        assert_eq!(errors(&churned, 1.0), 1, "one of ten began anew");
        churned.tally.refused.insert("reset".to_owned(), 1);
        assert_eq!(errors(&churned, 1.0), 0, "the refused client has no ticket left");
        churned.tally.failed.insert("slow_consumer".to_owned(), 1);
        assert_eq!(errors(&churned, 1.0), 1, "one was closed once it was there");
        churned.tally.welcomed = 8;
        assert_eq!(lost(10, &churned), 2);
    }
}
