//! The base for all other folders: configuration, time, threads, mailboxes to the shards, small
//! tables.

pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod deadline;
pub(crate) mod derived;
pub(crate) mod diagnostics;
pub(crate) mod door;
pub(crate) mod files;
pub(crate) mod frames;
pub(crate) mod handover;
pub(crate) mod hash_key;
pub(crate) mod host;
pub(crate) mod levels;
pub(crate) mod mailboxes;
pub(crate) mod memory;
pub(crate) mod method;
pub(crate) mod model;
pub(crate) mod origin;
pub(crate) mod pattern;
pub(crate) mod peer_charge;
pub(crate) mod private;
pub(crate) mod profiler;
pub(crate) mod proxy;
pub(crate) mod read_buffer;
pub(crate) mod reloader;
pub(crate) mod slab;
pub(crate) mod threads;
pub(crate) mod token_hash;
pub(crate) mod workers;
