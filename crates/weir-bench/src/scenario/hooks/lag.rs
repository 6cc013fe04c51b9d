//! Lag of pushes while the services that Weir asks and tells are fast, slow or dead, beside a Weir that
//! has none.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use toml::Table;

use super::super::Setup;
use super::super::beside::{Beside, Phase};
use super::receiver::Receiver;
use super::{TOKEN, knows_all};
use crate::backend::{Backend, Conduct, Host};
use crate::cli::HooksArgs;
use crate::protocol::{ChurnPlan, HelloPlan, Streams, Ways};
use crate::publish::HttpSink;
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::{Lags, median, milli, whole};
use crate::worker::topic;
use crate::workers::Churned;

/// How the services are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Services {
    None,
    Fast,
    Slow,
    Dead,
}

const ALL: [Services; 4] = [Services::None, Services::Fast, Services::Slow, Services::Dead];
const CONNECTIONS: u32 = 1000;
const RATE: f64 = 20.0;
/// Time that each guest stays.
const HOLD_MS: u64 = 500;
/// Guests whose token is asked about, as a part of the others.
const ASKED_SHARE: f64 = 0.1;
const EVENTS: [&str; 7] =
    ["connected", "disconnected", "subscribed", "unsubscribed", "published", "occupied", "vacated"];

/// The results of a round.
struct Round {
    phase: Phase,
    guests: Churned,
    askers: Churned,
    questions: u64,
    notices: u64,
    waiting: Option<f64>,
}

/// The services of a round.
struct Sides {
    asked: Backend,
    told: Backend,
    receiver: Arc<Receiver>,
    _host: Host,
}

/// Runs rounds, each with a server of its own.
pub(super) fn run(args: &HooksArgs, setup: &Setup, report: &mut Report) -> Result<()> {
    report.set("connections", args.connections.unwrap_or(CONNECTIONS));
    report.figure("rate", Some(args.rate.unwrap_or(RATE)));
    report.set("size", args.size);
    report.figure("guests", Some(args.guests));
    report.set("slow_ms", args.slow_ms);
    let mut rounds: [Vec<Round>; 4] = Default::default();
    for turn in crate::workers::turns(args.rounds, ALL.len()) {
        let services = ALL[turn];
        let round = measure(args, setup, services, report)?;
        let name = services.name();
        report.check_messages(&format!("services: {name}"), &round.phase.totals);
        report.check(round.guests.tally.failed.is_empty(), || {
            format!("services: {name}: guests that failed: {:?}", round.guests.tally.failed)
        });
        rounds[turn].push(round);
    }
    let [none, ..] = &rounds;
    let results = ALL.iter().zip(&rounds).map(|(services, own)| shown(*services, own, none));
    report.set("results", results.collect::<Vec<_>>());
    Ok(())
}

fn measure(
    args: &HooksArgs,
    setup: &Setup,
    services: Services,
    report: &mut Report,
) -> Result<Round> {
    let sides = Sides::start(args, services)?;
    let settings = sides.settings(services)?;
    let mut target = Target::start(&args.target(), setup.server_cpus.as_ref(), &settings)?;
    let mut held = setup.workers(args.connections.unwrap_or(CONNECTIONS))?;
    let plan = setup.plan(target.addr, args.size, Streams::Count(1));
    held.open(&plan, |_, plan| plan)?;
    let topic = topic(&setup.topic_prefix, 0);
    let seconds = args.seconds / f64::from(args.rounds);
    let guests = ChurnPlan {
        addr: target.addr,
        source: plan.source.wrapping_add(1),
        hello: plan.hello.clone().unwrap_or_default(),
        topic: topic.clone(),
        rate: args.guests,
        count: whole(args.guests * seconds).max(1),
        hold_ms: HOLD_MS,
        ways: Ways::default(),
    };
    let token = if services == Services::None { String::new() } else { TOKEN.to_owned() };
    let askers = ChurnPlan {
        source: plan.source.wrapping_add(2),
        hello: HelloPlan { token, subscribe: false },
        rate: args.guests * ASKED_SHARE,
        count: whole(args.guests * ASKED_SHARE * seconds).max(1),
        ..guests.clone()
    };
    let mut asking = setup.workers(1)?;
    let mut run = Beside {
        held,
        others: setup.workers(1)?,
        plan: guests,
        sink: HttpSink::new(target.another_http(), vec![topic]),
        seqs: vec![0],
        rate: args.rate.unwrap_or(RATE),
        size: args.size,
    };
    let mut came = None;
    let phase = run.phase(seconds, |guests, plan| {
        asking.begin_churn(&askers)?;
        came = Some((guests.churn(plan)?, asking.end_churn(&askers)?));
        Ok(())
    })?;
    let (guests, askers) = came.unwrap_or_default();
    let waiting = target.metrics()?.sum("weir_notices_waiting", &[]);
    run.held.close()?;
    drop((run, asking));
    target.stop(report);
    let notices = sides.receiver.received().notices;
    Ok(Round { phase, guests, askers, questions: sides.asked.requests(), notices, waiting })
}

impl Services {
    fn name(self) -> &'static str {
        match self {
            Services::None => "none",
            Services::Fast => "fast",
            Services::Slow => "slow",
            Services::Dead => "dead",
        }
    }
}

impl Sides {
    fn start(args: &HooksArgs, services: Services) -> Result<Sides> {
        let (host, receiver) = (Host::start()?, Arc::new(Receiver::default()));
        let conduct = |conduct: Conduct| match services {
            Services::None | Services::Fast => conduct,
            Services::Slow => conduct.late(Duration::from_millis(args.slow_ms)),
            Services::Dead => Conduct::Refuses,
        };
        let told = host.backend(conduct(receiver.conduct()))?;
        let asked = host.backend(conduct(knows_all()))?;
        Ok(Sides { asked, told, receiver, _host: host })
    }

    fn settings(&self, services: Services) -> Result<Table> {
        if services == Services::None {
            return Ok(Table::new());
        }
        let mut settings = super::receiver(&self.told, &EVENTS)?;
        super::ask(&mut settings, &self.asked)?;
        Ok(settings)
    }
}

fn shown(services: Services, rounds: &[Round], none: &[Round]) -> Value {
    let p99 = |round: &Round| round.phase.totals.lags.quantile_ms(0.99);
    let ratios = rounds.iter().zip(none).filter_map(|(own, none)| Some(p99(own)? / p99(none)?));
    let mut lags = Lags::new();
    rounds.iter().for_each(|round| lags.add(&round.phase.totals.lags.counts()));
    let sum = |of: fn(&Round) -> u64| rounds.iter().map(of).sum::<u64>();
    let figure = |value: Option<f64>| value.map(milli);
    let mut welcomes = Lags::new();
    rounds.iter().for_each(|round| welcomes.add(&round.askers.connects.counts()));
    let failed: Vec<_> = rounds.iter().map(|round| &round.askers.tally.failed).collect();
    json!({
        "services": services.name(),
        "lag_p50_ms": figure(lags.quantile_ms(0.5)),
        "lag_p99_ms": figure(lags.quantile_ms(0.99)),
        "lag_max_ms": figure(lags.max_ms()),
        "lag_p99_ratio": figure(median(ratios)),
        "delivered": sum(|round| round.phase.totals.tally.delivered),
        "guests": sum(|round| round.guests.tally.welcomed),
        "askers": sum(|round| round.askers.tally.welcomed),
        "askers_failed": failed,
        "askers_connect_p50_ms": figure(welcomes.quantile_ms(0.5)),
        "questions": sum(|round| round.questions),
        "notices": sum(|round| round.notices),
        "notices_waiting": figure(median(rounds.iter().filter_map(|round| round.waiting))),
    })
}
