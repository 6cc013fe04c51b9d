//! Rows of JSON, an object a line.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::{BadRow, KEY, ROW_BYTES_MAX, Row, RowsError, SERIAL};

pub(super) struct Reader<R> {
    input: BufReader<R>,
    line: u64,
    /// Kept to reuse its memory.
    text: Vec<u8>,
}

/// The members of an object in their order. A derived type would hide a repeated name.
struct Members(Vec<(String, Value)>);

impl<R: Read> Reader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::new(input), line: 0, text: Vec::new() }
    }

    pub(super) fn next_row(&mut self) -> Result<Option<Result<Row, BadRow>>, RowsError> {
        loop {
            self.text.clear();
            let bytes = self.read_part()?;
            if bytes == 0 {
                return Ok(None);
            }
            self.line += 1;
            if self.text.len() > ROW_BYTES_MAX && self.text.last() != Some(&b'\n') {
                self.skip_rest()?;
                let detail = format!("the line has more than {ROW_BYTES_MAX} bytes");
                return Ok(Some(Err(BadRow { line: self.line, field: String::new(), detail })));
            }
            if !self.text.trim_ascii().is_empty() {
                return Ok(Some(row(self.text.trim_ascii_end(), self.line)));
            }
        }
    }

    /// Reads to the end of the line, or up to the limit of a row.
    fn read_part(&mut self) -> Result<usize, RowsError> {
        let mut bounded = (&mut self.input).take(ROW_BYTES_MAX as u64 + 1);
        Ok(bounded.read_until(b'\n', &mut self.text)?)
    }

    fn skip_rest(&mut self) -> Result<(), RowsError> {
        while self.text.last().is_some_and(|last| *last != b'\n') {
            self.text.clear();
            self.read_part()?;
        }
        Ok(())
    }
}

fn row(text: &[u8], line: u64) -> Result<Row, BadRow> {
    let bad = |field: &str, detail| BadRow { line, field: field.to_owned(), detail };
    let Members(members) = serde_json::from_slice(text).map_err(|error| {
        // For the parser, each line is the first one.
        let detail = error.to_string().replace(" at line 1 column ", " at column ");
        bad("", detail)
    })?;
    let (mut serial, mut key, mut labels) = (None, None, BTreeMap::new());
    for (name, value) in members {
        let value = match value {
            Value::String(text) => text,
            Value::Null => continue,
            Value::Bool(_) | Value::Number(_) if name != SERIAL && name != KEY => value.to_string(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                return Err(bad(&name, format!("{name} is not a text")));
            }
        };
        let before = match name.as_str() {
            SERIAL => serial.replace(value),
            KEY => key.replace(value),
            _ => labels.insert(name.clone(), value),
        };
        if before.is_some() {
            return Err(bad(&name, format!("{name} appears twice")));
        }
    }
    Row::new(line, serial.as_deref(), key.as_deref(), labels)
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = input.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        input.deserialize_map(Pairs)
    }
}
