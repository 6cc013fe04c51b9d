//! The old process's side of an upgrade: it starts the new process, and keeps its end of the pair.

use std::ops::RangeInclusive;
use std::os::fd::AsFd as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use weir_engine::Nanos;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;

use super::decision::decide;
use super::link::{Link, LinkError};
use super::process::NewProcess;
use super::report::{Hello, NotMoved, printable};
use super::terms::{LINK_PART, PROGRAM, UPGRADE_VARIABLE, formats_written};

/// The process that takes the place of this one, from its start to the decision.
///
/// Limits: it is killed when this value is dropped before the decision.
#[derive(Debug)]
pub struct Successor {
    // Dropped first, so that it ends before it sees that the pair has ended.
    process: NewProcess,
    link: Link,
    hello: Hello,
    pause_max: Duration,
}

impl Successor {
    /// Starts the new process, with its end of the pair as standard input, and waits until it has
    /// accepted its configuration.
    ///
    /// `pause_max` is how long the new process may take for what it gets in the pause, besides some
    /// time for each connection, and how long it may be silent when it is asked to take over.
    /// `started` is called with its number when it runs. `is_wanted` is called now and then: once it
    /// says no, the new process is ended.
    ///
    /// Errors: the program cannot be started, or does not answer in time, or refuses, or is not
    /// wanted any more; it is ended then.
    /// Cost: blocks the thread, for a minute at most.
    pub fn start(
        command: Command,
        pause_max: Duration,
        started: impl FnOnce(u32),
        is_wanted: impl Fn() -> bool,
    ) -> Result<Successor, NotMoved> {
        Self::start_within(HELLO_PATIENCE, command, pause_max, (started, is_wanted))
    }

    pub(super) fn start_within(
        patience: Duration,
        mut command: Command,
        pause_max: Duration,
        (started, is_wanted): (impl FnOnce(u32), impl Fn() -> bool),
    ) -> Result<Successor, NotMoved> {
        let program = command.get_program().to_string_lossy().into_owned();
        let cannot = |error| NotMoved(format!("cannot start {program}: {error}"));
        let (link, other) = Link::pair().map_err(cannot)?;
        command.stdin(Stdio::from(other.into_socket())).env(UPGRADE_VARIABLE, "0");
        let child = command.spawn().map_err(cannot)?;
        // With the command goes the only copy of the other end in this process.
        drop(command);
        let mut process = NewProcess::new(child);
        started(process.id());
        let until = Nanos::now().after(patience);
        let hello = loop {
            let now = Nanos::now();
            let heard = link.receive(until.min(now.after(LOOK_INTERVAL)));
            let is_over = now >= until || !is_wanted();
            if is_over || !matches!(heard, Err(LinkError::Silent)) {
                break heard;
            }
        };
        let hello = match hello {
            Ok(Message::Hello(hello)) => Hello::from_message(hello),
            Ok(_) => return Err(NotMoved(format!("{program} does not begin with Hello"))),
            Err(LinkError::Silent) => {
                return Err(NotMoved(format!(
                    "{program} has not accepted its configuration within {} s",
                    patience.as_secs()
                )));
            }
            Err(error) => return Err(refused(&program, error, &mut process)),
        };
        Ok(Successor { process, link, hello, pause_max })
    }

    /// What the new process says of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Ends the new process. The old one goes on. What the new process has said of its own failure is
    /// the reason, if it has said something.
    pub fn abandon(mut self, why: NotMoved) -> NotMoved {
        let why = self.own_reason(&why).unwrap_or(why);
        let failed = v1::LinkFailed { sentence: why.0.clone() };
        // It is told so that its log says why; then it ends in any case.
        if self.link.send_quietly(Message::Failed(failed), soon()).is_ok() {
            let _ = self.process.wait(soon());
        }
        self.process.kill();
        why
    }

    /// Why the new process has failed, as it says itself.
    fn own_reason(&self, why: &NotMoved) -> Option<NotMoved> {
        // The pair of a thread ends a moment before the process gives its reason, in this pair.
        let has_ended = *why == NotMoved::because(LinkError::Ended);
        let until = if has_ended { Nanos::now().after(REASON_PATIENCE) } else { Nanos::default() };
        loop {
            match self.link.receive(until) {
                Ok(_) => {}
                Err(LinkError::Failed(sentence)) => return Some(NotMoved(printable(&sentence))),
                Err(_) => return None,
            }
        }
    }

    /// How long the new process may keep all connections waiting.
    pub(crate) fn pause_max(&self) -> Duration {
        self.pause_max
    }

    /// The pair.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Makes a pair for one thread, and gives the new process its end. The thread gets ours.
    pub(crate) fn link_of(&self, name: &str, until: Nanos) -> Result<Link, LinkError> {
        let (ours, theirs) = Link::pair()?;
        self.link.send_sockets(LINK_PART, &[(name.to_owned(), theirs.as_fd())], until)?;
        Ok(ours)
    }

    /// Tells the new process what comes, in the newest format that both know. The format is
    /// returned.
    ///
    /// Errors: no format that both know.
    pub(crate) fn plan(&self, connections: u64, until: Nanos) -> Result<u32, NotMoved> {
        let written = formats_written();
        let format = common(&written, self.hello.reads).ok_or_else(|| {
            let (oldest, newest) = self.hello.reads;
            NotMoved(format!(
                "{} reads versions {oldest} to {newest} of the state, and this process writes {} \
                 to {}",
                self.hello.program,
                written.start(),
                written.end(),
            ))
        })?;
        let program = PROGRAM.to_owned();
        let pid = std::process::id();
        let plan = v1::LinkPlan { format, program, pid, connections };
        self.link.send(Message::Plan(plan), until).map_err(NotMoved::because)?;
        Ok(format)
    }

    /// Waits until the new process has built everything of the state.
    pub(crate) fn wait_until_ready(&self, until: Nanos) -> Result<(), LinkError> {
        let Message::Ready(_) = self.link.receive(until)? else {
            return Err(LinkError::NotUnderstood("another message where Ready is due"));
        };
        Ok(())
    }

    /// Gives everything away, and decides. Call it when the new process is ready, and nothing in
    /// this one reads, seals or sends. `Ok`: this process owns nothing any more, and the new one is
    /// not killed when this value is dropped.
    ///
    /// Errors: this process owns everything, and the new one has ended.
    /// Cost: blocks for the round trip, and up to `pause_max` if the new process is silent.
    pub(crate) fn commit(&mut self) -> Result<(), NotMoved> {
        if decide(&self.link, &mut self.process, self.pause_max) {
            self.process.release();
            return Ok(());
        }
        let ended = ended(self.process.wait(soon()));
        Err(NotMoved(format!("the new process was ready, but did not take over{ended}")))
    }

    /// The pair, after the decision.
    pub(crate) fn into_link(self) -> Link {
        self.link
    }

    #[cfg(test)]
    pub(super) fn process_of_test(&mut self) -> &mut NewProcess {
        &mut self.process
    }
}

/// Why the new process has not said Hello.
fn refused(program: &str, error: LinkError, process: &mut NewProcess) -> NotMoved {
    match error {
        LinkError::Failed(sentence) => {
            // It exits by itself, with all lines of its log.
            let _ = process.wait(soon());
            NotMoved(format!("{program} refuses: {}", printable(&sentence)))
        }
        LinkError::Ended => {
            let ended = ended(process.wait(soon()));
            NotMoved(format!(
                "{program} does not take over{ended}; standard error of the gateway may say why"
            ))
        }
        other @ (LinkError::Silent
        | LinkError::NotUnderstood(_)
        | LinkError::NoRoom { .. }
        | LinkError::TooManyOnTheirWay { .. }
        | LinkError::Io(_)) => NotMoved(format!("{program}: {other}")),
    }
}

fn ended(status: Option<ExitStatus>) -> String {
    status.map(|status| format!(": it has ended with {status}")).unwrap_or_default()
}

/// The newest version that one writes and the other reads.
fn common(written: &RangeInclusive<u32>, (oldest, newest): (u32, u32)) -> Option<u32> {
    let version = newest.min(*written.end());
    (version >= oldest && written.contains(&version)).then_some(version)
}

fn soon() -> Nanos {
    Nanos::now().after(END_PATIENCE)
}

/// The new process reads files, but asks nobody.
const HELLO_PATIENCE: Duration = Duration::from_secs(60);
/// A gateway that stops does not wait longer for this.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A process that was told to end writes its last lines.
const END_PATIENCE: Duration = Duration::from_millis(500);
/// A process that has ended one pair is about to end the others.
const REASON_PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_format_that_both_know_is_written() {
        let check = |written, reads, expected| assert_eq!(common(&written, reads), expected);
        check(1..=1, (1, 1), Some(1));
        check(1..=3, (2, 5), Some(3));
        check(1..=3, (1, 2), Some(2));
        check(2..=3, (1, 1), None);
        check(1..=3, (4, 5), None);
        // Nonsense of the other side.
        check(1..=3, (3, 2), None);
        check(1..=3, (0, 0), None);
    }
}
