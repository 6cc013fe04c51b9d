//! What is counted of activations: the only place that tells one refusal from another.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_store::Refusal;

/// Activations and refreshes, by what came of them.
#[derive(Debug, Default)]
pub(crate) struct ActivationCounts([AtomicU64; ActivationOutcome::ALL.len()]);

/// What came of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActivationOutcome {
    /// The first one of its device.
    First,
    /// Of a device that had been activated before.
    Again,
    /// A token was exchanged for a new one.
    Refreshed,
    /// There is no such device.
    UnknownDevice,
    /// Its key is another.
    WrongKey,
    /// It is shut out.
    Revoked,
    /// The token to be exchanged is not valid.
    InvalidToken,
    /// A field could not be what it should.
    Invalid,
    /// Too many had failed from there.
    Limited,
    /// The store did not answer, or too many waited for it.
    Unavailable,
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
    /// Every outcome.
    pub(crate) const ALL: [ActivationOutcome; 10] = [
        ActivationOutcome::First,
        ActivationOutcome::Again,
        ActivationOutcome::Refreshed,
        ActivationOutcome::UnknownDevice,
        ActivationOutcome::WrongKey,
        ActivationOutcome::Revoked,
        ActivationOutcome::InvalidToken,
        ActivationOutcome::Invalid,
        ActivationOutcome::Limited,
        ActivationOutcome::Unavailable,
    ];

    /// The outcome as a metric label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ActivationOutcome::First => "first",
            ActivationOutcome::Again => "again",
            ActivationOutcome::Refreshed => "refreshed",
            ActivationOutcome::UnknownDevice => "unknown_device",
            ActivationOutcome::WrongKey => "wrong_key",
            ActivationOutcome::Revoked => "revoked",
            ActivationOutcome::InvalidToken => "invalid_token",
            ActivationOutcome::Invalid => "invalid",
            ActivationOutcome::Limited => "limited",
            ActivationOutcome::Unavailable => "unavailable",
        }
    }

    pub(crate) const fn of(refusal: Refusal) -> ActivationOutcome {
        match refusal {
            Refusal::UnknownDevice => ActivationOutcome::UnknownDevice,
            Refusal::WrongKey => ActivationOutcome::WrongKey,
            Refusal::Revoked => ActivationOutcome::Revoked,
            Refusal::InvalidToken => ActivationOutcome::InvalidToken,
        }
    }
}
