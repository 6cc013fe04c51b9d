//! The common part of connections, HTTP, datagrams and the admin API: the shared state, publishing,
//! events, the gateway handle.

pub(crate) mod adoptions;
pub(crate) mod asking;
mod calls;
pub(crate) mod clients;
pub(crate) mod drain;
pub(crate) mod ends;
pub(crate) mod events;
mod forwarding;
pub(crate) mod forwards;
pub(crate) mod handle;
pub(crate) mod handover;
pub(crate) mod idempotency;
pub(crate) mod inspect;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod pauses;
pub(crate) mod presence;
pub(crate) mod publish;
pub(crate) mod publishing;
pub(crate) mod recheck;
pub(crate) mod reload;
pub(crate) mod rights;
pub(crate) mod state;
