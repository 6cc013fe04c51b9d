//! The program's configuration: a TOML file, then the `WEIR_*` variables that override it, then the
//! checks.

mod env;
mod file;
mod names;
mod problem;
mod reference;
mod store;
mod upgrade;

use std::fmt;
use std::path::{Path, PathBuf};

use weir::keys::{self, Key, Rules, Table, Value};

pub(crate) use env::CONFIG_VARIABLE;
pub(crate) use problem::Refused;
pub(crate) use reference::{example, markdown, text};
pub(crate) use store::{CacheSettings, StoreKind, StoreSettings};
pub(crate) use upgrade::UpgradeSettings;

use file::Places;
use problem::{Place, Problem};

/// All settings of the program.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Settings {
    /// The settings of the gateway.
    pub(crate) gateway: weir::Config,
    /// Section `[store]`.
    pub(crate) store: StoreSettings,
    /// Section `[cache]`.
    pub(crate) cache: CacheSettings,
    /// Section `[upgrade]`.
    pub(crate) upgrade: UpgradeSettings,
    /// Section `[log]`.
    pub(crate) log: LogSettings,
    /// The keys that environment variables have set.
    pub(crate) from_variables: Vec<FromVariable>,
}

/// A key that an environment variable has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FromVariable {
    name: String,
    key: String,
    /// The place where the file sets the key too; that value has no effect.
    instead_of: Option<String>,
}

impl FromVariable {
    /// Whether the file sets the key too.
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
        /// The least level that is logged. A directive sets the level of one target:
        /// `info,weir=debug`.
        level: String = "info".to_owned(), allowed("{LEVEL_ALLOWED}"), reload();
        /// `text`: lines for people. `json`: one JSON object per line.
        format: LogFormat;
        /// Lines that may wait for standard error. Further lines are dropped, so that they do not
        /// delay the gateway, and counted in `weir_log_lines_dropped_total`.
        // A smaller queue would drop lines of an ordinary start. It is allocated at the start: 32
        // bytes per line.
        queue_lines: usize = 8_192, range(128..=1 << 20), unit("lines");
        /// Lines per second from each place in the code that logs, libraries included: peers can
        /// cause some lines. Other lines are counted (`weir_log_lines_suppressed_total`), and a
        /// line every 5 s says how many. 0: no limit, to see all of `debug`.
        // Some hundred kilobytes per minute when a peer repeats itself.
        lines_per_second: u32 = 10, range(0..=1_000_000), unit("lines"), reload();
    }
}

weir::keys::named_enum! {
    /// The format of log lines.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) enum LogFormat {
        /// Text for people.
        #[default]
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

weir::config_words!(LogFormat);

/// Loads the given file, or else the file in [`CONFIG_VARIABLE`]. Environment variables override
/// it.
pub(crate) fn load(file: Option<PathBuf>) -> Result<Settings, Refused> {
    let file = file.or_else(|| std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from));
    // A variable that is not UTF-8 is not one of ours.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Settings::load(file.as_deref(), variables)
}

impl Settings {
    /// The settings of a file, or the defaults without one. Environment variables override them.
    ///
    /// Errors: every invalid key with its place. Of conflicts between keys, only the first.
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

    /// Where devices are kept.
    pub(crate) fn store_kind(&self) -> StoreKind {
        self.store.kind(&self.gateway.cluster)
    }

    fn validate(&self) -> Result<(), weir::ConfigError> {
        self.gateway.validate()?;
        if self.store_kind() == StoreKind::None {
            self.gateway.check_admits()?;
        }
        keys::check("", self)?;
        self.store.validate(&self.cache, &self.gateway.cluster)?;
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

/// The gateway's keys and the program's own.
impl Table for Settings {
    fn entries(&self) -> Vec<(&'static Key, &dyn Value)> {
        let [store, cache, upgrade, log] = &SECTIONS;
        in_order(
            self.gateway.entries(),
            [
                (store, &self.store),
                (cache, &self.cache),
                (upgrade, &self.upgrade),
                (log, &self.log),
            ],
        )
    }

    fn entries_mut(&mut self) -> Vec<(&'static Key, &mut dyn Value)> {
        let [store, cache, upgrade, log] = &SECTIONS;
        in_order(
            self.gateway.entries_mut(),
            [
                (store, &mut self.store),
                (cache, &mut self.cache),
                (upgrade, &mut self.upgrade),
                (log, &mut self.log),
            ],
        )
    }
}

/// Store and cache stand before the sections that depend on them: activation and classes.
fn in_order<T>(mut gateway: Vec<T>, [store, cache, upgrade, log]: [T; 4]) -> Vec<T> {
    let behind = gateway.split_off(gateway.len() - 2);
    gateway.extend([store, cache]);
    gateway.extend(behind);
    gateway.extend([upgrade, log]);
    gateway
}

/// The program's own sections.
static SECTIONS: [Key; 4] = [
    Key { name: "store", doc: &["Where devices and their tokens are kept."], rules: Rules::NONE },
    Key { name: "cache", doc: &["A Redis cache in front of the store."], rules: Rules::NONE },
    Key {
        name: "upgrade",
        doc: &["A new process takes the place of the running one; see `weir upgrade`."],
        rules: Rules::NONE,
    },
    Key { name: "log", doc: &["The log, which goes to standard error."], rules: Rules::NONE },
];

const LEVEL_ALLOWED: &str =
    "one of off, error, warn, info, debug and trace, or directives such as info,weir=debug";

#[cfg(test)]
mod tests;
