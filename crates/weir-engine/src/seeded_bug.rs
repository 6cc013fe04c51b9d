//! The bugs that tests put into a shard. They prove that the simulator finds such bugs.

/// A bug that a test puts into the shard; the simulator must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeededBug {
    /// The shard forgets the remainder of a partly sent message.
    LostRemainder,
    /// A walk skips a subscriber.
    SkippedSubscriber,
    /// A command for a former connection reaches the new connection in its slot.
    StaleSlot,
    /// The shard does not give back the bytes of a released outbox.
    LeakedBudget,
    /// Timers of some slots never fire.
    DeafTimer,
    /// Conflation keeps the older message of a key.
    OlderKept,
    /// A replay chunk comes without its last message.
    ShortResume,
    /// After a record that was sent in part, the next one is sealed with the same nonce.
    ReusedNonce,
    /// At the end of a connection, the plaintext of a record that is being sent is dropped.
    DroppedCommitted,
    /// A dropping topic skips a connection that is not stalled, although much waits for it.
    EarlySkip,
    /// An event names a position whose message has not left.
    EarlyPosition,
    /// A message of a WebSocket for which the front had no room is not offered again.
    ForgottenMessage,
    /// The parts of a message are not joined around a frame between them.
    UnmovedFragment,
    /// A message that the shard does not understand gets no answer if many answers are due.
    LeftOutAnswer,
    /// After a handover, a message that was sent in part is sent again from its beginning.
    RepeatedRemainder,
    /// After a handover, records are sealed with numbers that were used before.
    RepeatedNumber,
    /// After a handover, some deadlines never come.
    LostDeadline,
    /// After a handover, a message counts as waiting for ever.
    PinnedMessage,
}

impl SeededBug {
    /// Every seeded bug.
    pub const ALL: [SeededBug; 18] = [
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
        SeededBug::LeftOutAnswer,
        SeededBug::RepeatedRemainder,
        SeededBug::RepeatedNumber,
        SeededBug::LostDeadline,
        SeededBug::PinnedMessage,
    ];
}
