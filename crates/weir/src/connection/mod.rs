//! A connection from its acceptance to its shard, and what shards report of it.

pub(crate) mod dispatcher;
pub(crate) mod farewell;
pub(crate) mod linger;
pub(crate) mod listener;
pub(crate) mod opening;
pub(crate) mod reports;
