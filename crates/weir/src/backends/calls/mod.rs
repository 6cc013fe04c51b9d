//! Calls: of devices to backends, over routes to upstreams, and of backends to devices.
//!
//! ```text
//!  device ─Call─▶ begin ─▶ a task asks the upstream ─▶ Answer ─▶ device
//!  backend ─────▶ ask_device ─Call─▶ device ─Answer─▶ answered ─▶ backend
//! ```
//!
//! The end of a connection ends its calls in both directions.
//!
//! | part | does |
//! |---|---|
//! | `table` | knows which calls of a connection go on |
//! | `routes` | the rules in use, and the route for a method |
//! | `to_backend` | calls of devices |
//! | `exchange` | asks an upstream, over HTTP or gRPC |
//! | `to_device` | calls of backends |
//! | `way` | frames to devices, here or in the process that has taken over |
//! | `handover` | calls that go on while another process takes over |
//! | `level` | how much is in use |

mod exchange;
mod handover;
mod level;
mod routes;
mod table;
mod to_backend;
mod to_device;
mod way;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::time::{Duration, Instant};
use weir_engine::{ConnId, Footprint};
use weir_wire::v1;

use super::Backends;
use crate::base::config::Config;
use crate::base::door::Door;
use crate::base::mailboxes::Mailboxes;
use crate::observe::counters::Counters;
use crate::observe::counters::calls::{CallDirection, CallLimit, CallOutcome};
pub(crate) use handover::MovedCalls;
use level::{Level, Share};
pub(crate) use routes::CallRoute;
use routes::Rules;
use table::Table;
pub(crate) use to_backend::NotBegun;
pub(crate) use to_device::{DeviceCall, NoAnswer};
use way::Way;

/// The calls of a gateway.
///
/// Limits: `[calls]`: calls at the same time, by connection and direction, by route, and in all; and
/// the bytes of their payloads. A call beyond them is refused at once.
pub(crate) struct Calls {
    rules: ArcSwap<Rules>,
    table: Table,
    in_flight: Arc<Level>,
    payload_bytes: Arc<Level>,
    backends: Arc<Backends>,
    way: Arc<Way>,
    counters: Arc<Counters>,
}

/// The parts of the common limits that a call takes until it ends.
struct Shares {
    _call: Share,
    payload: Share,
}

impl Calls {
    pub(crate) fn new(
        config: &Config,
        backends: &Arc<Backends>,
        (mailboxes, door): (&Arc<Mailboxes>, &Arc<Door>),
        counters: &Arc<Counters>,
    ) -> Arc<Calls> {
        Arc::new(Calls {
            rules: ArcSwap::from_pointee(Rules::new(config, None)),
            table: Table::new(mailboxes.len()),
            in_flight: Arc::default(),
            payload_bytes: Arc::default(),
            backends: Arc::clone(backends),
            way: Arc::new(Way::new(mailboxes, door)),
            counters: Arc::clone(counters),
        })
    }

    /// Uses the rules of another configuration for calls from now on.
    pub(crate) fn replace(&self, config: &Config) {
        let before = self.rules.load();
        self.rules.store(Arc::new(Rules::new(config, Some(&**before))));
    }

    /// Notes that a connection answers calls.
    pub(crate) fn enter(&self, conn: ConnId) {
        self.table.enter(conn);
    }

    /// Ends the calls of a connection that has ended.
    pub(crate) fn end(&self, conn: ConnId) {
        for _ in 0..self.table.end(conn) {
            self.count_ended(CallOutcome::Disconnected);
        }
    }

    /// The same for all connections of a shard that has failed.
    pub(crate) fn end_shard(&self, shard: usize) {
        self.table.end_shard(shard);
    }

    /// Takes the answer of a device.
    pub(crate) fn answered(&self, conn: ConnId, answer: v1::Answer) {
        if !self.table.answer(conn, answer) {
            self.counters.calls.late(CallDirection::ToDevice);
        }
    }

    /// Ends a call that the device has given up.
    pub(crate) fn cancelled(&self, conn: ConnId, id: u32) {
        if self.table.finish(conn, id) {
            self.count_ended(CallOutcome::Cancelled);
        }
    }

    /// The time that a call may wait which asks for this long; `None`: it names no time.
    pub(crate) fn time_for(&self, asked: Option<Duration>) -> Duration {
        let rules = self.rules.load();
        asked.unwrap_or(rules.deadline).min(rules.deadline_max)
    }

    /// The longest time that a call may wait.
    pub(crate) fn deadline_max(&self) -> Duration {
        self.rules.load().deadline_max
    }

    /// The routes in use.
    pub(crate) fn routes(&self) -> Vec<Arc<CallRoute>> {
        self.rules.load().routes().to_vec()
    }

    /// The calls that go on.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.used()
    }

    /// Bytes of payloads that wait.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload_bytes.used()
    }

    /// The connections that answer calls, and those with calls.
    pub(crate) fn footprint(&self) -> Footprint {
        self.table.footprint()
    }

    /// Takes a call's part of the common limits.
    ///
    /// Errors: the limit that was reached, and how much it is.
    fn share(&self, rules: &Rules, payload_bytes: usize) -> Result<Shares, (CallLimit, usize)> {
        let (calls_max, bytes_max) = (rules.calls_max, rules.payload_bytes_max);
        let call = self.in_flight.take(1, calls_max).ok_or((CallLimit::Calls, calls_max))?;
        let payload = self.payload_bytes.take(payload_bytes, bytes_max);
        Ok(Shares { _call: call, payload: payload.ok_or((CallLimit::Bytes, bytes_max))? })
    }

    /// Counts the end of a device's call whose task learns nothing of it any more.
    fn count_ended(&self, outcome: CallOutcome) {
        self.counters.calls.refuse(CallDirection::ToBackend, outcome);
    }
}

/// The sentence for a limit that was reached.
fn limit_message(limit: CallLimit, max: usize) -> String {
    match limit {
        CallLimit::Connection => format!(
            "{max} calls of this connection go on, which is the limit (calls.calls_per_connection_max)"
        ),
        CallLimit::Route => {
            format!("{max} calls of this route go on, which is the limit (calls.routes, calls_max)")
        }
        CallLimit::Calls => format!("{max} calls go on, which is the limit (calls.calls_max)"),
        CallLimit::Bytes => format!(
            "the payloads of all calls together have no room for this one; the limit is {max} bytes \
             (calls.payload_bytes_max)"
        ),
        CallLimit::Admin => format!("{max} calls wait at this address, which is the limit"),
    }
}

/// The milliseconds until the deadline, at least 1.
fn left_ms(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
}
