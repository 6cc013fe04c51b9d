//! The gateway's reports about itself: counters, readiness, the access log.

pub(crate) mod access;
pub(crate) mod counters;
pub(crate) mod mappings;
pub(crate) mod readiness;
