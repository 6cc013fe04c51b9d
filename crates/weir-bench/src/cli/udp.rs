//! The options of `udp`.

use std::net::SocketAddr;

use clap::Args;

use super::common::{RunArgs, TargetArgs, share};

#[derive(Debug, Args)]
pub(crate) struct UdpArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Without --spawn: the running server's address for datagrams; it needs --token too.
    #[arg(long, value_name = "ADDR", requires_all = ["addr", "token"])]
    pub(crate) udp: Option<SocketAddr>,
    /// Calls to each server in each round.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) calls: u64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Sockets that send calls.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) sockets: u32,
    /// Calls in flight on each socket.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) window: u32,
    /// With --spawn: devices, each with a token, that call in turn.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pub(crate) devices: u32,
    /// Calls a second in the fixed-rate part afterwards [default: --share of the calls that the
    /// server answered].
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) rate: Option<u32>,
    /// Rate of the fixed-rate part, as a share of the calls a second that the server answered.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub(crate) share: f64,
}
