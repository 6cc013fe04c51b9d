//! The options of `hooks`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::common::{RunArgs, TargetArgs, rate, size};

/// Services that are asked and told.
#[derive(Debug, Args)]
pub(crate) struct HooksArgs {
    /// What is measured.
    #[arg(value_enum)]
    pub(crate) work: HooksWork,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Start this program with a scratch configuration, measure it and stop it.
    #[arg(long, value_name = "WEIR")]
    pub(crate) spawn: PathBuf,
    /// A TOML file whose keys override the scratch configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config_extra: Option<PathBuf>,
    /// Connections that stay [default: notices 100, lag 1000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=18_000))]
    pub(crate) connections: Option<u32>,
    /// Messages a second [default: notices 10000, from all connections; lag 20, to each].
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub(crate) size: usize,
    /// lag: guests a second that come, subscribe and leave; a tenth as many have a token that is asked
    /// about.
    #[arg(long, value_name = "R", default_value_t = 200.0, value_parser = rate)]
    pub(crate) guests: f64,
    /// lag: time after which the slow service answers.
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=9000))]
    pub(crate) slow_ms: u64,
    /// connect: connections with a token that is asked about, in each round.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) questions: u64,
    /// Seconds of load, all rounds of a server together.
    #[arg(long, value_name = "S", default_value_t = 15.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HooksWork {
    /// Notices delivered to a receiver.
    Notices,
    /// Lag of pushes while services are fast, slow or dead.
    Lag,
    /// Questions about tokens of new connections.
    Connect,
}

impl HooksWork {
    /// Its name in options and reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            HooksWork::Notices => "notices",
            HooksWork::Lag => "lag",
            HooksWork::Connect => "connect",
        }
    }
}

impl HooksArgs {
    /// The program to start.
    pub(crate) fn target(&self) -> TargetArgs {
        TargetArgs::started(&self.spawn, self.config_extra.as_deref())
    }
}
