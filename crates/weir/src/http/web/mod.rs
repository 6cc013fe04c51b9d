//! What the admin API and the public API have in common: heads, bodies, queries, answers and problems.
//!
//! Whom a request is from, and what it may do, each of them decides for itself.

pub(crate) mod body;
pub(crate) mod head;
pub(crate) mod json;
pub(crate) mod openapi;
pub(crate) mod problem;
pub(crate) mod publish;
pub(crate) mod push;
pub(crate) mod query;
pub(crate) mod reply;
