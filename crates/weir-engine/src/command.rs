//! The commands that the gateway sends to a shard, and the reports that a shard sends back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_wire::CloseReason;

use crate::id::{ConnId, DeviceRef, Origin, Priority, TopicId, Transport};
use crate::message::{Item, Message};
use crate::tls::Session;

/// A request to a shard, in the order of its queue.
///
/// `S` is what a connection is offered as: an `OwnedFd`, or a socket of the simulated network.
#[derive(Debug)]
pub enum Command<S> {
    /// Take over a settled connection. Answered with [`Report::Adopted`], or [`Report::Refused`].
    Adopt(Box<Adoption<S>>),
    /// Greet an adopted connection with a frame (`Welcome`). It is read from, and broadcasts reach it, from here on: so
    /// nothing overtakes its `Welcome`.
    Welcome(ConnId, Box<[u8]>),
    /// Queue something for one connection. Dropped and counted if the connection has gone.
    Send(ConnId, Item),
    /// Enter a connection into a topic and queue `reply` (`Subscribed`). If the connection is in it already, only the
    /// reply is queued; if it is resuming it, an `Error` is. Unless a membership was made, [`Report::NotEntered`] gives the count back.
    Subscribe {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// The frame that answers.
        reply: Box<[u8]>,
    },
    /// Take a connection out of a topic, or end its resume, and queue `reply` (`Unsubscribed`). [`Report::Left`] follows
    /// if the connection was in the topic.
    Unsubscribe {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// The frame that answers.
        reply: Box<[u8]>,
    },
    /// Queue a chunk of what a connection has missed of a topic. The last chunk makes it a member.
    Resume(Box<ReplayChunk>),
    /// Deliver to all members of a topic. The credit returns when the fan-out has ended.
    Publish(TopicId, Arc<Message>),
    /// Deliver to every connection welcomed before this is dequeued. The credit returns when the fan-out has ended.
    Broadcast(Arc<Message>),
    /// Close one connection, behind what is queued for it in this queue.
    Evict(ConnId, CloseReason),
    /// Forget a topic that has no members. Its resumes end, and clients are not told. Answered with [`Report::Retired`].
    Retire(TopicId),
    /// Close all connections with `Goodbye`, spread evenly over `over`, each told to come back after a delay drawn
    /// from `retry_after_ms`. Answered with [`Report::Drained`] when the last socket is closed.
    Drain {
        /// How long to take.
        over: Duration,
        /// Smallest and largest delay.
        retry_after_ms: (u32, u32),
        /// Seed of the draw.
        seed: u64,
    },
}

impl<S> Command<S> {
    /// Which credit it needs.
    pub fn credit_kind(&self) -> CreditKind {
        match self {
            Command::Publish(..) | Command::Broadcast(_) | Command::Send(_, Item::Message(_)) => {
                CreditKind::Message
            }
            Command::Adopt(_)
            | Command::Welcome(..)
            | Command::Send(_, Item::Frame(_))
            | Command::Subscribe { .. }
            | Command::Unsubscribe { .. }
            | Command::Resume(_)
            | Command::Evict(..)
            | Command::Retire(_)
            | Command::Drain { .. } => CreditKind::Control,
        }
    }
}

weir_wire::named_enum! {
    /// What a credit permits to push.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CreditKind {
        /// A message: to a topic, to all connections, or to one.
        Message = "messages",
        /// Any other command: adoptions, subscriptions, answers, ends. Devices cause most of them.
        Control = "control",
    }
}

impl CreditKind {
    /// How many kinds there are.
    pub const COUNT: usize = Self::ALL.len();
}

/// Some of the messages that a connection has missed of a topic.
///
/// The shard queues the messages whatever the topic's policy for slow connections is. When no more than the low
/// watermark waits it asks for the next chunk by [`Report::ResumeNext`], for one topic of a connection at a time. A
/// resume ends with its last chunk, with [`Command::Unsubscribe`], or with the connection. Chunks of a resume that has
/// ended are dropped. [`Report::ResumeRefused`] tells of a resume that does not begin.
#[derive(Debug)]
pub struct ReplayChunk {
    /// The connection.
    pub conn: ConnId,
    /// The topic.
    pub topic: TopicId,
    /// Number of the resume, from the front: tells it from another one of the same connection and topic.
    pub resume: u32,
    /// The first chunk begins with this.
    pub begin: Option<ReplayBegin>,
    /// In order, at most the low watermark's bytes (or one message).
    pub messages: Box<[Arc<Message>]>,
    /// Offset of the last of them: the shard only gives it back.
    pub after: u64,
    /// Whether this chunk reaches the topic's head. It then makes the connection a member, which the front has counted.
    /// [`Report::NotEntered`] gives the count back if that fails.
    pub is_last: bool,
}

/// The answer that a resume begins with.
#[derive(Debug)]
pub struct ReplayBegin {
    /// `Subscribed`, which names the position that the resume goes on from.
    pub reply: Box<[u8]>,
    /// The answer if the connection is in the topic already. Then nothing is resumed.
    pub reply_if_member: Box<[u8]>,
}

/// A settled connection on its way to a shard.
#[derive(Debug)]
pub struct Adoption<S> {
    /// The socket: non-blocking, options set.
    pub socket: S,
    /// Given back in the answer.
    pub ticket: u64,
    /// The device behind it.
    pub device: DeviceRef,
    /// Interval of the signs of life; two missed ones end the connection.
    pub heartbeat: Duration,
    /// Its priority among the connections of the shard.
    pub priority: Priority,
    /// Given back with what it sends and with its end.
    pub origin: Origin,
    /// Whether `publishes_per_second` holds for it.
    pub publish_limited: bool,
    /// For a reader of events of several topics: the positions from which it resumes, as epoch and offset. Its events
    /// name the positions of all its topics.
    pub positions: Option<Vec<(u64, u64)>>,
    /// Bytes already read behind `Hello`; they count as read once the connection is welcomed. With TLS: plaintext.
    pub read_ahead: Vec<u8>,
    /// The records, if it speaks TLS.
    pub tls: Option<Box<TlsAdoption>>,
}

/// The TLS state that a connection brings.
#[derive(Debug)]
pub struct TlsAdoption {
    /// Keys and sequence numbers.
    pub session: Session,
    /// Bytes already read and not opened yet. They follow the plaintext that was read ahead.
    pub sealed_ahead: Vec<u8>,
}

/// A request that never waits behind messages.
pub enum Urgent {
    /// Close one connection. Ignored if it has gone.
    Close(ConnId, CloseReason),
    /// Look at connections.
    Inspect(Inspect),
    /// End the thread. Connections that are left are closed, and not told why.
    Stop,
}

/// A look at the connections of a shard.
pub struct Inspect {
    /// Which connections.
    pub what: InspectWhat,
    /// Receives the answer, on the shard's thread: it must not block.
    pub reply: Box<dyn FnOnce(InspectPage) + Send>,
}

/// Which connections to look at.
#[derive(Debug, Clone, Copy)]
pub enum InspectWhat {
    /// One.
    One(ConnId),
    /// All, from a cursor on, at most `limit`. The first cursor is 0.
    All {
        /// Where to begin.
        cursor: u32,
        /// How many at most.
        limit: usize,
    },
    /// The members of a topic, from a cursor on, at most `limit`.
    Topic {
        /// The topic.
        topic: TopicId,
        /// Where to begin.
        cursor: u32,
        /// How many at most.
        limit: usize,
    },
}

/// Answer to [`Inspect`].
#[derive(Debug, Default)]
pub struct InspectPage {
    /// What was found.
    pub connections: Vec<ConnectionInfo>,
    /// Where to go on; `None` at the end.
    pub next_cursor: Option<u32>,
}

/// One connection, as it stands.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// Its id.
    pub id: ConnId,
    /// Its device.
    pub device: DeviceRef,
    /// The address of its peer, if the kernel still knows it.
    pub peer: Option<SocketAddr>,
    /// How long ago it was adopted, to a tick.
    pub age: Duration,
    /// How long ago the last whole frame came, to a tick.
    pub idle: Duration,
    /// Interval of the signs of life.
    pub heartbeat: Duration,
    /// What carries its frames.
    pub transport: Transport,
    /// Its priority.
    pub priority: Priority,
    /// From its [`Adoption`].
    pub origin: Origin,
    /// Bytes that wait for the socket.
    pub queued_bytes: usize,
    /// How long it has been above the high watermark, if it is. Otherwise, while it lags behind a conflating topic: how
    /// long its socket has taken nothing.
    pub stalled: Option<Duration>,
    /// Topics it is in.
    pub topics: Vec<TopicId>,
}

/// What a shard tells the front, in the order in which it happened.
#[derive(Debug)]
pub enum Report {
    /// The connection is in the table and can be named.
    Adopted {
        /// Its id.
        conn: ConnId,
        /// From the [`Adoption`].
        ticket: u64,
    },
    /// The connection could not be taken over and is closed.
    Refused {
        /// From the [`Adoption`].
        ticket: u64,
        /// Why.
        reason: CloseReason,
    },
    /// A whole frame that the shard does not answer itself.
    Received {
        /// The connection that sent it.
        conn: ConnId,
        /// Its device.
        device: DeviceRef,
        /// From its [`Adoption`].
        origin: Origin,
        /// The frame's body.
        body: Box<[u8]>,
    },
    /// A requested membership was not made. The connection has gone, or is in the topic already, or resumes it; or it is in
    /// `topics_per_connection_max` topics (and has been told so); or its resume had ended before.
    NotEntered {
        /// The topic whose count goes down.
        topic: TopicId,
    },
    /// A membership ended by [`Command::Unsubscribe`].
    Left {
        /// The topic whose count goes down.
        topic: TopicId,
    },
    /// A connection that resumes a topic has room for the next part.
    ResumeNext {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// From the [`ReplayChunk`].
        resume: u32,
        /// From the [`ReplayChunk`].
        after: u64,
    },
    /// A resume of several chunks has not begun: the connection is in the topic already, or in
    /// `topics_per_connection_max` topics (and has been told so). There is no such report if it resumes the topic
    /// already, or has gone.
    ResumeRefused {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// From the [`ReplayChunk`].
        resume: u32,
    },
    /// A connection has ended. No other report of it follows.
    Closed {
        /// Its id.
        conn: ConnId,
        /// Its device.
        device: DeviceRef,
        /// From its [`Adoption`].
        origin: Origin,
        /// Why.
        reason: CloseReason,
        /// Topics whose counts go down.
        topics: Vec<TopicId>,
    },
    /// The topic is forgotten.
    Retired {
        /// The topic.
        topic: TopicId,
    },
    /// All connections have been closed.
    Drained,
}

/// The way back from a shard to the front.
pub trait Front: Send {
    /// Passes a report on, or gives it back when there is no room. Must not block.
    ///
    /// While there is no room, the shard does not read from connections whose frames would need it. It keeps what must
    /// not be lost (ends of connections, counts) and offers that again.
    fn try_report(&mut self, report: Report) -> Result<(), Report>;

    /// Asks the front to look at the reports so far. The shard calls it between the stations of a turn, so that one wake
    /// serves many reports. A front that looks at each report at once can ignore it.
    fn flush(&mut self) {}
}

impl Front for Box<dyn Front> {
    fn try_report(&mut self, report: Report) -> Result<(), Report> {
        (**self).try_report(report)
    }

    fn flush(&mut self) {
        (**self).flush();
    }
}
