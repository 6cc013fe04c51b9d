//! The atomics of [`doze`](crate::doze): the standard ones, which `tests/loom_mailbox.rs` exchanges for loom's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
