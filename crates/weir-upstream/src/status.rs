//! Figures of an upstream, for metrics and views.

use std::time::Duration;

use crate::dial::DialStatus;
use crate::names::NamesStatus;

/// An upstream as it is now. What ends in a plural counts since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Requests that were begun.
    pub requests: u64,
    /// Requests that ended without an answer.
    pub failures: Failures,
    /// Further tries of requests whose first try failed.
    pub retries: u64,
    /// Tries that the retry budget did not permit.
    pub retries_refused: u64,
    /// Requests that wait for a place on a connection now.
    pub waiting: usize,
    /// Requests that waited for a place until their deadline.
    pub waiting_timed_out: u64,
    /// Look-ups of its names.
    pub names: NamesStatus,
    /// Connecting.
    pub dials: DialStatus,
    /// By endpoint, in the order of their addresses' answers.
    pub endpoints: Vec<EndpointStatus>,
}

/// Requests that ended without an answer, by the kind of their [`SendError`](crate::SendError).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failures {
    /// No endpoint could be reached.
    pub connect: u64,
    /// All places were taken, and no more requests could wait.
    pub full: u64,
    /// No answer in time.
    pub timed_out: u64,
    /// The connection broke, or the peer broke the rules of HTTP.
    pub broken: u64,
}

/// An endpoint as it is now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointStatus {
    /// Address and port, or path.
    pub address: String,
    /// Whether it gets requests.
    pub state: EndpointState,
    /// Requests that it works on now, until the ends of their answers.
    pub in_flight: usize,
    /// Connections that are open or being opened, with those that were upgraded.
    pub connections: usize,
    /// Open connections without a request.
    pub connections_idle: usize,
    /// Tries that were sent to it.
    pub requests: u64,
    /// Tries that it failed: no connection, no answer in time, a broken one, or 502 to 504.
    pub failures: u64,
    /// How often it could not be connected.
    pub dial_failures: u64,
    /// How often it was set aside.
    pub ejections: u64,
    /// How long it takes until the head of an answer, in microseconds: the decaying average by which
    /// endpoints are chosen. Zero: unknown.
    pub latency_us: u64,
}

/// Whether an endpoint gets requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EndpointState {
    /// It gets its share.
    #[default]
    Available,
    /// It has failed, and gets none for this time.
    SetAside(Duration),
    /// It has failed, and one request now shows whether it works again.
    Probing,
}

impl Failures {
    /// Each kind, by its word in [`SendError::kind`](crate::SendError::kind).
    pub fn by_kind(&self) -> [(&'static str, u64); 4] {
        [
            ("connect", self.connect),
            ("full", self.full),
            ("timed_out", self.timed_out),
            ("broken", self.broken),
        ]
    }

    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }
}

impl EndpointState {
    /// A word for metrics and views.
    pub const fn name(self) -> &'static str {
        match self {
            EndpointState::Available => "available",
            EndpointState::SetAside(_) => "set_aside",
            EndpointState::Probing => "probing",
        }
    }
}
