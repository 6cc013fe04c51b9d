//! The new process's side of an upgrade: it finds its end of the pair, says Hello, and takes over.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_peercred, socket_type};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::stdio::dup2_stdin;
use weir_engine::Nanos;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;

use super::decision::own;
use super::link::{Link, LinkError, open_files_limit, reserve_descriptors};
use super::report::{Hello, NotMoved, printable};
use super::terms::{LINK_PART, PROGRAM, UPGRADE_VARIABLE, formats_read};

/// The process whose place this one takes, from the start of this one to the decision.
#[derive(Debug)]
pub struct Predecessor {
    link: Link,
    pid: u32,
}

impl Predecessor {
    /// The process that has started this one for an upgrade; `None` if it was started otherwise.
    /// Call it once, before anything else reads standard input or opens files.
    ///
    /// Errors: the variable is set, but there is no pair, or its other end is not the parent's.
    pub fn from_environment() -> io::Result<Option<Predecessor>> {
        let Some(value) = std::env::var_os(UPGRADE_VARIABLE) else { return Ok(None) };
        if value != "0" {
            let text = format!("{UPGRADE_VARIABLE} is {value:?}; allowed is 0, standard input");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let socket = Self::take_stdin()?;
        if !matches!(socket_type(&socket), Ok(SocketType::SEQPACKET)) {
            let text =
                format!("{UPGRADE_VARIABLE} is set, but standard input is no pair of sockets");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // The old process stops this one for a look. If it dies meanwhile, this one runs again.
        set_parent_process_death_signal(Some(Signal::CONT))?;
        // The pair knows the process that has made it.
        let maker = socket_peercred(&socket)?.pid;
        if getppid() != Some(maker) {
            let text = "the process that has started this upgrade has gone";
            return Err(io::Error::new(io::ErrorKind::NotConnected, text));
        }
        let pid = u32::try_from(maker.as_raw_nonzero().get()).unwrap_or_default();
        Ok(Some(Predecessor { link: Link::new(socket), pid }))
    }

    /// The number of the old process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Standard input, which is empty from now on. No child inherits it.
    fn take_stdin() -> io::Result<OwnedFd> {
        let socket = fcntl_dupfd_cloexec(io::stdin(), 3)?;
        dup2_stdin(File::open("/dev/null")?)?;
        Ok(socket)
    }

    /// Says that this process has accepted its configuration and opened its logs.
    ///
    /// Errors: the old process has gone.
    pub fn hello(&self, hello: &Hello) -> Result<(), NotMoved> {
        let message = Message::Hello(hello.to_message());
        self.link.send(message, soon()).map_err(NotMoved::because)
    }

    /// Tells the old process why this one ends.
    pub fn fail(self, why: &str) {
        let failed = v1::LinkFailed { sentence: printable(why) };
        // The old process sees the end in any case.
        let _ = self.link.send_quietly(Message::Failed(failed), soon());
    }

    /// The pair, after the decision.
    pub(crate) fn into_link(self) -> Link {
        self.link
    }

    /// The pair.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// The other end of [`super::Successor::link_of`], with its name.
    pub(crate) fn link_of(&self, until: Nanos) -> Result<(String, Link), LinkError> {
        let sockets = self.link.receive_sockets(LINK_PART, until)?;
        let [(name, socket)] = <[_; 1]>::try_from(sockets)
            .map_err(|_| LinkError::NotUnderstood("several links where one is due"))?;
        Ok((name, Link::new(socket)))
    }

    /// Waits for what the old process will hand over.
    ///
    /// Errors: a format that this program does not read. The old process is to be told with
    /// [`Predecessor::fail`].
    pub(crate) fn plan(&self, until: Nanos) -> Result<v1::LinkPlan, LinkError> {
        let Message::Plan(plan) = self.link.receive(until)? else {
            return Err(LinkError::NotUnderstood("another message where the plan is due"));
        };
        if !formats_read().contains(&plan.format) {
            return Err(LinkError::NotUnderstood("a version of the state"));
        }
        // Before the pause. A thread with a table of its own does it itself.
        reserve_descriptors(&self.link, plan.connections);
        Ok(plan)
    }

    /// Says that everything is in its place, and waits for the decision. `Ok`: this process owns
    /// everything from now on. Until then nothing in it reads, seals or sends.
    ///
    /// Errors: it owns nothing, and must end without touching a socket.
    pub(crate) fn own(&self) -> Result<(), NotMoved> {
        if own(&self.link) {
            return Ok(());
        }
        Err(NotMoved("the old process has ended the upgrade".to_owned()))
    }
}

impl Hello {
    /// What this process is; its threads and limits are to be filled in.
    pub fn of_this_process() -> Hello {
        Hello {
            program: PROGRAM.to_owned(),
            reads: (*formats_read().start(), *formats_read().end()),
            pid: std::process::id(),
            shards: 0,
            udp_threads: 0,
            open_files: Some(open_files_limit()).filter(|limit| *limit < u64::MAX),
            own_descriptors: false,
            connections_max: 0,
        }
    }
}

fn soon() -> Nanos {
    Nanos::now().after(PATIENCE)
}

/// The old process reads at once.
const PATIENCE: Duration = Duration::from_secs(5);
