//! Memory of idle connections: one server after the other, each fresh in every round.

use anyhow::Result;
use toml::Table;

use super::super::Setup;
use super::super::idle::settle;
use super::{Contestant, Figures, kinds, plan_for, start_for_devices};
use crate::cli::PeersArgs;
use crate::payload::HEADER_BYTES;
use crate::protocol::{OpenPlan, Streams};
use crate::report::Report;
use crate::spawn::{Rival, RivalKind, Target};
use crate::stats::real;

/// As in `idle`.
const CONNECTIONS: u32 = 15_000;
const WARM_UP: u32 = 256;
const PER_TOPIC: u32 = 1000;

/// Measures each server.
pub(super) fn run(args: &PeersArgs, setup: &Setup, report: &mut Report) -> Result<Vec<Contestant>> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    report.set("connections", connections);
    let kinds = kinds(args, &RivalKind::ALL, report);
    let mut contestants = vec![Contestant::weir()];
    for round in 0..args.rounds {
        crate::workers::progress("round", round + 1, args.rounds);
        let target = Target::start(&args.target, setup.server_cpus.as_ref(), &Table::new())?;
        let plan = setup.plan(target.addr, HEADER_BYTES, Streams::Block(PER_TOPIC));
        let held = hold(args, setup, (&plan, target.pid, connections), &|| Ok(()))?;
        contestants[0].rounds.push(held);
        target.stop(report);
        for (index, kind) in kinds.iter().enumerate() {
            let rival = start_for_devices(args, setup, *kind)?;
            let plan = plan_for(plan.clone(), &rival);
            let held =
                hold(args, setup, (&plan, rival.pid(), connections), &|| Rival::collect(&rival))?;
            if round == 0 {
                contestants.push(Contestant::rival(&rival));
            }
            contestants[index + 1].rounds.push(held);
        }
    }
    Ok(contestants)
}

/// Reads memory with the connections and without; `collect` first frees what is garbage.
fn hold(
    args: &PeersArgs,
    setup: &Setup,
    (plan, pid, connections): (&OpenPlan, u32, u32),
    collect: &dyn Fn() -> Result<()>,
) -> Result<Figures> {
    let mut warm_up = setup.workers(WARM_UP)?;
    warm_up.open(plan, |_, plan| plan)?;
    warm_up.close()?;
    drop(warm_up);
    let memory = || {
        settle(pid, args.settle / 2)?;
        collect()?;
        settle(pid, args.settle).map(|(bytes, _)| bytes)
    };
    let before = memory()?;
    let mut workers = setup.workers(connections)?;
    let took = workers.open(plan, |_, plan| plan)?;
    let after = memory()?;
    workers.close()?;
    let bytes = (real(after) - real(before)) / f64::from(connections);
    Ok(vec![
        ("bytes_per_connection", Some(bytes)),
        ("rss_anon_before_mb", Some(real(before) / 1e6)),
        ("rss_anon_after_mb", Some(real(after) / 1e6)),
        ("connects_per_second", Some(f64::from(connections) / took.as_secs_f64().max(1e-6))),
    ])
}
