//! The options of `activate` and `stages`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::common::{RunArgs, TargetArgs, rate};
use crate::process::Pin;
use crate::stages::Stages;

#[derive(Debug, Args)]
pub(crate) struct ActivateArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// Start this program with a scratch configuration, measure it and stop it.
    #[arg(long, value_name = "WEIR")]
    pub(crate) spawn: PathBuf,
    /// A TOML file whose keys override the scratch configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config_extra: Option<PathBuf>,
    /// Protocol of the requests.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = Over::H1)]
    pub(crate) over: Over,
    /// Stages of an activation: embedded or mongodb, with or without log and redis, joined by +.
    /// Add "-single" for one operation per request.
    #[arg(long, value_name = "STAGES", default_value = "embedded", value_parser = stages_with_a_store)]
    pub(crate) stages: Stages,
    /// Answers in each round; over UDP, requests.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) activations: u64,
    /// Share of the requests with a wrong key, or with an unknown serial number.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = misses)]
    pub(crate) misses: f64,
}

#[derive(Debug, Args)]
pub(crate) struct StagesArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// Stages to measure: "nothing", or some of log, redis and one of embedded and mongodb, joined
    /// by +. Add "-single" for one operation per request.
    #[arg(
        long,
        value_name = "STAGES",
        value_delimiter = ',',
        default_value = "nothing,log,log+redis,log+embedded,log+embedded-single,log+redis+embedded,\
                         log+redis+embedded-single,log+redis+mongodb,log+redis+mongodb-single"
    )]
    pub(crate) stages: Vec<Stages>,
    /// Seconds of measured load for each entry in each round.
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = rate)]
    pub(crate) seconds: f64,
}

/// The devices that activate, and the servers that the gateway needs.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// Devices that activate in turn. They are imported before the load.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) devices: u64,
    /// Requests in flight at a time.
    #[arg(long, value_name = "C", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    pub(crate) concurrency: u32,
    /// Connections (over UDP, sockets) that share the requests [default: over HTTP/1.1 one for each
    /// request in flight, otherwise one for 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_000))]
    pub(crate) connections: Option<u32>,
    /// Milliseconds at the start of each round that do not count; over UDP there are none.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub(crate) warm_up_ms: u64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// CPUs of the Redis and the database that the bench starts: a list, "none" (any), or "auto"
    /// (those of the generator).
    #[arg(long, value_name = "CPUS", default_value = "auto")]
    pub(crate) pin_database: Pin,
    /// Use this running Redis instead of starting one.
    #[arg(long, value_name = "URL", requires = "redis_pid")]
    pub(crate) redis: Option<String>,
    /// The process id of that server.
    #[arg(long, value_name = "PID", requires = "redis")]
    pub(crate) redis_pid: Option<u32>,
    /// Use this running MongoDB instead of starting a server of its protocol.
    #[arg(long, value_name = "URI", requires = "database_pid")]
    pub(crate) mongodb: Option<String>,
    /// The process id of that server.
    #[arg(long, value_name = "PID", requires = "mongodb")]
    pub(crate) database_pid: Option<u32>,
    /// Directory of the built server of MongoDB's protocol [default: where `cargo xtask test`
    /// builds it, beside the directory of this program].
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) mongo_server: Option<PathBuf>,
}

/// Protocol of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Over {
    /// HTTP/1.1, connections kept.
    H1,
    /// HTTP/2, without TLS by prior knowledge.
    H2,
    /// Datagrams.
    Udp,
}

impl Over {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Over::H1 => "h1",
            Over::H2 => "h2",
            Over::Udp => "udp",
        }
    }
}

impl StoreArgs {
    /// Connections or sockets, and requests in flight on each of them.
    pub(crate) fn spread(&self, over: Over) -> (u32, u32) {
        let each = match over {
            Over::H1 => 1,
            Over::H2 | Over::Udp => 64,
        };
        let connections = self.connections.unwrap_or_else(|| self.concurrency.div_ceil(each));
        (connections, self.concurrency.div_ceil(connections))
    }
}

impl ActivateArgs {
    /// The program to start.
    pub(crate) fn target(&self) -> TargetArgs {
        TargetArgs::started(&self.spawn, self.config_extra.as_deref())
    }
}

fn stages_with_a_store(text: &str) -> Result<Stages> {
    let stages: Stages = text.parse()?;
    if !stages.has_store() {
        bail!("embedded or mongodb is needed: `weir-bench stages` measures stages without a store");
    }
    Ok(stages)
}

fn misses(text: &str) -> Result<f64> {
    let share: f64 = text.parse()?;
    if !(0.0..1.0).contains(&share) {
        bail!("a share of misses must be at least 0 and below 1");
    }
    Ok(share)
}
