//! What an upgrade tells as it goes, and at its end.

use std::fmt;
use std::time::Duration;

use weir_wire::handover::v1;

/// What the new process says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Name and version.
    pub program: String,
    /// The oldest and the newest version of the state's format that it reads.
    pub reads: (u32, u32),
    /// Its number.
    pub pid: u32,
    /// Threads that hold connections.
    pub shards: u32,
    /// Threads for datagrams.
    pub udp_threads: u32,
    /// Its soft limit on open files; `None`: no limit.
    pub open_files: Option<u64>,
    /// Whether that limit counts for each shard.
    pub own_descriptors: bool,
    /// Settled connections that it admits.
    pub connections_max: u64,
}

/// A step of an upgrade that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// The new process runs.
    Started {
        /// Its number.
        pid: u32,
    },
    /// It has accepted its configuration, and has opened its logs.
    Answered {
        /// What it says of itself.
        hello: Hello,
    },
    /// It has the listening sockets.
    Listeners {
        /// How many.
        sockets: u64,
    },
    /// Nothing is read, sealed or sent any more.
    Paused,
    /// It has the state.
    Sent {
        /// Bytes of all parts.
        bytes: u64,
        /// Sockets of connections, with those that were sent before the pause.
        descriptors: u64,
    },
    /// It has built a gateway of the state.
    Ready,
    /// It serves.
    Committed {
        /// How long nobody has served.
        pause: Duration,
    },
    /// The old process finishes what has stayed with it.
    Leaving {
        /// Connections that have stayed.
        connections: u64,
    },
}

/// What has moved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moved {
    /// Connections that the new process serves, by transport.
    pub connections: Vec<(&'static str, u64)>,
    /// What has stayed with the old process, by cause.
    pub stayed: Vec<(&'static str, u64)>,
    /// How long nobody has served.
    pub pause: Duration,
    /// Bytes of the state.
    pub bytes: u64,
    /// Sockets of connections that were sent, in the pause and before it.
    pub descriptors: u64,
}

/// What would move.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Connections that would move, by transport.
    pub connections: Vec<(&'static str, u64)>,
    /// What would stay with the old process, by cause.
    pub stays: Vec<(&'static str, u64)>,
    /// Why an upgrade would be refused.
    pub refused: Option<String>,
}

/// How the old process has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    /// Connections that have ended by themselves.
    pub finished: u64,
    /// Connections that were closed at the end of the time.
    pub closed: u64,
}

/// Why an upgrade has failed. The old process serves on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotMoved(
    /// A sentence.
    pub String,
);

impl Hello {
    pub(super) fn to_message(&self) -> v1::LinkHello {
        v1::LinkHello {
            program: self.program.clone(),
            reads_oldest: self.reads.0,
            reads_newest: self.reads.1,
            pid: self.pid,
            shards: self.shards,
            udp_threads: self.udp_threads,
            open_files: self.open_files.unwrap_or(0),
            own_descriptors: self.own_descriptors,
            connections_max: self.connections_max,
        }
    }

    pub(super) fn from_message(hello: v1::LinkHello) -> Hello {
        Hello {
            program: printable(&hello.program),
            reads: (hello.reads_oldest, hello.reads_newest),
            pid: hello.pid,
            shards: hello.shards,
            udp_threads: hello.udp_threads,
            open_files: Some(hello.open_files).filter(|limit| *limit > 0),
            own_descriptors: hello.own_descriptors,
            connections_max: hello.connections_max,
        }
    }
}

/// A text of the other process, without what would confuse a terminal or a log.
pub(crate) fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).take(SENTENCE_CHARS_MAX).collect()
}

impl Stage {
    /// Its name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Stage::Started { .. } => "started",
            Stage::Answered { .. } => "answered",
            Stage::Listeners { .. } => "listeners",
            Stage::Paused => "paused",
            Stage::Sent { .. } => "sent",
            Stage::Ready => "ready",
            Stage::Committed { .. } => "committed",
            Stage::Leaving { .. } => "leaving",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Started { pid } => write!(f, "process {pid} runs"),
            Stage::Answered { hello } => {
                let Hello { program, reads: (oldest, newest), .. } = hello;
                write!(f, "{program} accepts its configuration")?;
                write!(f, "; it reads versions {oldest} to {newest} of the state")
            }
            Stage::Listeners { sockets } => write!(f, "it has {sockets} listening sockets"),
            Stage::Paused => f.write_str("nothing is read or sent now"),
            Stage::Sent { bytes, descriptors } => {
                write!(f, "it has the state: {bytes} bytes and {descriptors} sockets")
            }
            Stage::Ready => f.write_str("it is ready to serve"),
            Stage::Committed { pause } => {
                write!(f, "it serves, after a pause of {:.1} ms", pause.as_secs_f64() * 1000.0)
            }
            Stage::Leaving { connections } => {
                write!(f, "the old process finishes {connections} connections, then leaves")
            }
        }
    }
}

impl NotMoved {
    /// Because of something that displays as a sentence.
    pub(crate) fn because(why: impl fmt::Display) -> NotMoved {
        NotMoved(why.to_string())
    }
}

/// A page: enough for all mistakes of a configuration.
const SENTENCE_CHARS_MAX: usize = 4_096;
