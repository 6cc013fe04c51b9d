//! The program's configuration: a TOML file, then `WEIR_*` variables over it, then the checks.

mod env;
mod file;
mod names;
mod problem;
mod reference;
mod store;

use std::fmt;
use std::path::{Path, PathBuf};

use weir::keys::{self, Key, Rules, Table, Value};

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

weir::config_table! {
    /// Section `[log]`.
    pub(crate) struct LogSettings {
        /// What is logged. Directives name a target: `info,weir=debug`.
        level: String = "info".to_owned(), allowed("{LEVEL_ALLOWED}");
        /// Lines for people, or one JSON object a line.
        format: LogFormat;
        /// Lines that may wait for standard error. More are dropped rather than hold up the
        /// gateway, and counted in `weir_log_lines_dropped_total`.
        // Fewer would drop the lines of an ordinary start. The queue is allocated at the start: 32
        // bytes a line.
        queue_lines: usize = 8_192, range(128..=1 << 20), unit("lines");
        /// Lines a second of each place in the code that logs, libraries included: peers can cause
        /// some. The rest is counted (`weir_log_lines_suppressed_total`), and a line every 5 s says
        /// how many. 0: no limit, to see all of `debug`.
        // Some hundred kilobytes a minute of what somebody repeats.
        lines_per_second: u32 = 10, range(0..=1_000_000), unit("lines");
    }
}

weir::keys::named_enum! {
    /// How a log line looks.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) enum LogFormat {
        /// For people.
        #[default]
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

weir::config_words!(LogFormat);

/// Loads the file of that name, or else of [`CONFIG_VARIABLE`], with the variables of the environment over it.
pub(crate) fn load(file: Option<PathBuf>) -> Result<Settings, Refused> {
    let file = file.or_else(|| std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from));
    // A variable that is not UTF-8 cannot be one of ours.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Settings::load(file.as_deref(), variables)
}

impl Settings {
    /// The settings of a file (the defaults without one) with the variables of the environment over
    /// them.
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
        keys::check("", self)?;
        self.store.validate(&self.cache)?;
        self.log.validate()
    }
}

impl LogSettings {
    fn validate(&self) -> Result<(), weir::ConfigError> {
        if self.level.parse::<tracing_subscriber::EnvFilter>().is_err() {
            let (value, allowed) = (format!("{:?}", self.level), LEVEL_ALLOWED.to_owned());
            return Err(weir::ConfigError {
                key: "log.level".to_owned(),
                value,
                allowed,
                depends_on: &[],
            });
        }
        Ok(())
    }
}

/// The gateway's keys, and the program's own among them.
impl Table for Settings {
    fn entries(&self) -> Vec<(&'static Key, &dyn Value)> {
        let [store, cache, log] = &SECTIONS;
        in_order(
            self.gateway.entries(),
            [(store, &self.store), (cache, &self.cache), (log, &self.log)],
        )
    }

    fn entries_mut(&mut self) -> Vec<(&'static Key, &mut dyn Value)> {
        let [store, cache, log] = &SECTIONS;
        in_order(
            self.gateway.entries_mut(),
            [(store, &mut self.store), (cache, &mut self.cache), (log, &mut self.log)],
        )
    }
}

/// Store and cache stand before what is decided by them: activation and classes.
fn in_order<T>(mut gateway: Vec<T>, [store, cache, log]: [T; 3]) -> Vec<T> {
    let behind = gateway.split_off(gateway.len() - 2);
    gateway.extend([store, cache]);
    gateway.extend(behind);
    gateway.push(log);
    gateway
}

/// The program's own sections.
static SECTIONS: [Key; 3] = [
    Key { name: "store", doc: &["Where devices and their tokens are kept."], rules: Rules::NONE },
    Key { name: "cache", doc: &["A Redis before the store."], rules: Rules::NONE },
    Key { name: "log", doc: &["Log lines; they go to standard error."], rules: Rules::NONE },
];

const LEVEL_ALLOWED: &str =
    "one of off, error, warn, info, debug and trace, or directives such as info,weir=debug";

#[cfg(test)]
mod tests;
