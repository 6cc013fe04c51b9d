//! The atomic types of `sleep_flag`. `tests/loom_mailbox.rs` replaces them with loom's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
