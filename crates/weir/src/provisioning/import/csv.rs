//! Rows of CSV.

use std::collections::BTreeMap;
use std::io::{self, Read};

use csv::{ByteRecord, ErrorKind, ReaderBuilder, Terminator};

use super::{BadRow, KEY, ROW_BYTES_MAX, Row, RowsError, SERIAL, check_label_name};

pub(super) struct Reader<R> {
    rows: csv::Reader<Bounded<R>>,
    columns: Columns,
    /// Kept to reuse its memory.
    record: ByteRecord,
}

/// The meaning of each column.
struct Columns {
    serial: usize,
    key: usize,
    labels: Vec<(usize, String)>,
    count: usize,
}

/// Limits the bytes of a row. An unclosed quotation mark would make the whole rest one row.
struct Bounded<R> {
    input: R,
    left: usize,
    /// Bytes read so far, and the last one.
    read: u64,
    last: u8,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(input: R) -> Result<Self, RowsError> {
        let mut rows = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            // [`field`] removes a carriage return before it; the parser would count lines wrongly.
            .terminator(Terminator::Any(b'\n'))
            .buffer_capacity(BUFFER_BYTES)
            .from_reader(Bounded { input, left: READ_BYTES_MAX, read: 0, last: b'\n' });
        let mut record = ByteRecord::new();
        let has_header = rows.read_byte_record(&mut record).map_err(|error| failed(error, 1))?;
        if !has_header {
            return Err(RowsError::Header(format!("the header {SERIAL},{KEY} is missing")));
        }
        let columns = Columns::read(&record).map_err(RowsError::Header)?;
        Ok(Self { rows, columns, record })
    }

    pub(super) fn next_row(&mut self) -> Result<Option<Result<Row, BadRow>>, RowsError> {
        loop {
            self.rows.get_mut().left = READ_BYTES_MAX;
            let line = self.rows.position().line();
            match self.rows.read_byte_record(&mut self.record) {
                Ok(true) if is_blank(&self.record) => {}
                Ok(true) => return Ok(Some(self.columns.row(&self.record, self.line()))),
                Ok(false) => return Ok(None),
                Err(error) => return Err(failed(error, line)),
            }
        }
    }

    /// The line where the record begins, derived from its end: blank lines before a record belong
    /// to none.
    fn line(&self) -> u64 {
        let (input, end) = (self.rows.get_ref(), self.rows.position());
        let is_cut = end.byte() == input.read && input.last != b'\n';
        let within = self.record.as_slice().iter().filter(|byte| **byte == b'\n').count() as u64;
        end.line() - within - u64::from(!is_cut)
    }
}

impl Columns {
    fn read(header: &ByteRecord) -> Result<Columns, String> {
        let mut names = Vec::with_capacity(header.len());
        for index in 0..header.len() {
            let name = field(header, index);
            // Spreadsheets write a byte order mark before the first name.
            let name = if index == 0 { name.strip_prefix(MARK).unwrap_or(name) } else { name };
            let name = std::str::from_utf8(name)
                .map_err(|_| format!("column {} has a name that is not UTF-8", index + 1))?;
            if names.contains(&name) {
                return Err(format!("the header has the column {name:?} twice"));
            }
            names.push(name);
        }
        let find = |name: &str| {
            let found = names.iter().position(|other| *other == name);
            found.ok_or_else(|| {
                format!("the header has no column {name:?}: {SERIAL},{KEY} is needed")
            })
        };
        let (serial, key) = (find(SERIAL)?, find(KEY)?);
        let mut labels = Vec::new();
        for (index, name) in names.iter().enumerate() {
            if index != serial && index != key {
                check_label_name(name).map_err(|what| format!("column {}: {what}", index + 1))?;
                labels.push((index, (*name).to_owned()));
            }
        }
        Ok(Columns { serial, key, labels, count: names.len() })
    }

    fn row(&self, record: &ByteRecord, line: u64) -> Result<Row, BadRow> {
        let bad = |field: &str, detail| BadRow { line, field: field.to_owned(), detail };
        if record.len() != self.count {
            let detail = format!("{} fields; the header has {}", record.len(), self.count);
            return Err(bad("", detail));
        }
        let text = |index: usize, name: &str| {
            std::str::from_utf8(field(record, index))
                .map_err(|_| bad(name, format!("{name} is not UTF-8")))
        };
        let mut labels = BTreeMap::new();
        for (index, name) in &self.labels {
            let value = text(*index, name)?;
            if !value.is_empty() {
                labels.insert(name.clone(), value.to_owned());
            }
        }
        let (serial, key) = (text(self.serial, SERIAL)?, text(self.key, KEY)?);
        Row::new(line, Some(serial), Some(key), labels)
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let room = buf.len().min(self.left);
        let bytes = self.input.read(&mut buf[..room])?;
        self.left -= bytes;
        self.read += bytes as u64;
        self.last = buf[..bytes].last().copied().unwrap_or(self.last);
        Ok(bytes)
    }
}

/// A field; the last one without a carriage return before the line break.
fn field(record: &ByteRecord, index: usize) -> &[u8] {
    let field = record.get(index).unwrap_or_default();
    let is_last = index + 1 == record.len();
    if is_last { field.strip_suffix(b"\r").unwrap_or(field) } else { field }
}

/// Whether the line is empty except for a carriage return.
fn is_blank(record: &ByteRecord) -> bool {
    record.len() == 1 && field(record, 0).is_empty()
}

fn failed(error: csv::Error, line: u64) -> RowsError {
    let is_bounded = |source: &io::Error| source.kind() == io::ErrorKind::FileTooLarge;
    if matches!(error.kind(), ErrorKind::Io(source) if is_bounded(source)) {
        return RowsError::TooLong { line };
    }
    RowsError::Read(error.into())
}

const MARK: &[u8] = "\u{feff}".as_bytes();
const BUFFER_BYTES: usize = 64 * 1024;
/// A row and the bytes that were read after it.
const READ_BYTES_MAX: usize = ROW_BYTES_MAX + BUFFER_BYTES;
