//! Commands that look at a running gateway through its admin API. They print tables for people, and
//! with `--json` lines for programs.

pub(crate) mod args;
pub(crate) mod closes;
pub(crate) mod connections;
pub(crate) mod device;
pub(crate) mod events;
mod pages;
mod table;
pub(crate) mod top;
pub(crate) mod topics;
pub(crate) mod upstreams;
