//! Changes devices that have not changed since they were read, and reads the others again. Every
//! change goes through it.

use std::collections::{HashMap, HashSet};

use rand::RngExt as _;

use super::commands::Write;
use super::{Mongo, documents};
use crate::contract::Error;
use crate::records::{Device, Serial};

/// A device as it was read, and as the items of a batch have changed it.
struct Amended {
    before: Option<Device>,
    after: Option<Device>,
}

impl Mongo {
    /// Applies `apply` to each item, in order. It returns an answer, and the device if that
    /// changes.
    pub(super) async fn amend<I, R>(
        &self,
        items: &[(Serial, I)],
        apply: impl Fn(&Serial, &I, Option<&Device>) -> (R, Option<Device>),
    ) -> Result<Vec<R>, Error> {
        let mut answers: Vec<Option<R>> = items.iter().map(|_| None).collect();
        let mut pending: Vec<usize> = (0..items.len()).collect();
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.devices(pending.iter().map(|place| &items[*place].0)).await?;
            let mut devices: HashMap<&Serial, Amended> = HashMap::new();
            for place in &pending {
                let (serial, item) = &items[*place];
                let device = devices.entry(serial).or_insert_with(|| {
                    let before = stored.get(serial).cloned();
                    Amended { after: before.clone(), before }
                });
                let (answer, changed) = apply(serial, item, device.after.as_ref());
                answers[*place] = Some(answer);
                device.after = changed.or(device.after.take());
            }
            let lost = self.store(devices.into_values().collect()).await?;
            pending.retain(|place| lost.contains(&items[*place].0));
            if pending.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
        }
        Err(Error::Unavailable(format!(
            "others changed a device {ATTEMPTS_MAX} times while it was to be changed"
        )))
    }

    /// Writes the changed devices. Returns those that other gateways have changed meanwhile.
    async fn store(&self, devices: Vec<Amended>) -> Result<HashSet<Serial>, Error> {
        // Written with each change, because the number of matches does not say which changes
        // succeeded.
        let mark: i64 = rand::rng().random();
        let (mut added, mut inserts) = (Vec::new(), Vec::new());
        let (mut changed, mut updates) = (Vec::new(), Vec::new());
        for device in devices {
            match (device.before, device.after) {
                (None, Some(after)) => {
                    inserts.push(documents::inserted(&after));
                    added.push(after.serial);
                }
                (Some(before), Some(after)) => {
                    if let Some(update) = documents::changed(&before, &after, mark) {
                        updates.push(update);
                        changed.push(after);
                    }
                }
                (_, None) => {}
            }
        }
        let inserted = self.write(Write::Insert, "devices", inserts).await?;
        let mut lost: HashSet<Serial> =
            inserted.duplicates.into_iter().filter_map(|place| added.get(place).cloned()).collect();
        let matched = self.write(Write::Update, "devices", updates).await?.matched;
        if matched == changed.len() {
            return Ok(lost);
        }
        let mut losers: HashMap<Serial, Device> =
            changed.into_iter().map(|device| (device.serial.clone(), device)).collect();
        if matched > 0 {
            for document in self.device_documents(losers.keys()).await? {
                let serial = documents::device(&document)?.serial;
                let has_won = |ours: &Device| documents::mark(&document, ours) == Some(mark);
                if losers.get(&serial).is_some_and(has_won) {
                    losers.remove(&serial);
                }
            }
        }
        lost.extend(losers.into_keys());
        Ok(lost)
    }
}

/// The number of attempts to write a change. Each attempt fails only if another gateway was faster.
const ATTEMPTS_MAX: usize = 64;
