//! The task that empties the way back from one shard.
//!
//! Some credits return only when the report that answers their command is taken from the shard. So the task takes
//! reports always, even while it waits for a credit itself: otherwise each would wait for the other. What it has
//! taken and cannot carry out yet lies in the [`Dispatcher`], which is bounded by what it is made of: at most
//! `RECEIVED_BYTES_MAX` of frames from devices, beyond which the shard stops reading from those who send; one
//! adoption for each unsettled connection; one close for each settled one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::error;

use super::Dispatcher;
use crate::connection::reports::{BATCH_REPORTS, Reports};
use crate::core::handle::Handle;
use crate::core::state::SharedState;
use crate::observe::readiness::{Part, PartState};

/// Takes the reports of one shard until it has stopped.
pub(crate) async fn run(handle: Handle, shard: usize, mut reports: Reports) {
    let shared = Arc::clone(handle.shared());
    let room = Arc::clone(reports.room());
    let _watch = Watch { shared: Arc::clone(&shared), shard };
    let (mut dispatcher, mut found) = Dispatcher::new(handle, shard, Arc::clone(&room));
    let mut batch = Vec::with_capacity(BATCH_REPORTS);
    let mut pause = PAUSE_MIN;
    loop {
        let before = dispatcher.carried_out();
        let is_starved = !dispatcher.work().await;
        let wait = if is_starved { Some(pause) } else { dispatcher.until_next_look() };
        let received = tokio::select! {
            biased;
            received = reports.receive(&mut batch) => received,
            // The dispatcher has a sender, so there is always somebody who may.
            Some(found) = found.recv() => {
                dispatcher.take_found(found);
                true
            }
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => true,
        };
        // Where credits come back it is soon asked again.
        let is_stuck = is_starved && dispatcher.carried_out() == before;
        pause = if is_stuck { (pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        if !received {
            return;
        }
        for report in batch.drain(..) {
            dispatcher.take(report);
        }
        while let Ok(found) = found.try_recv() {
            dispatcher.take_found(found);
        }
        if room.take_awaited() {
            shared.mailbox(shard).wake();
        }
    }
}

/// Notices that the way back of a shard has ended, whether the shard or the task behind it failed.
struct Watch {
    shared: Arc<SharedState>,
    shard: usize,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.shared.is_draining() {
            error!(
                shard = self.shard,
                "a shard has stopped by itself: the gateway is not ready any more"
            );
            let cause = format!("shard {} has stopped by itself", self.shard);
            self.shared.readiness.set(Part::Shards, PartState::Failed, Some(cause));
        }
    }
}

/// How soon a credit is asked for again: a turn of a busy shard takes about as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);
