//! Outcomes of authentications.

weir_wire::named_enum! {
    /// The outcome of an authentication.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuthOutcome {
        /// The credentials were accepted.
        Accepted = "accepted",
        /// The credentials were refused.
        Refused = "refused",
        /// The store knows the id, and the credentials are not that device's own: see
        /// [`crate::AuthConfig::unchecked_ids`].
        Stored = "stored",
        /// The store of the tokens did not answer.
        Unavailable = "unavailable",
        /// The token was not checked, because too many from this source had failed: see
        /// [`crate::AuthConfig::failures_per_source_per_second`].
        Limited = "limited",
    }
}

weir_wire::named_enum! {
    /// The outcome of a `Refresh`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RefreshOutcome {
        /// The connection has a new term.
        Prolonged = "prolonged",
        /// The token is not valid, or belongs to another device.
        Refused = "refused",
        /// The store of the tokens did not answer.
        Unavailable = "unavailable",
        /// Another refresh of the connection was in progress, too many were, or it came too soon.
        Busy = "busy",
        /// The credentials of the connection do not end.
        Needless = "needless",
    }
}
