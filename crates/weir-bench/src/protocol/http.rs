//! Orders for HTTP requests, and their results.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::activations::Activations;
use crate::stats::LagCounts;
use crate::tls::TlsPlan;

/// Requests, as fast as they are answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HttpPlan {
    /// Where to.
    pub(crate) addr: SocketAddr,
    /// Second byte of the source addresses 127.x.0.0/16.
    pub(crate) source: u8,
    /// What is asked for.
    pub(crate) path: String,
    /// How connections are used.
    pub(crate) style: HttpStyle,
    /// Connections at a time.
    pub(crate) connections: u32,
    /// Requests on their way on each of them.
    pub(crate) depth: u32,
    /// How they speak TLS; `None`: they do not.
    pub(crate) tls: Option<TlsPlan>,
    /// Milliseconds that do not count, at the start.
    pub(crate) warm_up_ms: u64,
    /// When enough was counted.
    pub(crate) until: HttpEnd,
    /// Process whose CPU time is read at the start and at the end of what counts.
    pub(crate) pid: Option<u32>,
    /// Others whose CPU time is read then.
    pub(crate) helpers: Vec<u32>,
    /// What is posted; `None`: nothing, all get the same answer.
    pub(crate) posts: Option<Posts>,
}

/// What requests carry.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Posts {
    /// Activations of devices, another one each time.
    Activations(Activations),
    /// The same message for one subscriber, each time. Over HTTP/1.1 only.
    Message(Message),
}

/// A message that a service publishes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Message {
    /// The service's bearer token.
    pub(crate) token: String,
    /// Where to; nothing in it has to be escaped in JSON.
    pub(crate) topic: String,
    /// The payload, likewise.
    pub(crate) text: String,
}

/// How connections are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HttpStyle {
    /// HTTP/1.1, connections kept.
    Http1,
    /// HTTP/1.1, a connection for each request.
    PerConnection,
    /// HTTP/2, connections kept.
    Http2,
    /// HTTP/2, a connection for each request.
    Http2PerConnection,
}

/// When enough was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HttpEnd {
    /// After so many milliseconds.
    Millis(u64),
    /// After so many answers.
    Answers(u64),
}

/// What came of requests, of the time that counts where nothing else is said.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct HttpTally {
    /// Answers: whole, with status 200 and the same content as the first one, or as it is right for what was posted.
    pub(crate) answered: u64,
    /// Those of them that refused an activation, as they should.
    pub(crate) refused: u64,
    /// Tokens that came more than once; warm-up included.
    pub(crate) repeated: u64,
    /// Requests that were begun; warm-up included.
    pub(crate) asked: u64,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    /// CPU time of the server's process, in nanoseconds; `None`: not asked for.
    pub(crate) server_cpu_ns: Option<u64>,
    /// CPU time of each of the helpers.
    pub(crate) helpers_cpu_ns: Vec<u64>,
    /// CPU time of the generator, in nanoseconds.
    pub(crate) client_cpu_ns: u64,
    /// Bytes that came, under TLS those of its records, and those that were sent.
    pub(crate) received_bytes: u64,
    /// See there.
    pub(crate) sent_bytes: u64,
    /// From sending a request, or from connecting where each has its connection, to the end of its answer.
    pub(crate) lags: LagCounts,
    /// What went wrong, by kind; warm-up included.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Connections that the server closed in good order, to be replaced by others; warm-up included.
    pub(crate) reopened: u64,
    /// TLS handshakes, by what was agreed; warm-up included.
    pub(crate) handshakes: BTreeMap<String, u64>,
    /// The first answer, head and content; of HTTP/2, content alone.
    pub(crate) answer: Vec<u8>,
}

impl Posts {
    /// The activations, if requests carry those.
    pub(crate) fn activations(&self) -> Option<&Activations> {
        match self {
            Posts::Activations(activations) => Some(activations),
            Posts::Message(_) => None,
        }
    }
}

impl HttpStyle {
    /// Whether it is HTTP/2.
    pub(crate) fn is_http2(self) -> bool {
        match self {
            HttpStyle::Http1 | HttpStyle::PerConnection => false,
            HttpStyle::Http2 | HttpStyle::Http2PerConnection => true,
        }
    }

    /// Whether each request has a connection of its own.
    pub(crate) fn is_per_connection(self) -> bool {
        match self {
            HttpStyle::Http1 | HttpStyle::Http2 => false,
            HttpStyle::PerConnection | HttpStyle::Http2PerConnection => true,
        }
    }

    /// The protocol's name in ALPN.
    pub(crate) fn alpn(self) -> &'static str {
        if self.is_http2() { "h2" } else { "http/1.1" }
    }
}
