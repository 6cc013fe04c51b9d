//! `handshake`: the cost of full and resumed TLS handshakes, next to their cryptography and their
//! sockets alone.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use toml::Table;

use super::{AT_ONCE, RESUMED_SLACK, Setup, resumed_share};
use crate::baseline::exchange::Exchange;
use crate::baseline::memory::{Made, Memory, MemoryPlan, Primitives};
use crate::cli::HandshakeArgs;
use crate::clock;
use crate::protocol::{ChurnPlan, HelloPlan, OpenPlan, Streams, Ways};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::{Lags, median, milli, real};
use crate::tls::{TlsPlan, version_of};
use crate::workers::{Churned, Workers};

mod halfway;

/// Handshakes of each kind at the start that do not count. They cause the allocations that happen
/// only once.
const WARM_UP: u64 = 200;
/// Time for a server to see the ends of the last connections, before its CPU time is read.
const ENDS: Duration = Duration::from_millis(100);
/// Signatures and key exchanges measured in a round.
const PRIMITIVES: u64 = 500;

/// The server and the baselines.
struct Contest {
    guests: Workers,
    pid: u32,
    plan: ChurnPlan,
    count: u64,
    memory: Memory,
    /// The exchanges of a full and of a resumed handshake.
    exchanges: [Exchange; 2],
    scripts: [Vec<u64>; 2],
}

/// The costs of one kind of handshake in a round.
struct Kind {
    server: Guests,
    memory: Made,
    exchange: Guests,
    count: u64,
}

/// A number of guests, and the CPU time of the process that served them.
pub(super) struct Guests {
    pub(super) churned: Churned,
    cpu: Duration,
    /// CPU time of the load generator.
    client_cpu: Duration,
}

/// One round.
struct Round {
    full: Kind,
    resumed: Kind,
    primitives: Primitives,
}

/// Guests that connect, as many as `window` at a time, and leave when they are welcomed.
pub(super) fn guest_plan(plan: OpenPlan, count: u64, window: u32) -> ChurnPlan {
    ChurnPlan {
        addr: plan.addr,
        source: plan.source,
        hello: HelloPlan { subscribe: false, ..plan.hello.unwrap_or_default() },
        topic: String::new(),
        rate: AT_ONCE,
        count,
        hold_ms: 0,
        ways: Ways { tls: plan.tls, window: Some(window), ..Ways::default() },
    }
}

/// Runs the scenario.
pub(crate) fn run(args: &HandshakeArgs, report: &mut Report) -> Result<()> {
    if !args.target.tls.tls || args.target.tls.tls_resume > 0.0 {
        bail!("handshake needs --tls, and measures full and resumed ones without --tls-resume");
    }
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("handshakes", args.handshakes);
    report.set("window", args.window);
    let target = Target::start(&args.target, setup.server_cpus.as_ref(), &Table::new())?;
    let plan = setup.plan(target.addr, 0, Streams::Count(1));
    let tls = plan.tls.clone().context("the plan has no TLS")?;
    let mut guests = setup.workers(1)?;
    let plan = guest_plan(plan, WARM_UP, args.window);
    let full = guests.churn(&plan)?;
    check_guests(report, "warm-up", &full, 0.0);
    let resumed = guests.churn(&resuming(&plan, 1.0))?;
    check_guests(report, "warm-up, resumed", &resumed, 1.0);
    if args.halfway > 0 {
        halfway::measure(&target, &tls, args.halfway, report)?;
    }
    let memory = memory_plan(args, &full, tls)?;
    report.set("agreed", json!(full.tally.handshakes));
    report.set("tickets", memory.tickets);
    report.set("bytes_full", json!(full.tally.script));
    report.set("bytes_resumed", json!(resumed.tally.script));
    let cpus = setup.server_cpus.as_ref();
    let exchange = |churned: &Churned| Exchange::start(&churned.tally.script, cpus);
    let mut contest = Contest {
        guests,
        pid: target.pid,
        plan,
        count: args.handshakes.into(),
        memory: Memory::start(memory, cpus)?,
        exchanges: [exchange(&full)?, exchange(&resumed)?],
        scripts: [full.tally.script, resumed.tally.script],
    };
    // A warm-up round of the baselines.
    contest.memory.handshakes(WARM_UP, false)?;
    contest.memory.handshakes(WARM_UP, true)?;
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        crate::workers::progress("round", round + 1, args.rounds);
        let server_first = round % 2 == 0;
        rounds.push(Round {
            full: contest.kind(false, server_first)?,
            resumed: contest.kind(true, server_first)?,
            primitives: contest.memory.primitives(PRIMITIVES)?,
        });
    }
    for (index, round) in rounds.iter().enumerate() {
        check_kind(report, &format!("round {}, full", index + 1), &round.full, 0.0);
        check_kind(report, &format!("round {}, resumed", index + 1), &round.resumed, 1.0);
    }
    fill(report, &rounds);
    setup.describe(report);
    drop(contest);
    target.stop(report);
    Ok(())
}

pub(super) fn resuming(plan: &ChurnPlan, share: f64) -> ChurnPlan {
    let tls = plan.ways.tls.clone().map(|tls| TlsPlan { resume: share, ..tls });
    ChurnPlan { ways: Ways { tls, ..plan.ways.clone() }, ..plan.clone() }
}

/// A server in memory that agrees on the same parameters as the measured one.
fn memory_plan(args: &HandshakeArgs, full: &Churned, tls: TlsPlan) -> Result<MemoryPlan> {
    let agreed = full.tally.handshakes.keys().next().context("no handshake succeeded")?;
    let mut words = agreed.split(' ').skip(1).map(str::to_owned);
    let (suite, group) = (words.next(), words.next().filter(|group| group != "-"));
    let made = args.target.tls.credentials()?;
    let demand_client = tls.client.is_some();
    let handshakes: u64 = full.tally.handshakes.values().sum();
    let tickets = usize::try_from(full.tally.tickets.div_ceil(handshakes.max(1)))?;
    Ok(MemoryPlan {
        identity: format!("{}{}", made.chain, made.key),
        demand_client,
        tickets,
        tls: TlsPlan {
            ca: made.ca.clone(),
            version: version_of(None, suite.as_deref())?,
            suite,
            group,
            client: demand_client.then(|| made.client.clone()),
            ..tls
        },
    })
}

impl Contest {
    fn kind(&mut self, resumed: bool, server_first: bool) -> Result<Kind> {
        let share = if resumed { 1.0 } else { 0.0 };
        let count = self.count;
        let plan = ChurnPlan { count, ..resuming(&self.plan, share) };
        let baseline = &self.exchanges[usize::from(resumed)];
        let script = &self.scripts[usize::from(resumed)];
        let bare = ChurnPlan {
            addr: baseline.addr,
            ways: Ways { tls: None, script: script.clone(), ..self.plan.ways.clone() },
            ..plan.clone()
        };
        let pid = self.pid;
        let Contest { guests, memory, .. } = self;
        let server = |guests: &mut Workers| Guests::run(guests, &plan, || Target::cpu(pid));
        let exchange = |guests: &mut Workers| Guests::run(guests, &bare, || baseline.cpu());
        let made;
        let (server, exchange) = if server_first {
            let server = server(guests)?;
            made = memory.handshakes(count, resumed)?;
            (server, exchange(guests)?)
        } else {
            let exchange = exchange(guests)?;
            made = memory.handshakes(count, resumed)?;
            (server(guests)?, exchange)
        };
        Ok(Kind { server, memory: made, exchange, count })
    }
}

impl Guests {
    pub(super) fn run(
        workers: &mut Workers,
        plan: &ChurnPlan,
        cpu: impl Fn() -> Result<Duration>,
    ) -> Result<Guests> {
        let (before, client_before) = (cpu()?, workers.cpu()?);
        let churned = workers.churn(plan)?;
        clock::sleep(ENDS);
        Ok(Guests {
            churned,
            cpu: cpu()?.saturating_sub(before),
            client_cpu: workers.cpu()?.saturating_sub(client_before),
        })
    }

    pub(super) fn cpu_us(&self) -> Option<f64> {
        self.each(self.cpu)
    }

    fn client_cpu_us(&self) -> Option<f64> {
        self.each(self.client_cpu)
    }

    pub(super) fn per_second(&self) -> Option<f64> {
        let tally = &self.churned.tally;
        (tally.seconds > 0.0).then(|| real(tally.welcomed) / tally.seconds)
    }

    fn each(&self, cpu: Duration) -> Option<f64> {
        let welcomed = self.churned.tally.welcomed;
        (welcomed > 0).then(|| cpu.as_secs_f64() * 1e6 / real(welcomed))
    }
}

impl Kind {
    fn memory_us(&self) -> Option<f64> {
        (self.count > 0).then(|| self.memory.cpu.as_secs_f64() * 1e6 / real(self.count))
    }

    fn baseline_us(&self) -> Option<f64> {
        self.memory_us().zip(self.exchange.cpu_us()).map(|(memory, exchange)| memory + exchange)
    }

    fn ratio(&self) -> Option<f64> {
        self.server.cpu_us().zip(self.baseline_us()).map(|(server, baseline)| server / baseline)
    }
}

/// Names of the fields of one kind of handshake.
struct Names {
    per_cpu_second: &'static str,
    per_second: &'static str,
    p50_ms: &'static str,
    p99_ms: &'static str,
    cpu_us: &'static str,
    client_us: &'static str,
    baseline_per_cpu_second: &'static str,
    baseline_us: &'static str,
    baseline_memory_us: &'static str,
    baseline_exchange_us: &'static str,
    ratio: &'static str,
    primitives_share: &'static str,
}

const FULL: Names = Names {
    per_cpu_second: "full_per_cpu_second",
    per_second: "full_per_second",
    p50_ms: "full_p50_ms",
    p99_ms: "full_p99_ms",
    cpu_us: "full_us",
    client_us: "full_client_us",
    baseline_per_cpu_second: "floor_full_per_cpu_second",
    baseline_us: "floor_full_us",
    baseline_memory_us: "floor_full_memory_us",
    baseline_exchange_us: "floor_full_exchange_us",
    ratio: "ratio",
    primitives_share: "primitives_share",
};

const RESUMED: Names = Names {
    per_cpu_second: "resumed_per_cpu_second",
    per_second: "resumed_per_second",
    p50_ms: "resumed_p50_ms",
    p99_ms: "resumed_p99_ms",
    cpu_us: "resumed_us",
    client_us: "resumed_client_us",
    baseline_per_cpu_second: "floor_resumed_per_cpu_second",
    baseline_us: "floor_resumed_us",
    baseline_memory_us: "floor_resumed_memory_us",
    baseline_exchange_us: "floor_resumed_exchange_us",
    ratio: "resumed_ratio",
    primitives_share: "resumed_primitives_share",
};

fn fill(report: &mut Report, rounds: &[Round]) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let sign = median(rounds.iter().map(|round| micros(round.primitives.sign)));
    let exchange = median(rounds.iter().map(|round| micros(round.primitives.key_exchange)));
    report.figure("sign_us", sign);
    report.figure("key_exchange_us", exchange);
    let full: Vec<&Kind> = rounds.iter().map(|round| &round.full).collect();
    let resumed: Vec<&Kind> = rounds.iter().map(|round| &round.resumed).collect();
    let both = sign.zip(exchange).map(|(sign, exchange)| sign + exchange);
    fill_kind(report, &FULL, &full, both);
    // A TLS 1.2 ticket resumes without any of these operations.
    let again = resumed.first().is_some_and(|kind| !kind.memory.agreed.contains(" - "));
    fill_kind(report, &RESUMED, &resumed, if again { exchange } else { Some(0.0) });
    report.set("rounds", rounds.iter().map(shown).collect::<Vec<_>>());
}

fn fill_kind(report: &mut Report, names: &Names, kinds: &[&Kind], primitives_us: Option<f64>) {
    let middle =
        |value: fn(&Kind) -> Option<f64>| median(kinds.iter().filter_map(|kind| value(kind)));
    let server = middle(|kind| kind.server.cpu_us());
    let baseline = middle(Kind::baseline_us);
    let per_second = |us: Option<f64>| us.filter(|us| *us > 0.0).map(|us| 1e6 / us);
    report.figure(names.per_cpu_second, per_second(server));
    report.figure(names.baseline_per_cpu_second, per_second(baseline));
    report.figure(names.ratio, middle(Kind::ratio));
    report.figure(names.cpu_us, server);
    report.figure(names.baseline_us, baseline);
    report.figure(names.baseline_memory_us, middle(Kind::memory_us));
    report.figure(names.baseline_exchange_us, middle(|kind| kind.exchange.cpu_us()));
    report.figure(
        names.primitives_share,
        server.zip(primitives_us).map(|(server, primitives)| primitives / server),
    );
    report.figure(names.per_second, middle(|kind| kind.server.per_second()));
    let mut connects = Lags::new();
    kinds.iter().for_each(|kind| connects.add(&kind.server.churned.connects.counts()));
    report.figure(names.p50_ms, connects.quantile_ms(0.5));
    report.figure(names.p99_ms, connects.quantile_ms(0.99));
    report.figure(names.client_us, middle(|kind| kind.server.client_cpu_us()));
}

fn shown(round: &Round) -> Value {
    let figure = |value: Option<f64>| value.map(milli);
    json!({
        "full_us": figure(round.full.server.cpu_us()),
        "floor_full_us": figure(round.full.baseline_us()),
        "ratio": figure(round.full.ratio()),
        "resumed_us": figure(round.resumed.server.cpu_us()),
        "floor_resumed_us": figure(round.resumed.baseline_us()),
        "resumed_ratio": figure(round.resumed.ratio()),
    })
}

fn check_kind(report: &mut Report, what: &str, kind: &Kind, share: f64) {
    check_guests(report, what, &kind.server.churned, share);
    let bare = &kind.exchange.churned.tally;
    report.check(bare.welcomed == kind.count, || {
        format!("{what}: {} of {} bare exchanges were made", bare.welcomed, kind.count)
    });
    let agreed = &kind.server.churned.tally.handshakes;
    report.check(agreed.contains_key(&kind.memory.agreed), || {
        format!("{what}: the server agreed on {agreed:?}, its baseline on {}", kind.memory.agreed)
    });
}

/// Checks that all guests were welcomed, and that as many resumed as planned.
pub(super) fn check_guests(report: &mut Report, what: &str, churned: &Churned, share: f64) {
    let tally = &churned.tally;
    report.check(tally.welcomed > 0, || format!("{what}: no guest was welcomed"));
    report.check(tally.failed.is_empty(), || {
        format!("{what}: handshakes that failed: {:?}", tally.failed)
    });
    let resumed = resumed_share(&tally.handshakes).unwrap_or(0.0);
    report.check((resumed - share).abs() <= RESUMED_SLACK, || {
        format!("{what}: {resumed} of the handshakes resumed a session, not {share}")
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn churned(handshakes: &[(&str, u64)]) -> Churned {
        let mut churned = Churned::default();
        churned.tally.handshakes =
            handshakes.iter().map(|(agreed, count)| ((*agreed).to_owned(), *count)).collect();
        churned.tally.welcomed = churned.tally.handshakes.values().sum();
        churned
    }

    #[test]
    fn a_full_handshake_among_the_resumed_fails_the_run() {
        for (full, resumed, share, ok) in
            [(0, 100, 1.0, true), (1, 99, 1.0, true), (3, 97, 1.0, false), (97, 3, 0.0, false)]
        {
            let mut report = Report::new("handshake");
            let churned = churned(&[("v s g full", full), ("v s g resumed", resumed)]);
            check_guests(&mut report, "round", &churned, share);
            assert_eq!(report.is_ok(), ok, "{full} {resumed} {share}");
        }
        let mut report = Report::new("handshake");
        check_guests(&mut report, "round", &Churned::default(), 0.0);
        assert_eq!(report.errors(), ["round: no guest was welcomed"]);
    }

    #[test]
    fn another_suite_than_the_baseline_fails_the_run() {
        let guests = |churned| Guests { churned, cpu: Duration::ZERO, client_cpu: Duration::ZERO };
        let mut kind = Kind {
            server: guests(churned(&[("v s g full", 5)])),
            memory: Made { cpu: Duration::ZERO, agreed: "v s g full".to_owned() },
            exchange: guests(churned(&[("", 5)])),
            count: 5,
        };
        let mut report = Report::new("handshake");
        check_kind(&mut report, "round", &kind, 0.0);
        assert!(report.is_ok(), "{:?}", report.errors());
        kind.memory.agreed = "v t g full".to_owned();
        kind.count = 6;
        check_kind(&mut report, "round", &kind, 0.0);
        assert_eq!(report.errors().len(), 2, "{:?}", report.errors());
    }
}
