//! SQLite, with the tables and settings of the product.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::{CACHE_BYTES, File, LABELS, bytes, serial};

pub(crate) struct Sqlite(Connection);

impl Sqlite {
    pub(crate) fn open(path: &str) -> Sqlite {
        let conn = Connection::open(path).expect("the file opens");
        let env = |name: &str, default: i64| {
            std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
        };
        conn.pragma_update(None, "page_size", env("PAGE", 4096)).expect("page_size");
        conn.pragma_update(None, "journal_mode", "wal").expect("journal_mode");
        conn.pragma_update(None, "synchronous", "full").expect("synchronous");
        conn.pragma_update(None, "journal_size_limit", 64 << 20).expect("journal_size_limit");
        conn.pragma_update(None, "wal_autocheckpoint", env("CKPT", 8_000)).expect("checkpoint");
        let kib = i64::try_from(CACHE_BYTES / 1024).expect("a small number");
        conn.pragma_update(None, "cache_size", -kib).expect("cache_size");
        conn.pragma_update(None, "mmap_size", env("MMAP", 0)).expect("mmap");
        let rowid = if env("CLUSTERED", 0) == 1 { "WITHOUT ROWID" } else { "" };
        let id = if env("CLUSTERED", 0) == 1 { "id INTEGER" } else { "id INTEGER PRIMARY KEY" };
        let unique = if env("CLUSTERED", 0) == 1 { "PRIMARY KEY" } else { "UNIQUE" };
        conn.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS device({id}, serial TEXT NOT NULL {unique}, key BLOB,
             state INTEGER, labels TEXT, created INTEGER, activated INTEGER, seen INTEGER,
             generation INTEGER, token BLOB, token_end INTEGER, previous BLOB,
             previous_end INTEGER) {rowid};
             CREATE TABLE IF NOT EXISTS token(hash BLOB PRIMARY KEY, device INTEGER,
             expires INTEGER) WITHOUT ROWID;"
        ))
        .expect("the tables are made");
        Sqlite(conn)
    }
}

impl File for Sqlite {
    fn put(&mut self, devices: &[u64]) {
        let transaction = self.0.transaction().expect("begin");
        {
            let mut insert = transaction
                .prepare_cached(
                    "INSERT INTO device(id, serial, key, state, labels, created, generation)
                     VALUES(?, ?, ?, 0, ?, 1790000000000, 0)",
                )
                .expect("a statement");
            for device in devices {
                let id = i64::try_from(*device).expect("small");
                let row = params![id, serial(*device), bytes(*device), LABELS];
                insert.execute(row).expect("insert");
            }
        }
        transaction.commit().expect("commit");
    }

    fn issue(&mut self, issues: &[(u64, [u8; 32])]) {
        let transaction = self.0.transaction().expect("begin");
        {
            let mut select = transaction
                .prepare_cached(
                    "SELECT id, key, state, labels, created, activated, seen, generation, token,
                     token_end, previous, previous_end FROM device WHERE serial = ?",
                )
                .expect("a statement");
            let clustered = std::env::var("CLUSTERED").is_ok();
            let by = if clustered { "serial" } else { "id" };
            let mut update = transaction
                .prepare_cached(&format!(
                    "UPDATE device SET state = 1, activated = ?, generation = ?, token = ?,
                     token_end = ?, previous = ?, previous_end = ? WHERE {by} = ?"
                ))
                .expect("a statement");
            let mut insert = transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO token(hash, device, expires) VALUES(?, ?, ?)",
                )
                .expect("a statement");
            for (device, token) in issues {
                let name = serial(*device);
                let (id, generation, key, labels, token_before): (
                    i64,
                    i64,
                    [u8; 32],
                    String,
                    Option<[u8; 32]>,
                ) = select
                    .query_row([&name], |row| {
                        Ok((row.get(0)?, row.get(7)?, row.get(1)?, row.get(3)?, row.get(8)?))
                    })
                    .expect("the device is there");
                assert!(key == bytes(*device) && labels.len() == LABELS.len());
                let end = 1_792_592_000_000_i64;
                let (now, soon) = (1_790_000_000_000_i64, 1_790_000_060_000_i64);
                if clustered {
                    let row = params![now, generation + 1, token, end, token_before, soon, name];
                    update.execute(row).expect("update");
                } else {
                    let row = params![now, generation + 1, token, end, token_before, soon, id];
                    update.execute(row).expect("update");
                }
                insert.execute(params![token, id, end]).expect("insert");
            }
        }
        transaction.commit().expect("commit");
    }

    fn check(&mut self, token: &[u8; 32]) -> Option<u64> {
        let mut select =
            self.0.prepare_cached("SELECT device FROM token WHERE hash = ?").expect("a statement");
        let device: Option<i64> =
            select.query_row([token], |row| row.get(0)).optional().expect("select");
        device.and_then(|device| u64::try_from(device).ok())
    }

    fn find(&mut self, device: u64) -> bool {
        let mut select =
            self.0.prepare_cached("SELECT 1 FROM device WHERE serial = ?").expect("a statement");
        select.exists([serial(device)]).expect("select")
    }
}
