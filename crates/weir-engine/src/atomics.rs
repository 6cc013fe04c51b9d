//! The atomics of [`sleep_flag`](crate::sleep_flag): the standard ones, which `tests/loom_mailbox.rs` exchanges for loom's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
