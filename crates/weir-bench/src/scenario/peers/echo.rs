//! Messages and their answers, in a closed loop on all connections.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::super::echo::{Round, settings};
use super::super::sampler::growth;
use super::super::{BaselineSet, Setup};
use super::{Contestant, Figures, kinds, plan_for, start_for_devices};
use crate::baseline::Trigger;
use crate::cli::PeersArgs;
use crate::metrics::Metrics;
use crate::protocol::{EchoPlan, HelloPlan, OpenPlan, Streams};
use crate::report::Report;
use crate::spawn::{Rival, RivalKind, Target};
use crate::stats::{real, whole};
use crate::workers::{Workers, turns};

const CONNECTIONS: u32 = 16_384;
/// As in `echo`: until every connection has a message in flight.
const WARM_UP_MS: u64 = 500;

/// A server with its clients.
struct Side {
    contestant: Contestant,
    workers: Workers,
    kind: Kind,
}

enum Kind {
    Weir(Box<Target>),
    Rival(Rival),
    Bare(BaselineSet),
}

/// What a server has allocated, and its pauses.
#[derive(Clone, Copy, Default, Deserialize)]
struct Machine {
    allocated_bytes: u64,
    collections: u64,
    collection_ms: u64,
}

/// Measures the servers in turn.
pub(super) fn run(args: &PeersArgs, setup: &Setup, report: &mut Report) -> Result<Vec<Contestant>> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    report.set("connections", connections);
    report.set("size", args.echo_size);
    let kinds = kinds(args, &[RivalKind::Netty], report);
    let target = Target::start(&args.target, setup.server_cpus.as_ref(), &settings())?;
    let plan = setup.plan(target.addr, args.echo_size, Streams::Count(1));
    let hello = plan.hello.map(|hello| HelloPlan { subscribe: false, ..hello });
    let plan = OpenPlan { hello, ..plan };
    let opened = |plan: &OpenPlan| -> Result<Workers> {
        let mut workers = setup.workers(connections)?;
        workers.open(plan, |_, plan| plan)?;
        Ok(workers)
    };
    let mut sides = Vec::new();
    let workers = opened(&plan)?;
    sides.push(Side {
        contestant: Contestant::weir(),
        workers,
        kind: Kind::Weir(Box::new(target)),
    });
    for kind in kinds {
        let rival = start_for_devices(args, setup, kind)?;
        let workers = opened(&plan_for(plan.clone(), &rival)).with_context(|| kind.name())?;
        let contestant = Contestant::rival(&rival);
        sides.push(Side { contestant, workers, kind: Kind::Rival(rival) });
    }
    let bare = setup.baseline(Trigger::Level, connections, args.echo_size, "")?;
    let (contestant, workers) = (Contestant::bare(), setup.workers(0)?);
    sides.push(Side { contestant, workers, kind: Kind::Bare(bare) });
    let plan = |seconds: f64| EchoPlan {
        size: args.echo_size,
        bare: false,
        rate: None,
        warm_up_ms: WARM_UP_MS,
        measure_ms: whole(seconds * 1000.0).max(1),
    };
    for side in &mut sides {
        side.round(&plan(args.warm_up_seconds), report)?;
    }
    let each = plan(args.seconds / f64::from(args.rounds));
    for turn in turns(args.rounds, sides.len()) {
        let side = &mut sides[turn];
        let figures = side.round(&each, report)?;
        side.contestant.rounds.push(figures);
    }
    let mut contestants = Vec::new();
    for side in sides {
        contestants.push(side.contestant);
        if let Kind::Weir(target) = side.kind {
            drop(side.workers);
            target.stop(report);
        }
    }
    Ok(contestants)
}

impl Side {
    fn round(&mut self, plan: &EchoPlan, report: &mut Report) -> Result<Figures> {
        let before = self.kind.machine()?;
        let round = match &mut self.kind {
            Kind::Weir(target) => {
                let pid = target.pid;
                Round::run(&mut self.workers, plan, || Target::cpu(pid))?
            }
            Kind::Rival(rival) => {
                let pid = rival.pid();
                Round::run(&mut self.workers, plan, || Target::cpu(pid))?
            }
            Kind::Bare(BaselineSet { baselines, workers, .. }) => {
                let plan = EchoPlan { bare: true, ..*plan };
                Round::run(workers, &plan, || BaselineSet::cpu(baselines))?
            }
        };
        let after = self.kind.machine()?;
        round.check(report, self.contestant.name);
        let pauses = before.zip(after);
        let lags = round.lags();
        Ok(vec![
            ("cpu_us_per_message", round.cpu_us_per_message()),
            ("messages_per_second", Some(round.messages_per_second())),
            ("p50_ms", lags.quantile_ms(0.5)),
            ("p99_ms", lags.quantile_ms(0.99)),
            ("p999_ms", lags.quantile_ms(0.999)),
            ("max_ms", lags.max_ms()),
            (
                "allocated_bytes_per_message",
                pauses.map(|(before, after)| {
                    let allocated = after.allocated_bytes.saturating_sub(before.allocated_bytes);
                    real(allocated) / real(round.messages().max(1))
                }),
            ),
            (
                "collections",
                pauses.map(|(before, after)| {
                    real(after.collections.saturating_sub(before.collections))
                }),
            ),
            (
                "collection_ms",
                pauses.map(|(before, after)| {
                    real(after.collection_ms.saturating_sub(before.collection_ms))
                }),
            ),
        ])
    }
}

impl Kind {
    /// What the server tells of its memory; nothing: it tells nothing.
    fn machine(&mut self) -> Result<Option<Machine>> {
        match self {
            Kind::Bare(_) => Ok(None),
            Kind::Rival(rival) => {
                let answer = rival.admin().get("/machine")?;
                let machine = serde_json::from_str(&answer.body);
                machine.map(Some).with_context(|| format!("it answers {:?}", answer.body))
            }
            Kind::Weir(target) => {
                const ALLOCATED: &str = "weir_shard_allocated_bytes_total";
                let metrics = target.metrics()?;
                // Every shard allocates at its start, so 0 means that the allocator does not count.
                let counts = metrics.sum(ALLOCATED, &[]).is_some_and(|bytes| bytes > 0.0);
                let bytes = growth(&Metrics::default(), &metrics, ALLOCATED, "shard");
                let allocated_bytes = bytes.into_values().sum();
                Ok(counts.then_some(Machine { allocated_bytes, ..Machine::default() }))
            }
        }
    }
}
