//! Keys of the configuration. One definition gives a key's type, default, range, unit and text. The
//! reader, the checks and the reference follow from it.
//!
//! [`config_table!`](crate::config_table) defines a table of keys. A program that embeds the
//! gateway can define tables of its own with it.

mod duration;
mod read;
mod table;
mod value;

use std::fmt::Debug;
use std::ops::RangeInclusive;

pub use ::serde::{Deserialize, Deserializer};
pub use duration::{DurationError, parse_duration};
pub use read::deserialize;
pub use table::debug;
pub use value::{Item, Raw, Value, Word, time};
pub use weir_wire::named_enum;

/// A key as its table defines it.
#[derive(Debug)]
pub struct Key {
    /// Its name within the table.
    pub name: &'static str,
    /// The lines of its doc comment: its effect, and a reason to change it.
    pub doc: &'static [&'static str],
    /// The limits of its value, and its form in messages.
    pub rules: Rules,
}

/// A key's definition in addition to its type, default and text.
#[derive(Debug)]
pub struct Rules {
    /// The unit of a number, or of a list's entries; times need none.
    pub unit: &'static str,
    /// The least and the greatest number, time in milliseconds, or count of a list's entries.
    pub range: Option<RangeInclusive<u64>>,
    /// Follows the range in the refusal of a value outside it.
    pub reason: &'static str,
    /// The allowed values, if the range alone does not describe them.
    pub allowed: Option<fn() -> String>,
    /// A value in TOML, for an example; empty: the default.
    pub example: &'static str,
    /// Whether messages hide the value.
    pub secret: bool,
    /// Whether each table of a list must have the key.
    pub needed: bool,
}

/// A table of keys: a section of the configuration, or one entry of a list of tables.
pub trait Table: Debug {
    /// The keys with their values.
    fn entries(&self) -> Vec<(&'static Key, &dyn Value)>;
    /// The same with mutable values.
    fn entries_mut(&mut self) -> Vec<(&'static Key, &mut dyn Value)>;
}

/// A key at its place in the configuration.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The names of its tables and its own name, with dots between them.
    pub path: String,
    /// Its definition.
    pub key: &'static Key,
    /// Its value.
    pub value: &'a dyn Value,
}

/// A value that is not allowed; the operator must correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: allowed is {allowed}")]
pub struct ConfigError {
    /// The key, with its section.
    pub key: String,
    /// The current value; never a secret.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
    /// Other keys that decide which values are allowed here. The operator may have set only those.
    pub depends_on: &'static [&'static str],
}

impl Key {
    /// Its path within the table at `table`.
    pub fn path(&self, table: &str) -> String {
        if table.is_empty() { self.name.to_owned() } else { format!("{table}.{}", self.name) }
    }

    /// The paragraphs of its text.
    pub fn paragraphs(&self) -> Vec<String> {
        let lines: Vec<&str> = self.doc.iter().map(|line| line.trim()).collect();
        lines.split(|line| line.is_empty()).map(|lines| lines.join(" ")).collect()
    }

    /// Kind and range of a value in one phrase, which follows "allowed is".
    pub fn allowed(&self, value: &dyn Value) -> String {
        let allowed = match (self.rules.allowed, &self.rules.range) {
            (Some(allowed), _) => allowed(),
            (None, Some(range)) => value.range(range),
            (None, None) => return value.kind(),
        };
        format!("{}, {allowed}", value.kind())
    }
}

impl Rules {
    /// No rules.
    pub const NONE: Rules = Rules {
        unit: "",
        range: None,
        reason: "",
        allowed: None,
        example: "",
        secret: false,
        needed: false,
    };
}

impl Entry<'_> {
    /// The path of its table; empty outside the sections.
    pub fn section(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }
}

/// All keys of the table at `path`, each section before its keys. Keys of lists of tables are not
/// included.
pub fn all<'a>(path: &str, table: &'a dyn Table) -> Vec<Entry<'a>> {
    let mut all = Vec::new();
    for (key, value) in table.entries() {
        let path = key.path(path);
        let inner = value.as_table().map(|table| self::all(&path, table));
        all.push(Entry { path, key, value });
        all.extend(inner.into_iter().flatten());
    }
    all
}

/// The key and value at a path such as `auth.jwt.leeway`.
pub fn find_mut<'a>(
    table: &'a mut dyn Table,
    path: &str,
) -> Option<(&'static Key, &'a mut dyn Value)> {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let (key, value) = table.entries_mut().into_iter().find(|(key, _)| key.name == name)?;
    if rest.is_empty() { Some((key, value)) } else { find_mut(value.as_table_mut()?, rest) }
}

/// Checks all ranges of the table at `path`.
///
/// Errors: the first value outside its range.
pub fn check(path: &str, table: &dyn Table) -> Result<(), ConfigError> {
    for (key, value) in table.entries() {
        let path = key.path(path);
        if let Some(table) = value.as_table() {
            check(&path, table)?;
        }
        if let Some(range) = &key.rules.range
            && let Some((value, allowed)) = value.outside(range, key.rules.unit)
        {
            let allowed = format!("{allowed}{}", key.rules.reason);
            return Err(ConfigError { key: path, value, allowed, depends_on: &[] });
        }
        for (index, table) in value.tables().into_iter().enumerate() {
            check(&format!("{path}[{index}]"), table)?;
        }
    }
    Ok(())
}

/// Milliseconds in a second: the unit of a time's range.
pub const SECOND: u64 = 1_000;
/// Milliseconds in a minute.
pub const MINUTE: u64 = 60 * SECOND;
/// Milliseconds in an hour.
pub const HOUR: u64 = 60 * MINUTE;
/// Milliseconds in a day.
pub const DAY: u64 = 24 * HOUR;
