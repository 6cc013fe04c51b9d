//! TLS handshakes up to `Welcome`, full and resumed.

use anyhow::{Context, Result, bail};
use toml::Table;

use super::super::Setup;
use super::super::handshake::{Guests, check_guests, guest_plan, resuming};
use super::{Contestant, Figures, kinds, start_for_devices};
use crate::cli::PeersArgs;
use crate::protocol::{ChurnPlan, Streams};
use crate::report::Report;
use crate::spawn::{RivalKind, Target};
use crate::stats::{Lags, real};
use crate::workers::{Handshakes, Workers, turns};

/// Clients on their way at a time.
const WINDOW: u32 = 32;

/// A server with its clients.
struct Side {
    contestant: Contestant,
    guests: Workers,
    plan: ChurnPlan,
    pid: u32,
    /// What all of them agreed on.
    handshakes: Handshakes,
}

/// Measures the servers in turn.
pub(super) fn run(args: &PeersArgs, setup: &Setup, report: &mut Report) -> Result<Vec<Contestant>> {
    if !args.target.tls.tls || args.target.tls.tls_resume > 0.0 {
        bail!("handshake needs --tls, and measures full and resumed ones without --tls-resume");
    }
    report.set("handshakes", args.handshakes);
    report.set("window", WINDOW);
    let kinds = kinds(args, &[RivalKind::Netty], report);
    let target = Target::start(&args.target, setup.server_cpus.as_ref(), &Table::new())?;
    let plan = setup.plan(target.addr, 0, Streams::Count(1));
    let plan = guest_plan(plan, args.handshakes.into(), WINDOW);
    let mut sides = vec![Side {
        contestant: Contestant::weir(),
        guests: setup.workers(1)?,
        plan: plan.clone(),
        pid: target.pid,
        handshakes: setup.handshakes.clone(),
    }];
    let mut rivals = Vec::new();
    for kind in kinds {
        let rival = start_for_devices(args, setup, kind)?;
        sides.push(Side {
            contestant: Contestant::rival(&rival),
            guests: setup.workers(1)?,
            plan: ChurnPlan { addr: rival.addr, ..plan.clone() },
            pid: rival.pid(),
            handshakes: setup.handshakes.clone(),
        });
        rivals.push(rival);
    }
    for side in &mut sides {
        // Java compiles what has run some thousand times.
        for _ in 0..args.rounds.min(WARM_UP_ROUNDS) {
            side.round(report)?;
        }
    }
    for turn in turns(args.rounds, sides.len()) {
        let side = &mut sides[turn];
        let figures = side.round(report)?;
        side.contestant.rounds.push(figures);
    }
    let contestants = sides.into_iter().map(|side| side.contestant).collect();
    drop(rivals);
    target.stop(report);
    Ok(contestants)
}

impl Side {
    /// The same number of full and of resumed handshakes.
    fn round(&mut self, report: &mut Report) -> Result<Figures> {
        let full = self.handshakes(0.0, report)?;
        let resumed = self.handshakes(1.0, report)?;
        let p99 = |guests: &Guests| {
            let mut lags = Lags::new();
            lags.add(&guests.churned.connects.counts());
            lags.quantile_ms(0.99)
        };
        Ok(vec![
            ("full_us", full.cpu_us()),
            ("resumed_us", resumed.cpu_us()),
            ("full_per_second", full.per_second()),
            ("resumed_per_second", resumed.per_second()),
            ("full_p99_ms", p99(&full)),
            ("resumed_p99_ms", p99(&resumed)),
        ])
    }

    fn handshakes(&mut self, share: f64, report: &mut Report) -> Result<Guests> {
        let (plan, pid) = (resuming(&self.plan, share), self.pid);
        let guests = Guests::run(&mut self.guests, &plan, || Target::cpu(pid));
        let guests = guests.with_context(|| self.contestant.name)?;
        self.handshakes.add(&guests.churned.tally.handshakes);
        check_guests(report, self.contestant.name, &guests.churned, share);
        let welcomed = guests.churned.tally.welcomed;
        report.check(welcomed == plan.count, || {
            let (name, count) = (self.contestant.name, real(plan.count));
            format!("{name}: {welcomed} of {count} were welcomed")
        });
        Ok(guests)
    }
}

const WARM_UP_ROUNDS: u32 = 4;
