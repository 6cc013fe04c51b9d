//! The options of `publish`.

use std::path::PathBuf;

use clap::Args;

use super::common::{RunArgs, TargetArgs, rate, size};

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Start this program with a scratch configuration, measure it and stop it.
    #[arg(long, value_name = "WEIR")]
    pub(crate) spawn: PathBuf,
    /// A TOML file whose keys override the scratch configuration; the embedded gateway does not
    /// read it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config_extra: Option<PathBuf>,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = size)]
    pub(crate) size: usize,
    /// Connections at the same time, each with one request in flight.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) connections: u32,
    /// Seconds of load, all rounds together.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Milliseconds at the start of each round that do not count.
    #[arg(long, value_name = "MS", default_value_t = 300)]
    pub(crate) warm_up_ms: u64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

impl PublishArgs {
    /// The program to start.
    pub(crate) fn target(&self) -> TargetArgs {
        TargetArgs::started(&self.spawn, self.config_extra.as_deref())
    }
}
