//! Shards with descriptors of their own, over real sockets: whatever holds for others holds for
//! them too, and what is special about their tables.
//!
//! Conditions are awaited, never slept for; a time-out only says that a test has failed.

#[path = "../real_sockets/ends.rs"]
mod ends;
#[path = "../real_sockets/formats.rs"]
mod formats;
#[path = "../real_sockets/handover.rs"]
mod handover;
#[path = "../real_sockets/look.rs"]
mod look;
#[path = "../real_sockets/read.rs"]
mod read;
#[path = "../real_sockets/rig.rs"]
mod rig;
#[path = "../real_sockets/secure.rs"]
mod secure;
#[path = "../real_sockets/secure_rig.rs"]
mod secure_rig;
#[path = "../real_sockets/slow.rs"]
mod slow;
mod tables;
#[path = "../real_sockets/topics.rs"]
mod topics;
#[path = "../real_sockets/write.rs"]
mod write;

const OWN_DESCRIPTORS: bool = true;
