//! Shards over real sockets: what a device sees on its end, and what the front is told.
//!
//! Conditions are awaited, never slept for; a time-out only says that a test has failed.

mod ends;
mod fixture;
mod formats;
mod handover;
mod look;
mod priority;
mod read;
mod rig;
mod secure;
mod secure_rig;
mod slow;
mod topics;
mod write;

/// Shards use the descriptors of the process; `tests/own_descriptors` has the others.
const OWN_DESCRIPTORS: bool = false;
