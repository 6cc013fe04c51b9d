//! The messages between the bench and its own processes: JSON, one object per line, over standard
//! input and output.

mod http;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use weir_wire::format::Format;

use crate::stats::{LagCounts, is_in_share};
use crate::tls::{ALPN, TlsPlan};

pub(crate) use http::{HttpEnd, HttpPlan, HttpStyle, HttpTally, Message, Posts};

/// An order to a worker, the process that holds the client sockets.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Open connections; answered with [`Answer::Progress`] and at last [`Answer::Opened`].
    Open(OpenPlan),
    /// Count from zero; answered with [`Answer::Done`].
    Begin,
    /// Wait for what was published and report; answered with [`Answer::Collected`].
    Collect(Collect),
    /// Change who reads how; answered with [`Answer::Done`].
    Read(Reading),
    /// Send these bytes (in hexadecimal) on each connection; answered with [`Answer::Done`].
    Emit {
        /// A whole frame.
        frame: String,
    },
    /// Send `Ping` on each connection and wait for the answers; answered with [`Answer::Echoed`].
    Echo(EchoPlan),
    /// Publish from connections, by the clock; answered with [`Answer::Published`] when all is.
    Publish(PublishPlan),
    /// Have guests come and go; answered with [`Answer::Churned`].
    Churn(ChurnPlan),
    /// Ask over HTTP as fast as it is answered; answered with [`Answer::Requested`].
    Request(Box<HttpPlan>),
    /// Reset connections and have them come back; answered with [`Answer::Done`] at once.
    ComeBack(ComeBack),
    /// Note how old the values are that connections hold of each key; answered with [`Answer::Done`].
    NoteAges,
    /// Leave the CPU to the other workers where they want it; answered with [`Answer::Done`].
    StandBack,
    /// Close all connections; answered with [`Answer::Done`].
    Close,
}

/// Which connections to open and what to expect on them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenPlan {
    /// Where to.
    pub(crate) addr: SocketAddr,
    /// Number of the first connection, among those of all workers.
    pub(crate) first: u32,
    /// How many.
    pub(crate) count: u32,
    /// Second byte of the source addresses 127.x.0.0/16.
    pub(crate) source: u8,
    /// Most connections on their way at a time.
    pub(crate) window: u32,
    /// Longest time without any progress, in milliseconds.
    pub(crate) patience_ms: u64,
    /// Bytes of a payload.
    pub(crate) size: usize,
    /// What to say first; `None`: a bare connection.
    pub(crate) hello: Option<HelloPlan>,
    /// Which stream each connection belongs to.
    pub(crate) streams: Streams,
    /// Topic of a stream is this, followed by its number; empty: messages without topic.
    pub(crate) topic_prefix: String,
    /// Those that will be slow.
    pub(crate) slow: Option<SlowPlan>,
    /// How what arrives is checked.
    pub(crate) check: Check,
    /// How messages come to them.
    pub(crate) transport: Transport,
    /// Where those connect to whom messages come over HTTP.
    pub(crate) edge: Option<SocketAddr>,
    /// How they speak TLS; `None`: they do not.
    pub(crate) tls: Option<TlsPlan>,
}

/// How messages come to clients.
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
    /// A quarter of the clients by each of these.
    Mixed,
}

/// How what arrives is checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Check {
    /// Each connection gets the messages of its stream, in order.
    #[default]
    Streams,
    /// All connections get the messages of so many publishers, in the order of one topic.
    Room(u32),
    /// All connections get messages of so many keys, of which the newest count.
    Keys(u32),
}

/// What a client says of itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct HelloPlan {
    /// Token; empty: anonymous.
    pub(crate) token: String,
    /// Whether it subscribes to the topic of its stream.
    pub(crate) subscribe: bool,
}

/// Clients that will read slowly or not at all: spread evenly over all.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct SlowPlan {
    /// Their share of all, 0 to 1.
    pub(crate) share: f64,
    /// `SO_RCVBUF` of theirs, in bytes.
    pub(crate) recv_buffer: usize,
}

/// Connections are divided into streams, each with its own topic and numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Streams {
    /// So many, dealt out in turn.
    Count(u32),
    /// So many connections in a row share one.
    Block(u32),
}

/// How to echo.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct EchoPlan {
    /// Bytes of data in a message.
    pub(crate) size: usize,
    /// Whether the other side returns the bytes as they are, instead of a `Pong`.
    pub(crate) bare: bool,
    /// Messages a second on all connections of the worker; `None`: one on its way on each.
    pub(crate) rate: Option<f64>,
    /// Milliseconds that do not count, at the start.
    pub(crate) warm_up_ms: u64,
    /// Milliseconds that count.
    pub(crate) measure_ms: u64,
}

/// Connections that come and go, beside those that were opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChurnPlan {
    /// Where to.
    pub(crate) addr: SocketAddr,
    /// Second byte of their source addresses 127.x.0.0/16, another one for each.
    pub(crate) source: u8,
    /// What they say first.
    pub(crate) hello: HelloPlan,
    /// The topic that they subscribe to, if they do.
    pub(crate) topic: String,
    /// How many come in a second.
    pub(crate) rate: f64,
    /// How many come.
    pub(crate) count: u64,
    /// How long each stays, in milliseconds.
    pub(crate) hold_ms: u64,
    /// What else there is to them.
    pub(crate) ways: Ways,
}

/// Ways in which guests may differ from plain ones.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ways {
    /// How they speak TLS.
    pub(crate) tls: Option<TlsPlan>,
    /// Most guests that are not welcomed yet; `None`: as many as come.
    pub(crate) window: Option<u32>,
    /// A guest that is refused comes again after about this time, in milliseconds; `None`: it does not.
    pub(crate) retry_ms: Option<u64>,
    /// Not frames but so many bytes are exchanged: sent and received in turn; empty: frames.
    pub(crate) script: Vec<u64>,
}

/// Connections that drop and come back to resume, spread evenly over all.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ComeBack {
    /// Their share of all, 0 to 1; those that have ended already only come back.
    pub(crate) share: f64,
    /// They come back one after the other over this time, in milliseconds.
    pub(crate) spread_ms: u64,
}

/// What connections publish, each into the topic of its stream.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct PublishPlan {
    /// Connections that publish: the first so many of all.
    pub(crate) publishers: u32,
    /// Messages a second of each.
    pub(crate) rate: f64,
    /// Messages of each.
    pub(crate) count: u32,
    /// Bytes of a payload.
    pub(crate) size: usize,
}

/// What to wait for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Collect {
    /// Messages published so far, by stream, by publisher or by key.
    pub(crate) published: Vec<u32>,
    /// Longest wait, in milliseconds.
    pub(crate) wait_ms: u64,
    /// Whether slow clients are waited for, too.
    pub(crate) slow_too: bool,
}

/// Who reads how.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reading {
    /// All at full speed.
    Full,
    /// The slow ones not at all.
    Stop,
    /// The slow ones at a given pace.
    Paced {
        /// Of each, in bytes a second.
        bytes_per_second: f64,
        /// They begin spread over this time, in milliseconds; until then they read at full speed.
        stagger_ms: u64,
    },
}

/// An answer of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// So many connections are open.
    Progress {
        /// Their number.
        connected: u32,
    },
    /// The connect phase is over.
    Opened {
        /// Connections that are open.
        connected: u32,
        /// How long it took, in seconds.
        seconds: f64,
        /// TLS handshakes, by what was agreed.
        handshakes: BTreeMap<String, u64>,
        /// Why it was cut short.
        error: Option<String>,
    },
    /// The order was carried out.
    Done,
    /// What was counted since [`Order::Begin`].
    Collected(Box<Tally>),
    /// The echo is over.
    Echoed(Box<EchoTally>),
    /// All was published.
    Published(PublishTally),
    /// All guests have gone.
    Churned(Box<ChurnTally>),
    /// Enough requests were answered.
    Requested(Box<HttpTally>),
    /// The order makes no sense.
    Failed {
        /// Why.
        error: String,
    },
}

/// What a worker counted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Messages received whole and genuine.
    pub(crate) delivered: u64,
    /// Bytes received.
    pub(crate) bytes: u64,
    /// Numbers skipped on connections that are not slow.
    pub(crate) gaps: u64,
    /// Numbers skipped on slow connections.
    pub(crate) gaps_slow: u64,
    /// Numbers that came again or too late.
    pub(crate) duplicates: u64,
    /// Messages with a wrong byte, or of another topic.
    pub(crate) wrong: u64,
    /// Messages whose arrival the kernel did not stamp.
    pub(crate) unstamped: u64,
    /// Messages that did not come at all to connections that are not slow, closed ones included.
    pub(crate) missing: u64,
    /// Messages that did not come (yet) to slow connections that are open.
    pub(crate) missing_slow: u64,
    /// Open connections that are not slow.
    pub(crate) open: u64,
    /// Open slow connections.
    pub(crate) open_slow: u64,
    /// Connections that are not slow, and were closed from the other side since they were opened.
    pub(crate) closed: u64,
    /// All connections closed from the other side since they were opened, by what was heard last.
    pub(crate) closed_by: BTreeMap<String, u64>,
    /// Bytes of the last message's frame.
    pub(crate) frame_bytes: u64,
    /// Frames that carried messages.
    pub(crate) frames: u64,
    /// Lags on connections that are not slow.
    pub(crate) lags: LagCounts,
    /// Lags on slow connections, and on those that came back until they were live again.
    pub(crate) lags_slow: LagCounts,
    /// Connections that came back and were told that all they missed follows.
    pub(crate) recovered: u64,
    /// Connections that came back and were told that it does not.
    pub(crate) unrecovered: u64,
    /// Connections that are not live again yet.
    pub(crate) away: u64,
    /// From dropping to being live again.
    pub(crate) returns: LagCounts,
    /// Ages of the values that connections held, at each [`Order::NoteAges`].
    pub(crate) ages: LagCounts,
    /// Lags of the last message of each frame.
    pub(crate) lags_last: LagCounts,
    /// The first few things that went wrong.
    pub(crate) errors: Vec<String>,
}

/// What connections of a worker have published.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishTally {
    /// Number of the first of them.
    pub(crate) first: u32,
    /// Messages of each that were sent.
    pub(crate) sent: Vec<u32>,
    /// Messages that a socket did not take; their numbers were used again.
    pub(crate) unsent: u64,
    /// Longest time by which a message was published too late, in microseconds.
    pub(crate) late_max_us: u64,
}

/// What guests saw.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ChurnTally {
    /// Guests that were welcomed.
    pub(crate) welcomed: u64,
    /// Those that were not, or were closed from the other side, by how.
    pub(crate) failed: BTreeMap<String, u64>,
    /// Those that were refused and came again, by how they were.
    pub(crate) refused: BTreeMap<String, u64>,
    /// From connecting, for the first time, to being welcomed.
    pub(crate) connects: LagCounts,
    /// Longest time by which one came too late, in microseconds.
    pub(crate) late_max_us: u64,
    /// TLS handshakes, by what was agreed.
    pub(crate) handshakes: BTreeMap<String, u64>,
    /// Sessions to resume that the server has given.
    pub(crate) tickets: u64,
    /// Bytes that the last guest sent and received in turn, up to its welcome.
    pub(crate) script: Vec<u64>,
    /// From the first guest to the last one's welcome, in seconds.
    pub(crate) seconds: f64,
}

/// What an echo showed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct EchoTally {
    /// Messages answered in the time that counts.
    pub(crate) answered: u64,
    /// Messages answered, before and after it included.
    pub(crate) answered_in_all: u64,
    /// Messages that were due and not answered.
    pub(crate) lost: u64,
    /// Answers with a wrong byte.
    pub(crate) wrong: u64,
    /// Connections that ended.
    pub(crate) closed: u64,
    /// From the moment at which a message was due to its answer, of those due in the time that counts.
    pub(crate) lags: LagCounts,
    /// The first few things that went wrong.
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
    /// Tell the number of connections; answered with [`BaselineAnswer::Holds`].
    Count,
}

/// An answer of the bare baseline.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BaselineAnswer {
    /// Said once, at the start.
    Listening(SocketAddr),
    /// The bytes were sent.
    Sent {
        /// Connections that took them all.
        whole: u64,
        /// Connections that did not.
        short: u64,
    },
    /// Connections held.
    Holds(u64),
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
    /// What a connection reads. In a mixture the formats change within a stream.
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

    /// Names in ALPN of what is spoken.
    pub(crate) fn alpn(self) -> Vec<String> {
        let names: &[&str] = match self {
            Transport::Tcp => &[ALPN],
            Transport::Ws | Transport::WsJson | Transport::Sse => &[HTTP1],
            Transport::Mixed => &[ALPN, HTTP1],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }
}

/// HTTP/1.1 in ALPN.
const HTTP1: &str = "http/1.1";

impl SlowPlan {
    /// Whether a connection is one of the slow.
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
