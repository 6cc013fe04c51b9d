//! The limits on connections in a process that takes over from another.
//!
//! Connections that are not settled stay behind, with their places. So what counts in the other
//! process follows from the connections that move: see [`Admission::take_over`].

use std::sync::atomic::Ordering;

use weir_engine::Origin;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::Admission;
use crate::base::config::LimitsConfig;
use crate::base::handover::refused;
use crate::limits::sources::{SourceRef, Sources};

impl Admission {
    /// The clock of orders, and the sources. The caller sees to it that no connection is admitted
    /// any more.
    pub(crate) fn export(&self) -> v1::Admission {
        v1::Admission {
            began: self.began.load(Ordering::Relaxed),
            next_order: self.next_order.load(Ordering::Relaxed),
            sources: self.sources.get().map(Sources::export),
        }
    }

    /// Goes on with the orders and sources of another process. None was used here so far.
    pub(crate) fn import(
        &self,
        admission: v1::Admission,
        limits: &LimitsConfig,
    ) -> Result<(), NotUnderstood> {
        let v1::Admission { began, next_order, sources } = admission;
        if next_order > ORDER_MAX {
            return Err(refused("admission.next_order", next_order));
        }
        self.began.store(began, Ordering::Relaxed);
        self.next_order.store(next_order, Ordering::Relaxed);
        match sources {
            Some(sources) => self.sources.get_or_init(|| Sources::new(limits)).import(sources),
            None => Ok(()),
        }
    }

    /// Counts a settled connection of the other process. The end of one that is closing has been
    /// reported there, so that it counts no more.
    ///
    /// Errors: it names a shard or a source that there is not.
    pub(crate) fn take_over(&self, shard: usize, origin: Origin) -> Result<(), NotUnderstood> {
        if !self.assignments.take_over(shard) {
            return Err(refused("the number of a shard", shard as u64));
        }
        if self.tables.shard.is_none() {
            self.sockets.fetch_add(1, Ordering::Relaxed);
        }
        match (self.sources.get(), SourceRef::from_origin(origin.source)) {
            (Some(sources), Some(source)) => sources.take_over(source),
            // Sources are not counted, or were not.
            (None, _) | (_, None) => Ok(()),
        }
    }
}

/// Orders have seven bytes.
const ORDER_MAX: u64 = (1 << 56) - 1;
