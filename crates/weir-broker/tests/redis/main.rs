//! The Redis broker on real Redis servers.

mod cluster;
mod common;
mod conformance;
mod failover;
mod handover;
mod nodes;
mod presence;
mod security;
mod topics;
