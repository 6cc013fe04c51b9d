//! What is wrong with a configuration, said so that it can be mended.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A configuration that was refused; exit code 2.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Never empty.
    pub(super) problems: Vec<Problem>,
}

/// One thing wrong, on one line.
#[derive(Debug)]
pub(super) struct Problem {
    place: Place,
    what: String,
}

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A place in the file; line and column count from 1.
    File { path: PathBuf, line: usize, column: usize },
    /// A variable of the environment.
    Variable(String),
    /// Nowhere: it is the default.
    Default,
}

impl Problem {
    pub(super) fn new(place: Place, what: impl fmt::Display) -> Problem {
        Problem { place, what: what.to_string() }
    }

    pub(super) fn not_allowed(
        place: Place,
        key: &str,
        value: impl fmt::Display,
        allowed: impl fmt::Display,
    ) -> Problem {
        Problem::new(place, format_args!("{key} = {value}: allowed is {allowed}"))
    }
}

impl Refused {
    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Refused {
        let what = format!("cannot read the configuration file {}: {error}", path.display());
        Refused { problems: vec![Problem::new(Place::Default, what)] }
    }

    /// A file that the configuration names; said as a start says it.
    pub(crate) fn file(error: &impl fmt::Display) -> Refused {
        Refused { problems: vec![Problem::new(Place::Default, error)] }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File { .. } | Place::Variable(_) => write!(f, "{}: {}", self.place, self.what),
            Place::Default => f.write_str(&self.what),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Place::Variable(name) => f.write_str(name),
            Place::Default => f.write_str("default"),
        }
    }
}

impl std::error::Error for Refused {}
