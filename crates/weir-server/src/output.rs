//! What the commands print.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Writes one line of results to standard output.
pub(crate) fn say(line: impl Display) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    Ok(())
}

/// Writes one line of progress or errors to standard error.
pub(crate) fn complain(line: impl Display) {
    // If standard error is closed, no way is left to report it.
    let _ = writeln!(io::stderr().lock(), "weir: {line}");
}
