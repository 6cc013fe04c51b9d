//! The common parts of the admin API and the public API: heads, bodies, queries, answers and
//! problems.
//!
//! Each API identifies and authorises its callers itself.

pub(crate) mod body;
pub(crate) mod head;
pub(crate) mod idempotency;
pub(crate) mod json;
pub(crate) mod openapi;
pub(crate) mod presence;
pub(crate) mod problem;
pub(crate) mod publish;
pub(crate) mod push;
pub(crate) mod query;
pub(crate) mod reply;
