//! The gateway's reports about itself: counters, readiness, the access log, the
//! audit log, traces, upgrades.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod counters;
pub(crate) mod mappings;
pub(crate) mod readiness;
pub(crate) mod traces;
pub(crate) mod upgrades;
