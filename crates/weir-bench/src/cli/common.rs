//! Options of several scenarios, and parsers of their values.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use weir_wire::PING_BYTES_MAX;

use super::tls::TlsArgs;
use crate::payload::{HEADER_BYTES, SHORT_HEADER_BYTES};
use crate::process::Pin;

/// The options of all scenarios.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Also print the report as a JSON object, on the last line of standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// CPUs of the server and of the baseline: a list such as 0,2-3, "none", or "auto" (the first half).
    #[arg(long, value_name = "CPUS", default_value = "auto")]
    pub(crate) pin_server: Pin,
    /// CPUs of the load generator: a list, "none", or "auto" (the other half).
    #[arg(long, value_name = "CPUS", default_value = "auto")]
    pub(crate) pin_client: Pin,
    /// Most connections that connect at the same time. It must not exceed the server's accept
    /// backlog.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) connect_window: u32,
    /// Longest time without a new connection while connecting.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
}

/// The server to measure.
#[derive(Debug, Clone, Args)]
pub(crate) struct TargetArgs {
    /// Start this program with a scratch configuration, measure it and stop it.
    #[arg(long, value_name = "WEIR", conflicts_with_all = ["addr", "admin", "pid"])]
    pub(crate) spawn: Option<PathBuf>,
    /// Measure a running server: its address for devices.
    #[arg(long, requires_all = ["admin", "pid"], required_unless_present = "spawn")]
    pub(crate) addr: Option<SocketAddr>,
    /// The running server's address for HTTP clients.
    #[arg(long, requires = "addr")]
    pub(crate) http: Option<SocketAddr>,
    /// The running server's admin address.
    #[arg(long)]
    pub(crate) admin: Option<SocketAddr>,
    /// The running server's process id.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// Bearer token of the admin API.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) admin_token: Option<String>,
    /// Token of the devices; without it they are anonymous.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// With --spawn: a TOML file whose keys override the scratch configuration.
    #[arg(long, value_name = "FILE", conflicts_with = "addr")]
    pub(crate) config_extra: Option<PathBuf>,
    /// With --spawn: `memory.budget_bytes`.
    #[arg(long, value_name = "BYTES", conflicts_with = "addr")]
    pub(crate) budget_bytes: Option<u64>,
    /// `connection.stall_timeout`; without --spawn, the value of the running server [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) stall_timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

impl TargetArgs {
    /// A program to start without TLS and with the defaults.
    pub(super) fn started(program: &Path, config_extra: Option<&Path>) -> TargetArgs {
        TargetArgs {
            spawn: Some(program.to_owned()),
            addr: None,
            http: None,
            admin: None,
            pid: None,
            admin_token: None,
            token: None,
            config_extra: config_extra.map(Path::to_owned),
            budget_bytes: None,
            stall_timeout: None,
            tls: TlsArgs::none(),
        }
    }
}

/// A time such as 10s, 500ms or 15m.
pub(super) fn duration(text: &str) -> Result<Duration> {
    let unit_at = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let number: u64 =
        digits.parse().with_context(|| format!("not a time such as 10s or 500ms: {text:?}"))?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => bail!("not a time such as 10s or 500ms: {text:?}"),
    };
    Ok(Duration::from_millis(number.checked_mul(millis).context("too long a time")?))
}

pub(super) fn size(text: &str) -> Result<usize> {
    size_from(HEADER_BYTES, text)
}

/// The same where a payload may have a short head.
pub(super) fn small_size(text: &str) -> Result<usize> {
    size_from(SHORT_HEADER_BYTES, text)
}

fn size_from(least: usize, text: &str) -> Result<usize> {
    let size: usize = text.parse()?;
    if !(least..=SIZE_MAX).contains(&size) {
        bail!("a payload has {least} to {SIZE_MAX} bytes");
    }
    Ok(size)
}

pub(super) fn echo_size(text: &str) -> Result<usize> {
    let size: usize = text.parse()?;
    if !(1..=PING_BYTES_MAX).contains(&size) {
        bail!("a ping carries 1 to {PING_BYTES_MAX} bytes");
    }
    Ok(size)
}

/// Bytes of an answer's content.
pub(super) fn content(text: &str) -> Result<usize> {
    let bytes: usize = text.parse()?;
    if !(1..=CONTENT_MAX).contains(&bytes) {
        bail!("content has 1 to {CONTENT_MAX} bytes");
    }
    Ok(bytes)
}

/// Most content of an answer that the load generator accepts.
const CONTENT_MAX: usize = 16 << 20;

/// Largest payload: a request to the admin API has at most 1 MiB.
const SIZE_MAX: usize = 1_000_000;

pub(super) fn rate(text: &str) -> Result<f64> {
    let rate: f64 = text.parse()?;
    if !(rate > 0.0 && rate <= 1e6) {
        bail!("the value must be above 0 and at most 1,000,000");
    }
    Ok(rate)
}

pub(super) fn share(text: &str) -> Result<f64> {
    let share: f64 = text.parse()?;
    if !(share > 0.0 && share <= 1.0) {
        bail!("a share must be above 0 and at most 1");
    }
    Ok(share)
}
