//! Completions for shells and man pages, made from the definitions of the command line.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use crate::cli::Cli;

/// The completions for a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "weir", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a man page for `weir` and one for each of its commands.
pub(crate) fn write(directory: &Path) -> Result<()> {
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("cannot write man pages into {}", directory.display()))
}
