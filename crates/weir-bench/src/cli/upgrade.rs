//! The options of `upgrade`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use super::common::{RunArgs, TargetArgs, duration, rate, size};
use super::tls::share_or_none;

/// Upgrades of a gateway that all transports are connected to.
#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Start this program with a scratch configuration, upgrade it to itself, and stop it.
    #[arg(long, value_name = "WEIR")]
    pub(crate) spawn: PathBuf,
    /// A TOML file whose keys override the scratch configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config_extra: Option<PathBuf>,
    /// Connections, of all transports.
    #[arg(long, value_name = "N", default_value_t = 15_000, value_parser = clap::value_parser!(u32).range(8..))]
    pub(crate) connections: u32,
    /// Share of the connections with TLS, half of them with version 1.3, the others with 1.2.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share_or_none)]
    pub(crate) tls: f64,
    /// Upgrades [default: 10; with --sweep, 3 for each number of connections].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) upgrades: Option<u32>,
    /// Time from one upgrade to the next.
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = time)]
    pub(crate) every: Duration,
    /// Messages a second to each connection.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Topics over which the connections are dealt out.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) topics: u32,
    /// Messages a second that connections publish, all together.
    #[arg(long, value_name = "R", default_value_t = 1000.0, value_parser = rate)]
    pub(crate) publishes: f64,
    /// Pings a second, from all connections in turn.
    #[arg(long, value_name = "R", default_value_t = 500.0, value_parser = rate)]
    pub(crate) pings: f64,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = size)]
    pub(crate) size: usize,
    /// Meanwhile this many clients a second connect, are welcomed, and leave after half a second.
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(crate) storm: Option<f64>,
    /// The clients of --storm use TLS 1.3.
    #[arg(long, requires = "storm")]
    pub(crate) storm_tls: bool,
    /// This share of the clients does not read from shortly before each upgrade until after it.
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "0.1", value_parser = share_or_none)]
    pub(crate) stall: Option<f64>,
    /// This share of the clients drops just before each upgrade, and resumes while it lasts.
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "0.5", value_parser = share_or_none, conflicts_with = "stall")]
    pub(crate) resume: Option<f64>,
    /// Instead: the pause with each of these numbers of connections, and the line through it.
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with_all = ["connections", "storm", "stall", "resume"], value_parser = clap::value_parser!(u32).range(8..))]
    pub(crate) sweep: Vec<u32>,
}

impl UpgradeArgs {
    /// The server to start.
    pub(crate) fn target(&self) -> TargetArgs {
        let mut target = TargetArgs::started(&self.spawn, self.config_extra.as_deref());
        target.tls.tls = self.tls > 0.0 || self.storm_tls;
        target
    }

    /// Upgrades with each number of connections.
    pub(crate) fn upgrades(&self) -> u32 {
        let default = if self.sweep.is_empty() { 10 } else { 3 };
        self.upgrades.unwrap_or(default)
    }
}

/// A time in which an upgrade has room.
fn time(text: &str) -> Result<Duration> {
    let time = duration(text)?;
    if time < EVERY_MIN {
        bail!("an upgrade takes {EVERY_MIN:?} at least");
    }
    Ok(time)
}

const EVERY_MIN: Duration = Duration::from_millis(500);
