//! Maintenance: telling the store which devices have connected, forgetting sources, and removing
//! records of tokens that have ended.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use super::{Activator, now};
use crate::base::clock::unix_millis;
use crate::provisioning::device_store::DeviceStore;

/// Forgets sources and removes records until it is dropped.
pub(crate) async fn maintain(activator: &Activator) {
    let mut is_told = false;
    loop {
        sleep(MAINTENANCE_INTERVAL).await;
        activator.failures.sweep(now());
        match activator.sweep().await {
            Ok(()) => is_told = false,
            Err(error) if !is_told => {
                is_told = true;
                warn!(%error, "records of tokens that have ended cannot be removed now");
            }
            Err(_) => {}
        }
    }
}

/// Tells the store which devices have connected, until it is dropped.
pub(crate) async fn tell_seen(devices: &DeviceStore) {
    let mut is_told = false;
    loop {
        sleep(SEEN_INTERVAL).await;
        match devices.tell_seen().await {
            Ok(()) => is_told = false,
            Err(error) if !is_told => {
                is_told = true;
                warn!(%error, "the store of devices cannot be told which devices have connected");
            }
            Err(_) => {}
        }
    }
}

impl Activator {
    /// Removes records in small parts, so that requests get their turn between them.
    async fn sweep(&self) -> Result<(), weir_store::Error> {
        let store = self.devices.store();
        while store.sweep(unix_millis(), SWEEP_MAX).await? == SWEEP_MAX {
            sleep(SWEEP_PAUSE).await;
        }
        Ok(())
    }
}

/// Connects that the store was not told of yet are lost when the process ends.
const SEEN_INTERVAL: Duration = Duration::from_secs(5);
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Some milliseconds of the store's writer.
const SWEEP_MAX: usize = 500;
const SWEEP_PAUSE: Duration = Duration::from_millis(50);
