//! The commands that the gateway sends to a shard, and the reports that a shard sends back.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use weir_wire::CloseReason;

use crate::id::{ConnId, DeviceRef, Origin, PeerAddr, Priority, TopicId, Transport};
use crate::message::{Item, Message};
use crate::settings::ShardSettings;
use crate::survey::Survey;
use crate::tls::Session;

/// A request to a shard, in the order of its queue.
///
/// `S` is the socket of a connection on offer: an `OwnedFd`, or a socket of the simulated network.
#[derive(Debug)]
pub enum Command<S> {
    /// Take over a settled connection. The answer is [`Report::Adopted`] or [`Report::Refused`].
    Adopt(Box<Adoption<S>>),
    /// The same for a shard with descriptors of its own. The socket waits in the passage.
    /// [`Credit::offer_quietly`](crate::Credit::offer_quietly) alone makes this command.
    AdoptPassed(Box<Adoption<Passed>>),
    /// Greet an adopted connection with a frame (`Welcome`). From here on the shard reads from it,
    /// and broadcasts reach it. So nothing overtakes `Welcome`.
    Welcome(ConnId, Box<[u8]>),
    /// Queue an item for one connection. If the connection has gone, the shard drops the item and
    /// counts it.
    Send(ConnId, Item),
    /// Enter a connection into a topic and queue `reply` (`Subscribed`). If the connection is in
    /// the topic already, the shard queues only the reply. If it is resuming the topic, the shard
    /// queues an `Error` instead. Unless a membership was made, [`Report::NotEntered`] gives the
    /// count back.
    Subscribe {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// The frame that answers.
        reply: Box<[u8]>,
    },
    /// Take a connection out of a topic, or end its resume, and queue `reply` (`Unsubscribed`). If
    /// the connection was in the topic, [`Report::Left`] follows.
    Unsubscribe {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// The frame that answers.
        reply: Box<[u8]>,
    },
    /// Queue a replay chunk: messages of a topic that a connection has missed. The last chunk makes
    /// the connection a member.
    Resume(Box<ReplayChunk>),
    /// Deliver to all members of a topic. The credit returns when the fan-out has ended.
    Publish(TopicId, Arc<Message>),
    /// Deliver to every connection that was welcomed before the shard takes this command. The
    /// credit returns when the fan-out has ended.
    Broadcast(Arc<Message>),
    /// Close one connection, after the earlier commands of this queue for it.
    Evict(ConnId, CloseReason),
    /// Forget a topic that has no members. Its resumes end, and the shard does not tell the
    /// clients. The answer is [`Report::Retired`].
    Retire(TopicId),
    /// Close connections with `Goodbye`, spread over time. It replaces a drain that runs. The shard
    /// ignores it if it has had a drain, or the end of one, with the same number or a greater one.
    Drain(Drain),
    /// End the drain with this number, and those with smaller ones: the shard closes no further
    /// connection, and keeps what it adopts. The answer is [`Report::Drained`].
    EndDrain(u32),
    /// Look at connections, after the earlier commands of this queue.
    Inspect(Inspect),
}

/// An order to close connections, spread evenly over time. [`Report::Drained`] follows when it is
/// over.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// Tells drains apart. Each one has a greater number than those before.
    pub number: u32,
    /// The connections to close.
    pub what: DrainWhat,
    /// The duration of the drain.
    pub over: Duration,
    /// Smallest and largest delay. Each connection gets one of its own, after which it shall come
    /// back.
    pub retry_after_ms: (u32, u32),
    /// Seed of the draws.
    pub seed: u64,
}

/// The connections that a drain closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainWhat {
    /// All, and each that is adopted later. The drain is over when the last socket is closed.
    All,
    /// So many of those that have been welcomed before the drain, chosen at random. The drain is
    /// over when they have been told.
    Count(u64),
}

impl<S> Command<S> {
    /// The credit that the command needs.
    pub fn credit_kind(&self) -> CreditKind {
        match self {
            Command::Publish(..) | Command::Broadcast(_) | Command::Send(_, Item::Message(_)) => {
                CreditKind::Message
            }
            Command::Adopt(_)
            | Command::AdoptPassed(_)
            | Command::Welcome(..)
            | Command::Send(_, Item::Frame(_))
            | Command::Subscribe { .. }
            | Command::Unsubscribe { .. }
            | Command::Resume(_)
            | Command::Evict(..)
            | Command::Retire(_)
            | Command::Drain(_)
            | Command::EndDrain(_)
            | Command::Inspect(_) => CreditKind::Control,
        }
    }
}

weir_wire::named_enum! {
    /// The kind of command that a credit permits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CreditKind {
        /// A message: to a topic, to all connections, or to one.
        Message = "messages",
        /// Any other command: adoptions, subscriptions, answers, ends. Devices cause most of them.
        Control = "control",
    }
}

impl CreditKind {
    /// The number of kinds.
    pub const COUNT: usize = Self::ALL.len();
}

/// Some of the messages of a topic that a connection has missed.
///
/// The shard queues the messages under every policy for slow connections. When at most the low
/// watermark waits, it asks for the next chunk by [`Report::ResumeNext`]. A connection asks for one
/// topic at a time.
///
/// A resume ends with its last chunk, with [`Command::Unsubscribe`], or with the connection. The
/// shard drops chunks of a resume that has ended. [`Report::ResumeRefused`] tells that a resume
/// does not begin.
#[derive(Debug)]
pub struct ReplayChunk {
    /// The connection.
    pub conn: ConnId,
    /// The topic.
    pub topic: TopicId,
    /// Number of the resume, from the front. It tells resumes of the same connection and topic
    /// apart.
    pub resume: u32,
    /// Only in the first chunk.
    pub begin: Option<ReplayBegin>,
    /// In order of offsets. At most the low watermark's bytes, or one message.
    pub messages: Box<[Arc<Message>]>,
    /// Offset of the last message. The shard only gives it back.
    pub after: u64,
    /// Whether this chunk reaches the topic's head. Then it makes the connection a member, which
    /// the front has counted already. If that fails, [`Report::NotEntered`] gives the count back.
    pub is_last: bool,
}

/// The answer at the beginning of a resume.
#[derive(Debug)]
pub struct ReplayBegin {
    /// `Subscribed`, with the position from which the resume continues.
    pub reply: Box<[u8]>,
    /// The answer if the connection is in the topic already. Then the shard resumes nothing.
    pub reply_if_member: Box<[u8]>,
}

/// A settled connection on its way to a shard.
#[derive(Debug)]
pub struct Adoption<S> {
    /// The socket: non-blocking, with its options set.
    pub socket: S,
    /// The shard gives it back in the answer.
    pub ticket: u64,
    /// The device behind it.
    pub device: DeviceRef,
    /// Interval of the signs of life. Two missed ones end the connection.
    pub heartbeat: Duration,
    /// Its priority among the connections of the shard.
    pub priority: Priority,
    /// The shard gives it back with the connection's frames and with its end.
    pub origin: Origin,
    /// Whether `publishes_per_second` applies to the connection.
    pub publish_limited: bool,
    /// For a reader of events of several topics: the positions (epoch, offset) from which it
    /// resumes. Its events name the positions of all its topics.
    pub positions: Option<Vec<(u64, u64)>>,
    /// Bytes that the front has read behind `Hello`, as plaintext. They count as read once the
    /// connection is welcomed.
    pub read_ahead: Vec<u8>,
    /// The TLS state, if the connection speaks TLS.
    pub tls: Option<Box<TlsAdoption>>,
}

impl<S> Adoption<S> {
    /// Replaces the socket, and returns the former one.
    pub(crate) fn with<T>(self, socket: T) -> (S, Adoption<T>) {
        let Adoption { ticket, device, heartbeat, priority, origin, publish_limited, .. } = self;
        let Adoption { positions, read_ahead, tls, socket: former, .. } = self;
        let adoption = Adoption {
            socket,
            ticket,
            device,
            heartbeat,
            priority,
            origin,
            publish_limited,
            positions,
            read_ahead,
            tls,
        };
        (former, adoption)
    }
}

/// A socket in the passage to a shard that has descriptors of its own, by its number there.
///
/// Shape: 8 bytes; sockets are numbered from 1, in the order of their commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Passed(pub(crate) u64);

/// The TLS state of a connection on its way to a shard.
#[derive(Debug)]
pub struct TlsAdoption {
    /// Keys and sequence numbers.
    pub session: Session,
    /// Bytes that the front has read but not opened. They follow the plaintext in `read_ahead`.
    pub sealed_ahead: Vec<u8>,
}

/// A request that never waits behind messages.
pub enum Urgent {
    /// Close one connection. The shard ignores this if the connection has gone.
    Close(ConnId, CloseReason),
    /// Look at connections.
    Inspect(Inspect),
    /// Tell where memory is.
    Survey(Survey),
    /// Use the limits, rates and times of these settings from now on. See [`ShardSettings::with_limits`].
    Limit(Box<ShardSettings>),
    /// Read no socket, and let no deadline pass, until [`Urgent::GoOn`] or a hand-over that succeeds. Commands
    /// are carried out, and what waits leaves.
    Suspend,
    /// Serve again after [`Urgent::Suspend`]. What was lent stays lent: another attempt may follow.
    GoOn,
    /// Nobody takes over what was lent.
    TakeBack,
    /// Lend the sockets of all connections, a few in each turn.
    Lend(Lend),
    /// Hand everything over.
    HandOver(HandOver),
    /// End the thread. The shard closes the remaining connections without a reason.
    Stop,
}

/// A request to lend sockets, made by [`Mailbox::lend`](crate::Mailbox::lend).
pub struct Lend {
    pub(crate) link: Link,
    pub(crate) lender: Lender,
}

/// Takes some sockets to the process that takes over later, so that they need not move in the pause.
/// The shard calls it on its own thread, at most once in a turn; without sockets when all that were
/// there have been lent. It returns whether it wants more.
pub type Lender = Box<dyn FnMut(Result<Loan<'_>, NotHandedOver>) -> bool + Send>;

/// Some sockets that a shard lends.
#[derive(Debug, Clone, Copy)]
pub struct Loan<'a> {
    /// Their connections, with their priorities.
    pub conns: &'a [(ConnId, Priority)],
    /// The sockets, in the same order.
    pub sockets: &'a [BorrowedFd<'a>],
    /// The descriptor that was passed with the request.
    pub link: &'a OwnedFd,
}

/// A socket that another process has lent, before its shard hands over.
#[derive(Debug)]
pub struct Lent {
    /// Its connection.
    pub conn: ConnId,
    /// The connection's priority.
    pub priority: Priority,
    /// The socket.
    pub socket: OwnedFd,
}

/// A request to hand everything over, made by [`Mailbox::hand_over`](crate::Mailbox::hand_over).
pub struct HandOver {
    pub(crate) link: Link,
    pub(crate) is_due: Box<dyn FnOnce() -> bool + Send>,
    pub(crate) take: Taker,
}

/// The descriptor over which a shard hands over.
pub(crate) enum Link {
    /// In the table of the process.
    Here(OwnedFd),
    /// On its way into the shard's own table.
    Passed(Passed),
}

/// Takes everything that a shard knows. The shard calls it on its own thread, where the numbers of
/// its sockets, and that of the link, mean something. Until it returns, the shard does nothing.
pub type Taker = Box<dyn FnOnce(Result<(HandedOver<'_>, OwnedFd), NotHandedOver>) -> Keeper + Send>;

/// Why a shard does not hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotHandedOver {
    /// It is not suspended, or something is left to do: a command or a report waits, or a fan-out or a
    /// drain runs. Another try may come in a millisecond.
    NotAtRest,
    /// The shard's own table has no free descriptor for the link.
    NoDescriptor,
}

/// What a shard hands over.
///
/// Limits: for the shard of a process of the same machine, since times are those of its monotonic
/// clock. The bytes contain keys.
#[derive(Debug, Clone, Copy)]
pub struct HandedOver<'a> {
    /// `weir.handover.v1.Shard`, encoded.
    pub state: &'a [u8],
    /// The sockets that were not lent, in the order of the connections in `state`.
    pub sockets: &'a [BorrowedFd<'a>],
}

/// Who has the connections after a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// This shard: nobody took them. It serves them again.
    Itself,
    /// Another process. The shard closes its descriptors, which does not end the connections, and
    /// its thread ends.
    Other,
}

/// A connection that a shard has taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its id.
    pub id: ConnId,
    /// Its device.
    pub device: DeviceRef,
    /// From its adoption.
    pub origin: Origin,
    /// Whether it ends, and its end has been reported.
    pub is_closing: bool,
}

/// What a shard takes over before it serves: see [`HandedOver`].
#[derive(Debug)]
pub struct TakenOver {
    /// `weir.handover.v1.Shard`, encoded. It is wiped once it is read.
    pub state: Vec<u8>,
    /// The sockets, in the order of the connections in `state`.
    pub sockets: Vec<OwnedFd>,
}

/// A look at the connections of a shard.
pub struct Inspect {
    /// Which connections.
    pub what: InspectWhat,
    /// Receives the answer. It must not block. It runs on the shard's thread, or in
    /// [`Mailbox::deliver_answers`](crate::Mailbox::deliver_answers) if the shard has descriptors
    /// of its own.
    pub reply: Box<dyn FnOnce(InspectPage) + Send>,
}

impl fmt::Debug for Inspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspect").field("what", &self.what).finish_non_exhaustive()
    }
}

/// Which connections to look at.
#[derive(Debug, Clone, Copy)]
pub enum InspectWhat {
    /// One connection.
    One(ConnId),
    /// All connections from a cursor on, at most `limit`. The first cursor is 0.
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

/// The answer to [`Inspect`].
#[derive(Debug, Default)]
pub struct InspectPage {
    /// What was found.
    pub connections: Vec<ConnectionInfo>,
    /// Where the next page begins; `None` at the end.
    pub next_cursor: Option<u32>,
}

/// A description of one connection at this moment.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// Its id.
    pub id: ConnId,
    /// Its device.
    pub device: DeviceRef,
    /// The address of its peer, if the kernel still knows it.
    pub peer: Option<SocketAddr>,
    /// Time since the adoption, to a clock tick.
    pub age: Duration,
    /// Time since the last whole frame, to a clock tick.
    pub idle: Duration,
    /// Interval of the signs of life.
    pub heartbeat: Duration,
    /// What carries its frames.
    pub transport: Transport,
    /// Its priority.
    pub priority: Priority,
    /// From its [`Adoption`].
    pub origin: Origin,
    /// Bytes that wait in its outbox.
    pub queued_bytes: usize,
    /// The time for which the connection has been above the high watermark. If it is not above, but
    /// lags in a conflating topic: the time for which its socket has taken nothing.
    pub stalled: Option<Duration>,
    /// The topics that the connection is in.
    pub topics: Vec<TopicId>,
}

/// A message from a shard to the front. Reports come in the order of the events.
#[derive(Debug)]
pub enum Report {
    /// The connection is in the table, and commands can name it.
    Adopted {
        /// Its id.
        conn: ConnId,
        /// From the [`Adoption`].
        ticket: u64,
    },
    /// The shard could not take over the connection and has closed it.
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
    /// A requested membership was not made, for one of these reasons: the connection has gone; it
    /// is in the topic already, or resumes it; it is in `topics_per_connection_max` topics (and has
    /// been told so); or its resume had ended before.
    NotEntered {
        /// The connection.
        conn: ConnId,
        /// The topic whose count goes down.
        topic: TopicId,
    },
    /// A membership ended by [`Command::Unsubscribe`].
    Left {
        /// The connection.
        conn: ConnId,
        /// The topic whose count goes down.
        topic: TopicId,
    },
    /// A connection that resumes a topic has room for the next chunk.
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
    /// `topics_per_connection_max` topics (and has been told so). The shard sends no such report if
    /// the connection resumes the topic already, or has gone.
    ResumeRefused {
        /// The connection.
        conn: ConnId,
        /// The topic.
        topic: TopicId,
        /// From the [`ReplayChunk`].
        resume: u32,
    },
    /// A connection has ended. No other report about it follows.
    Closed {
        /// Its id.
        conn: ConnId,
        /// Its device.
        device: DeviceRef,
        /// From its [`Adoption`].
        origin: Origin,
        /// Why.
        reason: CloseReason,
        /// What carried its frames.
        transport: Transport,
        /// The address of its peer, if the kernel still knows it.
        peer: Option<PeerAddr>,
        /// Time since the adoption, in clock ticks of [`crate::TICK`].
        age_ticks: u32,
        /// Topics whose counts go down.
        topics: Box<[TopicId]>,
    },
    /// The topic is forgotten.
    Retired {
        /// The topic.
        topic: TopicId,
    },
    /// A drain is over, or was ended.
    Drained {
        /// From the [`Drain`], or the [`Command::EndDrain`].
        number: u32,
    },
}

/// The way back from a shard to the front.
pub trait Front: Send {
    /// Passes a report on, or gives it back if there is no room. Must not block.
    ///
    /// While there is no room, the shard does not read from connections whose frames would need it.
    /// It keeps the reports that must not be lost (ends of connections, counts) and offers them
    /// again.
    fn try_report(&mut self, report: Report) -> Result<(), Report>;

    /// Asks the front to look at the reports so far. The shard calls it between the steps of a
    /// turn, so that one wake serves many reports. A front that looks at each report at once can
    /// ignore this call.
    ///
    /// Returns whether the shard has to wake the front. The front of a shard with descriptors of
    /// its own must not wake a runtime from this thread: the runtime's descriptors have other
    /// meanings here.
    fn flush(&mut self) -> bool {
        false
    }
}

impl Front for Box<dyn Front> {
    fn try_report(&mut self, report: Report) -> Result<(), Report> {
        (**self).try_report(report)
    }

    fn flush(&mut self) -> bool {
        (**self).flush()
    }
}
