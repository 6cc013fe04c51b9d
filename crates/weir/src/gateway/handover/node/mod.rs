//! A node of a cluster changes hands: the new process listens to the broker as this node before the
//! old one stands still.

mod new;
mod old;

pub(in crate::gateway) use new::NewNode;
pub(super) use new::Rounds;
pub(super) use old::OldNode;

/// What the new process needs to listen.
const ROUND_PART: &str = "broker";
