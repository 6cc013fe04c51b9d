//! The simulated network: virtual time, injected faults, a printed seed.

/// A bug planted on purpose, to prove that the simulator finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// What the kernel refused of a partly sent message is forgotten.
    LostRemainder,
    /// A walk passes a subscriber over.
    SkippedSubscriber,
    /// A command for a former connection reaches the one that has its slot now.
    StaleSlot,
    /// Bytes of a released outbox are not given back.
    LeakedBudget,
    /// Timers of some slots never fire.
    DeafTimer,
}
