//! `weir serve`: the gateway as a process.

use std::process::ExitCode;

use crate::config::Settings;
use crate::log::Log;

pub(crate) fn run(settings: Settings) -> anyhow::Result<ExitCode> {
    let log = Log::start(&settings.log)?;
    let _ = log.dropped();
    Ok(ExitCode::SUCCESS)
}
