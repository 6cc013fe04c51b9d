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
    /// Take a connection out of a topic, or call off that it resumes it, and queue `reply` (`Unsubscribed`).
    /// [`Report::Left`] follows if it was in it.
    Unsubscribe {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// The frame that answers.
        reply: Box<[u8]>,
    },
    /// Queue a part of what a connection has missed of a topic, and enter it with the last part.
    Resume(Box<ReplayChunk>),
    /// Deliver to all members of a topic. The credit returns when the fan-out has ended.
    Publish(TopicId, Arc<Message>),
    /// Deliver to every connection welcomed before this is dequeued. The credit returns when the fan-out has ended.
    Broadcast(Arc<Message>),
    /// Close one connection, behind what is queued for it in this queue.
    Evict(ConnId, CloseReason),
    /// Forget a topic that has no member left; resumes of it are over without a word. Answered with [`Report::Retired`].
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

/// What a credit permits to push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreditKind {
    /// A message: to a topic, to all connections, or to one.
    Message,
    /// Any other command: adoptions, subscriptions, answers, ends. Devices cause most of them.
    Control,
}

impl CreditKind {
    /// How many kinds there are.
    pub const COUNT: usize = 2;

    /// Every kind.
    pub const ALL: [CreditKind; CreditKind::COUNT] = [CreditKind::Message, CreditKind::Control];

    /// The word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            CreditKind::Message => "messages",
            CreditKind::Control => "control",
        }
    }
}

/// A part of what a connection has missed of a topic.
///
/// The shard queues the messages, whatever the topic's policy for slow connections, and asks for the next part with
/// [`Report::ResumeNext`] once no more than the low watermark waits, of one topic of a connection at a time. A resume
/// ends with its last part, with [`Command::Unsubscribe`], or with the connection; parts of a resume that has ended are
/// let go of. [`Report::ResumeRefused`] tells of one that does not begin.
#[derive(Debug)]
pub struct ReplayChunk {
    /// The connection.
    pub conn: ConnId,
    /// The topic.
    pub topic: TopicId,
    /// Number of the resume, from the front: tells it from another one of the same connection and topic.
    pub resume: u32,
    /// What the first part begins with.
    pub begin: Option<ReplayBegin>,
    /// In order, at most the low watermark's bytes (or one message).
    pub messages: Box<[Arc<Message>]>,
    /// Offset of the last of them: the shard only gives it back.
    pub after: u64,
    /// Whether this reaches the topic's head: it enters the connection, which the front has counted.
    /// [`Report::NotEntered`] gives the count back if it does not come to that.
    pub is_last: bool,
}

/// The answer that a resume begins with.
#[derive(Debug)]
pub struct ReplayBegin {
    /// `Subscribed`, which names the position that the resume goes on from.
    pub reply: Box<[u8]>,
    /// The answer if the connection is in the topic already: nothing is resumed then.
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
    /// When it is its turn among the connections.
    pub priority: Priority,
    /// Given back with what it sends and with its end.
    pub origin: Origin,
    /// Whether `publishes_per_second` holds for it.
    pub publish_limited: bool,
    /// For a reader of events with more than one topic, whose events name the positions of all of them: those that it
    /// resumes from, each by epoch and offset.
    pub positions: Option<Vec<(u64, u64)>>,
    /// Bytes already read behind `Hello`; they count as read once the connection is welcomed. With TLS: plaintext.
    pub read_ahead: Vec<u8>,
    /// The records, if it speaks TLS.
    pub tls: Option<Box<TlsAdoption>>,
}

/// What a connection with TLS brings besides.
#[derive(Debug)]
pub struct TlsAdoption {
    /// Keys and sequence numbers.
    pub session: Session,
    /// Bytes already read that are not opened yet: they come behind the plaintext that was read ahead.
    pub sealed_ahead: Vec<u8>,
}

/// A request that never waits behind messages.
pub enum Urgent {
    /// Close one connection. Ignored if it has gone.
    Close(ConnId, CloseReason),
    /// Look at connections.
    Inspect(Inspect),
    /// End the thread; connections that are left are closed without a word.
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
    /// Where it comes from, if the kernel still knows.
    pub peer: Option<SocketAddr>,
    /// How long ago it was adopted, to a tick.
    pub age: Duration,
    /// How long ago the last whole frame came, to a tick.
    pub idle: Duration,
    /// Interval of the signs of life.
    pub heartbeat: Duration,
    /// What it speaks below the frames.
    pub transport: Transport,
    /// When it is its turn.
    pub priority: Priority,
    /// From its [`Adoption`].
    pub origin: Origin,
    /// Bytes that wait for the socket.
    pub queued_bytes: usize,
    /// How long it has been above the high watermark, if it is; else, while it lags behind a conflating topic, how long
    /// its socket has taken nothing.
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
        /// Who sent it.
        conn: ConnId,
        /// Its device.
        device: DeviceRef,
        /// From its [`Adoption`].
        origin: Origin,
        /// The frame's body.
        body: Box<[u8]>,
    },
    /// A membership asked for was not made: the connection had gone, was in the topic already, resumes it, is in
    /// `topics_per_connection_max` (it has been told so), or the resume that ends with it had ended before.
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
    /// A resume has not begun, of whose beginning more parts were to come: the connection is in the topic already or in
    /// `topics_per_connection_max` (it has been told so). Not said of one that it resumes already, nor of one that has
    /// gone.
    ResumeRefused {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// From the [`ReplayChunk`].
        resume: u32,
    },
    /// A connection has ended; nothing more will be said of it.
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
    /// While there is no room the shard stops reading from connections whose frames would need it; what must not be
    /// lost (ends of connections, counts) it keeps and offers again.
    fn try_report(&mut self, report: Report) -> Result<(), Report>;

    /// What has been reported so far should be looked at: called between the parts of a turn, so that the front is
    /// woken once for many reports. A front that looks at each at once need not care.
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
