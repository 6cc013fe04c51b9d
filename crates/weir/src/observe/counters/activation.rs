//! Counts of activations. Only they show the reason of a refusal.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_store::Refusal;

/// Activations and refreshes, by outcome.
#[derive(Debug, Default)]
pub(crate) struct ActivationCounts([AtomicU64; ActivationOutcome::ALL.len()]);

weir_wire::named_enum! {
    /// The outcome of one activation or refresh.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ActivationOutcome {
        /// The first activation of its device.
        First = "first",
        /// A device that had been activated before.
        Again = "again",
        /// A token was exchanged for a new one.
        Refreshed = "refreshed",
        /// The device does not exist.
        UnknownDevice = "unknown_device",
        /// The device key is wrong.
        WrongKey = "wrong_key",
        /// The device is revoked.
        Revoked = "revoked",
        /// The token to be replaced is not valid.
        InvalidToken = "invalid_token",
        /// A field was invalid.
        Invalid = "invalid",
        /// Too many attempts from this source had failed.
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
