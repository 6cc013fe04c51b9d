//! Gateways with different stages of an activation, their other servers, and the load on them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use toml::Table;

use super::datagrams::Activating;
use crate::activations::Activations;
use crate::cli::{Over, RunArgs, StoreArgs, TargetArgs};
use crate::embedded::{DevicesPlan, Embedded, EmbeddedPlan};
use crate::process::{Cpus, Pin};
use crate::protocol::{HttpEnd, HttpPlan, HttpStyle, HttpTally, Posts};
use crate::report::Report;
use crate::scenario::Setup;
use crate::scenario::udp::caller::Caller;
use crate::scenario::udp::free_addr;
use crate::spawn::{Beside, Scratch, Target};
use crate::stages::{Stage, Stages};
use crate::stats::{Lags, median, milli, real};
use crate::sys;
use crate::workers::Workers;

/// The measured gateways, and the processes that measure them.
pub(in crate::scenario) struct Bench {
    setup: Setup,
    plan: HttpPlan,
    load: Load,
    redis: Option<Beside>,
    database: Option<Beside>,
    workers: Option<Workers>,
    /// One gateway for each set of stages whose servers are available.
    pub(in crate::scenario) gateways: Vec<Gateway>,
    /// Stages that are not measured, with the reason.
    pub(in crate::scenario) left_out: Vec<String>,
}

/// The load of a round.
pub(in crate::scenario) struct Load {
    pub(in crate::scenario) over: Over,
    pub(in crate::scenario) misses: f64,
    pub(in crate::scenario) until: HttpEnd,
    /// Requests of a round over UDP.
    pub(in crate::scenario) requests: u64,
}

/// One gateway.
pub(in crate::scenario) struct Gateway {
    pub(in crate::scenario) stages: Stages,
    pub(in crate::scenario) target: Target,
    /// The process and the directory of an embedded gateway.
    embedded: Option<(Embedded, Scratch)>,
    pub(in crate::scenario) tallies: Vec<HttpTally>,
    /// Datagrams without an answer.
    pub(in crate::scenario) lost: u64,
    /// Requests so far.
    asked: u64,
    caller: Option<Caller<Activating>>,
}

/// CPU time for each answer, in microseconds: medians of the rounds.
pub(in crate::scenario) struct Costs {
    pub(in crate::scenario) gateway: Option<f64>,
    pub(in crate::scenario) redis: Option<f64>,
    pub(in crate::scenario) database: Option<f64>,
    pub(in crate::scenario) generator: Option<f64>,
}

impl Bench {
    /// Starts the servers that the stages need, with all devices imported: this program, or else
    /// embedded gateways.
    pub(in crate::scenario) fn start(
        run: &RunArgs,
        args: &StoreArgs,
        program: Option<&TargetArgs>,
        all: &[Stages],
        load: Load,
    ) -> Result<Bench> {
        let any = Cpus::allowed(None)?;
        let setup = Setup::new(run, program, true)?;
        let cpus = match &args.pin_database {
            Pin::Auto => None,
            Pin::None => Some(any),
            Pin::Cpus(cpus) => Some(cpus.clone()),
        };
        let mut missing = BTreeMap::new();
        let needs = |stage| all.iter().any(|stages| stages.has(stage));
        let mut keep = |name, started: Result<Beside, String>| {
            started.map_err(|reason| missing.insert(name, reason)).ok()
        };
        let redis = match (&args.redis, args.redis_pid) {
            (Some(url), Some(pid)) => Some(Beside::running(url, pid)),
            _ if needs(Stage::Redis) => keep("redis", Beside::redis(cpus.as_ref())?),
            _ => None,
        };
        let database = match (&args.mongodb, args.database_pid) {
            (Some(uri), Some(pid)) => Some(Beside::running(uri, pid)),
            _ if needs(Stage::Mongodb) => {
                let place = args.mongo_server.as_deref();
                keep("mongodb", Beside::mongodb(place, cpus.as_ref())?)
            }
            _ => None,
        };
        let (connections, _) = args.spread(load.over);
        let workers = (!is_udp(load.over)).then(|| setup.workers(connections)).transpose()?;
        let plan = plan(args, &setup, &load);
        let (gateways, left_out) = (Vec::new(), Vec::new());
        let mut bench = Bench { setup, plan, load, redis, database, workers, gateways, left_out };
        for stages in all {
            let lacks = |stage, name| stages.has(stage).then(|| missing.get(name)).flatten();
            match lacks(Stage::Redis, "redis").or_else(|| lacks(Stage::Mongodb, "mongodb")) {
                Some(reason) => bench.left_out.push(format!("{}: {reason}", stages.name)),
                None => {
                    bench.start_gateway(program, stages).with_context(|| stages.name.clone())?
                }
            }
        }
        Ok(bench)
    }

    fn start_gateway(&mut self, program: Option<&TargetArgs>, stages: &Stages) -> Result<()> {
        let udp = is_udp(self.load.over).then(free_addr).transpose()?;
        let cpus = self.setup.server_cpus.as_ref();
        let activations = self.plan.posts.as_ref().and_then(Posts::activations);
        let devices = activations.context("devices activate here")?;
        let (target, embedded) = match program {
            Some(program) => {
                let settings = self.settings(stages, udp)?;
                let devices = Some(devices);
                (Target::start_with_devices(program, cpus, &settings, devices)?, None)
            }
            None => {
                let scratch = Scratch::empty()?;
                let plan = EmbeddedPlan::Activate(Box::new(DevicesPlan {
                    stages: stages.clone(),
                    directory: scratch.path().to_owned(),
                    devices: devices.clone(),
                    redis: self.redis.as_ref().map(|redis| redis.url.clone()),
                    mongodb: self.database.as_ref().map(|database| database.url.clone()),
                    name: own_name(),
                }));
                let embedded = Embedded::start(plan, cpus)?;
                (embedded.target(), Some((embedded, scratch)))
            }
        };
        let sockets = self.plan.connections;
        let caller = udp
            .map(|udp| Caller::with(udp, sockets, Activating::new(devices.clone(), sockets)))
            .transpose()?;
        self.gateways.push(Gateway {
            stages: stages.clone(),
            target,
            embedded,
            tallies: Vec::new(),
            lost: 0,
            asked: 0,
            caller,
        });
        Ok(())
    }

    /// The settings of the program.
    fn settings(&self, stages: &Stages, udp: Option<SocketAddr>) -> Result<Table> {
        let kind = if stages.has(Stage::Embedded) { "embedded" } else { "mongodb" };
        let name = own_name();
        let mut text = format!(
            "[activation]\nfailures_per_source_per_minute = 0\n\
             [store]\nkind = \"{kind}\"\npath = \"devices.db\"\ntimeout = \"10s\"\n"
        );
        if stages.is_single {
            text += "batch_max = 1\nbatch_wait = \"0ms\"\n";
        }
        if let Some(database) = self.database.as_ref().filter(|_| stages.has(Stage::Mongodb)) {
            text += &format!("[store.mongodb]\nuri = {:?}\ndatabase = \"{name}\"\n", database.url);
        }
        if let Some(redis) = self.redis.as_ref().filter(|_| stages.has(Stage::Redis)) {
            text += &format!(
                "[cache]\nredis = {:?}\nprefix = \"{name}:\"\ntimeout = \"10s\"\n",
                redis.url
            );
        }
        if stages.has(Stage::Log) {
            text += "[access_log]\npath = \"access.log\"\n";
        }
        if let Some(udp) = udp {
            text += &format!(
                "[listen]\nudp = [\"{udp}\"]\n[udp]\ndatagrams_per_source_per_second = 0\nqueue_max = 16384\n"
            );
        }
        text.parse().context("the settings are TOML")
    }

    /// Runs a round of a gateway.
    pub(in crate::scenario) fn measure(&mut self, index: usize) -> Result<()> {
        let beside = [&self.redis, &self.database];
        let helpers: Vec<u32> = beside.into_iter().flatten().map(|beside| beside.pid).collect();
        let gateway = &mut self.gateways[index];
        let mut tally = match (&mut gateway.caller, &mut self.workers) {
            (Some(caller), _) => {
                let window = usize::try_from(self.plan.depth)?;
                let (tally, lost) =
                    call(caller, self.load.requests, window, gateway.target.pid, &helpers)?;
                gateway.lost += lost;
                tally
            }
            (None, Some(workers)) => {
                let first = gateway.asked;
                let activations = self.plan.posts.as_ref().and_then(Posts::activations);
                let posts =
                    activations.map(|all| Posts::Activations(Activations { first, ..all.clone() }));
                let addr = gateway.target.edge.context("the server has no HTTP")?;
                let pid = Some(gateway.target.pid);
                let helpers = helpers.clone();
                let plan = HttpPlan { addr, pid, helpers, posts, ..self.plan.clone() };
                workers.request(&plan).with_context(|| gateway.stages.name.clone())?
            }
            (None, None) => return Ok(()),
        };
        gateway.asked += tally.asked;
        // By stage; processes that do not serve it are omitted.
        let mut costs = tally.helpers_cpu_ns.into_iter();
        let mut cost = |beside: &Option<Beside>| beside.as_ref().and_then(|_| costs.next());
        let all = [(cost(&self.redis), Stage::Redis), (cost(&self.database), Stage::Mongodb)];
        tally.helpers_cpu_ns =
            all.map(|(cost, stage)| cost.filter(|_| gateway.stages.has(stage)).unwrap_or(0)).into();
        gateway.tallies.push(tally);
        Ok(())
    }

    /// The servers beside the gateways.
    pub(in crate::scenario) fn beside(&self) -> Value {
        let what = |beside: &Option<Beside>| beside.as_ref().map(|beside| beside.what.clone());
        json!({ "redis": what(&self.redis), "database": what(&self.database) })
    }

    /// Checks all rounds, and ends the gateways in good order.
    pub(in crate::scenario) fn stop(self, report: &mut Report) {
        self.setup.describe(report);
        for mut gateway in self.gateways {
            gateway.check(report);
            if let Err(error) = gateway.check_cache(report) {
                report.fail(format!("{error:#}"));
            }
            gateway.target.stop(report);
            if let Some((embedded, _)) = gateway.embedded
                && let Err(error) = embedded.stop()
            {
                report.fail(format!("{error:#}"));
            }
        }
    }
}

impl Gateway {
    /// Errors by kind.
    pub(in crate::scenario) fn errors(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for (kind, count) in self.tallies.iter().flat_map(|tally| &tally.errors) {
            *all.entry(kind.as_str()).or_insert(0) += count;
        }
        all
    }

    pub(in crate::scenario) fn costs(&self) -> Costs {
        let tallies = &self.tallies;
        let helper = |place: usize, stage| {
            let us = move |tally: &HttpTally| each(*tally.helpers_cpu_ns.get(place)?, tally);
            if self.stages.has(stage) { middle(tallies, us) } else { None }
        };
        Costs {
            gateway: middle(tallies, gateway_us),
            redis: helper(0, Stage::Redis),
            database: helper(1, Stage::Mongodb),
            generator: middle(tallies, |tally| each(tally.client_cpu_ns, tally)),
        }
    }

    /// A gateway continues without a failed cache; then the cache was not measured.
    fn check_cache(&mut self, report: &mut Report) -> Result<()> {
        let errors = self.target.metrics()?.sum("weir_cache_errors_total", &[]).unwrap_or(0.0);
        let name = &self.stages.name;
        report.check(errors == 0.0, || format!("{name}: {errors} trips to Redis failed"));
        Ok(())
    }

    fn check(&self, report: &mut Report) {
        let (name, errors) = (&self.stages.name, self.errors());
        report.check(errors.is_empty(), || format!("{name}: errors: {errors:?}"));
        let repeated: u64 = self.tallies.iter().map(|tally| tally.repeated).sum();
        report.check(repeated == 0, || format!("{name}: {repeated} tokens came more than once"));
        report.check(self.tallies.iter().all(|tally| tally.answered > 0), || {
            format!("{name}: a round without answers")
        });
    }
}

impl Costs {
    /// The gateway's share of all CPU time.
    pub(in crate::scenario) fn gateway_share(&self) -> Option<f64> {
        let others = [self.redis, self.database, self.generator];
        let gateway = self.gateway?;
        Some(gateway / (gateway + others.into_iter().flatten().sum::<f64>()))
    }
}

/// A unique name, even in a server that other programs use too.
fn own_name() -> String {
    format!("bench_{:08x}", rand::random::<u32>())
}

fn plan(args: &StoreArgs, setup: &Setup, load: &Load) -> HttpPlan {
    let (connections, depth) = args.spread(load.over);
    HttpPlan {
        addr: SocketAddr::from(([127, 0, 0, 1], 0)),
        source: setup.source,
        path: PATH.to_owned(),
        style: match load.over {
            Over::H1 | Over::Udp => HttpStyle::Http1,
            Over::H2 => HttpStyle::Http2,
        },
        connections,
        depth,
        tls: None,
        warm_up_ms: args.warm_up_ms,
        until: load.until,
        pid: None,
        helpers: Vec::new(),
        posts: Some(Posts::Activations(Activations {
            devices: args.devices,
            misses: load.misses,
            first: 0,
        })),
    }
}

/// Runs a round by datagrams; also returns how many were lost.
fn call(
    caller: &mut Caller<Activating>,
    requests: u64,
    window: usize,
    pid: u32,
    helpers: &[u32],
) -> Result<(HttpTally, u64)> {
    let cpu = || -> Result<Vec<Duration>> {
        let pids = [pid, std::process::id()].into_iter().chain(helpers.iter().copied());
        let time = |pid| sys::process_cpu(pid).context("cannot read the CPU time of a process");
        pids.map(time).collect()
    };
    let before = cpu()?;
    let called = caller.run(requests, window)?;
    let spent = cpu()?.into_iter().zip(before).map(|(after, before)| {
        u64::try_from(after.saturating_sub(before).as_nanos()).unwrap_or(u64::MAX)
    });
    let spent: Vec<u64> = spent.collect();
    let script = &mut caller.script;
    let mut tally = HttpTally {
        answered: called.answered,
        refused: std::mem::take(&mut script.refused),
        repeated: std::mem::take(&mut script.tokens).repeated(),
        asked: called.sent,
        seconds: called.time.as_secs_f64(),
        server_cpu_ns: spent.first().copied(),
        helpers_cpu_ns: spent[2..].to_vec(),
        client_cpu_ns: spent[1],
        received_bytes: called.bytes,
        lags: called.lags.counts(),
        ..HttpTally::default()
    };
    if called.wrong > 0 {
        tally.errors.insert("wrong_or_late".to_owned(), called.wrong);
    }
    Ok((tally, called.lost()))
}

/// One line of the table.
pub(in crate::scenario) fn shown(gateway: &Gateway) -> Value {
    let (tallies, costs) = (&gateway.tallies, gateway.costs());
    let lags = lags_of(tallies);
    json!({
        "stages": gateway.stages.name,
        "answers_per_second": middle(tallies, per_second).map(milli),
        "p50_ms": lags.quantile_ms(0.5).map(milli),
        "p99_ms": lags.quantile_ms(0.99).map(milli),
        "bytes_per_answer": middle(tallies, bytes).map(milli),
        "gateway_us": costs.gateway.map(milli),
        "redis_us": costs.redis.map(milli),
        "database_us": costs.database.map(milli),
        "generator_us": costs.generator.map(milli),
        "gateway_share": costs.gateway_share().map(milli),
        "answered": tallies.iter().map(|tally| tally.answered).sum::<u64>(),
        "failed_by": gateway.errors(),
    })
}

pub(in crate::scenario) fn lags_of(tallies: &[HttpTally]) -> Lags {
    let mut lags = Lags::new();
    tallies.iter().for_each(|tally| lags.add(&tally.lags));
    lags
}

/// The median of the rounds.
pub(in crate::scenario) fn middle(
    tallies: &[HttpTally],
    of: impl Fn(&HttpTally) -> Option<f64>,
) -> Option<f64> {
    median(tallies.iter().filter_map(of))
}

pub(in crate::scenario) fn per_second(tally: &HttpTally) -> Option<f64> {
    (tally.seconds > 0.0).then(|| real(tally.answered) / tally.seconds)
}

pub(super) fn bytes(tally: &HttpTally) -> Option<f64> {
    (tally.answered > 0).then(|| real(tally.received_bytes) / real(tally.answered))
}

pub(super) fn gateway_us(tally: &HttpTally) -> Option<f64> {
    each(tally.server_cpu_ns?, tally)
}

/// Microseconds for each answer.
fn each(nanos: u64, tally: &HttpTally) -> Option<f64> {
    (tally.answered > 0).then(|| real(nanos) / 1000.0 / real(tally.answered))
}

/// The path that activations are posted to.
const PATH: &str = "/auth/gw/active";

/// Whether the requests are datagrams.
fn is_udp(over: Over) -> bool {
    match over {
        Over::H1 | Over::H2 => false,
        Over::Udp => true,
    }
}
