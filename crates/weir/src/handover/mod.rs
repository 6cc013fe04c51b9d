//! An upgrade: the running process starts a new one, hands everything over to it, and leaves.
//!
//! Here is what lies between the two: the pair of sockets ([`link`]), the rule by which they agree
//! who owns the connections ([`decision`]), and what each does with them ([`Successor`] in the old
//! process, [`Predecessor`] in the new one). What is handed over is the gateway's business.

mod conversation;
mod decision;
mod link;
mod predecessor;
mod process;
mod report;
mod successor;
mod terms;

#[cfg(test)]
mod tests;

pub(crate) use conversation::Conversation;
pub(crate) use link::{Link, LinkError, reserve_descriptors};
pub use predecessor::Predecessor;
pub(crate) use report::printable;
pub use report::{Forecast, Hello, Left, Moved, NotMoved, Stage};
pub use successor::Successor;
pub use terms::UPGRADE_VARIABLE;
