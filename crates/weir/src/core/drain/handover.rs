//! The newest drain, in a process that takes over from another.

use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::{DrainOptions, DrainState, Drains};
use crate::base::handover::{at, check_column, refused};
use crate::core::state::SharedState;
use crate::observe::readiness::{Part, PartState};

impl Drains {
    /// Whether a drain closes connections, or is about to. Then nothing can be handed over: the
    /// shards have to be at rest.
    pub(crate) fn is_running(&self) -> bool {
        match self.newest.borrow().state {
            DrainState::Announced | DrainState::Draining => true,
            DrainState::Idle | DrainState::Drained | DrainState::Cancelled => false,
        }
    }

    /// The newest drain. None may be running.
    pub(in crate::core) fn export(&self) -> v1::DrainState {
        let newest = *self.newest.borrow();
        v1::DrainState {
            number: newest.number,
            state: newest.state as u32,
            share: newest.options.share.to_bits(),
            lead: nanos(newest.options.lead),
            over: nanos(newest.options.over),
            since_ms: newest.since_ms,
            to_close: newest.to_close,
            closed: newest.closed.unwrap_or(0),
        }
    }

    pub(in crate::core) fn export_ended(&self) -> Vec<u32> {
        self.ended.iter().map(|ended| ended.load(Ordering::Relaxed)).collect()
    }
}

impl SharedState {
    /// Goes on after the newest drain of another process. If it has emptied the node, the node stays
    /// closed until the drain is cancelled.
    pub(in crate::core) fn import_drain(
        &self,
        drain: &v1::DrainState,
        ended: &[u32],
    ) -> Result<(), NotUnderstood> {
        let drains = &self.drains;
        check_column("numbers.drains_ended", ended.len(), drains.ended.len())?;
        let state = at("drain.state", &DrainState::ALL, drain.state)?;
        let options = DrainOptions {
            share: f64::from_bits(drain.share),
            lead: Duration::from_nanos(drain.lead),
            over: Duration::from_nanos(drain.over),
        };
        options.check().map_err(|_| refused("drain.share, lead or over", drain.share))?;
        // It is added to in each drain.
        if drain.number > u32::MAX / 2 {
            return Err(refused("drain.number", drain.number));
        }
        for (own, ended) in drains.ended.iter().zip(ended) {
            own.store(*ended, Ordering::Relaxed);
        }
        drains.newest.send_modify(|newest| {
            (newest.number, newest.options) = (drain.number, options);
            (newest.state, newest.since_ms) = (state, drain.since_ms);
            (newest.to_close, newest.closed) = (drain.to_close, Some(drain.closed));
        });
        if drains.is_running() {
            return Err(refused("drain.state", drain.state));
        }
        if drains.is_active() {
            self.adoptions.iter().for_each(|adoptions| adoptions.close());
            self.draining.send_replace(true);
            let cause = "its connections are told to go elsewhere (POST /v1/drain)".to_owned();
            self.readiness.set(Part::Drain, PartState::Failed, Some(cause));
        }
        Ok(())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
