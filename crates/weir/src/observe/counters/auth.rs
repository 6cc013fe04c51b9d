//! Kinds and ends of authentications.

weir_wire::named_enum! {
    /// How an authentication ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuthOutcome {
        /// It may.
        Accepted = "accepted",
        /// It may not.
        Refused = "refused",
        /// The id is one of the store's, and what was shown is not that device's own: see
        /// [`crate::AuthConfig::unchecked_ids`].
        Stored = "stored",
        /// What keeps the tokens could not be asked.
        Unavailable = "unavailable",
        /// It was not looked at, as too many from there have failed: see
        /// [`crate::AuthConfig::failures_per_source_per_second`].
        Limited = "limited",
    }
}

weir_wire::named_enum! {
    /// How a `Refresh` ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RefreshOutcome {
        /// The new token holds.
        Prolonged = "prolonged",
        /// It is not valid, or not of this device.
        Refused = "refused",
        /// What keeps the tokens could not be asked.
        Unavailable = "unavailable",
        /// Another one was under way, or too many were, or it came too soon.
        Busy = "busy",
        /// The credentials of the connection do not end.
        Needless = "needless",
    }
}
