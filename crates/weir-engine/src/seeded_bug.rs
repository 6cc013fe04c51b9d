//! The bugs that tests put into a shard, to prove that the simulator finds them.

/// A bug that a test puts into the shard; the simulator must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeededBug {
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
    /// Conflation keeps the older message of a key.
    OlderKept,
    /// A part of a resume comes without its last message.
    ShortResume,
    /// Behind a record that was sent in part the next one is sealed with the same nonce.
    ReusedNonce,
    /// What a record holds that is being sent is dropped at the end of its connection.
    DroppedCommitted,
    /// A dropping topic skips a connection that is not stalled, though much waits for it.
    EarlySkip,
    /// An event names a position whose message has not left.
    EarlyPosition,
    /// A message of a WebSocket that the front had no room for is not offered again.
    ForgottenMessage,
    /// The parts of a message are not put together around what stands between them.
    UnmovedFragment,
}

impl SeededBug {
    /// Every seeded bug.
    pub const ALL: [SeededBug; 13] = [
        SeededBug::LostRemainder,
        SeededBug::SkippedSubscriber,
        SeededBug::StaleSlot,
        SeededBug::LeakedBudget,
        SeededBug::DeafTimer,
        SeededBug::OlderKept,
        SeededBug::ShortResume,
        SeededBug::ReusedNonce,
        SeededBug::DroppedCommitted,
        SeededBug::EarlySkip,
        SeededBug::EarlyPosition,
        SeededBug::ForgottenMessage,
        SeededBug::UnmovedFragment,
    ];
}
