//! The messages between the bench and the processes that hold many connections.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::HelloPlan;
use crate::stats::LagCounts;
use crate::tls::TlsPlan;

/// An order to a process that holds connections.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HoldOrder {
    /// What to hold; answered with [`HoldAnswer::Done`].
    Plan(Box<HoldPlan>),
    /// Open so many connections more; answered with [`HoldAnswer::Opened`].
    Open {
        /// Their number.
        count: u32,
    },
    /// Send no pings until [`HoldOrder::Ping`]; answered with [`HoldAnswer::Done`].
    Quiet,
    /// Send pings again; answered with [`HoldAnswer::Done`].
    Ping,
    /// Wait for the messages up to this number, not included; answered with
    /// [`HoldAnswer::Collected`].
    Collect {
        /// The number of the next message after them.
        next_seq: u32,
        /// Longest wait, in milliseconds.
        wait_ms: u64,
    },
    /// Reset all connections; answered with [`HoldAnswer::Done`].
    Close,
}

/// The connections to hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HoldPlan {
    /// The address for devices without TLS.
    pub(crate) addr: SocketAddr,
    /// Address and parameters for those with TLS.
    pub(crate) tls: Option<(SocketAddr, TlsPlan)>,
    /// Share of the connections with TLS, 0 to 1, spread evenly over all.
    pub(crate) tls_share: f64,
    /// Number of the first connection, counted over all processes.
    pub(crate) first: u32,
    /// Second byte of the source addresses 127.x.0.0/16.
    pub(crate) source: u8,
    /// Most connections that connect at the same time.
    pub(crate) window: u32,
    /// Longest time without any progress while connecting, in milliseconds.
    pub(crate) patience_ms: u64,
    /// Their first message.
    pub(crate) hello: HelloPlan,
    /// Prefix of the topics.
    pub(crate) topic_prefix: String,
    /// Consecutive connections that share a topic.
    pub(crate) per_topic: u32,
    /// The heartbeat that they ask for, in milliseconds.
    pub(crate) heartbeat_ms: u32,
    /// Time between two pings of a connection, in milliseconds.
    pub(crate) ping_ms: u32,
    /// Bytes of a payload.
    pub(crate) size: usize,
}

/// An answer of such a process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HoldAnswer {
    /// The process has carried out the order.
    Done,
    /// The connections of one order are open, or no more can be.
    Opened {
        /// Connections that are open now, in all.
        open: u32,
        /// Those of them with TLS.
        tls: u32,
        /// What ended the order early.
        error: Option<String>,
    },
    /// The messages have come, or time is over.
    Collected(Box<HoldTally>),
    /// The order is invalid.
    Failed {
        /// The reason.
        error: String,
    },
}

/// The counts of such a process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct HoldTally {
    /// Messages received complete and unchanged, since the last tally.
    pub(crate) delivered: u64,
    /// Messages that connections still miss.
    pub(crate) missing: u64,
    /// Messages with a wrong byte or a wrong number.
    pub(crate) wrong: u64,
    /// Messages without a time stamp from the kernel.
    pub(crate) unstamped: u64,
    /// Connections that the server has closed, in all.
    pub(crate) closed: u64,
    /// Pings answered, in all.
    pub(crate) pongs: u64,
    /// Times from publishing to receiving.
    pub(crate) lags: LagCounts,
    /// The first few errors.
    pub(crate) errors: Vec<String>,
}
