//! redb, with the same records.

use redb::{Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::{CACHE_BYTES, File, LABELS, bytes, serial};

const DEVICE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("device");
const TOKEN: TableDefinition<'_, &[u8; 32], (u64, u64)> = TableDefinition::new("token");

pub(crate) struct Redb {
    database: Database,
    quick: bool,
}

impl Redb {
    pub(crate) fn open(path: &str, quick: bool) -> Redb {
        let database =
            Database::builder().set_cache_size(CACHE_BYTES).create(path).expect("the file opens");
        Redb { database, quick }
    }

    fn begin(&self) -> redb::WriteTransaction {
        let mut transaction = self.database.begin_write().expect("begin");
        transaction.set_durability(Durability::Immediate).expect("durability");
        transaction.set_quick_repair(self.quick);
        transaction
    }
}

/// A device as it is stored: key, state, times, generation, token, the one before, labels.
fn record(device: u64, generation: u64, token: &[u8; 32], previous: &[u8; 32]) -> Vec<u8> {
    let mut record = Vec::with_capacity(220);
    record.extend(bytes(device));
    record.push(1);
    for time in [1_790_000_000_000_u64; 3] {
        record.extend(time.to_be_bytes());
    }
    record.extend(generation.to_be_bytes());
    record.extend(token);
    record.extend(1_792_592_000_000_u64.to_be_bytes());
    record.extend(previous);
    record.extend(1_790_000_060_000_u64.to_be_bytes());
    record.extend(LABELS.as_bytes());
    record
}

impl File for Redb {
    fn put(&mut self, devices: &[u64]) {
        let transaction = self.begin();
        {
            let mut table = transaction.open_table(DEVICE).expect("a table");
            for device in devices {
                // New devices have no tokens: these records are shorter.
                let mut new = bytes(*device).to_vec();
                new.extend([0; 17]);
                new.extend(LABELS.as_bytes());
                table.insert(serial(*device).as_str(), new.as_slice()).expect("insert");
            }
        }
        transaction.commit().expect("commit");
    }

    fn issue(&mut self, issues: &[(u64, [u8; 32])]) {
        let transaction = self.begin();
        {
            let mut table = transaction.open_table(DEVICE).expect("a table");
            let mut tokens = transaction.open_table(TOKEN).expect("a table");
            for (device, token) in issues {
                let name = serial(*device);
                let found = table.get(name.as_str()).expect("get").expect("a device");
                let before = found.value().to_vec();
                drop(found);
                assert_eq!(before[..32], bytes(*device));
                let generation = u64::from(before[33]) + 1;
                let new = record(*device, generation, token, token);
                table.insert(name.as_str(), new.as_slice()).expect("insert");
                tokens.insert(token, (*device, 1_792_592_000_000)).expect("insert");
            }
        }
        transaction.commit().expect("commit");
    }

    fn check(&mut self, token: &[u8; 32]) -> Option<u64> {
        let transaction = self.database.begin_read().expect("begin");
        let table = transaction.open_table(TOKEN).ok()?;
        table.get(token).expect("get").map(|found| found.value().0)
    }

    fn find(&mut self, device: u64) -> bool {
        let transaction = self.database.begin_read().expect("begin");
        let table = transaction.open_table(DEVICE).expect("a table");
        table.get(serial(device).as_str()).expect("get").is_some()
    }
}
