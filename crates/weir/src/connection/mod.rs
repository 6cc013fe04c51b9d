//! A connection from its acceptance to its shard, and what shards report of it.

pub(crate) mod desk;
pub(crate) mod listener;
pub(crate) mod reports;
pub(crate) mod session;
