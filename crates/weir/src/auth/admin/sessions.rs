//! Sessions: browsers that have shown a token once and then send a cookie.

use std::future::pending;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use subtle::ConstantTimeEq as _;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Caller, now};
use crate::base::clock::millis;
use crate::base::token_hash::{Digest, digest_of};

/// The open sessions.
///
/// Shape: a short list. Of a session's id only the SHA-256 is kept.
/// Limits: at most [`SESSIONS_MAX`]. One more ends the longest unused one of the token that has the
/// most. A session ends [`IDLE_MAX`] after its last use, and [`AGE_MAX`] after its beginning. An open
/// stream is a use.
#[derive(Default)]
pub(super) struct Sessions {
    open: Mutex<Vec<Arc<Session>>>,
}

/// One session.
pub(crate) struct Session {
    /// Of its id.
    digest: Digest,
    caller: Arc<Caller>,
    began: Duration,
    /// The time of its last use, in milliseconds.
    used_ms: AtomicU64,
    streams: AtomicUsize,
    ended: watch::Sender<bool>,
}

/// An open session, as it moves to another process. Its streams stay behind.
pub(super) struct Opened<'a> {
    pub(super) digest: Digest,
    pub(super) caller: &'a Arc<Caller>,
    pub(super) began: Duration,
    pub(super) used_ms: u64,
}

/// The permission for a stream: it ends with the token or the session that has opened it.
pub(crate) struct Lease {
    ended: watch::Receiver<bool>,
    session: Option<Arc<Session>>,
}

impl Sessions {
    /// Opens a session; `None`: the caller's token has just been removed.
    pub(super) fn open(
        &self,
        id: &str,
        caller: &Arc<Caller>,
        now: Duration,
    ) -> Option<Arc<Session>> {
        let mut open = self.lock();
        if caller.is_removed() {
            return None;
        }
        open.retain(|session| !session.is_over(now));
        if open.len() >= SESSIONS_MAX {
            let of = |session: &Arc<Session>| {
                open.iter().filter(|other| Arc::ptr_eq(&other.caller, &session.caller)).count()
            };
            let key = |session: &Arc<Session>| {
                (std::cmp::Reverse(of(session)), session.is_streaming(), session.used())
            };
            let oldest = open.iter().enumerate().min_by_key(|(_, session)| key(session));
            if let Some(at) = oldest.map(|(at, _)| at) {
                open.swap_remove(at).ended.send_replace(true);
            }
        }
        let session = Arc::new(Session {
            digest: digest_of(id),
            caller: Arc::clone(caller),
            began: now,
            used_ms: AtomicU64::new(millis(now)),
            streams: AtomicUsize::new(0),
            ended: watch::Sender::new(false),
        });
        open.push(Arc::clone(&session));
        Some(session)
    }

    /// The session with this id, which counts as used now.
    pub(super) fn find(&self, id: &str, now: Duration) -> Option<Arc<Session>> {
        let digest = digest_of(id);
        let mut open = self.lock();
        open.retain(|session| !session.is_over(now));
        let found = open.iter().find(|session| bool::from(session.digest.ct_eq(&digest)))?;
        found.use_now(now);
        Some(Arc::clone(found))
    }

    /// Calls `each` for the open sessions.
    pub(super) fn export<T>(&self, each: impl Fn(Opened<'_>) -> T) -> Vec<T> {
        let open = self.lock();
        let opened = |session: &Arc<Session>| {
            // An open stream is a use.
            let used = if session.is_streaming() { now() } else { session.used() };
            each(Opened {
                digest: session.digest,
                caller: &session.caller,
                began: session.began,
                used_ms: millis(used),
            })
        };
        open.iter().map(opened).collect()
    }

    /// Goes on with a session of another process; `false`: there are too many.
    pub(super) fn import(&self, opened: Opened<'_>) -> bool {
        let Opened { digest, caller, began, used_ms } = opened;
        let mut open = self.lock();
        if open.len() == SESSIONS_MAX {
            return false;
        }
        open.push(Arc::new(Session {
            digest,
            caller: Arc::clone(caller),
            began,
            used_ms: AtomicU64::new(used_ms),
            streams: AtomicUsize::new(0),
            ended: watch::Sender::new(false),
        }));
        true
    }

    pub(super) fn end(&self, session: &Session) {
        self.lock().retain(|other| !std::ptr::eq(&**other, session));
        session.ended.send_replace(true);
    }

    /// Ends the sessions of removed tokens, and returns their number.
    pub(super) fn end_of_removed(&self) -> usize {
        let mut open = self.lock();
        let before = open.len();
        open.retain(|session| {
            let is_removed = session.caller.is_removed();
            if is_removed {
                session.ended.send_replace(true);
            }
            !is_removed
        });
        before - open.len()
    }

    /// The number of open sessions; forgets those that are over.
    pub(super) fn count(&self, now: Duration) -> usize {
        let mut open = self.lock();
        open.retain(|session| !session.is_over(now));
        open.len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.open.lock().expect("no panic happens under the lock of the sessions")
    }
}

impl Session {
    /// The owner of the token that opened it.
    pub(crate) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// The time until it ends, if it is not used any more.
    pub(crate) fn left(&self) -> Duration {
        self.end().saturating_sub(now())
    }

    /// Permits a stream until the session ends.
    pub(crate) fn lease(self: &Arc<Self>) -> Lease {
        self.streams.fetch_add(1, Ordering::Relaxed);
        Lease { ended: self.ended.subscribe(), session: Some(Arc::clone(self)) }
    }

    /// The end, unless it is used again.
    fn end(&self) -> Duration {
        let idle = if self.is_streaming() { AGE_MAX } else { IDLE_MAX };
        (self.used() + idle).min(self.began + AGE_MAX)
    }

    fn is_over(&self, now: Duration) -> bool {
        self.caller.is_removed() || now >= self.end()
    }

    fn is_streaming(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    fn used(&self) -> Duration {
        Duration::from_millis(self.used_ms.load(Ordering::Relaxed))
    }

    fn use_now(&self, now: Duration) {
        self.used_ms.fetch_max(millis(now), Ordering::Relaxed);
    }
}

impl Lease {
    pub(super) fn of_token(ended: watch::Receiver<bool>) -> Lease {
        Lease { ended, session: None }
    }

    /// Is done when the permission ends.
    pub(crate) async fn end(mut self) {
        let oldest = self.session.as_ref().map(|session| session.began + AGE_MAX);
        let grown_old = async {
            match oldest {
                Some(end) => sleep(end.saturating_sub(now())).await,
                None => pending().await,
            }
        };
        // An error means that its end is not told any more.
        let ended = async { drop(self.ended.wait_for(|ended| *ended).await) };
        tokio::select! {
            () = ended => {}
            () = grown_old => {}
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.use_now(now());
            session.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// More than one for each operator and each of the browsers that he leaves open.
pub(super) const SESSIONS_MAX: usize = 64;
/// Long enough for a pause, and short enough for a machine that was left unlocked.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(3_600);
/// A working day.
pub(super) const AGE_MAX: Duration = Duration::from_secs(12 * 3_600);
