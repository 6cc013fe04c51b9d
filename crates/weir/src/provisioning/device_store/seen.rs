//! The devices' last connects, until the store is told.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use weir_engine::{Footprint, rounded, rounded_table};
use weir_store::{Error, Millis, Serial, Store};

/// Devices that have connected since the store was last told, each with its last connect.
///
/// Limits: [`SEEN_MAX`] devices. Connects of further devices are only counted as dropped.
#[derive(Debug, Default)]
pub(super) struct Seen {
    noted: Mutex<HashMap<Box<str>, Millis>>,
    dropped: AtomicU64,
}

impl Seen {
    pub(super) fn note(&self, serial: &str, at: Millis) {
        let mut noted = self.noted.lock().expect("no panic happens under this lock");
        let has_room = noted.len() < SEEN_MAX;
        match noted.get_mut(serial) {
            Some(last) => *last = at.max(*last),
            None if has_room => {
                noted.insert(serial.into(), at);
            }
            None => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Tells the store in small parts, so that requests get their turn between them.
    ///
    /// # Errors The store does not answer. The rest is then dropped, because the store may be down
    /// for long.
    pub(super) async fn tell(&self, store: &dyn Store) -> Result<(), Error> {
        let noted =
            std::mem::take(&mut *self.noted.lock().expect("no panic happens under this lock"));
        let mut left = noted.len();
        let mut noted = noted.into_iter();
        while left > 0 {
            let part = noted.by_ref().take(PART_MAX);
            let part = part.filter_map(|(serial, at)| Some((Serial::new(&serial).ok()?, at)));
            if let Err(error) = store.seen(part.collect()).await {
                self.dropped.fetch_add(left as u64, Ordering::Relaxed);
                return Err(error);
            }
            left = left.saturating_sub(PART_MAX);
            if left > 0 {
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    pub(super) fn footprint(&self) -> Footprint {
        let noted = self.noted.lock().expect("no panic happens under this lock");
        let table = rounded_table(noted.capacity(), size_of::<(Box<str>, Millis)>());
        let names = noted.keys().map(|serial| rounded(serial.len()));
        Footprint::new(noted.len(), table + names.sum::<usize>())
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Some megabytes, and a number that a store can take in one interval.
const SEEN_MAX: usize = 65_536;
/// Some milliseconds of the store's writer.
const PART_MAX: usize = 500;
const PAUSE: Duration = Duration::from_millis(20);
