//! The new process, as the old one holds it: a child that no one else waits for.

use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use weir_engine::Nanos;

/// A started process. It is killed when dropped, unless it was released.
#[derive(Debug)]
pub(crate) struct NewProcess {
    child: Child,
    is_released: bool,
}

impl NewProcess {
    pub(super) fn new(child: Child) -> NewProcess {
        NewProcess { child, is_released: false }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The number of the child. As nobody has waited for it, no other process has this number.
    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Stops all its threads, and waits until they stand. If that takes too long, it is not waited
    /// for.
    pub(super) fn stop(&mut self) {
        let Some(pid) = self.pid() else { return };
        // Without an effect if it has ended.
        let _ = kill_process(pid, Signal::STOP);
        let until = Nanos::now().after(STOP_PATIENCE);
        let options = WaitIdOptions::STOPPED
            | WaitIdOptions::EXITED
            | WaitIdOptions::NOWAIT
            | WaitIdOptions::NOHANG;
        while matches!(waitid(WaitId::Pid(pid), options), Ok(None)) && Nanos::now() < until {
            pause();
        }
    }

    /// Lets it run again.
    pub(super) fn go_on(&mut self) {
        if let Some(pid) = self.pid() {
            // Without an effect if it has ended.
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    /// Kills it, and waits for its exit.
    pub(super) fn kill(&mut self) {
        // Both fail only if it was waited for before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its exit by itself, at most until then.
    pub(super) fn wait(&mut self, until: Nanos) -> Option<ExitStatus> {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Nanos::now() < until => pause(),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Lets it live on when this value is dropped.
    pub(super) fn release(&mut self) {
        self.is_released = true;
    }
}

impl Drop for NewProcess {
    fn drop(&mut self) {
        if !self.is_released {
            self.kill();
        }
    }
}

/// Nothing announces that a child stands, without a handler of signals.
fn pause() {
    let moment = Timespec { tv_sec: 0, tv_nsec: 500_000 };
    // A signal ends it early, which does no harm.
    let _ = poll(&mut [], Some(&moment));
}

/// A process stands at once, unless a thread waits for a disk.
const STOP_PATIENCE: Duration = Duration::from_millis(500);
