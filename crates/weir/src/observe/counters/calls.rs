//! Counts of calls: of devices to backends, and of backends to devices.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::Times;

weir_wire::named_enum! {
    /// The side that is called.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum CallDirection {
        /// A device calls a backend.
        ToBackend = "to_backend",
        /// A backend calls a device.
        ToDevice = "to_device",
    }
}

weir_wire::named_enum! {
    /// How a call has ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum CallOutcome {
        /// It was answered with a result.
        Done = "done",
        /// It was answered with an error.
        Failed = "failed",
        /// No route fits the method, or the device answers no calls.
        Unsupported = "unsupported",
        /// The caller's credentials do not permit it.
        NotPermitted = "not_permitted",
        /// A field was not as it must be.
        InvalidField = "invalid_field",
        /// Its payload, or that of its answer, was too long.
        TooLarge = "too_large",
        /// A limit was reached: see [`CallLimit`]. Or the upstream had no room.
        Busy = "busy",
        /// There was no answer in time.
        DeadlineExceeded = "deadline_exceeded",
        /// The upstream could not be reached.
        Unavailable = "unavailable",
        /// The connection to the upstream broke.
        Uncertain = "uncertain",
        /// The caller has given it up.
        Cancelled = "cancelled",
        /// The device's connection has ended.
        Disconnected = "disconnected",
    }
}

weir_wire::named_enum! {
    /// A limit on calls that was reached.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub(crate) enum CallLimit {
        /// `calls.calls_per_connection_max`.
        Connection = "connection",
        /// `calls.routes`, `calls_max`.
        Route = "route",
        /// `calls.calls_max`.
        Calls = "calls",
        /// `calls.payload_bytes_max`.
        Bytes = "bytes",
        /// Calls that wait at the admin address.
        Admin = "admin",
    }
}

/// Counts of calls, by direction.
#[derive(Debug, Default)]
pub(crate) struct CallCounts {
    ended: [[AtomicU64; CallOutcome::ALL.len()]; CallDirection::ALL.len()],
    limited: [[AtomicU64; CallLimit::ALL.len()]; CallDirection::ALL.len()],
    in_flight: [AtomicUsize; CallDirection::ALL.len()],
    late: [AtomicU64; CallDirection::ALL.len()],
    times: [Times; CallDirection::ALL.len()],
}

impl CallCounts {
    /// Counts a call that was begun.
    pub(crate) fn begin(&self, direction: CallDirection) {
        self.in_flight[direction as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a call that was begun.
    pub(crate) fn end(&self, direction: CallDirection, outcome: CallOutcome, time: Duration) {
        self.end_unanswered(direction, time);
        self.refuse(direction, outcome);
    }

    /// Counts the end of a call that was begun and is not answered; its outcome is counted where
    /// that is known.
    pub(crate) fn end_unanswered(&self, direction: CallDirection, time: Duration) {
        self.in_flight[direction as usize].fetch_sub(1, Ordering::Relaxed);
        self.times[direction as usize].record(time);
    }

    /// Counts the outcome of a call that was not begun, or whose end is counted by itself.
    pub(crate) fn refuse(&self, direction: CallDirection, outcome: CallOutcome) {
        self.ended[direction as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self, direction: CallDirection, limit: CallLimit) {
        self.limited[direction as usize][limit as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer that nobody waits for.
    pub(crate) fn late(&self, direction: CallDirection) {
        self.late[direction as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, direction: CallDirection, outcome: CallOutcome) -> u64 {
        self.ended[direction as usize][outcome as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn limited(&self, direction: CallDirection, limit: CallLimit) -> u64 {
        self.limited[direction as usize][limit as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn in_flight(&self, direction: CallDirection) -> usize {
        self.in_flight[direction as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn late_answers(&self, direction: CallDirection) -> u64 {
        self.late[direction as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn times(&self, direction: CallDirection) -> &Times {
        &self.times[direction as usize]
    }
}
