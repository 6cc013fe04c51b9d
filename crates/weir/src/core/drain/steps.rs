//! The steps of a drain: the order, the task that carries it out, and its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};
use weir_engine::{Command, Drain, DrainWhat, TICK};
use weir_wire::CloseReason;

use super::{DrainError, DrainInfo, DrainOptions, DrainState, Newest, count_of};
use crate::base::handover::HandingOver;
use crate::base::{frames, mailboxes};
use crate::core::handle::ShardSilent;
use crate::core::state::SharedState;
use crate::observe::counters::http::Dialect;
use crate::observe::readiness::{Part, PartState};

impl SharedState {
    /// Announces a drain: the node is not ready any more, and its task goes on.
    pub(crate) fn drain(&self, options: DrainOptions) -> Result<DrainInfo, DrainError> {
        options.check()?;
        let open = self.open_connections();
        let mut refused = None;
        let announce = |newest: &mut Newest| {
            if newest.is_ending || newest.is_active() {
                refused = Some(*newest);
                return false;
            }
            newest.number += 1;
            newest.options = options;
            newest.enter(DrainState::Announced);
            newest.to_close = count_of(options.share, open.iter().sum());
            newest.closed = Some(0);
            let cause = "its connections are told to go elsewhere (POST /v1/drain)".to_owned();
            self.readiness.set(Part::Drain, PartState::Failed, Some(cause));
            true
        };
        let announced = self.door.pass(|| self.drains.newest.send_if_modified(announce));
        announced.map_err(|HandingOver| DrainError::HandingOver)?;
        match refused {
            Some(newest) if newest.is_ending => Err(DrainError::Ending),
            Some(newest) => Err(DrainError::Busy(self.info_of(&newest))),
            None => {
                let DrainOptions { share, lead, over } = options;
                info!(share, ?lead, ?over, "drain announced: the node is not ready");
                self.announce_soon();
                Ok(self.drain_info())
            }
        }
    }

    /// The newest drain.
    pub(crate) fn drain_info(&self) -> DrainInfo {
        let newest = *self.drains.newest.borrow();
        self.info_of(&newest)
    }

    fn info_of(&self, newest: &Newest) -> DrainInfo {
        let so_far = || self.closed_by_drains().saturating_sub(newest.closed_before);
        DrainInfo {
            state: newest.state,
            options: (newest.state != DrainState::Idle).then_some(newest.options),
            since_ms: newest.since_ms,
            connections: self.open_connections().iter().sum(),
            http_connections: self.http_connections(),
            to_close: newest.to_close,
            closed: newest.closed.unwrap_or_else(so_far),
        }
    }

    /// Cancels the drain, if there is one. Afterwards no further connection is closed, and new ones
    /// are admitted.
    ///
    /// Errors: a shard does not answer in time. It ends the drain as soon as it can.
    pub(crate) async fn cancel_drain(&self) -> Result<DrainInfo, ShardSilent> {
        let mut number = None;
        let cancel = |newest: &mut Newest| {
            if newest.is_ending || !newest.is_active() {
                return false;
            }
            number = Some(newest.number);
            !std::mem::replace(&mut newest.is_cancelled, true)
        };
        let cancelled = self.door.pass(|| self.drains.newest.send_if_modified(cancel));
        cancelled.map_err(|HandingOver| ShardSilent { shard: 0 })?;
        let Some(number) = number else { return Ok(self.drain_info()) };
        let mut newest = self.drains.newest.subscribe();
        let is_over = |newest: &Newest| !newest.is_cancelled || newest.is_ending;
        // The sender is in this state.
        let _ = newest.wait_for(is_over).await;
        match self.drains.running_shard(number) {
            Some(shard) => Err(ShardSilent { shard }),
            None => Ok(self.drain_info()),
        }
    }

    /// The gateway shuts down: it accepts nothing new from now on. Returns the number of the drain
    /// with which it ends.
    pub(crate) fn begin_shutdown(&self) -> u32 {
        let (mut number, open) = (0, self.open_connections());
        let over = self.config().connection.drain_timeout;
        self.drains.newest.send_modify(|newest| {
            newest.is_ending = true;
            newest.number += 1;
            number = newest.number;
            newest.options = DrainOptions { share: 1.0, lead: Duration::ZERO, over };
            newest.enter(DrainState::Draining);
            newest.began = Instant::now();
            newest.to_close = open.iter().sum();
            newest.http_to_close = self.http_connections();
            (newest.closed_before, newest.closed) = (self.closed_by_drains(), None);
            self.draining.send_replace(true);
            let cause = "the gateway closes its connections and ends".to_owned();
            self.readiness.set(Part::Drain, PartState::Failed, Some(cause));
        });
        number
    }

    /// Tells the shards to close connections. `each` names them, and the time, for a shard with so
    /// many connections.
    pub(crate) async fn drain_shards(
        &self,
        number: u32,
        open: &[u64],
        mut each: impl FnMut(u64) -> (DrainWhat, Duration),
    ) {
        for (shard, open) in open.iter().enumerate() {
            let (what, over) = each(*open);
            if what == DrainWhat::All {
                self.adoptions[shard].close();
            }
            let retry_after_ms = frames::RETRY_AFTER_MS;
            let drain = Drain { number, what, over, retry_after_ms, seed: rand::random() };
            mailboxes::push(self.mailbox(shard), Command::Drain(drain)).await;
        }
    }

    /// The open connections of each shard.
    pub(crate) fn open_connections(&self) -> Vec<u64> {
        let engine = self.engine();
        (0..engine.shard_count()).map(|shard| engine.stats(shard).connections.get()).collect()
    }

    fn closed_by_drains(&self) -> u64 {
        let engine = self.engine();
        let closed = |shard| engine.stats(shard).closed[CloseReason::Draining.index()].get();
        (0..engine.shard_count()).map(closed).sum()
    }

    fn http_connections(&self) -> u64 {
        let http = &self.counters().http;
        Dialect::ALL.map(|dialect| http.connections(dialect) as u64).iter().sum()
    }

    fn announce_soon(&self) {
        if let Some(node) = &self.node {
            node.announce_soon();
        }
    }
}

/// Carries out the drains that are asked for. Never returns.
pub(crate) async fn run(shared: Arc<SharedState>) {
    let drains = &shared.drains;
    let mut newest = drains.newest.subscribe();
    loop {
        let is_next =
            |newest: &Newest| newest.is_cancelled || newest.state == DrainState::Announced;
        // The sender is in the shared state.
        let Ok(next) = newest.wait_for(is_next).await.map(|newest| *newest) else { return };
        if next.is_cancelled {
            readmit(&shared, next.number).await;
            continue;
        }
        tokio::select! {
            () = carry_out(&shared, next) => {}
            _ = newest.wait_for(|newest| newest.is_cancelled) => {}
        }
    }
}

async fn carry_out(shared: &SharedState, Newest { number, options, .. }: Newest) {
    sleep(options.lead).await;
    let open = shared.open_connections();
    let connections: u64 = open.iter().sum();
    let (to_close, http) = (count_of(options.share, connections), shared.http_connections());
    let is_begun = shared.drains.advance(number, |newest| {
        newest.enter(DrainState::Draining);
        newest.began = Instant::now();
        newest.to_close = to_close;
        newest.http_to_close = count_of(options.share, http);
        (newest.closed_before, newest.closed) = (shared.closed_by_drains(), None);
        if options.is_of_all() {
            shared.draining.send_replace(true);
        }
    });
    if !is_begun {
        return std::future::pending().await;
    }
    info!(connections, to_close, over = ?options.over, "draining");
    let (mut seen, mut chosen) = (0, 0);
    let each = |open| {
        if options.is_of_all() {
            return (DrainWhat::All, options.over);
        }
        seen += open;
        // The sum of all shards is rounded, not each one.
        let count = count_of(options.share, seen) - chosen;
        chosen += count;
        (DrainWhat::Count(count), options.over)
    };
    shared.drain_shards(number, &open, each).await;
    shared.drains.wait_for_shards(number).await;
    if options.is_of_all() {
        while shared.counters().unsettled() as u64 + shared.http_connections() > 0 {
            sleep(FRONT_INTERVAL).await;
        }
    } else if http > 0 {
        // The registry of HTTP connections needs the same time.
        let newest = *shared.drains.newest.borrow();
        sleep((options.over + 2 * TICK).saturating_sub(newest.began.elapsed())).await;
    }
    finish(shared, number);
}

/// Ends a drain whose connections have all been told.
fn finish(shared: &SharedState, number: u32) {
    let mut info = None;
    shared.drains.advance(number, |newest| {
        newest.closed = Some(shared.info_of(newest).closed);
        newest.enter(DrainState::Drained);
        if !newest.options.is_of_all() {
            shared.readiness.set(Part::Drain, PartState::Ok, None);
        }
        info = Some(shared.info_of(newest));
    });
    if let Some(DrainInfo { closed, connections, .. }) = info {
        info!(closed, connections, "drained");
        shared.announce_soon();
    }
}

/// Ends a drain that was cancelled.
async fn readmit(shared: &SharedState, number: u32) {
    let ended = async {
        for mailbox in shared.mailboxes().iter() {
            mailboxes::push(mailbox, Command::EndDrain(number)).await;
        }
        shared.drains.wait_for_shards(number).await;
    };
    if timeout(mailboxes::ANSWER_TIMEOUT, ended).await.is_err() {
        warn!("a shard does not answer: it may still close connections of the cancelled drain");
    }
    let mut info = None;
    shared.drains.newest.send_if_modified(|newest| {
        if newest.is_ending {
            return false;
        }
        for adoptions in &shared.adoptions {
            adoptions.open();
        }
        newest.closed = Some(shared.info_of(newest).closed);
        newest.is_cancelled = false;
        newest.enter(DrainState::Cancelled);
        shared.draining.send_replace(false);
        shared.readiness.set(Part::Drain, PartState::Ok, None);
        info = Some(shared.info_of(newest));
        true
    });
    if let Some(DrainInfo { closed, connections, .. }) = info {
        info!(closed, connections, "drain cancelled: the node is ready");
        shared.announce_soon();
    }
}

/// How often the last connections of the front are looked at.
const FRONT_INTERVAL: Duration = Duration::from_millis(10);
