//! `weir doctor`: checks this machine for the configuration that would be used, and forecasts how many
//! connections it holds.
//!
//! | part | does |
//! |---|---|
//! | `machine` | reads `/proc`, `/sys` and `/dev`, below any directory |
//! | `check`, `checks` | the result of a check; all checks, as one table |
//! | `stores` | asks MongoDB and Redis |
//! | `self_test` | measures what a connection and a delivery cost |
//! | `forecast` | turns limits and costs into numbers of connections |

mod check;
mod checks;
mod forecast;
mod machine;
mod report;
mod self_test;
mod stores;

use std::env;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use weir::{LimitedMemory, MemoryLimit, OpenFiles, Resources};

use crate::cli::DoctorArgs;
use crate::config::{self, Settings};
use crate::output::{complain, say};
use checks::Input;
use forecast::{CGROUP, Costs, Forecast, Limit, Load, MACHINE};
use machine::Machine;
use report::Report;
use self_test::Seen;

/// Exit code 0 if nothing is to mend, else 1.
pub(crate) fn run(args: &DoctorArgs, file: Option<PathBuf>) -> Result<ExitCode> {
    if !args.no_self_test {
        count_exactly()?;
    }
    let mut settings = config::load(file)?;
    if let Some(connections) = args.connections {
        settings.gateway.limits.connections_max = connections;
    }
    let front_threads = Resources::detect().front_threads(&settings.gateway.threads);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(front_threads)
        .on_thread_start(weir::schedule_front_thread)
        .enable_all()
        .build()
        .context("cannot start the threads")?;
    let report = runtime.block_on(Box::pin(examine(args, &settings)))?;
    say(if args.json { report.json()? } else { report.text() })?;
    Ok(ExitCode::from(u8::from(!report.is_fine())))
}

/// Has jemalloc keep no freed memory for each thread, as its counts include that. It reads the
/// option before `main`, so the program executes itself once more.
fn count_exactly() -> Result<()> {
    let options = env::var(ALLOCATOR_VARIABLE).unwrap_or_default();
    if options.contains(EXACT) {
        return Ok(());
    }
    let options = if options.is_empty() { EXACT.to_owned() } else { format!("{options},{EXACT}") };
    let program = env::current_exe().context("cannot find this program")?;
    let mut again = Command::new(program);
    let error = again.args(env::args_os().skip(1)).env(ALLOCATOR_VARIABLE, options).exec();
    Err(error).context("cannot execute this program once more; try --no-self-test")
}

async fn examine(args: &DoctorArgs, settings: &Settings) -> Result<Report> {
    let machine = Machine::new(Path::new("/"));
    let unknown = OpenFiles { soft: u64::MAX, hard: u64::MAX };
    // A gateway raises the soft limit, and the self-test's does too.
    let open_files = machine.open_files().unwrap_or(unknown);
    let memory = LimitedMemory::of_this_process(machine.root());
    let stores = Box::pin(stores::look(settings)).await;
    let seen = Box::pin(self_test::see(&settings.gateway, &memory)).await?;
    let costs = if args.no_self_test {
        Costs::default()
    } else {
        if !args.json {
            complain("the self-test takes some seconds");
        }
        Box::pin(self_test::run(&settings.gateway, &machine, &memory, &seen)).await?
    };
    let wanted = settings.gateway.limits.connections_max as u64;
    let load = Load { rate: args.rate, processors: processors(&seen) };
    let limits = limits(&machine, wanted, (&memory, &seen));
    let forecast = Forecast::new(&limits, &costs, &load);
    let checks = checks::all(&Input {
        machine: &machine,
        settings,
        wanted,
        open_files,
        started: &seen.started,
        memory: &memory,
        costs: &costs,
        forecast: &forecast,
        stores: &stores,
    });
    Ok(Report { checks, forecast, costs, load })
}

/// Everything that can end the number of connections.
fn limits(
    machine: &Machine,
    wanted: u64,
    (memory, seen): (&[LimitedMemory], &Seen),
) -> Vec<(&'static str, Limit)> {
    let mut limits = vec![
        ("limits.connections_max", Limit::Connections(wanted)),
        ("open_files", Limit::Connections(seen.started.connections_max as u64)),
    ];
    let [open, _, open_max] = machine.numbers("proc/sys/fs/file-nr").unwrap_or([0, 0, u64::MAX]);
    limits.push(("open_files_system", Limit::Connections(open_max.saturating_sub(open))));
    let tracked = machine.number("proc/sys/net/netfilter/nf_conntrack_count").unwrap_or(0);
    if let Some(max) = machine.number("proc/sys/net/netfilter/nf_conntrack_max")
        && tracked > 0
    {
        limits.push(("conntrack", Limit::Connections(max.saturating_sub(tracked))));
    }
    for (memory, used) in memory.iter().zip(&seen.used) {
        let Some(used) = used else { continue };
        let is_cgroup = memory.limit != MemoryLimit::Machine;
        let bytes = memory.bytes_for_connections().saturating_sub(*used + OPENING_BYTES);
        let name = if is_cgroup { CGROUP } else { MACHINE };
        limits.push((name, Limit::Memory { bytes, is_cgroup }));
    }
    limits
}

/// Processors that the shards get.
fn processors(seen: &Seen) -> f64 {
    let resources = &seen.started.resources;
    let count = resources.processors.len().min(seen.started.shards.len()) as f64;
    resources.cpu_quota.map_or(count, |quota| quota.min(count))
}

const ALLOCATOR_VARIABLE: &str = "MALLOC_CONF";
const EXACT: &str = "tcache:false";

/// What threads and allocator take beside, from the first connections on: 1.5 to 2.8 MB were measured
/// in cgroups of 28 and 512 MiB.
const OPENING_BYTES: u64 = 2 << 20;
/// Bytes of a message for which pushed-to connections are forecast.
const PUSHED_BYTES: usize = 256;
