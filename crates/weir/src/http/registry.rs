//! The registry of all HTTP connections. It limits their number and their silence, and decides
//! which connection gives way to a new one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::RngExt;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use super::connection::{HttpConnection, Terms};
use super::orders::Order;
use crate::base::config::Config;
use crate::core::drain::{DrainPace, Drains};
use crate::limits::http_ledger::HttpShare;
use crate::observe::counters::ConnectRefuseCause;
use crate::observe::counters::http::End;

/// The open connections, and the clock that they share.
///
/// Limits: `http.connections_max`. One connection more takes the place of the longest silent one
/// among [`LOOKED_AT`] of them. If all of these are busy, the new one is refused.
/// Cost: no timer for a connection. Each tick looks at all connections, and each connection takes
/// the lock when it comes and when it goes.
pub(crate) struct Registry {
    members: Mutex<Members>,
    /// Ticks since the start.
    now: AtomicU32,
    max: usize,
    terms: Terms,
    /// The share of the byte budget that the connections use.
    share: Arc<HttpShare>,
    has_begun: Notify,
}

#[derive(Default)]
struct Members {
    connections: Vec<Arc<HttpConnection>>,
    is_draining: bool,
    drained: Drained,
    /// The index at which the next search for a silent connection begins.
    cursor: usize,
}

/// How many connections the newest drain of the node has told to end.
#[derive(Debug, Default)]
struct Drained {
    number: u32,
    told: u64,
    /// The index at which the next search for a connection to tell begins.
    cursor: usize,
}

/// A connection's place in the registry. Its drop gives the place back.
pub(super) struct Member {
    connection: Arc<HttpConnection>,
}

impl Registry {
    pub(super) fn new(config: &Config, share: &Arc<HttpShare>) -> Registry {
        let http = &config.http;
        Registry {
            share: Arc::clone(share),
            members: Mutex::default(),
            now: AtomicU32::new(0),
            max: http.connections_max,
            terms: Terms {
                head: ticks(http.head_timeout),
                idle: ticks(http.idle_timeout),
                body: ticks(http.body_timeout),
                stall: ticks(config.connection.stall_timeout),
            },
            has_begun: Notify::new(),
        }
    }

    /// The current tick.
    pub(super) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().connections.len()
    }

    /// Takes a place, if need be that of a silent connection. `None`: there is no place, or the
    /// gateway shuts down.
    pub(super) fn enter(&self, connection: &Arc<HttpConnection>) -> Option<Member> {
        let mut members = self.lock();
        if members.is_draining {
            return None;
        }
        if members.connections.len() >= self.max {
            let silent = members.longest_silent()?;
            members.remove(silent).orders.tell(Order::End(End::Crowded));
        }
        connection.place.store(members.connections.len(), Ordering::Relaxed);
        members.connections.push(Arc::clone(connection));
        if members.connections.len() == 1 {
            self.has_begun.notify_one();
        }
        Some(Member { connection: Arc::clone(connection) })
    }

    /// The reason why there is no place.
    pub(super) fn refusal(&self) -> ConnectRefuseCause {
        match self.lock().is_draining {
            true => ConnectRefuseCause::Draining,
            false => ConnectRefuseCause::HttpConnectionsMax,
        }
    }

    /// Tells all connections to end when they have no request in progress.
    pub(super) fn drain(&self) {
        let mut members = self.lock();
        members.is_draining = true;
        for connection in &members.connections {
            connection.orders.tell(Order::Drain);
        }
    }

    /// Advances the clock, and ends the connections whose time is over. `drains` tells how many
    /// connections have to be drained. Never returns.
    pub(super) async fn watch(&self, drains: &Drains) {
        let mut clock = interval(weir_engine::TICK);
        // After a pause of the process the missed ticks do not follow at once, because the peers
        // waited for us.
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.count() == 0 {
                self.has_begun.notified().await;
                clock.reset();
            }
            clock.tick().await;
            let now = self.now.load(Ordering::Relaxed).saturating_add(1);
            self.now.store(now, Ordering::Relaxed);
            self.look(now);
            if let Some(pace) = drains.pace() {
                self.lock().drain(&pace);
            }
        }
    }

    /// Checks all connections once.
    fn look(&self, now: u32) {
        let stall = self.terms.stall;
        if now.is_multiple_of(2 * stall.max(1)) {
            self.share.turn_period();
        }
        let answers_stall = if self.share.is_tight() { stall.min(TIGHT_STALL) } else { stall };
        let members = self.lock();
        for connection in &members.connections {
            let ledger = &connection.caller.ledger;
            if let Some(end) = connection.overdue(now, &self.terms) {
                connection.orders.tell(Order::End(end));
            } else if ledger.is_stuck() {
                connection.orders.tell(Order::End(End::Stalled));
            }
            connection.look_at_answers(now, answers_stall);
            ledger.give_back();
        }
        members.relieve(self.share.excess(), now);
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().expect("no panic happens under the registry's lock")
    }
}

impl Members {
    /// The index of the longest silent connection among the next [`LOOKED_AT`]; of several, the
    /// first.
    fn longest_silent(&mut self) -> Option<usize> {
        let count = self.connections.len();
        let looked_at = count.min(LOOKED_AT);
        let places = (0..looked_at).map(|step| (self.cursor + step) % count);
        let silent =
            places.filter_map(|place| Some((self.connections[place].silent_since()?, place)));
        let longest = silent.min().map(|(_, place)| place);
        if count > LOOKED_AT {
            self.cursor = (self.cursor + looked_at) % count;
        } else {
            self.cursor = 0;
        }
        longest
    }

    /// Tells as many connections as are due by now to end when they have no request in progress.
    ///
    /// The first one is chosen at random, and its neighbours follow. Places change when connections
    /// go, so at the end of a drain of all, every connection is told.
    fn drain(&mut self, pace: &DrainPace) {
        let open = self.connections.len();
        if self.drained.number != pace.number {
            let cursor = rand::rng().random_range(0..open.max(1));
            self.drained = Drained { number: pace.number, told: 0, cursor };
        }
        let Drained { told, cursor, .. } = &mut self.drained;
        for _ in 0..open {
            if *told >= pace.due {
                return;
            }
            let orders = &self.connections[*cursor % open].orders;
            *cursor = (*cursor + 1) % open;
            if orders.order().is_none() {
                orders.tell(Order::Drain);
                *told += 1;
            }
        }
    }

    /// Ends connections until they give back `excess` bytes. It begins with those that have held
    /// the most bytes for the longest time. It spares connections that the gateway works for. It
    /// rarely ends one whose request is on its way, since such a request holds its bytes for a
    /// moment only.
    fn relieve(&self, excess: usize, now: u32) {
        if excess == 0 {
            return;
        }
        let (mut left, mut others) = (excess, Vec::new());
        for connection in &self.connections {
            let leased = connection.caller.ledger.leased();
            if matches!(connection.orders.order(), Some(Order::End(_))) {
                left = left.saturating_sub(leased);
            } else if leased > 0
                && let Some(since) = connection.silent_since()
            {
                let ticks = u64::from(now.saturating_sub(since)) + 1;
                others.push((leased as u64 * ticks, leased, connection));
            }
        }
        others.sort_unstable_by_key(|(weight, ..)| std::cmp::Reverse(*weight));
        for (_, leased, connection) in others {
            if left == 0 {
                return;
            }
            connection.orders.tell(Order::End(End::Memory));
            left = left.saturating_sub(leased);
        }
    }

    fn remove(&mut self, place: usize) -> Arc<HttpConnection> {
        let connection = self.connections.swap_remove(place);
        connection.place.store(usize::MAX, Ordering::Relaxed);
        if let Some(moved) = self.connections.get(place) {
            moved.place.store(place, Ordering::Relaxed);
        }
        connection
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut members = self.connection.edge.registry.lock();
        let place = self.connection.place.load(Ordering::Relaxed);
        // The place is gone if another connection has taken it.
        if place != usize::MAX {
            members.remove(place);
        }
    }
}

/// The time in ticks, rounded up.
fn ticks(time: Duration) -> u32 {
    let ticks = time.as_millis().div_ceil(weir_engine::TICK.as_millis());
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// Ticks that an answer may make no progress while the share is tight: a second.
const TIGHT_STALL: u32 = 10;
/// Among so many connections, one has been silent for long. Looking through them takes some
/// microseconds.
const LOOKED_AT: usize = 64;
