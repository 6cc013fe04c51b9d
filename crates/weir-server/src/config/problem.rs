//! The errors of a configuration, with place, value and allowed values.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The configuration was refused; the exit code is 2.
#[derive(Debug)]
pub(crate) struct Refused {
    /// At least one.
    pub(super) problems: Vec<Problem>,
}

/// One error, on one line.
#[derive(Debug)]
pub(super) struct Problem {
    place: Place,
    what: String,
}

/// The place where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A place in the file; line and column count from 1.
    File { path: PathBuf, line: usize, column: usize },
    /// An environment variable.
    Variable(String),
    /// No place: the value is the default.
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

    /// Each error as a line.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.problems.iter().map(Problem::to_string).collect()
    }

    /// An error of a file that the configuration names, with the same text as at a start.
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
