//! The messages between the bench and its own processes: JSON, one object per line, over standard
//! input and output.

mod holder;
mod http;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use weir_wire::format::Format;

use crate::payload::foreign::Protocol;
use crate::stats::{LagCounts, is_in_share};
use crate::tls::{ALPN, TlsPlan};

pub(crate) use holder::{HoldAnswer, HoldOrder, HoldPlan, HoldTally};
pub(crate) use http::{HttpEnd, HttpPlan, HttpStyle, HttpTally, Message, Posts};

/// An order to a worker, the process that holds the client sockets.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Open connections; answered with [`Answer::Progress`] and at last [`Answer::Opened`].
    Open(OpenPlan),
    /// Count from zero; answered with [`Answer::Done`].
    Begin,
    /// Wait for the published messages and report; answered with [`Answer::Collected`].
    Collect(Collect),
    /// Change how clients read; answered with [`Answer::Done`].
    Read(Reading),
    /// Send these bytes (in hexadecimal) on each connection; answered with [`Answer::Done`].
    Emit {
        /// A whole frame.
        frame: String,
    },
    /// Send `Ping` on each connection and wait for the answers; answered with [`Answer::Echoed`].
    Echo(EchoPlan),
    /// Subscribe each connection to its share of further topics; answered with [`Answer::Done`].
    Subscribe(SilentPlan),
    /// Publish from connections at a fixed rate; answered with [`Answer::Published`] after the last
    /// message.
    Publish(PublishPlan),
    /// Let guests come and go; answered with [`Answer::Churned`].
    Churn(ChurnPlan),
    /// Send HTTP requests in a closed loop; answered with [`Answer::Requested`].
    Request(Box<HttpPlan>),
    /// Reset connections and connect them again; answered with [`Answer::Done`] at once.
    ComeBack(ComeBack),
    /// Record the age of each key's value on each connection; answered with [`Answer::Done`].
    NoteAges,
    /// Lower the priority of this worker's thread below other workers; answered with
    /// [`Answer::Done`].
    StandBack,
    /// Close all connections; answered with [`Answer::Done`].
    Close,
}

/// The connections to open, and the messages to expect on them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenPlan {
    /// Where to.
    pub(crate) addr: SocketAddr,
    /// Number of the first connection, counted over all workers.
    pub(crate) first: u32,
    /// The number of connections.
    pub(crate) count: u32,
    /// Second byte of the source addresses 127.x.0.0/16.
    pub(crate) source: u8,
    /// Most connections that connect at the same time.
    pub(crate) window: u32,
    /// Longest time without any progress, in milliseconds.
    pub(crate) patience_ms: u64,
    /// Bytes of a payload.
    pub(crate) size: usize,
    /// The first message; `None`: a bare connection.
    pub(crate) hello: Option<HelloPlan>,
    /// The stream of each connection.
    pub(crate) streams: Streams,
    /// Prefix of a stream's topic, which its number follows. Empty: messages without a topic.
    pub(crate) topic_prefix: String,
    /// The slow connections.
    pub(crate) slow: Option<SlowPlan>,
    /// The check of received messages.
    pub(crate) check: Check,
    /// Format and transport of the messages.
    pub(crate) transport: Transport,
    /// The protocol over TCP, if `transport` is TCP.
    pub(crate) protocol: Protocol,
    /// The address for HTTP clients.
    pub(crate) edge: Option<SocketAddr>,
    /// The TLS plan; `None`: no TLS.
    pub(crate) tls: Option<TlsPlan>,
}

/// Format and transport of messages to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Transport {
    /// Frames over TCP.
    Tcp,
    /// WebSocket, protobuf.
    Ws,
    /// WebSocket, JSON.
    WsJson,
    /// Server-sent events.
    Sse,
    /// Each of these for a quarter of the clients.
    Mixed,
}

/// The check of received messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Check {
    /// Each connection receives the messages of its stream, in order.
    #[default]
    Streams,
    /// All connections receive the messages of this number of publishers, in the order of one
    /// topic.
    Room(u32),
    /// Each connection receives the messages of its topic, which several publishers send, by
    /// offset: none is missing, and each offset has the same message for all.
    Offsets,
    /// All connections receive messages of this number of keys, and only the newest of each key
    /// counts.
    Keys(u32),
}

/// The content of a client's `Hello`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct HelloPlan {
    /// Token, in which `*` stands for the device; empty: anonymous.
    pub(crate) token: String,
    /// Whether the client subscribes to the topic of its stream.
    pub(crate) subscribe: bool,
}

/// Clients that read slowly or not at all, spread evenly over all.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct SlowPlan {
    /// Their share of all, 0 to 1.
    pub(crate) share: f64,
    /// Their `SO_RCVBUF`, in bytes.
    pub(crate) recv_buffer: usize,
}

/// Connections are divided into streams, each with its own topic and numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Streams {
    /// This number of streams, to which connections are assigned in turn.
    Count(u32),
    /// This number of consecutive connections shares a stream.
    Block(u32),
}

/// Further topics, on which no message comes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SilentPlan {
    /// Topics of all connections together.
    pub(crate) topics: u32,
    /// Connections of all workers; each has every topic whose number leaves its own as remainder.
    pub(crate) connections: u32,
    /// What a topic's number stands behind.
    pub(crate) prefix: String,
}

/// An echo load.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct EchoPlan {
    /// Bytes of data in a message.
    pub(crate) size: usize,
    /// Whether the server returns the bytes unchanged, instead of a `Pong`.
    pub(crate) bare: bool,
    /// Messages a second on all connections of the worker; `None`: one in flight on each.
    pub(crate) rate: Option<f64>,
    /// Milliseconds at the start that do not count.
    pub(crate) warm_up_ms: u64,
    /// Milliseconds of the measured time.
    pub(crate) measure_ms: u64,
}

/// Guests: connections that come and go beside the open ones.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChurnPlan {
    /// Where to.
    pub(crate) addr: SocketAddr,
    /// Second byte of their source addresses 127.x.0.0/16; each guest has another address.
    pub(crate) source: u8,
    /// Their `Hello`.
    pub(crate) hello: HelloPlan,
    /// The topic to which they subscribe, if any.
    pub(crate) topic: String,
    /// Guests a second.
    pub(crate) rate: f64,
    /// Number of guests.
    pub(crate) count: u64,
    /// Time that each guest stays, in milliseconds.
    pub(crate) hold_ms: u64,
    /// Their special behaviour.
    pub(crate) ways: Ways,
}

/// Special behaviour of guests.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ways {
    /// The TLS plan; `None`: no TLS.
    pub(crate) tls: Option<TlsPlan>,
    /// Most guests without a welcome; `None`: no limit.
    pub(crate) window: Option<u32>,
    /// A refused guest comes again after about this time, in milliseconds; `None`: it does not.
    pub(crate) retry_ms: Option<u64>,
    /// Bytes to send and to receive in turn, instead of frames. Empty: frames.
    pub(crate) script: Vec<u64>,
}

/// Connections that drop and come back to resume, spread evenly over all.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ComeBack {
    /// The addresses to which they come back in turn; none: the address where they were.
    pub(crate) to: Vec<SocketAddr>,
    /// Their share of all, 0 to 1. Connections that have ended already only come back.
    pub(crate) share: f64,
    /// Time over which they come back one after the other, in milliseconds.
    pub(crate) spread_ms: u64,
    /// One that is refused comes again after this time, in milliseconds; `None`: it does not.
    pub(crate) again_ms: Option<u64>,
}

/// A load of messages that connections publish. Those that get server-sent events send nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PublishPlan {
    /// The topic; empty: that of the first stream.
    pub(crate) topic: String,
    /// Connections that publish: the first ones of all, up to this number.
    pub(crate) publishers: u32,
    /// Of these, a share (0 to 1) that does not publish: those that drop at times.
    pub(crate) except: f64,
    /// Messages a second from each of them.
    pub(crate) rate: f64,
    /// Messages from each of them.
    pub(crate) count: u32,
    /// Bytes of a payload.
    pub(crate) size: usize,
    /// Pings a second from all connections of a worker, which take turns.
    pub(crate) pings: f64,
}

/// The messages to wait for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Collect {
    /// Messages published so far, by stream, by publisher or by key; or the last offset of each
    /// stream's topic.
    pub(crate) published: Vec<u32>,
    /// Longest wait, in milliseconds.
    pub(crate) wait_ms: u64,
    /// Whether to wait for slow clients too.
    pub(crate) slow_too: bool,
}

/// The way in which clients read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reading {
    /// All at full speed.
    Full,
    /// Slow clients do not read.
    Stop,
    /// Slow clients read at a given pace.
    Paced {
        /// The pace of each client, in bytes a second.
        bytes_per_second: f64,
        /// They begin one after the other over this time, in milliseconds. Until then they read at
        /// full speed.
        stagger_ms: u64,
    },
}

/// An answer of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Progress of the connect phase.
    Progress {
        /// Number of open connections.
        connected: u32,
    },
    /// The connect phase has ended.
    Opened {
        /// Number of open connections.
        connected: u32,
        /// Time of the connect phase, in seconds.
        seconds: f64,
        /// TLS handshakes, by what was agreed.
        handshakes: BTreeMap<String, u64>,
        /// The error that ended the phase early.
        error: Option<String>,
    },
    /// The worker has carried out the order.
    Done,
    /// The counts since [`Order::Begin`].
    Collected(Box<Tally>),
    /// The echo has ended.
    Echoed(Box<EchoTally>),
    /// All messages are published.
    Published(PublishTally),
    /// All guests have gone.
    Churned(Box<ChurnTally>),
    /// The load of requests has ended.
    Requested(Box<HttpTally>),
    /// The order is invalid.
    Failed {
        /// The reason.
        error: String,
    },
}

/// The counts of a worker.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Messages received complete and unchanged.
    pub(crate) delivered: u64,
    /// Bytes received.
    pub(crate) bytes: u64,
    /// Numbers skipped on connections that are not slow.
    pub(crate) gaps: u64,
    /// Numbers skipped on slow connections.
    pub(crate) gaps_slow: u64,
    /// Numbers that came twice or too late.
    pub(crate) duplicates: u64,
    /// Messages with a wrong byte, or from another topic.
    pub(crate) wrong: u64,
    /// Messages without a time stamp from the kernel.
    pub(crate) unstamped: u64,
    /// Missing messages on connections that are not slow, including closed ones.
    pub(crate) missing: u64,
    /// Messages that are still missing on open slow connections.
    pub(crate) missing_slow: u64,
    /// Open connections that are not slow.
    pub(crate) open: u64,
    /// Open slow connections.
    pub(crate) open_slow: u64,
    /// Connections that are not slow and that the server has closed since they were opened.
    pub(crate) closed: u64,
    /// All connections that the server has closed since they were opened, by their last message.
    pub(crate) closed_by: BTreeMap<String, u64>,
    /// Bytes of the last message's frame.
    pub(crate) frame_bytes: u64,
    /// Frames that carried messages.
    pub(crate) frames: u64,
    /// Lags on connections that are not slow.
    pub(crate) lags: LagCounts,
    /// Lags on slow connections, and on connections that came back until they were live again.
    pub(crate) lags_slow: LagCounts,
    /// Connections that came back and were recovered: all missed messages follow.
    pub(crate) recovered: u64,
    /// Connections that came back and were not recovered.
    pub(crate) unrecovered: u64,
    /// Times that the server told a connection of messages that it has missed.
    pub(crate) told: u64,
    /// With [`Check::Offsets`]: the messages of each stream's topic that connections received.
    pub(crate) seen: Vec<(u32, Seen)>,
    /// Connections that are not live again yet.
    pub(crate) away: u64,
    /// Attempts to come back that the server refused and that are made again, by its last message.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Answers to pings.
    pub(crate) pongs: u64,
    /// Pings on open connections that have no answer.
    pub(crate) unanswered: u64,
    /// Times from a ping to its answer.
    pub(crate) lags_ping: LagCounts,
    /// Times from dropping to being live again.
    pub(crate) returns: LagCounts,
    /// Ages of the values that connections held, at each [`Order::NoteAges`].
    pub(crate) ages: LagCounts,
    /// Lags of the last message of each frame.
    pub(crate) lags_last: LagCounts,
    /// The first few errors.
    pub(crate) errors: Vec<String>,
}

/// A topic's messages at their offsets: equal sums of two readers mean the same messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The messages.
    pub(crate) count: u64,
    /// The last offset.
    pub(crate) last: u64,
    /// Sum of a hash of each, with its offset, its publisher and its number.
    pub(crate) sum: u64,
}

/// The results of a worker's publishing connections, since they were opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishTally {
    /// Number of the first of these connections.
    pub(crate) first: u32,
    /// Messages sent by each of them.
    pub(crate) sent: Vec<u32>,
    /// Messages for which a socket had no room; their numbers were used again.
    pub(crate) unsent: u64,
    /// Longest delay of a publish behind its schedule, in microseconds.
    pub(crate) late_max_us: u64,
}

/// The results of guests.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ChurnTally {
    /// Guests that were welcomed.
    pub(crate) welcomed: u64,
    /// Guests that got no welcome or were closed by the server, by kind of failure.
    pub(crate) failed: BTreeMap<String, u64>,
    /// Guests that were refused and came again, by kind of refusal.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Times from the first connect to the welcome.
    pub(crate) connects: LagCounts,
    /// Longest delay of a guest behind its schedule, in microseconds.
    pub(crate) late_max_us: u64,
    /// TLS handshakes, by what was agreed.
    pub(crate) handshakes: BTreeMap<String, u64>,
    /// Tickets that the server has given.
    pub(crate) tickets: u64,
    /// Bytes that the last guest sent and received in turn before its welcome.
    pub(crate) script: Vec<u64>,
    /// Time from the first guest to the welcome of the last one, in seconds.
    pub(crate) seconds: f64,
}

/// The results of an echo load.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct EchoTally {
    /// Messages answered in the measured time.
    pub(crate) answered: u64,
    /// Messages answered in all, including before and after the measured time.
    pub(crate) answered_in_all: u64,
    /// Messages that were due and got no answer.
    pub(crate) lost: u64,
    /// Answers with a wrong byte.
    pub(crate) wrong: u64,
    /// Connections that ended.
    pub(crate) closed: u64,
    /// Times from the moment at which a message was due to its answer, for messages due in the
    /// measured time.
    pub(crate) lags: LagCounts,
    /// The first few errors.
    pub(crate) errors: Vec<String>,
}

/// An order to the bare baseline.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BaselineOrder {
    /// Send these bytes (in hexadecimal) on each connection; answered with [`BaselineAnswer::Sent`].
    Send {
        /// A whole frame.
        frame: String,
    },
    /// Report the number of connections; answered with [`BaselineAnswer::Holds`].
    Count,
}

/// An answer of the bare baseline.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BaselineAnswer {
    /// The address; sent once, at the start.
    Listening(SocketAddr),
    /// The bytes were sent.
    Sent {
        /// Connections that took all bytes.
        whole: u64,
        /// Connections that did not.
        short: u64,
    },
    /// Number of open connections.
    Holds(u64),
}

impl Seen {
    /// Adds a message.
    pub(crate) fn add(&mut self, offset: u64, publisher: u32, seq: u32) {
        self.count += 1;
        self.last = self.last.max(offset);
        // A step of SplitMix64: a sum of hashes does not depend on the order of the additions.
        let mut mixed = offset.rotate_left(32) ^ (u64::from(publisher) << 32 | u64::from(seq));
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.sum = self.sum.wrapping_add(mixed ^ mixed >> 31);
    }

    /// Adds other messages of the same topic.
    pub(crate) fn join(&mut self, other: &Seen) {
        self.count += other.count;
        self.last = self.last.max(other.last);
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

impl Streams {
    /// Stream of a connection.
    pub(crate) fn of(self, connection: u32) -> u32 {
        match self {
            Streams::Count(count) => connection % count.max(1),
            Streams::Block(length) => connection / length.max(1),
        }
    }
}

impl OpenPlan {
    /// The format of a connection. In a mixture the formats change within a stream.
    pub(crate) fn form_of(&self, connection: u32) -> Format {
        match self.transport {
            Transport::Tcp => Format::Stream,
            Transport::Ws => Format::WsProtobuf,
            Transport::WsJson => Format::WsJson,
            Transport::Sse => Format::Sse,
            Transport::Mixed => {
                let number = match self.streams {
                    Streams::Count(count) => connection / count.max(1),
                    Streams::Block(_) => connection,
                };
                Format::ALL[number as usize % Format::COUNT]
            }
        }
    }
}

impl Transport {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Ws => "ws",
            Transport::WsJson => "ws-json",
            Transport::Sse => "sse",
            Transport::Mixed => "mixed",
        }
    }

    /// ALPN names of the protocol.
    pub(crate) fn alpn(self) -> Vec<String> {
        let names: &[&str] = match self {
            Transport::Tcp => &[ALPN],
            Transport::Ws | Transport::WsJson | Transport::Sse => &[HTTP1],
            Transport::Mixed => &[ALPN, HTTP1],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }
}

/// The ALPN name of HTTP/1.1.
const HTTP1: &str = "http/1.1";

impl SlowPlan {
    /// Whether a connection is slow.
    pub(crate) fn has(self, connection: u32) -> bool {
        is_in_share(connection, self.share)
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    digits.map(char::from).collect()
}

/// Hexadecimal digits as bytes.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(
            |pair| {
                if let [high, low] = pair { Some(digit(high)? << 4 | digit(low)?) } else { None }
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_hexadecimal() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        assert_eq!(from_hex("abc"), None);
        assert_eq!(from_hex("zz"), None);
    }

    #[test]
    fn streams_of_connections() {
        assert_eq!([0, 1, 2, 3].map(|index| Streams::Count(2).of(index)), [0, 1, 0, 1]);
        assert_eq!([0, 999, 1000].map(|index| Streams::Block(1000).of(index)), [0, 0, 1]);
    }
}
