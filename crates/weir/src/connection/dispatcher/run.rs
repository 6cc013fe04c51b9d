//! The task that takes the reports of one shard.
//!
//! Some credits return only when the task takes the report that answers their command. So it takes
//! reports even while it waits for a credit; otherwise task and shard would wait for each other.
//! Reports that it cannot carry out yet stay in the [`Dispatcher`]. Their number is bounded: at
//! most `RECEIVED_BYTES_MAX` of frames from devices (beyond that the shard stops reading from its
//! devices), one adoption for each unsettled connection, and one close for each settled one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::error;
use weir_engine::handover::NotUnderstood;
use weir_engine::{ConnId, Keeper, Taken};
use weir_wire::handover::v1;

use super::terms::Terms;
use super::{Asker, Dispatcher, Results, What};
use crate::base::handover::refused;
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
    /// What has waited for the answers of hooks.
    waiting: Vec<What>,
}

impl TakenTerms {
    /// Makes them of what was handed over; `taken` are the connections of this shard.
    pub(crate) fn import(
        shared: &SharedState,
        (shard, taken): (usize, &[Taken]),
        exported: v1::Terms,
    ) -> Result<TakenTerms, NotUnderstood> {
        let mut terms = Terms::new(shared.config().auth.expiring_notice);
        let refreshing = terms.import(&exported, shard, |grant| shared.auth.share(grant))?;
        let mut askers = HashMap::new();
        if !exported.waiting.is_empty() {
            askers.extend(taken.iter().map(|taken| (taken.id, taken)));
        }
        let what = |v1::WaitingFrame { conn, what }| {
            let asker = askers.get(&ConnId::from_u64(conn));
            let Taken { id, device, origin, .. } =
                asker.ok_or_else(|| refused("terms.waiting: an unknown connection", conn))?;
            What::import(what, Asker { conn: *id, device: *device, origin: *origin })
        };
        let waiting = exported.waiting.into_iter().map(what).collect::<Result<_, _>>()?;
        Ok(TakenTerms { terms, refreshing, waiting })
    }

    fn go_on(self, dispatcher: &mut Dispatcher) {
        let TakenTerms { terms, refreshing, waiting } = self;
        dispatcher.terms = terms;
        refreshing.into_iter().for_each(|conn| dispatcher.ask_for_token_again(conn));
        waiting.into_iter().for_each(|what| dispatcher.receive_moved(what));
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
    taken.into_iter().for_each(|taken| taken.go_on(&mut dispatcher));
    let mut rechecks = shared.rechecks.receiver(shard);
    let mut pauses = shared.pauses.receiver(shard);
    let mut pause: Option<(Pause, Instant)> = None;
    let mut batch = Vec::with_capacity(BATCH_REPORTS);
    let mut retry_after = PAUSE_MIN;
    loop {
        let before = dispatcher.carried_out();
        let is_starved = !dispatcher.work().await;
        shared.dispatchers[shard].set(dispatcher.footprint());
        let is_late = pause.as_ref().is_some_and(|(_, late)| *late <= Instant::now());
        if reports.is_empty()
            && (dispatcher.is_idle() || is_late && dispatcher.is_movable())
            && let Some((asked, _)) = pause.take()
            && stand_still(asked, dispatcher.export()).await == Keeper::Other
        {
            return;
        }
        let wait = match pause {
            Some(_) => Some(PAUSE_MIN),
            None if is_starved => Some(retry_after),
            None => dispatcher.until_next_look(),
        };
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
                pause = Some((asked, Instant::now() + ANSWERS_PATIENCE));
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

/// Most hooks and stores answer within some milliseconds. Then they are not asked again.
const ANSWERS_PATIENCE: Duration = Duration::from_millis(10);
/// The pause before a credit is tried again; a turn of a busy shard takes about as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);
