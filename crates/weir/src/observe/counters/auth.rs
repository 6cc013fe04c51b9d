//! Kinds and ends of authentications.

/// How an authentication ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthOutcome {
    /// It may.
    Accepted,
    /// It may not.
    Refused,
    /// The id is one of the store's, and what was shown is not that device's own: see
    /// [`crate::AuthConfig::unchecked_ids`].
    Stored,
    /// What keeps the tokens could not be asked.
    Unavailable,
    /// It was not looked at, as too many from there have failed: see
    /// [`crate::AuthConfig::failures_per_source_per_second`].
    Limited,
}

/// How a `Refresh` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshOutcome {
    /// The new token holds.
    Prolonged,
    /// It is not valid, or not of this device.
    Refused,
    /// What keeps the tokens could not be asked.
    Unavailable,
    /// Another one was under way, or too many were, or it came too soon.
    Busy,
    /// The credentials of the connection do not end.
    Needless,
}

impl AuthOutcome {
    /// Every outcome.
    pub const ALL: [AuthOutcome; 5] = [
        AuthOutcome::Accepted,
        AuthOutcome::Refused,
        AuthOutcome::Stored,
        AuthOutcome::Unavailable,
        AuthOutcome::Limited,
    ];

    /// The outcome as a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            AuthOutcome::Accepted => "accepted",
            AuthOutcome::Refused => "refused",
            AuthOutcome::Stored => "stored",
            AuthOutcome::Unavailable => "unavailable",
            AuthOutcome::Limited => "limited",
        }
    }
}

impl RefreshOutcome {
    /// Every outcome.
    pub const ALL: [RefreshOutcome; 5] = [
        RefreshOutcome::Prolonged,
        RefreshOutcome::Refused,
        RefreshOutcome::Unavailable,
        RefreshOutcome::Busy,
        RefreshOutcome::Needless,
    ];

    /// The outcome as a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            RefreshOutcome::Prolonged => "prolonged",
            RefreshOutcome::Refused => "refused",
            RefreshOutcome::Unavailable => "unavailable",
            RefreshOutcome::Busy => "busy",
            RefreshOutcome::Needless => "needless",
        }
    }
}
