//! Orders for HTTP requests, and their results.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::activations::Activations;
use crate::stats::LagCounts;
use crate::tls::TlsPlan;

/// A load of requests in a closed loop: each answer permits the next request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HttpPlan {
    /// The server's address.
    pub(crate) addr: SocketAddr,
    /// Second byte of the source addresses 127.x.0.0/16.
    pub(crate) source: u8,
    /// The path of the requests.
    pub(crate) path: String,
    /// How requests use connections.
    pub(crate) style: HttpStyle,
    /// Connections at the same time.
    pub(crate) connections: u32,
    /// Requests in flight on each connection.
    pub(crate) depth: u32,
    /// The TLS plan; `None`: no TLS.
    pub(crate) tls: Option<TlsPlan>,
    /// Milliseconds at the start that do not count.
    pub(crate) warm_up_ms: u64,
    /// The end of the load.
    pub(crate) until: HttpEnd,
    /// Process whose CPU time is read at the start and at the end of the measured time.
    pub(crate) pid: Option<u32>,
    /// Other processes whose CPU time is read then.
    pub(crate) helpers: Vec<u32>,
    /// The bodies to post; `None`: requests without a body, which all get the same answer.
    pub(crate) posts: Option<Posts>,
}

/// The bodies of requests.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Posts {
    /// Activations of devices, another one in each request.
    Activations(Activations),
    /// The same message for one subscriber in each request. Over HTTP/1.1 only.
    Message(Message),
}

/// A message that a service publishes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Message {
    /// The service's bearer token.
    pub(crate) token: String,
    /// The topic. It contains nothing that JSON escapes.
    pub(crate) topic: String,
    /// The payload. It contains nothing that JSON escapes.
    pub(crate) text: String,
}

/// How requests use connections.
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

/// The end of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HttpEnd {
    /// After this number of milliseconds.
    Millis(u64),
    /// After this number of answers.
    Answers(u64),
}

/// The results of a load. Unless a field says otherwise, they concern the measured time only.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct HttpTally {
    /// Complete answers with status 200 and the right content: the content of the first answer, or
    /// an answer that fits the posted body.
    pub(crate) answered: u64,
    /// The answers among them that rightly refused an activation.
    pub(crate) refused: u64,
    /// Tokens that came more than once, including the warm-up.
    pub(crate) repeated: u64,
    /// Requests begun, including the warm-up.
    pub(crate) asked: u64,
    /// The measured time, in seconds.
    pub(crate) seconds: f64,
    /// CPU time of the server's process, in nanoseconds; `None` if it was not requested.
    pub(crate) server_cpu_ns: Option<u64>,
    /// CPU time of each of the helpers.
    pub(crate) helpers_cpu_ns: Vec<u64>,
    /// CPU time of the generator, in nanoseconds.
    pub(crate) client_cpu_ns: u64,
    /// Received bytes; with TLS, the bytes of its records.
    pub(crate) received_bytes: u64,
    /// Sent bytes, counted likewise.
    pub(crate) sent_bytes: u64,
    /// Times from sending a request to the end of its answer; from connecting, if each request has
    /// its own connection.
    pub(crate) lags: LagCounts,
    /// Errors by kind, including the warm-up.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Connections that the server closed in good order and that the worker replaced, including the
    /// warm-up.
    pub(crate) reopened: u64,
    /// TLS handshakes by version, suite and group, including the warm-up.
    pub(crate) handshakes: BTreeMap<String, u64>,
    /// The first answer, head and content; for HTTP/2, only the content, if it came in one piece.
    pub(crate) answer: Vec<u8>,
    /// Bytes of content of the first answer, which all others have, too.
    pub(crate) content_bytes: u64,
}

impl Posts {
    /// The activations, if requests carry them.
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

    /// Whether each request has its own connection.
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
