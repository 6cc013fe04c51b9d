//! The door of a process that another one takes over from: what comes from outside waits for the
//! decision, or is to come again.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::handover::HandingOver;

/// The door of the gateway.
///
/// ```text
/// Serves ──pause──► Paused ──shut──► Paused, and shut ──move_away──► Moved
///   └─────serve────────┴────────────────────┘
/// ```
#[derive(Debug)]
pub(crate) struct Door {
    phase: watch::Sender<Phase>,
    /// Whether the shards carry out nothing more.
    is_shut: RwLock<bool>,
}

/// Whom a request finds that comes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// This process.
    Serves,
    /// Nobody.
    Paused,
    /// Another process.
    Moved,
}

impl Default for Door {
    fn default() -> Door {
        Door { phase: watch::Sender::new(Phase::Serves), is_shut: RwLock::new(false) }
    }
}

impl Door {
    /// Begins a pause: no listener accepts any more, and requests wait.
    pub(crate) fn pause(&self) {
        self.phase.send_replace(Phase::Paused);
    }

    /// Lets nothing more to the shards through [`Door::pass`]. When this returns, everything that
    /// has passed is in their queues.
    pub(crate) fn shut(&self) {
        self.set_shut(true);
    }

    /// Ends the pause: this process serves on.
    pub(crate) fn serve(&self) {
        self.set_shut(false);
        self.phase.send_replace(Phase::Serves);
    }

    /// Ends the pause: another process serves.
    pub(crate) fn move_away(&self) {
        self.set_shut(true);
        self.phase.send_replace(Phase::Moved);
    }

    /// Whether this process serves, and no pause has begun.
    ///
    /// Cost: a lock that nobody holds for long.
    pub(crate) fn is_open(&self) -> bool {
        *self.phase.borrow() == Phase::Serves
    }

    /// Waits until a pause begins.
    pub(crate) async fn paused(&self) {
        self.wait(|phase| phase != Phase::Serves).await;
    }

    /// Waits until this process serves. For ever if another one does.
    pub(crate) async fn serves(&self) {
        self.wait(|phase| phase == Phase::Serves).await;
    }

    /// Waits while a pause goes on, for [`PATIENCE`] at most.
    ///
    /// Errors: another process serves, or may do so soon.
    pub(crate) async fn open(&self) -> Result<(), HandingOver> {
        timeout(PATIENCE, self.decided()).await.unwrap_or(Err(HandingOver))
    }

    /// The same for a request that is passed on to the process that has taken over.
    pub(crate) async fn open_or_moved(&self) -> Result<(), HandingOver> {
        let opened = self.open().await;
        if self.has_moved() { Ok(()) } else { opened }
    }

    /// Waits while a pause goes on.
    ///
    /// Errors: another process serves.
    pub(crate) async fn decided(&self) -> Result<(), HandingOver> {
        match self.wait(|phase| phase != Phase::Paused).await {
            Phase::Serves => Ok(()),
            Phase::Paused | Phase::Moved => Err(HandingOver),
        }
    }

    /// Whether another process serves.
    pub(crate) fn has_moved(&self) -> bool {
        *self.phase.borrow() == Phase::Moved
    }

    /// Gives shards something that they have to carry out. `give` must not wait.
    ///
    /// Errors: they carry out nothing more, unless this process serves on.
    pub(crate) fn pass<T>(&self, give: impl FnOnce() -> T) -> Result<T, HandingOver> {
        let is_shut = self.is_shut.read().unwrap_or_else(PoisonError::into_inner);
        if *is_shut { Err(HandingOver) } else { Ok(give()) }
    }

    fn set_shut(&self, is_shut: bool) {
        *self.is_shut.write().unwrap_or_else(PoisonError::into_inner) = is_shut;
    }

    async fn wait(&self, is_it: impl Fn(Phase) -> bool) -> Phase {
        let mut phases = self.phase.subscribe();
        // The sender is here.
        phases.wait_for(|phase| is_it(*phase)).await.map_or(Phase::Moved, |phase| *phase)
    }
}

/// A pause is much shorter, unless the new process fails.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_comes_in_the_pause_waits_for_the_decision() {
        let door = Door::default();
        assert_eq!((door.open().await, door.is_open()), (Ok(()), true));
        door.pause();
        assert!(!door.is_open());
        assert_eq!(door.pass(|| 1), Ok(1), "the shards still carry it out");
        door.shut();
        assert_eq!(door.pass(|| 1), Err(HandingOver));
        let (opened, ()) = tokio::join!(door.open(), async { door.serve() });
        assert_eq!((opened, door.pass(|| 1)), (Ok(()), Ok(1)));
        door.pause();
        door.shut();
        let (opened, ()) = tokio::join!(door.open(), async { door.move_away() });
        assert_eq!((opened, door.has_moved()), (Err(HandingOver), true));
        assert_eq!(door.pass(|| 1), Err(HandingOver));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let door = Door::default();
        door.pause();
        assert_eq!(door.open().await, Err(HandingOver));
    }
}
