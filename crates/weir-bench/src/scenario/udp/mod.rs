//! `udp`: calls by datagram, in turn with bare echoes; then calls at a fixed rate.

pub(crate) mod caller;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use toml::Table;

use self::caller::{Caller, Tally};
use super::Setup;
use crate::baseline::udp::{Baseline, Style};
use crate::cli::UdpArgs;
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::{Lags, median, milli, real};
use crate::workers::turns;

/// A round of the server or a baseline.
pub(super) struct Round {
    pub(super) tally: Tally,
    /// CPU time of the answering process.
    pub(super) cpu: Duration,
}

/// The rounds of the server or a baseline.
#[derive(Default)]
struct Rounds(Vec<Round>);

/// Runs the scenario.
pub(crate) fn run(args: &UdpArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("calls", args.calls);
    report.set("sockets", args.sockets);
    report.set("window", args.window);
    let addr = args.udp.map_or_else(free_addr, Ok)?;
    let tokens = match &args.target.token {
        Some(token) => vec![token.clone()],
        None => (0..args.devices).map(|index| format!("bench-token-{index:010}")).collect(),
    };
    let settings = settings(addr, &tokens)?;
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &settings)?;
    let cpus = setup.server_cpus.as_ref();
    let (batches, single) =
        (Baseline::start(Style::Batches, cpus)?, Baseline::start(Style::Single, cpus)?);
    let pid = target.pid;
    let caller = |addr| Caller::new(addr, args.sockets, &tokens);
    let mut callers = [caller(addr)?, caller(batches.addr)?, caller(single.addr)?];
    let cpu = |index| match index {
        0 => Target::cpu(pid),
        1 => batches.cpu(),
        _ => single.cpu(),
    };
    let window = usize::try_from(args.window)?;
    // A warm-up causes the look-ups and allocations that happen only once.
    for caller in &mut callers {
        caller.run(args.calls.min(WARM_UP_CALLS), window)?;
    }
    let mut all = [Rounds::default(), Rounds::default(), Rounds::default()];
    for index in turns(args.rounds, callers.len()) {
        let before = cpu(index)?;
        let tally = callers[index].run(args.calls, window)?;
        let cpu = cpu(index)?.saturating_sub(before);
        all[index].0.push(Round { tally, cpu });
    }
    fill(report, &all);
    let peak = all[0].calls_per_second().unwrap_or(0.0);
    let rate = args.rate.unwrap_or_else(|| rate_of(peak * args.share));
    report.set("paced_rate", rate);
    let mut paced = |index: usize| -> Result<Round> {
        let before = cpu(index)?;
        let tally = callers[index].run_at(args.calls, rate)?;
        Ok(Round { tally, cpu: cpu(index)?.saturating_sub(before) })
    };
    fill_paced(report, rate, &paced(0)?, &paced(1)?);
    let metrics = target.metrics()?;
    for (name, metric) in
        [("kernel_lost", "weir_udp_lost_total"), ("token_checks", "weir_udp_token_checks_total")]
    {
        report.set(name, metrics.sum(metric, &[]));
    }
    setup.describe(report);
    target.stop(report);
    Ok(())
}

impl Rounds {
    fn calls_per_second(&self) -> Option<f64> {
        median(self.0.iter().map(Round::calls_per_second))
    }

    fn cpu_us(&self) -> Option<f64> {
        median(self.0.iter().filter_map(Round::cpu_us))
    }

    fn lags(&self) -> Lags {
        let mut lags = Lags::new();
        self.0.iter().for_each(|round| lags.add(&round.tally.lags.counts()));
        lags
    }
}

impl Round {
    pub(super) fn calls_per_second(&self) -> f64 {
        real(self.tally.answered) / self.tally.time.as_secs_f64().max(1e-9)
    }

    /// CPU microseconds per call.
    pub(super) fn cpu_us(&self) -> Option<f64> {
        let answered = self.tally.answered;
        (answered > 0).then(|| self.cpu.as_secs_f64() * 1e6 / real(answered))
    }
}

fn fill(report: &mut Report, all: &[Rounds; 3]) {
    let [server, batches, single] = all;
    report.figure(
        "wall_seconds",
        median(server.0.iter().map(|round| round.tally.time.as_secs_f64())),
    );
    report.figure("calls_per_second", server.calls_per_second());
    report.figure("floor_mmsg_calls_per_second", batches.calls_per_second());
    report.figure("floor_single_calls_per_second", single.calls_per_second());
    report.figure("cpu_us_per_call", server.cpu_us());
    report.figure("floor_mmsg_us_per_call", batches.cpu_us());
    report.figure("floor_single_us_per_call", single.cpu_us());
    let ratio = |baseline: &Rounds| {
        server.cpu_us().zip(baseline.cpu_us()).map(|(us, baseline)| us / baseline)
    };
    report.figure("cpu_ratio_mmsg", ratio(batches));
    report.figure("cpu_ratio_single", ratio(single));
    for (name, rounds) in [
        (["p50_ms", "p99_ms", "max_ms"], server),
        (["floor_mmsg_p50_ms", "floor_mmsg_p99_ms", "floor_mmsg_max_ms"], batches),
    ] {
        let lags = rounds.lags();
        report.figure(name[0], lags.quantile_ms(0.5));
        report.figure(name[1], lags.quantile_ms(0.99));
        report.figure(name[2], lags.max_ms());
    }
    report.set("lost", server.0.iter().map(|round| round.tally.lost()).sum::<u64>());
    report.set("wrong", server.0.iter().map(|round| round.tally.wrong).sum::<u64>());
    report.set("rounds", all.iter().map(shown).collect::<Vec<_>>());
    for (name, rounds) in
        [("server", server), ("mmsg baseline", batches), ("single baseline", single)]
    {
        for round in &rounds.0 {
            let wrong = round.tally.wrong;
            report.check(wrong == 0, || format!("{name}: {wrong} answers are wrong or came late"));
            report.check(round.tally.answered > 0, || format!("{name}: no call was answered"));
        }
    }
}

fn fill_paced(report: &mut Report, rate: u32, paced: &Round, baseline: &Round) {
    for (name, round) in [
        (["paced_lost", "paced_cpu_us_per_call", "paced_p50_ms", "paced_p99_ms"], paced),
        (
            [
                "floor_mmsg_paced_lost",
                "floor_mmsg_paced_us_per_call",
                "floor_mmsg_paced_p50_ms",
                "floor_mmsg_paced_p99_ms",
            ],
            baseline,
        ),
    ] {
        report.set(name[0], round.tally.lost());
        report.figure(name[1], round.cpu_us());
        report.figure(name[2], round.tally.lags.quantile_ms(0.5));
        report.figure(name[3], round.tally.lags.quantile_ms(0.99));
    }
    let (lost, wrong) = (paced.tally.lost(), paced.tally.wrong);
    report.check(lost == 0, || format!("{lost} calls were lost at {rate} calls a second"));
    report.check(wrong == 0, || format!("{wrong} answers are wrong at {rate} calls a second"));
}

fn shown(rounds: &Rounds) -> Value {
    let rounds = rounds.0.iter().map(|round| {
        json!({
            "calls_per_second": milli(round.calls_per_second()),
            "cpu_us_per_call": round.cpu_us().map(milli),
            "lost": round.tally.lost(),
        })
    });
    rounds.collect()
}

/// Settings of the started server: its address for datagrams, valid tokens, and no limit by source.
pub(super) fn settings(addr: SocketAddr, tokens: &[String]) -> Result<Table> {
    let mut text =
        format!("[listen]\nudp = [\"{addr}\"]\n[udp]\ndatagrams_per_source_per_second = 0\n");
    for token in tokens {
        text += &format!("[[auth.tokens]]\ntoken = \"{token}\"\n");
    }
    text.parse().context("the settings are TOML")
}

pub(super) fn free_addr() -> Result<SocketAddr> {
    let socket = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    socket.context("no free port")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn rate_of(rate: f64) -> u32 {
    rate.clamp(1.0, 1e7) as u32
}

const WARM_UP_CALLS: u64 = 50_000;
