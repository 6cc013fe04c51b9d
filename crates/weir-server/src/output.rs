//! What the commands print.

use std::fmt::Display;
use std::io::{self, Write as _};

/// One line on standard output, which is for what was asked for.
pub(crate) fn say(line: impl Display) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    Ok(())
}

/// One line on standard error, which is for what happens meanwhile.
pub(crate) fn complain(line: impl Display) {
    // Nobody is left to tell that standard error is closed.
    let _ = writeln!(io::stderr().lock(), "weir: {line}");
}
