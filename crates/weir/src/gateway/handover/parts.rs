//! What the parts of a hand-over are called on the link.

/// The listening sockets, and those for datagrams, with their names.
pub(super) const LISTENERS_PART: &str = "listeners";
/// Sockets that a shard lends before the pause.
pub(super) const LENT_PART: &str = "lent";
/// Of a lent socket: the id of its connection, and its priority.
pub(super) const LENT_BYTES: usize = 9;
/// Everything that a shard knows.
pub(super) const SHARD_PART: &str = "shard";
/// Everything that the front knows.
pub(super) const FRONT_PART: &str = "front";
