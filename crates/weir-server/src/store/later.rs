//! The store of a process that takes over: it opens when the old process has closed its file.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use tracing::error;
use weir_store::{Embedded, Late, Store as _};

use super::{
    Begin, Held, Key, Opened, devices, embedded, make_directory, open, refuse_unused_file,
};
use crate::config::{Settings, StoreKind, StoreSettings};

/// A store that the old process still holds.
pub(crate) struct Later {
    late: Arc<Late>,
    settings: StoreSettings,
    key: Key,
    timeout: Duration,
}

/// A store that is being opened.
pub(crate) struct Opening {
    late: Arc<Late>,
    task: JoinHandle<()>,
}

/// Opens the store in the place of an old process, the one with this number. If that holds the
/// store, [`Later`] opens it.
///
/// Errors: besides those of [`open`], another process holds it, or its key file is gone.
pub(crate) async fn take_over(
    all: &Settings,
    begin: Begin,
    old: u32,
) -> Result<(Opened, Option<Later>)> {
    if all.store_kind() != StoreKind::Embedded {
        // Several processes may use it.
        return Ok((Box::pin(open(all, begin)).await?, None));
    }
    refuse_unused_file(all)?;
    let (settings, timeout) = (&all.store, all.store.timeout);
    make_directory(&settings.path()?)?;
    let key = Key::read(settings, begin)?;
    let late = match embedded(settings, &key, timeout)? {
        Ok(store) => {
            let devices = devices(all, (Arc::new(store), None), key.secrets, timeout)?;
            return Ok((Opened::Store(Arc::new(devices.key_file(key.path))), None));
        }
        Err(_) if key.is_made => {
            key.unmake();
            bail!("store.hash_key: {} does not exist", key.path.display());
        }
        Err(Held { text, holder }) if holder != Some(old) => {
            return Ok((Opened::Held(text), None));
        }
        Err(_) => Arc::new(Late::new("embedded", timeout)),
    };
    let (store, secrets) = (Arc::clone(&late) as Arc<_>, key.secrets.clone());
    let devices = devices(all, (store, None), secrets, timeout)?.key_file(key.path.clone());
    let later = Later { late, settings: settings.clone(), key, timeout };
    Ok((Opened::Store(Arc::new(devices)), Some(later)))
}

impl Later {
    /// Opens it as soon as the old process has closed it. Call it once that owns nothing any more.
    pub(crate) fn begin(self) -> Opening {
        let late = Arc::clone(&self.late);
        Opening { late, task: tokio::spawn(Arc::new(self).run()) }
    }

    async fn run(self: Arc<Self>) {
        let (began, mut told) = (Instant::now(), String::new());
        loop {
            let again = match Arc::clone(&self).try_open().await {
                Ok(Ok(store)) => {
                    // Refused if it was closed meanwhile; then the store closes here.
                    let _ = self.late.open(Arc::new(store));
                    return;
                }
                Ok(Err(_)) if began.elapsed() < HELD_PATIENCE => HELD_INTERVAL,
                Ok(Err(Held { text, .. })) => self.fail(&mut told, text),
                Err(error) => self.fail(&mut told, format!("{error:#}")),
            };
            tokio::select! {
                () = sleep(again) => {}
                () = self.late.closed() => return,
            }
        }
    }

    async fn try_open(self: Arc<Self>) -> Result<std::result::Result<Embedded, Held>> {
        let opened = spawn_blocking(move || embedded(&self.settings, &self.key, self.timeout));
        opened.await.map_err(|error| anyhow!("opening has ended: {error}"))?
    }

    /// Tells a new reason. Returns when to try again.
    fn fail(&self, told: &mut String, why: String) -> Duration {
        if *told != why {
            error!(why, "the device store does not open; it is tried again");
            told.clone_from(&why);
        }
        self.late.fail(why);
        FAILED_INTERVAL
    }
}

impl Opening {
    /// Waits until the store is open or has failed to open, but not for long.
    pub(crate) async fn tried(&self) {
        let _ = timeout(HELD_PATIENCE, self.late.tried()).await;
    }

    /// Tries no more. A store that has just been opened is closed.
    pub(crate) async fn end(self) {
        let _ = self.late.close().await;
        let _ = self.task.await;
    }
}

/// The old process closes its store right after the decision, which takes it milliseconds, and at
/// most some seconds.
const HELD_PATIENCE: Duration = Duration::from_secs(10);
const HELD_INTERVAL: Duration = Duration::from_millis(5);
/// Someone has to do something about it.
const FAILED_INTERVAL: Duration = Duration::from_secs(1);
