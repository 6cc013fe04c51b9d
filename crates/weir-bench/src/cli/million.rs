//! The options of `million`.

use std::time::Duration;

use clap::Args;

use super::common::{RunArgs, TargetArgs, duration, size};
use super::tls::share_or_none;

#[derive(Debug, Args)]
pub(crate) struct MillionArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub(crate) connections: u32,
    /// Share of the connections with TLS.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share_or_none, conflicts_with_all = ["addr", "tls"])]
    pub(crate) tls_share: f64,
    /// With --spawn: shards, each with descriptors of its own [default: as many as the limit on
    /// open files requires].
    #[arg(long, value_name = "N", conflicts_with = "addr", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) shards: Option<u32>,
    /// The run stops to open connections, or ends, when the machine has less memory available.
    #[arg(long, value_name = "BYTES", default_value_t = 5 << 30)]
    pub(crate) reserve_bytes: u64,
    /// Time between two pings of a connection. The heartbeat that it asks for is three times as long.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) ping_every: Duration,
    /// Time for which the CPU is measured while nothing but pings happens.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    pub(crate) rest: Duration,
    /// Memory counts as settled when it has not changed for this time.
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = duration)]
    pub(crate) settle: Duration,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub(crate) size: usize,
    /// Messages to all, one after the other. Pings pause meanwhile.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10))]
    pub(crate) broadcasts: u32,
    /// Processes that connect at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) at_once: u32,
}
