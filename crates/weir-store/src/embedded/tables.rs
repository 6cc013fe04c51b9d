//! Devices and tokens as rows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use rusqlite::types::Type;
use rusqlite::{CachedStatement, Connection, Error, OptionalExtension as _, Result, Row, params};

use super::index::TokenIndex;
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Previous, Proof, Put, Refusal,
    Revoked, Serial, State,
};

/// The tables within one transaction.
pub(super) struct Tables<'a> {
    conn: &'a Connection,
    index: &'a TokenIndex,
    /// Tokens that devices have forgotten in this transaction.
    forgotten: RefCell<Vec<(Hash, i64)>>,
    /// Devices that this transaction has added.
    added: Cell<u64>,
}

/// The tables of a new file.
pub(super) const SCHEMA: &str = "
    CREATE TABLE devices (
        id INTEGER PRIMARY KEY,
        serial TEXT NOT NULL UNIQUE,
        key BLOB NOT NULL,
        state INTEGER NOT NULL,
        labels TEXT NOT NULL,
        created INTEGER NOT NULL,
        activated INTEGER,
        seen INTEGER,
        generation INTEGER NOT NULL,
        token BLOB,
        token_end INTEGER,
        previous BLOB,
        previous_end INTEGER
    );
    CREATE TABLE counts (devices INTEGER NOT NULL);
    INSERT INTO counts VALUES (0);
";

impl<'a> Tables<'a> {
    pub(super) fn new(conn: &'a Connection, index: &'a TokenIndex) -> Tables<'a> {
        Tables { conn, index, forgotten: RefCell::default(), added: Cell::new(0) }
    }

    /// Writes what is written once a transaction.
    pub(super) fn finish(&self) -> Result<()> {
        match self.added.get() {
            0 => Ok(()),
            added => {
                self.execute("UPDATE counts SET devices = devices + ?", params![integer(added)])
            }
        }
    }

    /// Lets go of what the transaction has ended, once it is committed.
    pub(super) fn committed(self) {
        for (token, device) in self.forgotten.into_inner() {
            self.index.remove(&token, device);
        }
    }

    pub(super) fn put(&self, entry: &DeviceEntry, now: Millis) -> Result<Put> {
        let Some((id, device)) = self.by_serial(&entry.serial)? else {
            self.insert(&Device::new(entry.clone(), now))?;
            self.added.set(self.added.get() + 1);
            return Ok(Put::Added);
        };
        let (put, changed) = device.put(entry);
        match put {
            Put::Unchanged => {}
            Put::Added | Put::Relabelled | Put::Rekeyed => {
                let labels = labels_text(&changed.labels)?;
                let sql = "UPDATE devices SET key = ?2, labels = ?3 WHERE id = ?1";
                self.execute(sql, params![id, changed.key.0, labels])?;
                self.change(id, &device, &changed)?;
            }
        }
        Ok(put)
    }

    pub(super) fn issue(&self, issue: &Issue) -> Result<std::result::Result<Issued, Refusal>> {
        let (found, missing) = match &issue.proof {
            Proof::Key { serial, .. } => (self.by_serial(serial)?, Refusal::UnknownDevice),
            Proof::Token(token) => (self.by_token(token)?, Refusal::InvalidToken),
        };
        let Some((id, device)) = found else {
            return Ok(Err(missing));
        };
        let changed = match device.issue(issue) {
            Ok(changed) => changed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.change(id, &device, &changed)?;
        self.index.add(&issue.token, id);
        Ok(Ok(Issued {
            serial: changed.serial,
            generation: changed.generation,
            is_first: device.activated.is_none(),
        }))
    }

    pub(super) fn check(&self, token: &Hash, now: Millis) -> Result<Option<Holder>> {
        let Some((_, device)) = self.by_token(token)? else {
            return Ok(None);
        };
        Ok(device.admits(token, now).map(|expires| Holder {
            serial: device.serial,
            labels: device.labels,
            generation: device.generation,
            expires,
        }))
    }

    pub(super) fn revoke(&self, serial: &Serial) -> Result<Revoked> {
        let Some((id, device)) = self.by_serial(serial)? else {
            return Ok(Revoked::Unknown);
        };
        let (revoked, changed) = device.revoke();
        match revoked {
            Revoked::Now => self.change(id, &device, &changed)?,
            Revoked::Before | Revoked::Unknown => {}
        }
        Ok(revoked)
    }

    pub(super) fn find(&self, serial: &Serial) -> Result<Option<Device>> {
        Ok(self.by_serial(serial)?.map(|(_, device)| device))
    }

    pub(super) fn list(&self, after: Option<&Serial>, limit: usize) -> Result<Vec<Device>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut select = self.prepare(PAGE)?;
        // No serial is empty: all of them are behind it.
        let after = after.map_or("", Serial::as_str);
        let rows = select.query_map(params![after, limit], device_of)?;
        rows.map(|row| Ok(row?.1)).collect()
    }

    pub(super) fn seen(&self, serial: &Serial, at: Millis) -> Result<()> {
        let sql = "UPDATE devices SET seen = ?2 WHERE serial = ?1 AND ifnull(seen, -1) < ?2";
        self.execute(sql, params![serial.as_str(), integer(at)])
    }

    pub(super) fn count(&self) -> Result<u64> {
        self.prepare("SELECT devices FROM counts")?.query_row([], |row| unsigned(row, 0))
    }

    fn insert(&self, device: &Device) -> Result<()> {
        let sql = "INSERT INTO devices (serial, key, state, labels, created, generation)
                   VALUES (?, ?, ?, ?, ?, ?)";
        let labels = labels_text(&device.labels)?;
        let (created, generation) = (integer(device.created), integer(device.generation));
        let state = state_number(device.state);
        let serial = device.serial.as_str();
        self.execute(sql, params![serial, device.key.0, state, labels, created, generation])
    }

    /// Writes what says which tokens are valid.
    fn change(&self, id: i64, before: &Device, after: &Device) -> Result<()> {
        let sql = "UPDATE devices SET state = ?2, activated = ?3, generation = ?4, token = ?5,
                       token_end = ?6, previous = ?7, previous_end = ?8
                   WHERE id = ?1";
        let (token, previous) = (after.token, after.previous);
        let row = params![
            id,
            state_number(after.state),
            after.activated.map(integer),
            integer(after.generation),
            token.map(|(token, _)| token.0),
            token.map(|(_, end)| integer(end)),
            previous.map(|previous| previous.token.0),
            previous.map(|previous| integer(previous.until)),
        ];
        self.execute(sql, row)?;
        let known = hashes(after);
        let forgotten = hashes(before).into_iter().flatten();
        let forgotten = forgotten.filter(|token| !known.contains(&Some(*token)));
        self.forgotten.borrow_mut().extend(forgotten.map(|token| (token, id)));
        Ok(())
    }

    fn by_serial(&self, serial: &Serial) -> Result<Option<(i64, Device)>> {
        let mut select = self.prepare(BY_SERIAL)?;
        select.query_row([serial.as_str()], device_of).optional()
    }

    fn by_token(&self, token: &Hash) -> Result<Option<(i64, Device)>> {
        for id in self.index.find(token) {
            let mut select = self.prepare(BY_ID)?;
            let found = select.query_row([id], device_of).optional()?;
            if let Some(found) = found.filter(|(_, device)| hashes(device).contains(&Some(*token)))
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<()> {
        self.prepare(sql)?.execute(params).map(|_| ())
    }

    fn prepare(&self, sql: &str) -> Result<CachedStatement<'a>> {
        self.conn.prepare_cached(sql)
    }
}

/// A device of a row that has the columns of `columns!`, and its number.
fn device_of(row: &Row<'_>) -> Result<(i64, Device)> {
    let serial = row.get_ref(1)?.as_str()?;
    let serial = Serial::new(serial).map_err(|error| impossible(1, format!("serial {error}")))?;
    let state = match row.get(3)? {
        0 => State::New,
        1 => State::Active,
        2 => State::Revoked,
        other => return Err(impossible(3, format!("{serial}: no state has the number {other}"))),
    };
    let token = match (row.get(9)?, optional(row, 10)?) {
        (Some(token), Some(end)) => Some((Hash(token), end)),
        (_, _) => None,
    };
    let previous = match (row.get(11)?, optional(row, 12)?) {
        (Some(token), Some(until)) => Some(Previous { token: Hash(token), until }),
        (_, _) => None,
    };
    let device = Device {
        key: Hash(row.get(2)?),
        state,
        labels: labels_of(row.get_ref(4)?.as_str()?)?,
        created: unsigned(row, 5)?,
        activated: optional(row, 6)?,
        seen: optional(row, 7)?,
        generation: unsigned(row, 8)?,
        token,
        previous,
        serial,
    };
    Ok((row.get(0)?, device))
}

fn hashes(device: &Device) -> [Option<Hash>; 2] {
    [device.token.map(|(token, _)| token), device.previous.map(|previous| previous.token)]
}

fn labels_text(labels: &BTreeMap<String, String>) -> Result<String> {
    serde_json::to_string(labels).map_err(|error| impossible(4, error.to_string()))
}

fn labels_of(text: &str) -> Result<BTreeMap<String, String>> {
    serde_json::from_str(text).map_err(|error| impossible(4, format!("labels: {error}")))
}

fn state_number(state: State) -> i64 {
    match state {
        State::New => 0,
        State::Active => 1,
        State::Revoked => 2,
    }
}

/// SQLite's integers end at half of ours: what lies behind is that end.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(row: &Row<'_>, column: usize) -> Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| impossible(column, format!("{number} is negative")))
}

fn optional(row: &Row<'_>, column: usize) -> Result<Option<u64>> {
    match row.get::<_, Option<i64>>(column)? {
        None => Ok(None),
        Some(_) => unsigned(row, column).map(Some),
    }
}

/// A value that nobody wrote.
fn impossible(column: usize, text: String) -> Error {
    Error::FromSqlConversionFailure(column, Type::Null, text.into())
}

macro_rules! columns {
    () => {
        "SELECT d.id, d.serial, d.key, d.state, d.labels, d.created, d.activated, d.seen, \
         d.generation, d.token, d.token_end, d.previous, d.previous_end FROM "
    };
}

const BY_SERIAL: &str = concat!(columns!(), "devices d WHERE d.serial = ?");
const BY_ID: &str = concat!(columns!(), "devices d WHERE d.id = ?");
const PAGE: &str = concat!(columns!(), "devices d WHERE d.serial > ?1 ORDER BY d.serial LIMIT ?2");
