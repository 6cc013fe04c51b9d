//! Keys of the configuration. One definition gives a key's type, default, range, unit and text; the
//! reader, the checks and the reference follow from it.
//!
//! [`config_table!`](crate::config_table) defines a table of keys. A program that embeds the
//! gateway can define its own tables with it.

mod difference;
mod duration;
mod read;
mod table;
mod value;

use std::fmt::Debug;
use std::ops::RangeInclusive;

pub use ::serde::{Deserialize, Deserializer};
pub use difference::{Change, Difference, adopt, difference};
pub use duration::{DurationError, parse_duration};
pub use read::deserialize;
pub use table::debug;
pub use value::{Item, Raw, Replaceable, Value, Word, time};
pub use weir_wire::named_enum;

/// A key as its table defines it.
#[derive(Debug)]
pub struct Key {
    /// The name within the table.
    pub name: &'static str,
    /// The lines of the key's doc comment: its effect, and why an operator would change it.
    pub doc: &'static [&'static str],
    /// The limits on the value, and how it is shown.
    pub rules: Rules,
}

/// The definition of a key without its type, its default and its text.
#[derive(Debug)]
pub struct Rules {
    /// The unit of a number, or the entries of a list. A time needs none.
    pub unit: &'static str,
    /// The least and the most: of a number, of a time in milliseconds, of the number of entries in
    /// a list.
    pub range: Option<RangeInclusive<u64>>,
    /// Text behind the range in the error for a value outside of it.
    pub reason: &'static str,
    /// The allowed values, if the range alone does not describe them.
    pub allowed: Option<fn() -> String>,
    /// A value in TOML, for an example; empty: the default.
    pub example: &'static str,
    /// Whether messages hide the value.
    pub secret: bool,
    /// Whether each table of a list must have the key.
    pub needed: bool,
    /// Whether a reload applies a new value. Otherwise it counts after a restart. Keys within a list
    /// of tables follow the list.
    pub reload: bool,
}

/// A table of keys: a section of the configuration, or one entry of a list of tables.
pub trait Table: Debug {
    /// The keys with their values.
    fn entries(&self) -> Vec<(&'static Key, &dyn Value)>;
    /// The same, as mutable references.
    fn entries_mut(&mut self) -> Vec<(&'static Key, &mut dyn Value)>;
}

/// A key at its place in the configuration.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The names of the key's tables and its own name, joined by dots.
    pub path: String,
    /// The definition of the key.
    pub key: &'static Key,
    /// The value of the key.
    pub value: &'a dyn Value,
}

/// A value that is not allowed; the operator must change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: allowed is {allowed}")]
pub struct ConfigError {
    /// The key, with its section.
    pub key: String,
    /// The value, but never a secret.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
    /// Other keys on which the allowed values depend. The value may be a default that nobody has
    /// set.
    pub depends_on: &'static [&'static str],
}

impl Key {
    /// The key's path within the table at `table`.
    pub fn path(&self, table: &str) -> String {
        if table.is_empty() { self.name.to_owned() } else { format!("{table}.{}", self.name) }
    }

    /// The paragraphs of the key's text.
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
    /// No limits and no texts.
    pub const NONE: Rules = Rules {
        unit: "",
        range: None,
        reason: "",
        allowed: None,
        example: "",
        secret: false,
        needed: false,
        reload: false,
    };
}

impl Entry<'_> {
    /// The path of the entry's table; empty outside the sections.
    pub fn section(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }
}

/// All keys of the table at `path`, each section before its keys. Keys within lists of tables are
/// not included.
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
/// Milliseconds of a minute.
pub const MINUTE: u64 = 60 * SECOND;
/// Milliseconds of an hour.
pub const HOUR: u64 = 60 * MINUTE;
/// Milliseconds of a day.
pub const DAY: u64 = 24 * HOUR;
