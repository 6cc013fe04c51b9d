//! Keeping the keys of all issuers fresh: one task for each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use weir_engine::Nanos;

use super::fetch::{FetchError, Fetched};
use super::{FetchOutcome, Issuer, Issuers};
use crate::backends::Backends;

/// Fetches the keys of all issuers, now and whenever they are due. Never ends.
///
/// `changed`: verified tokens may no longer be valid. `troubled`: the issuers whose keys cannot be
/// fetched, with the cause; `None`: there are no issuers.
pub(in crate::auth::jwt) async fn keep_all(
    issuers: &Issuers,
    backends: Arc<Backends>,
    changed: impl Fn() + Send + Sync + 'static,
    troubled: impl Fn(Option<Vec<String>>),
) {
    let (changed, told) = (Arc::new(changed), Arc::new(Notify::new()));
    let mut tasks = JoinSet::new();
    let mut running: Vec<(Arc<Issuer>, AbortHandle)> = Vec::new();
    loop {
        let list = issuers.list.load_full();
        running.retain(|(issuer, task)| {
            let stays = list.iter().any(|other| Arc::ptr_eq(other, issuer));
            if !stays {
                task.abort();
            }
            stays
        });
        for issuer in list.iter() {
            if running.iter().any(|(other, _)| Arc::ptr_eq(other, issuer)) {
                continue;
            }
            let (changed, told) = (Arc::clone(&changed), Arc::clone(&told));
            let kept = keep(Arc::clone(issuer), Arc::clone(&backends), changed, told);
            running.push((Arc::clone(issuer), tasks.spawn(kept)));
        }
        let trouble = list.iter().filter_map(|issuer| issuer.trouble());
        troubled((!list.is_empty()).then(|| trouble.collect()));
        tokio::select! {
            () = issuers.changed.notified() => {}
            () = told.notified() => {}
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// Keeps the keys of one issuer.
async fn keep(
    issuer: Arc<Issuer>,
    backends: Arc<Backends>,
    changed: Arc<impl Fn() + Send + Sync>,
    told: Arc<Notify>,
) {
    let (mut failures, mut due) = (0, Instant::now());
    loop {
        issuer.begin();
        let fetched = issuer.fetch(&backends).await;
        let now = Instant::now();
        let next = match &fetched {
            Ok(fetched) => {
                failures = 0;
                due = now + spread(fetched.fresh);
                due
            }
            Err(_) => {
                failures += 1;
                now + spread(backoff(failures))
            }
        };
        let end = due + issuer.config.keys_kept;
        if issuer.end(fetched, now >= end) {
            changed();
        }
        told.notify_one();
        // Keys that end meanwhile end in time, with one more try.
        let is_ending = failures > 0 && now < end;
        issuer.wait(if is_ending { next.min(end) } else { next }).await;
    }
}

impl Issuer {
    /// Its name and the cause, if the last fetch has failed.
    fn trouble(&self) -> Option<String> {
        let state = self.lock();
        let cause = state.trouble.as_ref()?;
        let keys = if self.keys.load().is_some() { "older keys are in use" } else { "no keys" };
        Some(format!("{}: {cause}; {keys}", self.config.issuer))
    }

    fn begin(&self) {
        let mut state = self.lock();
        state.begun += 1;
        state.is_wanted = false;
    }

    /// Uses what was fetched. Returns whether keys have ended. `is_late`: after a failure, the last
    /// keys end.
    fn end(&self, fetched: Result<Fetched, FetchError>, is_late: bool) -> bool {
        let outcome = fetched.as_ref().map_or_else(FetchError::outcome, |_| FetchOutcome::Fetched);
        self.fetches[outcome as usize].fetch_add(1, Ordering::Relaxed);
        let issuer = self.config.issuer.as_str();
        let (trouble, have_ended) = match fetched {
            Ok(Fetched { set, .. }) => {
                let set = Arc::new(set);
                let before = self.keys.swap(Some(Arc::clone(&set)));
                let are_new = before.as_ref().is_none_or(|before| !before.has_all(&set));
                let have_ended = before.is_some_and(|before| !set.has_all(&before));
                if are_new || have_ended {
                    let (keys, left_out) = (set.keys.len(), set.left_out);
                    info!(issuer, keys, left_out, "the keys of an issuer have changed");
                }
                (None, have_ended)
            }
            Err(error) => {
                let ended = is_late && self.keys.swap(None).is_some();
                if ended {
                    warn!(issuer, %error, "the keys of an issuer are too old (keys_kept)");
                }
                (Some(error.to_string()), ended)
            }
        };
        let mut state = self.lock();
        if trouble.is_none() {
            state.fetched_at = Some(Nanos::now());
        }
        state.tell_change(issuer, trouble.as_deref());
        state.trouble = trouble;
        state.ended = state.begun;
        self.ended.send_replace(state.ended);
        have_ended
    }

    /// Waits until this time, or until a token wants a fetch.
    async fn wait(&self, until: Instant) {
        loop {
            tokio::select! {
                () = sleep_until(until) => return,
                () = self.wanted.notified() => {
                    // A fetch that has begun meanwhile was the wanted one.
                    if self.lock().is_wanted {
                        return;
                    }
                }
            }
        }
    }
}

impl super::State {
    /// Logs the first failure of a row, and the end of the row.
    fn tell_change(&self, issuer: &str, trouble: Option<&str>) {
        match (&self.trouble, trouble) {
            (None, Some(why)) => warn!(issuer, why, "the keys of an issuer cannot be fetched"),
            (Some(_), None) => info!(issuer, "the keys of an issuer can be fetched again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}

/// The wait after so many failures in a row.
fn backoff(failures: u32) -> Duration {
    BACKOFF_MAX.min(BACKOFF_MIN * 2_u32.pow(failures.saturating_sub(1).min(10)))
}

/// A tenth shorter at most, so that nodes that start together do not ask together for ever.
fn spread(time: Duration) -> Duration {
    time.mul_f64(rand::random_range(0.9..=1.0))
}

const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_make_the_waits_longer() {
        let seconds = [1, 2, 3, 4, 5, 6, 7, 8, u32::MAX].map(|row| backoff(row).as_secs());
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        let spread = spread(Duration::from_secs(100)).as_secs_f64();
        assert!((90.0..=100.0).contains(&spread), "{spread}");
    }
}
