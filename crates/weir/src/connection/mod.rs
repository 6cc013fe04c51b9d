//! A connection from accept to its shard, and the reports of shards about it.

pub(crate) mod dispatcher;
pub(crate) mod farewell;
pub(crate) mod linger;
pub(crate) mod listener;
pub(crate) mod opening;
pub(crate) mod reports;
