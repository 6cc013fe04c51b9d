//! A store in memory: the reference model of the others, and a store for tests of other parts.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::contract::{Answer, Error, Store};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Proof, Put, Refusal, Revoked,
    Serial,
};

/// Keeps everything in memory under one lock, and loses it with the process.
#[derive(Default)]
pub struct Memory {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    devices: BTreeMap<Serial, Device>,
    /// By the hash of a token: its device, and the token's end.
    tokens: HashMap<Hash, (Serial, Millis)>,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Memory {
        Memory::default()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>> {
        let mut tables = self.tables();
        answer(entries.into_iter().map(|entry| tables.put(entry, now)).collect())
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        let mut tables = self.tables();
        answer(issues.iter().map(|issue| tables.issue(issue)).collect())
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        let tables = self.tables();
        answer(tokens.iter().map(|token| tables.check(token, now)).collect())
    }

    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        let mut tables = self.tables();
        answer(serials.iter().map(|serial| tables.revoke(serial)).collect())
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        let tables = self.tables();
        answer(serials.iter().map(|serial| tables.devices.get(serial).cloned()).collect())
    }

    fn list(&self, page: Page) -> Answer<'_, Vec<Device>> {
        let after = page.after.map_or(Bound::Unbounded, Bound::Excluded);
        let tables = self.tables();
        let found = tables.devices.range((after, Bound::Unbounded)).take(page.limit);
        answer(found.map(|(_, device)| device.clone()).collect())
    }

    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        let mut tables = self.tables();
        for (serial, at) in seen {
            if let Some(device) = tables.devices.get_mut(&serial) {
                device.seen = device.seen.max(Some(at));
            }
        }
        answer(())
    }

    fn sweep(&self, now: Millis, limit: usize) -> Answer<'_, usize> {
        let mut tables = self.tables();
        let ended = tables.tokens.iter().filter(|(_, (_, expires))| *expires <= now);
        let ended: Vec<Hash> = ended.take(limit).map(|(token, _)| *token).collect();
        for token in &ended {
            tables.tokens.remove(token);
        }
        answer(ended.len())
    }

    fn count(&self) -> Answer<'_, u64> {
        answer(self.tables().devices.len() as u64)
    }

    fn probe(&self) -> Answer<'_, ()> {
        answer(())
    }
}

impl Tables {
    fn put(&mut self, entry: DeviceEntry, now: Millis) -> Put {
        let Some(device) = self.devices.get_mut(&entry.serial) else {
            self.devices.insert(entry.serial.clone(), Device::new(entry, now));
            return Put::Added;
        };
        let (put, changed) = device.put(&entry);
        *device = changed;
        put
    }

    fn issue(&mut self, issue: &Issue) -> Result<Issued, Refusal> {
        let serial = match &issue.proof {
            Proof::Key { serial, .. } => serial,
            Proof::Token(token) => &self.tokens.get(token).ok_or(Refusal::InvalidToken)?.0,
        };
        let device = self.devices.get_mut(serial).ok_or(Refusal::UnknownDevice)?;
        let changed = device.issue(issue)?;
        let issued = Issued {
            serial: device.serial.clone(),
            generation: changed.generation,
            is_first: device.activated.is_none(),
        };
        *device = changed;
        self.tokens.insert(issue.token, (issued.serial.clone(), issue.expires));
        Ok(issued)
    }

    fn check(&self, token: &Hash, now: Millis) -> Option<Holder> {
        let device = self.devices.get(&self.tokens.get(token)?.0)?;
        Some(Holder {
            serial: device.serial.clone(),
            labels: device.labels.clone(),
            generation: device.generation,
            expires: device.admits(token, now)?,
        })
    }

    fn revoke(&mut self, serial: &Serial) -> Revoked {
        let Some(device) = self.devices.get_mut(serial) else {
            return Revoked::Unknown;
        };
        let (revoked, changed) = device.revoke();
        *device = changed;
        revoked
    }
}

fn answer<T: Send + 'static>(answer: T) -> Answer<'static, T> {
    Box::pin(async { Ok::<_, Error>(answer) })
}
