//! The options of `cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::common::{RunArgs, TargetArgs, rate, size};

#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Start nodes of this program with scratch configurations, measure them and stop them.
    #[arg(
        long,
        value_name = "WEIR",
        conflicts_with = "nodes_at",
        required_unless_present = "nodes_at"
    )]
    pub(crate) spawn: Option<PathBuf>,
    /// A TOML file whose keys override the scratch configurations.
    #[arg(long, value_name = "FILE", conflicts_with = "nodes_at")]
    pub(crate) config_extra: Option<PathBuf>,
    /// Measure running nodes: of each the addresses for devices, for HTTP clients and of the admin
    /// API, and the process id, with commas between them.
    #[arg(long, value_name = "NODE", num_args = 1.., requires = "redis")]
    pub(crate) nodes_at: Vec<NodeAt>,
    /// With --nodes-at: token of a service that may publish.
    #[arg(long, value_name = "TOKEN", requires = "nodes_at")]
    pub(crate) token: Option<String>,
    /// A running Redis [default: start redis-server, which keeps nothing on disk].
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// Nodes to start.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16), conflicts_with = "nodes_at")]
    pub(crate) nodes: u32,
    /// Clients, shared out among the nodes. Each subscribes to one topic.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) clients: u32,
    /// Topics, to which the clients of each node are assigned in turn.
    #[arg(long, value_name = "T", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) topics: u32,
    /// Publishers, at the nodes in turn. Each publishes to the topics in turn, one message at a time.
    #[arg(long, value_name = "P", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) publishers: u32,
    /// Messages a second of all publishers [default: the next one after each answer].
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = size)]
    pub(crate) size: usize,
    /// Messages kept of each topic; 0: none.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub(crate) retention: u32,
    /// Seconds of load in each round, on each server.
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Also measure one node without Redis and, in Redis, the script alone and a bare publish and
    /// subscribe; all take turns.
    #[arg(long, conflicts_with_all = ["nodes_at", "crowd"])]
    pub(crate) compare: bool,
    /// With --compare: clients of the node without Redis [default: all].
    #[arg(long, value_name = "N", requires = "compare", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) alone: Option<u32>,
    /// Instead of rounds: this many clients of a node that is killed come back to the others.
    #[arg(long, value_name = "N", conflicts_with_all = ["nodes_at", "rounds"], requires = "rate", value_parser = clap::value_parser!(u32).range(1..=18_000))]
    pub(crate) crowd: Option<u32>,
    /// With --crowd: time over which they come back, one after the other.
    #[arg(long, value_name = "MS", default_value_t = 1000, requires = "crowd")]
    pub(crate) return_ms: u64,
}

impl ClusterArgs {
    /// The program to start.
    pub(crate) fn target(&self) -> Result<TargetArgs> {
        let program = self.spawn.as_deref().context("--spawn is not given")?;
        Ok(TargetArgs::started(program, self.config_extra.as_deref()))
    }
}

/// A running node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeAt {
    /// The address for devices.
    pub(crate) tcp: SocketAddr,
    /// The address for HTTP clients.
    pub(crate) http: SocketAddr,
    /// The address of the admin API.
    pub(crate) admin: SocketAddr,
    /// The process id.
    pub(crate) pid: u32,
}

impl FromStr for NodeAt {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<NodeAt> {
        let parts: Vec<&str> = text.split(',').collect();
        let [tcp, http, admin, pid] = parts[..] else {
            bail!("a node is TCP,HTTP,ADMIN,PID");
        };
        let addr = |text: &str| {
            text.parse::<SocketAddr>().with_context(|| format!("{text:?} is no address"))
        };
        let pid = pid.parse().with_context(|| format!("{pid:?} is no process id"))?;
        Ok(NodeAt { tcp: addr(tcp)?, http: addr(http)?, admin: addr(admin)?, pid })
    }
}
