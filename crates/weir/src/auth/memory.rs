//! The memory of credentials.

use weir_engine::Footprint;

use super::Authenticator;

/// What is remembered of credentials at run time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CredentialsMemory {
    /// Sources whose attempts have failed.
    pub(crate) failures: Footprint,
    /// Signed tokens that were verified.
    pub(crate) verified: Footprint,
    /// Grants that came with tokens.
    pub(crate) grants: Footprint,
}

impl Authenticator {
    /// Sums that memory.
    pub(crate) fn memory(&self) -> CredentialsMemory {
        CredentialsMemory {
            failures: self.attempts.footprint(),
            verified: self.jwt.footprint(),
            grants: self.labels().shared.footprint(),
        }
    }
}
