//! Reloads certificates when their files change, and warns before they end.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::warn;

use super::contexts::Contexts;
use crate::base::clock::unix_time;
use crate::base::files::Watch;

/// Looks at the files every `tls.reload_interval`, and reads them when they have changed or somebody asks for it.
///
/// A change is taken up when the next look finds nothing new: certificate and key are seldom written at the same moment.
/// What cannot be used is told once; what was loaded before stays in use.
pub(crate) async fn watch(contexts: Arc<Contexts>) {
    let mut watch = Watch::new(&*contexts);
    warn_of_ends(&contexts);
    let mut until_warning = WARN_INTERVAL;
    loop {
        let is_asked = tokio::select! {
            () = sleep(contexts.reload_interval()) => false,
            () = contexts.reload_asked() => true,
        };
        let looked = Arc::clone(&contexts);
        // A file system may take its time.
        let look = spawn_blocking(move || {
            let is_new = watch.look(&*looked, is_asked);
            (watch, is_new)
        });
        let Ok((returned, is_new)) = look.await else {
            warn!("certificates are no longer reloaded: looking at their files has panicked");
            return;
        };
        watch = returned;
        until_warning = until_warning.saturating_sub(contexts.reload_interval());
        if is_new || until_warning.is_zero() {
            warn_of_ends(&contexts);
            until_warning = WARN_INTERVAL;
        }
    }
}

fn warn_of_ends(contexts: &Contexts) {
    let now = unix_time();
    contexts.expiries().iter().for_each(|expiry| expiry.warn(now));
}

/// A line a day.
const WARN_INTERVAL: Duration = Duration::from_secs(86_400);
