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

/// A time with the unit that fits.
pub(crate) fn age_of(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..=9 => format!("{}.{} s", seconds, ms % 1000 / 100),
        10..=599 => format!("{seconds} s"),
        600..=35_999 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_unit_that_fits() {
        let ages = [0, 9_960, 61_000, 3_600_000, 360_000_000].map(age_of);
        assert_eq!(ages, ["0.0 s", "9.9 s", "61 s", "60 min", "100 h"]);
    }
}
