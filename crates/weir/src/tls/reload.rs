//! Reloads certificates when their files change, and warns before they end.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::warn;

use super::contexts::Contexts;
use crate::base::clock::unix_time;
use crate::base::files::Watch;

/// Checks the files every `tls.reload_interval`, and reads them if they have changed or a reload
/// was requested.
///
/// A change counts once the next look finds no further one, since certificate and key are seldom
/// written at the same moment. An unusable file is logged once, and the files loaded before stay in
/// use.
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
        // A file system may be slow.
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
