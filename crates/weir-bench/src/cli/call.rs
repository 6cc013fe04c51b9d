//! The options of `call`.

use std::time::Duration;

use clap::Args;

use super::common::{RunArgs, TargetArgs, duration, share};

#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Devices that call a backend at once.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) devices: u32,
    /// Rounds in which all devices call.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Bytes of a call's payload, and of its answer.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=32_768))]
    pub(crate) size: u32,
    /// Devices that a backend calls at once.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) called: u32,
    /// Share of these devices that never answers.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    pub(crate) silent_share: f64,
    /// How long a backend waits for a device.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) deadline: Duration,
}
