//! The task that takes the reports of one shard.
//!
//! Some credits return only when the task takes the report that answers their command. So it takes
//! reports even while it waits for a credit; otherwise task and shard would wait for each other.
//! Reports that it cannot carry out yet stay in the [`Dispatcher`]. Their number is bounded: at
//! most `RECEIVED_BYTES_MAX` of frames from devices (beyond that the shard stops reading from its
//! devices), one adoption for each unsettled connection, and one close for each settled one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::error;
use weir_engine::handover::NotUnderstood;
use weir_engine::{ConnId, Keeper};
use weir_wire::handover::v1;

use super::terms::Terms;
use super::{Dispatcher, Results};
use crate::connection::reports::{BATCH_REPORTS, Reports};
use crate::core::handle::Handle;
use crate::core::pauses::Pause;
use crate::core::state::SharedState;
use crate::observe::readiness::{Part, PartState};

/// The terms of connections that another process has handed over.
pub(crate) struct TakenTerms {
    terms: Terms,
    /// Those whose new token the other process was checking.
    refreshing: Vec<ConnId>,
}

impl TakenTerms {
    /// Makes them of what was handed over.
    pub(crate) fn import(
        shared: &SharedState,
        shard: usize,
        taken: &v1::Terms,
    ) -> Result<TakenTerms, NotUnderstood> {
        let mut terms = Terms::new(shared.config().auth.expiring_notice);
        let refreshing = terms.import(taken, shard, |grant| shared.auth.share(grant))?;
        Ok(TakenTerms { terms, refreshing })
    }
}

/// Takes and carries out the reports of one shard until the shard has stopped.
///
/// `taken`: the terms of connections that another process has handed over.
pub(crate) async fn run(
    handle: Handle,
    shard: usize,
    mut reports: Reports,
    taken: Option<TakenTerms>,
) {
    let shared = Arc::clone(handle.shared());
    let room = Arc::clone(reports.room());
    let _watch = Watch { shared: Arc::clone(&shared), shard };
    let (mut dispatcher, results) = Dispatcher::new(handle, shard, Arc::clone(&room));
    let Results { mut found, mut answered } = results;
    if let Some(TakenTerms { terms, refreshing }) = taken {
        dispatcher.terms = terms;
        refreshing.into_iter().for_each(|conn| dispatcher.ask_for_token_again(conn));
    }
    let mut rechecks = shared.rechecks.receiver(shard);
    let mut pauses = shared.pauses.receiver(shard);
    let mut pause = None;
    let mut batch = Vec::with_capacity(BATCH_REPORTS);
    let mut retry_after = PAUSE_MIN;
    loop {
        let before = dispatcher.carried_out();
        let is_starved = !dispatcher.work().await;
        shared.dispatchers[shard].set(dispatcher.footprint());
        if dispatcher.is_idle()
            && reports.is_empty()
            && let Some(asked) = pause.take()
            && stand_still(asked, dispatcher.terms.export()).await == Keeper::Other
        {
            return;
        }
        let wait = if is_starved { Some(retry_after) } else { dispatcher.until_next_look() };
        let received = tokio::select! {
            biased;
            received = reports.receive(&mut batch) => received,
            // The dispatcher keeps a sender, so the channel never closes.
            Some(found) = found.recv() => {
                dispatcher.take_found(found);
                true
            }
            // Likewise.
            Some(answered) = answered.recv() => {
                dispatcher.take_answered(answered);
                true
            }
            // The shared state keeps a sender, so the channel never closes.
            Some(recheck) = rechecks.recv() => {
                dispatcher.take_recheck(recheck);
                true
            }
            // Likewise.
            Some(asked) = pauses.recv() => {
                pause = Some(asked);
                true
            }
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => true,
        };
        // After progress the next try comes soon.
        let is_stuck = is_starved && dispatcher.carried_out() == before;
        retry_after = if is_stuck { (retry_after * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        if !received {
            return;
        }
        for report in batch.drain(..) {
            dispatcher.take(report);
        }
        while let Ok(found) = found.try_recv() {
            dispatcher.take_found(found);
        }
        while let Ok(answered) = answered.try_recv() {
            dispatcher.take_answered(answered);
        }
        if room.take_awaited() {
            shared.mailbox(shard).wake();
        }
    }
}

/// Waits until it is known who goes on.
async fn stand_still(Pause { is_still, keeper }: Pause, terms: v1::Terms) -> Keeper {
    match is_still.send(terms) {
        Ok(()) => keeper.await.unwrap_or(Keeper::Itself),
        // The one who asked has given up.
        Err(_) => Keeper::Itself,
    }
}

/// Reports to readiness that a shard has stopped, or that the task for its reports has failed. The
/// shard's connections leave the presence of their topics.
struct Watch {
    shared: Arc<SharedState>,
    shard: usize,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.shared.drains.is_ending() {
            error!(
                shard = self.shard,
                "a shard has stopped by itself: the gateway is not ready any more"
            );
            let cause = format!("shard {} has stopped by itself", self.shard);
            self.shared.readiness.set(Part::Shards, PartState::Failed, Some(cause));
            self.shared.router.forget_shard(self.shard);
            self.shared.calls.end_shard(self.shard);
        }
    }
}

/// The pause before a credit is tried again; a turn of a busy shard takes about as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);
