//! The program's configuration: a TOML file, then `WEIR_*` variables over it, then the checks.

mod env;
mod field;
mod file;
mod keys;
mod problem;
mod reference;
mod store;
mod tables;

use std::fmt;
use std::path::{Path, PathBuf};

pub(crate) use env::CONFIG_VARIABLE;
pub(crate) use problem::Refused;
pub(crate) use reference::{example, markdown, text};
pub(crate) use store::{CacheSettings, StoreKind, StoreSettings};

use file::Places;
use problem::{Place, Problem};

/// Everything that can be configured of the program.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Settings {
    /// What the gateway itself takes.
    pub(crate) gateway: weir::Config,
    /// Section `[store]`.
    pub(crate) store: StoreSettings,
    /// Section `[cache]`.
    pub(crate) cache: CacheSettings,
    /// Section `[log]`.
    pub(crate) log: LogSettings,
    /// What variables of the environment have set.
    pub(crate) from_variables: Vec<FromVariable>,
}

/// A key that a variable of the environment has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FromVariable {
    name: String,
    key: String,
    /// Where the file sets it too, which counts for nothing.
    instead_of: Option<String>,
}

impl FromVariable {
    /// Whether the file says something else, as far as is known.
    pub(crate) fn is_over_file(&self) -> bool {
        self.instead_of.is_some()
    }
}

impl fmt::Display for FromVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FromVariable { name, key, instead_of } = self;
        match instead_of {
            Some(place) => write!(f, "{name} sets {key} instead of {place}"),
            None => write!(f, "{name} sets {key}"),
        }
    }
}

/// Section `[log]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogSettings {
    /// Directives as tracing-subscriber's `EnvFilter` reads them.
    pub(crate) level: String,
    /// How a line looks.
    pub(crate) format: LogFormat,
    /// Lines that may wait for standard error.
    pub(crate) queue_lines: usize,
    /// Lines of each place in the code that logs; 0: as many as come.
    pub(crate) lines_per_second: u32,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Loads the file of that name, or else of [`CONFIG_VARIABLE`], with the variables of the environment over it.
pub(crate) fn load(file: Option<PathBuf>) -> Result<Settings, Refused> {
    let file = file.or_else(|| std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from));
    // A variable that is not UTF-8 cannot be one of ours.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Settings::load(file.as_deref(), variables)
}

impl Settings {
    /// The settings of a file (the defaults without one) with the variables of the environment over them.
    ///
    /// Errors: every key at fault with its place; of values that do not fit together, the first.
    pub(crate) fn load(
        path: Option<&Path>,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Settings, Refused> {
        let mut settings = Settings::default();
        let mut places = Places::default();
        let mut problems = Vec::new();
        if let Some(path) = path {
            let text =
                std::fs::read_to_string(path).map_err(|error| Refused::unreadable(path, &error))?;
            file::apply(&text, path, &mut settings, &mut places, &mut problems);
        }
        env::apply(variables, &mut settings, &mut places, &mut problems);
        if problems.is_empty()
            && let Err(error) = settings.validate()
        {
            problems.push(places.problem(error));
        }
        if problems.is_empty() { Ok(settings) } else { Err(Refused { problems }) }
    }

    fn validate(&self) -> Result<(), weir::ConfigError> {
        self.gateway.validate()?;
        if self.store.kind == StoreKind::None {
            self.gateway.check_admits()?;
        }
        self.store.validate(&self.cache)?;
        self.log.validate()
    }
}

impl LogSettings {
    fn validate(&self) -> Result<(), weir::ConfigError> {
        let error = |key: &str, value: String, allowed: &str| {
            let (key, allowed) = (key.to_owned(), allowed.to_owned());
            Err(weir::ConfigError { key, value, allowed, depends_on: &[] })
        };
        if self.level.parse::<tracing_subscriber::EnvFilter>().is_err() {
            let value = format!("{:?}", self.level);
            return error("log.level", value, LEVEL_ALLOWED);
        }
        if !(QUEUE_LINES_MIN..=QUEUE_LINES_MAX).contains(&self.queue_lines) {
            return error("log.queue_lines", self.queue_lines.to_string(), QUEUE_LINES_ALLOWED);
        }
        if self.lines_per_second > LINES_PER_SECOND_MAX {
            let value = self.lines_per_second.to_string();
            return error("log.lines_per_second", value, LINES_PER_SECOND_ALLOWED);
        }
        Ok(())
    }
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings {
            level: "info".to_owned(),
            format: LogFormat::Text,
            queue_lines: 8_192,
            // Some hundred kilobytes a minute of what somebody repeats.
            lines_per_second: 10,
        }
    }
}

const LEVEL_ALLOWED: &str =
    "one of off, error, warn, info, debug and trace, or directives such as info,weir=debug";
const QUEUE_LINES_ALLOWED: &str = "128 to 1048576";
const LINES_PER_SECOND_ALLOWED: &str = "0 to 1000000";
/// More is no limit.
const LINES_PER_SECOND_MAX: u32 = 1_000_000;
/// Fewer would drop the lines of an ordinary start.
const QUEUE_LINES_MIN: usize = 128;
/// The queue is allocated at the start: 32 bytes a line.
const QUEUE_LINES_MAX: usize = 1_048_576;

#[cfg(test)]
mod tests;
