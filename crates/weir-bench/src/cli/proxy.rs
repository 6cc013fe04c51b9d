//! The options of requests through the reverse proxy.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::common::{RunArgs, TargetArgs, content, rate};

/// One backend that always answers the same.
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Start this program with a scratch configuration, measure it and stop it.
    #[arg(long, value_name = "WEIR")]
    pub(crate) spawn: PathBuf,
    /// A TOML file whose keys override the scratch configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config_extra: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) peers: PeerProxies,
    /// Bytes of content in each answer of the backend.
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = content)]
    pub(crate) size: usize,
    /// Clients use HTTP/2, with prior knowledge; the backend always speaks HTTP/1.1.
    #[arg(long)]
    pub(crate) h2: bool,
    /// Requests in flight on each HTTP/2 connection.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "h2", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) streams: u32,
    /// Connections of clients at the same time [default: 64; for HTTP/2, 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) connections: Option<u32>,
    /// Seconds of load on each server, all rounds together.
    #[arg(long, value_name = "S", default_value_t = 15.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Instead of --seconds: answers from each server in each round.
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// Milliseconds at the start of each round that do not count.
    #[arg(long, value_name = "MS", default_value_t = 300)]
    pub(crate) warm_up_ms: u64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

/// Three endpoints: one fast, one slow, one failing.
#[derive(Debug, Args)]
pub(crate) struct BalanceArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Start this program with a scratch configuration, measure it and stop it.
    #[arg(long, value_name = "WEIR")]
    pub(crate) spawn: PathBuf,
    /// A TOML file whose keys override the scratch configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config_extra: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) peers: PeerProxies,
    /// How the failing endpoint fails, each in turn.
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "status,reset,refuse"
    )]
    pub(crate) failures: Vec<Failure>,
    /// Requests a second, over all connections.
    #[arg(long, value_name = "R", default_value_t = 1000.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Connections of clients; each has one request in flight at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) connections: u32,
    /// Time after which the slow endpoint answers.
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) slow_ms: u64,
    /// Time after which the others answer.
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) fast_ms: u64,
    /// Seconds of load on each server for each kind of failure.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = rate)]
    pub(crate) seconds: f64,
}

/// The other reverse proxies.
#[derive(Debug, Args)]
pub(crate) struct PeerProxies {
    /// The program nginx, if it is not in the path.
    #[arg(long, value_name = "NGINX", default_value = "nginx")]
    pub(crate) nginx: PathBuf,
    /// The directory with the script that starts pingora.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/peers")]
    pub(crate) scripts: PathBuf,
}

/// The way in which an endpoint fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Failure {
    /// It answers 503.
    Status,
    /// It resets the connection when a request has come.
    Reset,
    /// It accepts no connection.
    Refuse,
}

impl Failure {
    /// Its name in options and reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Failure::Status => "status",
            Failure::Reset => "reset",
            Failure::Refuse => "refuse",
        }
    }
}

impl ProxyArgs {
    /// Connections at the same time.
    pub(crate) fn connections(&self) -> u32 {
        self.connections.unwrap_or(if self.h2 { 4 } else { 64 })
    }

    /// Requests in flight on each connection.
    pub(crate) fn depth(&self) -> u32 {
        if self.h2 { self.streams } else { 1 }
    }

    /// The program to start.
    pub(crate) fn target(&self) -> TargetArgs {
        TargetArgs::started(&self.spawn, self.config_extra.as_deref())
    }
}

impl BalanceArgs {
    /// The program to start.
    pub(crate) fn target(&self) -> TargetArgs {
        TargetArgs::started(&self.spawn, self.config_extra.as_deref())
    }
}
