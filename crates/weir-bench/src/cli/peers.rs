//! The options of `peers`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::common::{RunArgs, TargetArgs, duration, echo_size, rate, size};

/// Weir and other servers, in turn.
#[derive(Debug, Args)]
pub(crate) struct PeersArgs {
    /// What they do.
    #[arg(value_enum)]
    pub(crate) work: Work,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// The directory with the scripts that start the other servers.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/peers")]
    pub(crate) scripts: PathBuf,
    /// Only these, of netty, nats and mosquitto [default: all that can do the work].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Connections at each server [default: idle 15000, broadcast 10000, echo 16384].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=18_000))]
    pub(crate) connections: Option<u32>,
    /// broadcast: bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = size)]
    pub(crate) size: usize,
    /// echo: bytes of random data in a message, 1 to 256.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = echo_size)]
    pub(crate) echo_size: usize,
    /// broadcast: messages a second to each connection.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// broadcast and echo: seconds of load at each server, all rounds together.
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Seconds of load at each server before the rounds; Java compiles what it runs often.
    #[arg(long, value_name = "S", default_value_t = 8.0, value_parser = rate)]
    pub(crate) warm_up_seconds: f64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// idle: memory counts as settled when it has not changed for this time.
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = duration)]
    pub(crate) settle: Duration,
    /// handshake: handshakes in a round, of each kind.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) handshakes: u32,
    /// udp: calls to each server in each round.
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) calls: u64,
}

/// What the servers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Hold connections on which nothing happens.
    Idle,
    /// Send messages to all subscribers of a topic.
    Broadcast,
    /// Answer each message with the same data.
    Echo,
    /// Make TLS handshakes, full and resumed.
    Handshake,
    /// Answer calls by datagram.
    Udp,
}

impl Work {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Work::Idle => "idle",
            Work::Broadcast => "broadcast",
            Work::Echo => "echo",
            Work::Handshake => "handshake",
            Work::Udp => "udp",
        }
    }
}
