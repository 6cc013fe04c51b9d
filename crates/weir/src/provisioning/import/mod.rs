//! Rows of devices for import: CSV, or one JSON object a line.
//!
//! The import command and the admin API use the same reader. A bad row is reported with its line
//! and skipped. The longest row bounds the memory.

mod csv;
mod json;

use std::collections::BTreeMap;
use std::io::{self, Read};

use weir_store::{DeviceEntry, Secrets, Serial};

/// The format of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// CSV (RFC 4180) with a header. The columns `devSn` and `devKey` are required; each further
    /// column is a label.
    Csv,
    /// One JSON object a line. The members `devSn` and `devKey` are required; each further member
    /// is a label.
    JsonLines,
}

/// Rows, one after the other.
pub struct Rows<R> {
    reader: Reader<R>,
}

enum Reader<R> {
    Csv(csv::Reader<R>),
    JsonLines(json::Reader<R>),
}

/// The device in one row.
#[derive(Clone, PartialEq, Eq)]
pub struct Row {
    /// The line where the row begins; the first line is 1.
    pub line: u64,
    /// The serial number.
    pub serial: Serial,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    key: String,
}

/// A row with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {detail}")]
pub struct BadRow {
    /// The line where it begins.
    pub line: u64,
    /// The wrong column or member; empty: the row as a whole.
    pub field: String,
    /// The error.
    pub detail: String,
}

/// The reason why no further row can be read.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The input cannot be read.
    #[error("cannot read the rows: {0}")]
    Read(#[from] io::Error),
    /// The header of CSV is wrong.
    #[error("line 1: {0}")]
    Header(String),
    /// The row is too long, so its end is unknown.
    #[error(
        "line {line}: the row has more than {ROW_BYTES_MAX} bytes; is a quotation mark missing?"
    )]
    TooLong {
        /// The line where the row begins.
        line: u64,
    },
}

impl RowFormat {
    /// The media type of such rows.
    pub const fn media_type(self) -> &'static str {
        match self {
            RowFormat::Csv => "text/csv",
            RowFormat::JsonLines => "application/x-ndjson",
        }
    }
}

impl<R: Read> Rows<R> {
    /// Reads the header, if the format has one.
    ///
    /// # Errors The input cannot be read, or its header lacks a column.
    pub fn new(input: R, format: RowFormat) -> Result<Self, RowsError> {
        let reader = match format {
            RowFormat::Csv => Reader::Csv(csv::Reader::new(input)?),
            RowFormat::JsonLines => Reader::JsonLines(json::Reader::new(input)),
        };
        Ok(Self { reader })
    }

    /// The next row; `None` after the last one.
    ///
    /// # Errors No further row can be read.
    pub fn next_row(&mut self) -> Result<Option<Result<Row, BadRow>>, RowsError> {
        match &mut self.reader {
            Reader::Csv(reader) => reader.next_row(),
            Reader::JsonLines(reader) => reader.next_row(),
        }
    }
}

impl Row {
    /// The entry for a store.
    pub fn entry(self, secrets: &Secrets) -> DeviceEntry {
        let key = secrets.key_hash(&self.serial, &self.key);
        DeviceEntry { serial: self.serial, key, labels: self.labels }
    }

    /// Whether its key is so short that it might be guessed.
    pub fn has_short_key(&self) -> bool {
        self.key.chars().count() < SHORT_KEY_CHARS
    }

    /// The row as a line of [`RowFormat::JsonLines`], with its line break.
    pub fn to_json_line(&self) -> String {
        let mut members: serde_json::Map<String, serde_json::Value> =
            self.labels.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        members.insert(SERIAL.to_owned(), self.serial.as_str().into());
        members.insert(KEY.to_owned(), self.key.as_str().into());
        format!("{}\n", serde_json::Value::Object(members))
    }

    fn new(
        line: u64,
        serial: Option<&str>,
        key: Option<&str>,
        labels: BTreeMap<String, String>,
    ) -> Result<Row, BadRow> {
        let bad = |field: &str| {
            let field = field.to_owned();
            move |detail| BadRow { line, field, detail }
        };
        let missing = |field: &str| bad(field)(format!("{field} is missing"));
        let serial = serial.ok_or_else(|| missing(SERIAL))?;
        let serial = check_serial(serial).map_err(bad(SERIAL))?;
        let key = key.ok_or_else(|| missing(KEY))?;
        check_key(key).map_err(bad(KEY))?;
        if labels.len() > LABELS_MAX {
            let detail = format!("{} labels; at most {LABELS_MAX} are allowed", labels.len());
            return Err(bad("")(detail));
        }
        for (name, value) in &labels {
            check_label_name(name).map_err(bad(name))?;
            let named = format!("label {name:?}");
            check_text(&named, value, LABEL_BYTES_MAX).map_err(bad(name))?;
        }
        Ok(Row { line, serial, labels, key: key.to_owned() })
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row")
            .field("line", &self.line)
            .field("serial", &self.serial)
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

/// Checks a serial number.
pub(crate) fn check_serial(text: &str) -> Result<Serial, String> {
    Serial::new(text).map_err(|error| format!("{SERIAL} {error}"))
}

/// Checks a device key.
pub(crate) fn check_key(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("{KEY} is empty"));
    }
    check_text(KEY, text, KEY_BYTES_MAX)
}

fn check_label_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("a label has no name".to_owned());
    }
    check_text("the name of a label", name, LABEL_NAME_BYTES_MAX)
}

fn check_text(name: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    if text.len() > bytes_max {
        return Err(format!("{name} has {} bytes; at most {bytes_max} are allowed", text.len()));
    }
    match text.chars().find(|char| char.is_control()) {
        Some(control) => Err(format!("{name} has the control character {control:?}")),
        None => Ok(()),
    }
}

const SERIAL: &str = "devSn";
const KEY: &str = "devKey";
/// 256 random bits in hexadecimal digits are 64.
const KEY_BYTES_MAX: usize = 256;
/// Some 80 random bits in base64. Whoever knows the hash and its secret might guess fewer.
const SHORT_KEY_CHARS: usize = 16;
/// Each look-up of a token reads all labels of its device.
const LABELS_MAX: usize = 32;
const LABEL_NAME_BYTES_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 256;
/// Several times the longest valid row.
const ROW_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests;
