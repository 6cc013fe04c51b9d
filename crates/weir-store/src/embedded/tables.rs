//! Devices and tokens as rows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;

use rusqlite::types::Type;
use rusqlite::{
    CachedStatement, Connection, Error, OptionalExtension as _, Result, Row, ToSql, params,
};

use super::changes::{Change, Changes, Recent};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Previous, Proof, Put, Refusal,
    Revoked, Serial, State,
};

/// The tables within one transaction.
pub(super) struct Tables<'a> {
    conn: &'a Connection,
    recent: &'a Recent,
    /// The changes as they were when the transaction began.
    changes: &'a Changes,
    /// The changes of this transaction.
    pending: RefCell<Changes>,
    /// The tokens of these changes and their devices. They count at once, because a later item may
    /// use such a token.
    leads: &'a RefCell<Vec<(Hash, i64)>>,
    /// The tokens that devices have forgotten by these changes.
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
    CREATE TABLE changes (
        id INTEGER PRIMARY KEY,
        device INTEGER NOT NULL,
        state INTEGER NOT NULL,
        activated INTEGER,
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
    pub(super) fn new(
        conn: &'a Connection,
        recent: &'a Recent,
        changes: &'a Changes,
        leads: &'a RefCell<Vec<(Hash, i64)>>,
    ) -> Tables<'a> {
        Tables {
            conn,
            recent,
            changes,
            leads,
            pending: RefCell::default(),
            forgotten: RefCell::default(),
            added: Cell::new(0),
        }
    }

    /// Writes the rows that are written once a transaction.
    pub(super) fn finish(&self) -> Result<()> {
        match self.added.get() {
            0 => Ok(()),
            added => {
                self.execute("UPDATE counts SET devices = devices + ?", params![integer(added)])
            }
        }
    }

    /// The changes of the transaction, and the tokens that devices have forgotten. To be published
    /// after the commit.
    pub(super) fn into_changes(self) -> (Changes, Vec<(Hash, i64)>) {
        (self.pending.into_inner(), self.forgotten.into_inner())
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
            Put::Added | Put::Relabelled => self.describe(id, &changed)?,
            Put::Rekeyed => {
                // The row gets all of it at once, so that a concurrent reader sees it as it was or
                // as it is.
                self.describe(id, &changed)?;
                move_into_row(self.conn, id, &Change::of(&changed))?;
                self.forget(id, &Change::of(&device), &Change::of(&changed));
            }
        }
        Ok(put)
    }

    pub(super) fn issue(&self, issue: &Issue) -> Result<std::result::Result<Issued, Refusal>> {
        let (found, missing) = match &issue.proof {
            Proof::Key { serial, .. } => {
                (self.one(BY_SERIAL_OR_ANOTHER, serial.as_str())?, Refusal::UnknownDevice)
            }
            Proof::Token(token) => (self.by_token(token)?, Refusal::InvalidToken),
        };
        let Some((id, device)) = found else {
            return Ok(Err(missing));
        };
        // Another device refuses too, and takes the same time: the hash of its key depends on its
        // own serial number.
        let changed = device.issue(issue);
        if let Proof::Key { serial, .. } = &issue.proof
            && device.serial != *serial
        {
            return Ok(Err(missing));
        }
        let changed = match changed {
            Ok(changed) => changed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.change(id, &device, &changed)?;
        self.recent.index.add(&issue.token, id);
        self.leads.borrow_mut().push((issue.token, id));
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
        // No serial number is empty, so all of them come after it.
        let after = after.map_or("", Serial::as_str);
        let rows = select.query_map(params![after, limit], |row| self.device_of(row))?;
        rows.map(|row| Ok(row?.1)).collect()
    }

    pub(super) fn seen(&self, serial: &Serial, at: Millis) -> Result<()> {
        let sql = "UPDATE devices SET seen = ?2 WHERE serial = ?1 AND ifnull(seen, -1) < ?2";
        self.execute(sql, params![serial.as_str(), integer(at)])
    }

    pub(super) fn count(&self) -> Result<u64> {
        count(self.conn)
    }

    /// Writes a page without changing its content.
    pub(super) fn probe(&self) -> Result<()> {
        // SQLite would not write a row that gets its old value.
        self.execute("UPDATE counts SET devices = devices + 1", [])?;
        self.execute("UPDATE counts SET devices = devices - 1", [])
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

    /// Writes the fields that say which tokens are valid.
    fn change(&self, id: i64, before: &Device, after: &Device) -> Result<()> {
        let (before, after) = (Change::of(before), Change::of(after));
        let sql = "INSERT INTO changes (device, state, activated, generation, token, token_end,
                       previous, previous_end)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        execute_change(self.conn, sql, id, &after)?;
        self.pending.borrow_mut().insert(id, after);
        self.forget(id, &before, &after);
        Ok(())
    }

    /// Writes the fields of an import.
    fn describe(&self, id: i64, device: &Device) -> Result<()> {
        let labels = labels_text(&device.labels)?;
        let sql = "UPDATE devices SET key = ?2, labels = ?3 WHERE id = ?1";
        self.execute(sql, params![id, device.key.0, labels])
    }

    fn forget(&self, id: i64, before: &Change, after: &Change) {
        let known = after.hashes();
        let forgotten = before.hashes().into_iter().flatten();
        let forgotten = forgotten.filter(|token| !known.contains(&Some(*token)));
        self.forgotten.borrow_mut().extend(forgotten.map(|token| (token, id)));
    }

    fn by_serial(&self, serial: &Serial) -> Result<Option<(i64, Device)>> {
        self.one(BY_SERIAL, serial.as_str())
    }

    fn by_token(&self, token: &Hash) -> Result<Option<(i64, Device)>> {
        for id in self.recent.index.find(token) {
            let found = self.one(BY_ID, id)?;
            let knows = |device: &Device| Change::of(device).hashes().contains(&Some(*token));
            if let Some(found) = found.filter(|(_, device)| knows(device)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn one(&self, sql: &str, key: impl ToSql) -> Result<Option<(i64, Device)>> {
        self.prepare(sql)?.query_row([key], |row| self.device_of(row)).optional()
    }

    /// The device of a row, with its later changes.
    fn device_of(&self, row: &Row<'_>) -> Result<(i64, Device)> {
        let (id, mut device) = device_of(row)?;
        let pending = self.pending.borrow();
        if let Some(change) = pending.get(&id).or_else(|| self.changes.get(&id)) {
            change.apply(&mut device);
        }
        Ok((id, device))
    }

    fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<()> {
        self.prepare(sql)?.execute(params).map(|_| ())
    }

    fn prepare(&self, sql: &str) -> Result<CachedStatement<'a>> {
        self.conn.prepare_cached(sql)
    }
}

/// The device as a row has it, which has the columns of `columns!`, and the row's number.
fn device_of(row: &Row<'_>) -> Result<(i64, Device)> {
    let serial = row.get_ref(1)?.as_str()?;
    let serial = Serial::new(serial).map_err(|error| impossible(1, format!("serial {error}")))?;
    let (token, previous) = tokens_of(row, 9)?;
    let device = Device {
        key: Hash(row.get(2)?),
        state: state_of(row, 3, &serial)?,
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

/// The fingerprint of the secrets with which the file was hashed. A file without one takes ours.
pub(super) fn fingerprint(conn: &Connection, ours: &Hash) -> Result<Hash> {
    conn.execute_batch("CREATE TABLE IF NOT EXISTS secrets (fingerprint BLOB NOT NULL)")?;
    let sql = "INSERT INTO secrets SELECT ? WHERE NOT EXISTS (SELECT * FROM secrets)";
    conn.execute(sql, [ours.0])?;
    conn.query_row("SELECT fingerprint FROM secrets", [], |row| row.get(0).map(Hash))
}

/// The fingerprint in a file, if it has one.
pub(super) fn known_fingerprint(conn: &Connection) -> Result<Option<Hash>> {
    let sql = "SELECT fingerprint FROM secrets";
    conn.query_row(sql, [], |row| row.get(0).map(Hash)).optional()
}

/// The number of devices.
pub(super) fn count(conn: &Connection) -> Result<u64> {
    conn.prepare_cached("SELECT devices FROM counts")?.query_row([], |row| unsigned(row, 0))
}

/// The state that both threads share beside the file, read from it.
pub(super) fn recent(conn: &Connection) -> Result<Recent> {
    let recent = Recent::new(changes(conn)?);
    let changes = recent.changes();
    each_token(conn, |device, token| {
        if !changes.contains_key(&device) {
            recent.index.add(&token, device);
        }
    })?;
    drop(changes);
    Ok(recent)
}

/// The last change of each device whose row is not as new.
fn changes(conn: &Connection) -> Result<Changes> {
    let mut select = conn.prepare(
        "SELECT c.device, c.state, c.activated, c.generation, c.token, c.token_end, c.previous,
             c.previous_end
         FROM changes c JOIN devices d ON d.id = c.device
         WHERE c.generation > d.generation ORDER BY c.id",
    )?;
    let rows = select.query_map([], |row| {
        let device: i64 = row.get(0)?;
        let (token, previous) = tokens_of(row, 4)?;
        let change = Change {
            state: state_of(row, 1, device)?,
            activated: optional(row, 2)?,
            generation: unsigned(row, 3)?,
            token,
            previous,
        };
        Ok((device, change))
    })?;
    rows.collect()
}

/// Calls `each` for each token in a device's row.
fn each_token(conn: &Connection, mut each: impl FnMut(i64, Hash)) -> Result<()> {
    let mut select =
        conn.prepare("SELECT id, token, previous FROM devices WHERE token NOT NULL")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let device = row.get(0)?;
        let known: [Option<[u8; 32]>; 2] = [row.get(1)?, row.get(2)?];
        known.into_iter().flatten().for_each(|token| each(device, Hash(token)));
    }
    Ok(())
}

/// The numbers of the first and the last change; 0 if there is none.
pub(super) fn span_of_changes(conn: &Connection) -> Result<(i64, i64)> {
    let sql =
        "SELECT ifnull((SELECT min(id) FROM changes), 0), ifnull((SELECT max(id) FROM changes), 0)";
    conn.prepare_cached(sql)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Writes a change into its device's row, unless the row is as new.
pub(super) fn move_into_row(conn: &Connection, device: i64, change: &Change) -> Result<()> {
    let sql = "UPDATE devices SET state = ?2, activated = ?3, generation = ?4, token = ?5,
                   token_end = ?6, previous = ?7, previous_end = ?8
               WHERE id = ?1 AND generation < ?4";
    execute_change(conn, sql, device, change)
}

/// Removes changes that are in their rows.
pub(super) fn forget_changes(conn: &Connection, until: i64) -> Result<()> {
    conn.prepare_cached("DELETE FROM changes WHERE id <= ?")?.execute([until]).map(|_| ())
}

fn execute_change(conn: &Connection, sql: &str, device: i64, change: &Change) -> Result<()> {
    let Change { state, activated, generation, token, previous } = change;
    let row = params![
        device,
        state_number(*state),
        activated.map(integer),
        integer(*generation),
        token.map(|(token, _)| token.0),
        token.map(|(_, end)| integer(end)),
        previous.map(|previous| previous.token.0),
        previous.map(|previous| integer(previous.until)),
    ];
    conn.prepare_cached(sql)?.execute(row).map(|_| ())
}

/// The tokens that a device knows: the last one with its end, and the one before.
type Known = (Option<(Hash, Millis)>, Option<Previous>);

/// The tokens whose columns begin at `at`.
fn tokens_of(row: &Row<'_>, at: usize) -> Result<Known> {
    let token = match (row.get(at)?, optional(row, at + 1)?) {
        (Some(token), Some(end)) => Some((Hash(token), end)),
        (_, _) => None,
    };
    let previous = match (row.get(at + 2)?, optional(row, at + 3)?) {
        (Some(token), Some(until)) => Some(Previous { token: Hash(token), until }),
        (_, _) => None,
    };
    Ok((token, previous))
}

fn state_of(row: &Row<'_>, at: usize, whose: impl Display) -> Result<State> {
    match row.get(at)? {
        0 => Ok(State::New),
        1 => Ok(State::Active),
        2 => Ok(State::Revoked),
        other => Err(impossible(at, format!("{whose}: no state has the number {other}"))),
    }
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

/// SQLite's integers end at half of ours. A larger number becomes the largest one.
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

/// An error for a value that the store never writes.
fn impossible(column: usize, text: String) -> Error {
    Error::FromSqlConversionFailure(column, Type::Null, text.into())
}

macro_rules! columns {
    ($labels:literal) => {
        concat!(
            "SELECT d.id, d.serial, d.key, d.state, ",
            $labels,
            ", d.created, d.activated, d.seen, d.generation, d.token, d.token_end, d.previous, ",
            "d.previous_end FROM devices d "
        )
    };
}

const BY_SERIAL: &str = concat!(columns!("d.labels"), "WHERE d.serial = ?");
/// For an unknown serial number it finds the next device, or the device imported first if there is
/// no next one. That takes the same time, so that nobody learns which serial numbers are known. It
/// reads no labels, which would take as long as the rest.
const BY_SERIAL_OR_ANOTHER: &str = concat!(
    columns!("'{}'"),
    "WHERE d.id = coalesce(
         (SELECT id FROM devices WHERE serial >= ? ORDER BY serial LIMIT 1), 1)"
);
const BY_ID: &str = concat!(columns!("d.labels"), "WHERE d.id = ?");
const PAGE: &str = concat!(columns!("d.labels"), "WHERE d.serial > ?1 ORDER BY d.serial LIMIT ?2");
