//! Drains: the node is emptied, or a share of its connections told to come back elsewhere, while it
//! goes on delivering to the others.
//!
//! ```text
//!  idle ─▶ announced ─lead─▶ draining ─all are told─▶ drained
//!              └──────────────┴───▶ cancelled ◀─── of all connections
//! ```
//!
//! `steps` has the task that makes all steps but the first. A shutdown gives the shards the same
//! command; its drain has the greatest number, so they then ignore every other.

mod handover;
mod steps;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use weir_store::Millis;

use crate::base::clock::unix_millis;
pub(crate) use steps::run;

/// How to drain a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrainOptions {
    /// The share of the connections to close: more than 0. With 1 the node also admits no new
    /// connection, until the drain is cancelled.
    pub share: f64,
    /// The time for which the node is not ready before the first connection is told to leave. A
    /// load balancer has to notice in this time.
    pub lead: Duration,
    /// The time over which connections are told to leave.
    pub over: Duration,
}

weir_wire::named_enum! {
    /// How far a drain is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DrainState {
        /// There was none.
        Idle = "idle",
        /// The node is not ready; no connection has been told to leave.
        Announced = "announced",
        /// Connections are told to leave.
        Draining = "draining",
        /// It is over. If it was one of all connections, the node still admits none.
        Drained = "drained",
        /// It was cancelled: the node admits connections.
        Cancelled = "cancelled",
    }
}

/// The last drain of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrainInfo {
    /// How far it is.
    pub state: DrainState,
    /// How it was asked for. `None`: there was none.
    pub options: Option<DrainOptions>,
    /// When it came to this state, in milliseconds since 1970.
    pub since_ms: Millis,
    /// Settled connections now.
    pub connections: u64,
    /// HTTP connections now.
    pub http_connections: u64,
    /// Settled connections that the drain closes, as counted when it began.
    pub to_close: u64,
    /// Settled connections that it has closed.
    pub closed: u64,
}

/// Why a drain does not begin.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum DrainError {
    /// The share is not one.
    #[error("share is {0}: it must be more than 0, and at most 1")]
    Share(f64),
    /// The time is too long.
    #[error("lead is {0:?}: it must be at most {max:?}", max = DrainOptions::LEAD_MAX)]
    Lead(Duration),
    /// The time is too long.
    #[error("over is {0:?}: it must be at most {max:?}", max = DrainOptions::OVER_MAX)]
    Over(Duration),
    /// Another one goes on, or has emptied the node.
    #[error("{}", busy(.0))]
    Busy(DrainInfo),
    /// The gateway ends, which drains it.
    #[error("the gateway shuts down")]
    Ending,
    /// Another process takes over the gateway at this moment. It may be asked then.
    #[error("another process takes over this gateway at this moment; ask again")]
    HandingOver,
}

/// The drains of a node.
///
/// Shape: the newest drain, and for each shard the number of the last drain that it has ended.
/// Nothing is kept for a connection.
pub(crate) struct Drains {
    newest: watch::Sender<Newest>,
    ended: Box<[AtomicU32]>,
    has_ended: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    number: u32,
    state: DrainState,
    options: DrainOptions,
    since_ms: Millis,
    /// When connections began to be told.
    began: Instant,
    to_close: u64,
    /// HTTP connections to tell, as counted when it began.
    http_to_close: u64,
    /// Ends by drains that the shards had counted when it began.
    closed_before: u64,
    /// Set when it is over.
    closed: Option<u64>,
    is_cancelled: bool,
    is_ending: bool,
}

/// How fast a drain tells HTTP connections to end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainPace {
    /// Of the drain.
    pub(crate) number: u32,
    /// How many of them have to be told by now.
    pub(crate) due: u64,
}

impl DrainOptions {
    /// The longest lead: load balancers notice within a minute or two.
    pub const LEAD_MAX: Duration = Duration::from_secs(3600);
    /// The longest drain.
    pub const OVER_MAX: Duration = Duration::from_secs(24 * 3600);

    fn check(&self) -> Result<(), DrainError> {
        // Not a number is no share either.
        if !(self.share > 0.0 && self.share <= 1.0) {
            return Err(DrainError::Share(self.share));
        }
        if self.lead > Self::LEAD_MAX {
            return Err(DrainError::Lead(self.lead));
        }
        if self.over > Self::OVER_MAX {
            return Err(DrainError::Over(self.over));
        }
        Ok(())
    }

    fn is_of_all(&self) -> bool {
        self.share >= 1.0
    }
}

impl Default for DrainOptions {
    /// All connections in a minute. The lead is for load balancers that ask every second or two.
    fn default() -> Self {
        DrainOptions { share: 1.0, lead: Duration::from_secs(5), over: Duration::from_secs(60) }
    }
}

impl Newest {
    /// Whether the node is not ready because of it.
    fn is_active(&self) -> bool {
        match self.state {
            DrainState::Announced | DrainState::Draining => true,
            DrainState::Drained => self.options.is_of_all(),
            DrainState::Idle | DrainState::Cancelled => false,
        }
    }

    fn enter(&mut self, state: DrainState) {
        (self.state, self.since_ms) = (state, unix_millis());
    }
}

impl Drains {
    pub(crate) fn new(shards: usize) -> Drains {
        let newest = Newest {
            number: 0,
            state: DrainState::Idle,
            options: DrainOptions::default(),
            since_ms: unix_millis(),
            began: Instant::now(),
            to_close: 0,
            http_to_close: 0,
            closed_before: 0,
            closed: Some(0),
            is_cancelled: false,
            is_ending: false,
        };
        Drains {
            newest: watch::Sender::new(newest),
            ended: (0..shards).map(|_| AtomicU32::new(0)).collect(),
            has_ended: Notify::new(),
        }
    }

    /// Whether the node is not ready because of a drain.
    pub(crate) fn is_active(&self) -> bool {
        self.newest.borrow().is_active()
    }

    /// Whether the gateway shuts down.
    pub(crate) fn is_ending(&self) -> bool {
        self.newest.borrow().is_ending
    }

    /// Waits until the gateway shuts down.
    pub(crate) async fn ending(&self) {
        // The sender is here, so this ends only by the shutdown.
        let _ = self.newest.subscribe().wait_for(|newest| newest.is_ending).await;
    }

    /// A shard has ended a drain.
    pub(crate) fn note_ended(&self, shard: usize, number: u32) {
        self.ended[shard].fetch_max(number, Ordering::Relaxed);
        self.has_ended.notify_waiters();
    }

    /// Waits until all shards have ended a drain.
    pub(crate) async fn wait_for_shards(&self, number: u32) {
        loop {
            let has_ended = self.has_ended.notified();
            if self.running_shard(number).is_none() {
                return;
            }
            has_ended.await;
        }
    }

    /// A shard that has not ended a drain.
    fn running_shard(&self, number: u32) -> Option<usize> {
        self.ended.iter().position(|ended| ended.load(Ordering::Relaxed) < number)
    }

    /// How many HTTP connections have to be told to end. `None`: they may stay.
    pub(crate) fn pace(&self) -> Option<DrainPace> {
        let newest = *self.newest.borrow();
        let Newest { number, options, began, http_to_close, .. } = newest;
        match newest.state {
            DrainState::Draining => {
                let elapsed = began.elapsed();
                let due = match (elapsed >= options.over, options.is_of_all()) {
                    (true, true) => u64::MAX,
                    (true, false) => http_to_close,
                    (false, _) => count_of(elapsed.div_duration_f64(options.over), http_to_close),
                };
                Some(DrainPace { number, due })
            }
            DrainState::Drained if options.is_of_all() => Some(DrainPace { number, due: u64::MAX }),
            DrainState::Drained
            | DrainState::Idle
            | DrainState::Announced
            | DrainState::Cancelled => None,
        }
    }

    /// Changes the drain with this number, unless it was cancelled or the gateway ends. Returns
    /// whether it did.
    fn advance(&self, number: u32, change: impl FnOnce(&mut Newest)) -> bool {
        self.newest.send_if_modified(|newest| {
            let is_it = newest.number == number && !newest.is_cancelled;
            if is_it {
                change(newest);
            }
            is_it
        })
    }
}

fn busy(info: &DrainInfo) -> String {
    let DrainOptions { share, over, .. } = info.options.unwrap_or_default();
    let (state, DrainInfo { closed, to_close, .. }) = (info.state.name(), info);
    format!(
        "a drain is {state}: share {share}, over {over:?}, {closed} of {to_close} closed; cancel \
         it first"
    )
}

/// A share of connections, rounded.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a node has less than 2^52 connections, and the share is positive"
)]
fn count_of(share: f64, connections: u64) -> u64 {
    (share * connections as f64).round() as u64
}
