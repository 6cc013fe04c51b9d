//! What is counted of activations: the only place that tells one refusal from another.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_store::Refusal;

/// Activations and refreshes, by what came of them.
#[derive(Debug, Default)]
pub(crate) struct ActivationCounts([AtomicU64; ActivationOutcome::ALL.len()]);

weir_wire::named_enum! {
    /// What came of one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ActivationOutcome {
        /// The first one of its device.
        First = "first",
        /// Of a device that had been activated before.
        Again = "again",
        /// A token was exchanged for a new one.
        Refreshed = "refreshed",
        /// There is no such device.
        UnknownDevice = "unknown_device",
        /// Its key is another.
        WrongKey = "wrong_key",
        /// It is shut out.
        Revoked = "revoked",
        /// The token to be exchanged is not valid.
        InvalidToken = "invalid_token",
        /// A field could not be what it should.
        Invalid = "invalid",
        /// Too many had failed from there.
        Limited = "limited",
        /// The store did not answer, or too many waited for it.
        Unavailable = "unavailable",
    }
}

impl ActivationCounts {
    pub(crate) fn count(&self, outcome: ActivationOutcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, outcome: ActivationOutcome) -> u64 {
        self.0[outcome as usize].load(Ordering::Relaxed)
    }
}

impl ActivationOutcome {
    pub(crate) const fn of(refusal: Refusal) -> ActivationOutcome {
        match refusal {
            Refusal::UnknownDevice => ActivationOutcome::UnknownDevice,
            Refusal::WrongKey => ActivationOutcome::WrongKey,
            Refusal::Revoked => ActivationOutcome::Revoked,
            Refusal::InvalidToken => ActivationOutcome::InvalidToken,
        }
    }
}
