//! A process that the bench has to end: one that it has started, or one that has taken the place of
//! that one.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};

use anyhow::{Context, Result};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};

use crate::process::pid_of;

/// The process that runs now. Who drops it neither ends it nor waits for it.
pub(super) struct Running {
    pid: u32,
    ended: Option<ExitStatus>,
}

impl Running {
    /// A process that was started.
    pub(super) fn started(child: &Child) -> Running {
        Running { pid: child.id(), ended: None }
    }

    /// A process whose parent has ended. The kernel gives it to this program, if that has called
    /// [`adopt_orphans`] before.
    pub(super) fn adopted(pid: u32) -> Running {
        Running { pid, ended: None }
    }

    /// The process id.
    pub(super) fn id(&self) -> u32 {
        self.pid
    }

    /// How it has ended, if it has.
    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.wait_with(WaitOptions::NOHANG)
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.wait_with(WaitOptions::empty())
    }

    /// Ends it by force.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        match self.ended {
            // Its number may belong to another process by now.
            Some(_) => Ok(()),
            None => Ok(kill_process(self.number()?, Signal::KILL)?),
        }
    }

    fn wait_with(&mut self, options: WaitOptions) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            let ended = waitpid(Some(self.number()?), options)?;
            self.ended = ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw()));
        }
        Ok(self.ended)
    }

    fn number(&self) -> io::Result<Pid> {
        pid_of(self.pid).map_err(io::Error::other)
    }
}

/// Has the kernel give orphaned descendants to this program, which then can wait for them.
pub(super) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot adopt orphaned processes")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_orphan_is_ended_and_waited_for() {
        adopt_orphans().unwrap();
        let parent = Command::new("sh")
            .args(["-c", "sleep 600 >/dev/null 2>&1 & echo $!"])
            .output()
            .unwrap();
        let pid = String::from_utf8(parent.stdout).unwrap().trim().parse().unwrap();
        let mut orphan = Running::adopted(pid);
        assert_eq!(orphan.try_wait().unwrap(), None);
        orphan.kill().unwrap();
        let status = orphan.wait().unwrap().unwrap();
        assert_eq!(status.signal(), Some(9));
        assert_eq!(orphan.try_wait().unwrap(), Some(status));
        orphan.kill().unwrap();
    }
}
