//! Calls by datagram.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::super::Setup;
use super::super::udp::caller::{Caller, Patient};
use super::super::udp::{Round, free_addr, settings};
use super::{Contestant, Figures, kinds};
use crate::baseline::udp::{Baseline, Style};
use crate::cli::PeersArgs;
use crate::report::Report;
use crate::spawn::{Rival, RivalKind, Service, Target};
use crate::stats::real;
use crate::workers::turns;

/// As in `udp`.
const DEVICES: u32 = 1024;
const SOCKETS: u32 = 16;
const WINDOW: usize = 64;
const WARM_UP_ROUNDS: u32 = 4;

/// A server with the sockets that call it.
struct Side {
    contestant: Contestant,
    caller: Caller<Patient>,
    pid: Option<u32>,
}

/// Measures the servers in turn.
pub(super) fn run(args: &PeersArgs, setup: &Setup, report: &mut Report) -> Result<Vec<Contestant>> {
    report.set("calls", args.calls);
    let kinds = kinds(args, &[RivalKind::Netty], report);
    let addr = free_addr()?;
    let tokens: Vec<String> =
        (0..DEVICES).map(|index| format!("bench-token-{index:010}")).collect();
    let settings = settings(addr, &tokens)?;
    let cpus = setup.server_cpus.as_ref();
    let target = Target::start(&args.target, cpus, &settings)?;
    let bare = Baseline::start(Style::Batches, cpus)?;
    let side = |contestant, addr: SocketAddr, pid| -> Result<Side> {
        Ok(Side { contestant, caller: Caller::patient(addr, SOCKETS, &tokens)?, pid })
    };
    let mut sides = vec![side(Contestant::weir(), addr, Some(target.pid))?];
    let mut rivals = Vec::new();
    for kind in kinds {
        let rival = Rival::start(kind, &args.scripts, Service::Datagrams(DEVICES), cpus)?;
        sides.push(side(Contestant::rival(&rival), rival.addr, Some(rival.pid()))?);
        rivals.push(rival);
    }
    sides.push(side(Contestant::bare(), bare.addr, None)?);
    for side in &mut sides {
        // Java compiles what has run some thousand times.
        for _ in 0..WARM_UP_ROUNDS {
            side.caller.run(args.calls, WINDOW).with_context(|| side.contestant.name)?;
        }
    }
    for turn in turns(args.rounds, sides.len()) {
        let side = &mut sides[turn];
        let figures = side.round(args.calls, &bare, report)?;
        side.contestant.rounds.push(figures);
    }
    let contestants = sides.into_iter().map(|side| side.contestant).collect();
    drop(rivals);
    target.stop(report);
    Ok(contestants)
}

impl Side {
    fn round(&mut self, calls: u64, bare: &Baseline, report: &mut Report) -> Result<Figures> {
        let cpu = || self.pid.map_or_else(|| bare.cpu(), Target::cpu);
        let before = cpu()?;
        let tally = self.caller.run(calls, WINDOW)?;
        let round = Round { tally, cpu: cpu()?.saturating_sub(before) };
        let (name, tally) = (self.contestant.name, &round.tally);
        report.check(tally.wrong == 0, || format!("{name}: {} answers are wrong", tally.wrong));
        report.check(tally.answered > 0, || format!("{name}: no call was answered"));
        Ok(vec![
            ("cpu_us_per_call", round.cpu_us()),
            ("calls_per_second", Some(round.calls_per_second())),
            ("p50_ms", round.tally.lags.quantile_ms(0.5)),
            ("p99_ms", round.tally.lags.quantile_ms(0.99)),
            ("lost", Some(real(round.tally.lost()))),
        ])
    }
}
