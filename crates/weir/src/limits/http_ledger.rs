//! The bytes that HTTP connections hold, charged to the byte budget: requests in progress, and long answers.
//!
//! ```text
//!  Budget ──its share──▶ HttpShare, of all connections ──leases──▶ Ledger, of one ─┬▶ Open: a request, until its answer
//!                                                                                  │  has left
//!                                                                                  └▶ AnswerCharge: a long answer's bytes
//! ```

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_engine::{Budget, Footprint, Share};

/// The part of the byte budget that HTTP connections may use.
///
/// Limits: HTTP's share of the budget ([`Share::Http`]), which relays use too. A connection may hold half of what
/// the others leave free. The last quarter of the share is for connections that hold at most [`SMALL_BYTES`]. While that
/// part is in use, the registry of HTTP connections ends the connections that hold most.
/// Cost: some atomic operations for a lease, which connections take in pieces of [`LEASE_BYTES`].
#[derive(Debug)]
pub(crate) struct HttpShare {
    budget: Arc<Budget>,
    bytes_max: usize,
    used: AtomicUsize,
    /// The number of the current period; see [`Ledger::is_stuck`].
    period: AtomicUsize,
    /// By [`NoShare`].
    refused: [AtomicU64; NoShare::ALL.len()],
    streams_reset: AtomicU64,
    /// Connections whose sockets take none of their bytes, and these bytes.
    unsent_count: AtomicUsize,
    unsent: AtomicUsize,
}

/// The account of one connection.
///
/// Shape: the lease covers [`OPEN_BYTES`] for each request in progress, long answers, read buffers that stay, and bytes
/// that wait for the socket.
/// Limits: [`HttpShare`], and for answers `http.answer_bytes_max`.
/// Cost: a request adds and subtracts in atomics of its own connection; the lease changes seldom, under a lock.
#[derive(Debug)]
pub(crate) struct Ledger {
    share: Arc<HttpShare>,
    answer_bytes_max: usize,
    /// Requests in progress: one count of 16 bits for each [`Stage`].
    open: AtomicU64,
    /// Bytes of long answers.
    charged: AtomicUsize,
    /// Bytes of read buffers.
    kept: AtomicUsize,
    /// Bytes that wait for the socket. Only the connection's task writes it.
    unsent: AtomicUsize,
    leased: AtomicUsize,
    leasing: Mutex<()>,
}

/// Bytes of an answer, until they have left.
#[derive(Debug)]
pub(crate) struct AnswerCharge {
    ledger: Arc<Ledger>,
    bytes: usize,
}

/// How far a request in progress has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The library does not have all of its answer yet.
    Begun,
    /// The library has all of its answer, since a period of this number modulo [`PERIODS`].
    Handed(u8),
}

weir_wire::named_enum! {
    /// Which limit refused a request or an answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum NoShare {
        /// The answers of the connection are at `http.answer_bytes_max`.
        Connection = "connection",
        /// The share of HTTP is in use, or this connection would hold too much of it.
        Share = "share",
        /// The byte budget is used up.
        Budget = "budget",
    }
}

impl HttpShare {
    pub(crate) fn new(budget: &Arc<Budget>) -> Arc<HttpShare> {
        Arc::new(HttpShare {
            budget: Arc::clone(budget),
            bytes_max: budget.bytes_max_of(Share::Http),
            used: AtomicUsize::new(0),
            period: AtomicUsize::new(0),
            refused: Default::default(),
            streams_reset: AtomicU64::new(0),
            unsent_count: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
        })
    }

    /// Bytes leased now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// How often something was refused for this cause.
    pub(crate) fn refused(&self, cause: NoShare) -> u64 {
        self.refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Streams of HTTP/2 that were reset, since their answers did not leave.
    pub(crate) fn streams_reset(&self) -> u64 {
        self.streams_reset.load(Ordering::Relaxed)
    }

    /// What connections have gathered, and their sockets do not take.
    pub(crate) fn unsent(&self) -> Footprint {
        let [count, bytes] =
            [&self.unsent_count, &self.unsent].map(|figure| figure.load(Ordering::Relaxed));
        Footprint::new(count, bytes)
    }

    pub(crate) fn count_reset(&self) {
        self.streams_reset.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether answers that make no progress should be reset sooner.
    pub(crate) fn is_tight(&self) -> bool {
        self.excess() > 0 || self.budget.is_tight(Share::Http)
    }

    /// Bytes that the largest holders should give back, because the part for small ones is in use.
    pub(crate) fn excess(&self) -> usize {
        let used = self.used();
        if used > self.bytes_of_large() { used - self.bytes_max / 8 * 5 } else { 0 }
    }

    fn bytes_of_large(&self) -> usize {
        self.bytes_max / 4 * 3
    }

    /// Begins the next period.
    pub(crate) fn turn_period(&self) {
        self.period.fetch_add(1, Ordering::Relaxed);
    }

    /// The stage of an answer that the library gets now.
    fn handed(&self) -> Stage {
        Stage::Handed(number(self.period.load(Ordering::Relaxed)))
    }

    /// Leases more to a connection that has `own`.
    fn lease(&self, own: usize, more: usize) -> Result<(), NoShare> {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let left_by_others = self.bytes_max.saturating_sub(used.saturating_sub(own));
            let is_small = own + more <= SMALL_BYTES && used + more <= self.bytes_max;
            let is_fair = own + more <= left_by_others / 2 && used + more <= self.bytes_of_large();
            (is_small || is_fair).then_some(used + more)
        });
        taken.map_err(|_| NoShare::Share)?;
        if self.budget.take(Share::Http, more) {
            return Ok(());
        }
        self.used.fetch_sub(more, Ordering::Relaxed);
        Err(NoShare::Budget)
    }

    fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.give(Share::Http, bytes);
    }

    fn count(&self, cause: NoShare) -> NoShare {
        self.refused[cause as usize].fetch_add(1, Ordering::Relaxed);
        cause
    }
}

impl Ledger {
    pub(crate) fn new(share: &Arc<HttpShare>, answer_bytes_max: usize) -> Arc<Ledger> {
        Arc::new(Ledger {
            share: Arc::clone(share),
            answer_bytes_max,
            open: AtomicU64::new(0),
            charged: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            leased: AtomicUsize::new(0),
            leasing: Mutex::default(),
        })
    }

    pub(crate) fn share(&self) -> &HttpShare {
        &self.share
    }

    /// Requests in progress.
    pub(crate) fn open_count(&self) -> usize {
        let open = self.open.load(Ordering::SeqCst);
        let counts = (0..=PERIODS).map(|place| open >> (COUNT_BITS * u32::from(place)) & COUNT_MAX);
        usize::try_from(counts.sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Begins a request.
    pub(crate) fn open(&self) -> Result<(), NoShare> {
        self.open.fetch_add(Stage::Begun.one(), Ordering::SeqCst);
        self.cover().inspect_err(|_| self.close(Stage::Begun))
    }

    /// The library has all of an answer.
    pub(crate) fn hand(&self) -> Stage {
        let stage = self.share.handed();
        // One less there and one more here, in one step.
        self.open.fetch_add(stage.one() - Stage::Begun.one(), Ordering::SeqCst);
        stage
    }

    /// Ends a request.
    pub(crate) fn close(&self, stage: Stage) {
        self.open.fetch_sub(stage.one(), Ordering::SeqCst);
        // The registry's next look returns the rest.
        if self.leased() > self.needed() + KEPT_BYTES {
            self.give_back();
        }
    }

    /// Bytes leased.
    pub(crate) fn leased(&self) -> usize {
        self.leased.load(Ordering::Relaxed)
    }

    /// Whether the library has held an answer for at least one whole period.
    pub(crate) fn is_stuck(&self) -> bool {
        // The next period reuses the number of the period before the last.
        let oldest = number(self.share.period.load(Ordering::Relaxed) + 1);
        let open = self.open.load(Ordering::Relaxed);
        (open / Stage::Handed(oldest).one()) & COUNT_MAX != 0
    }

    /// As much as one answer in parts should have: less than 1 MiB where the share is small.
    pub(crate) fn part_bytes(&self) -> usize {
        self.share.bytes_max / 4
    }

    /// Charges the bytes of an answer. A lone one may be longer than `http.answer_bytes_max`.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Result<AnswerCharge, NoShare> {
        self.take(bytes, 0)?;
        Ok(AnswerCharge { ledger: Arc::clone(self), bytes })
    }

    /// Takes more bytes for an answer that has `own` of them.
    fn take(&self, more: usize, own: usize) -> Result<(), NoShare> {
        let before = self.charged.fetch_add(more, Ordering::SeqCst);
        let is_lone = before == own;
        let taken = if before + more > self.answer_bytes_max && !is_lone {
            Err(self.share.count(NoShare::Connection))
        } else {
            self.cover()
        };
        taken.inspect_err(|_| {
            self.charged.fetch_sub(more, Ordering::SeqCst);
        })
    }

    /// Sets how many bytes of read buffers the connection keeps; they are counted also without room.
    pub(crate) fn keep(&self, bytes: usize) -> Result<(), NoShare> {
        self.kept.store(bytes, Ordering::SeqCst);
        self.cover()
    }

    /// Sets how many bytes wait for the socket; they are counted also without room.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), NoShare> {
        let before = self.unsent.swap(bytes, Ordering::SeqCst);
        let share = &self.share;
        match (before, bytes) {
            (0, 1..) => drop(share.unsent_count.fetch_add(1, Ordering::Relaxed)),
            (1.., 0) => drop(share.unsent_count.fetch_sub(1, Ordering::Relaxed)),
            (0, 0) | (1.., 1..) => {}
        }
        share.unsent.fetch_add(bytes, Ordering::Relaxed);
        share.unsent.fetch_sub(before, Ordering::Relaxed);
        if bytes < before {
            self.give_back();
            return Ok(());
        }
        self.cover()
    }

    /// Gives back what was leased and is not needed any more.
    pub(crate) fn give_back(&self) {
        if self.leased.load(Ordering::Relaxed) == 0 {
            return;
        }
        let _lock = self.lock();
        let leased = self.leased.load(Ordering::SeqCst);
        let kept = self.needed().next_multiple_of(LEASE_BYTES).min(leased);
        self.leased.store(kept, Ordering::SeqCst);
        // A request that began meanwhile saw the old lease, or is counted here.
        if self.needed() > kept {
            self.leased.store(leased, Ordering::SeqCst);
        } else if leased > kept {
            self.share.give(leased - kept);
        }
    }

    fn needed(&self) -> usize {
        self.open_count() * OPEN_BYTES
            + self.charged.load(Ordering::SeqCst)
            + self.kept.load(Ordering::SeqCst)
            + self.unsent.load(Ordering::SeqCst)
    }

    /// Has the lease cover what is needed.
    fn cover(&self) -> Result<(), NoShare> {
        if self.needed() <= self.leased.load(Ordering::SeqCst) {
            return Ok(());
        }
        let _lock = self.lock();
        let (needed, leased) = (self.needed(), self.leased.load(Ordering::SeqCst));
        let Some(missing) = needed.checked_sub(leased).filter(|missing| *missing > 0) else {
            return Ok(());
        };
        let leasing = |more| {
            self.share.lease(leased, more)?;
            self.leased.store(leased + more, Ordering::SeqCst);
            Ok(())
        };
        let ample = missing.next_multiple_of(LEASE_BYTES);
        leasing(ample).or_else(|_| leasing(missing)).map_err(|cause| self.share.count(cause))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.leasing.lock().expect("no panic happens under a ledger's lock")
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // To hold nothing always succeeds.
        let _ = self.hold(0);
        self.share.give(*self.leased.get_mut());
    }
}

impl AnswerCharge {
    /// Changes it to what the answer has come to.
    pub(crate) fn fit(&mut self, bytes: usize) -> Result<(), NoShare> {
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) {
            self.ledger.take(more, self.bytes)?;
            self.bytes = bytes;
        } else {
            let less = self.bytes - bytes;
            self.ledger.charged.fetch_sub(less, Ordering::SeqCst);
            self.bytes = bytes;
            self.ledger.give_back();
        }
        Ok(())
    }

    /// The same, also beyond the limits: the request has had its effects, so it gets its answer.
    pub(crate) fn overdraw(&mut self, bytes: usize) {
        if self.fit(bytes).is_err() {
            self.ledger.charged.fetch_add(bytes - self.bytes, Ordering::SeqCst);
            self.bytes = bytes;
        }
    }
}

impl Drop for AnswerCharge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.ledger.charged.fetch_sub(self.bytes, Ordering::SeqCst);
            self.ledger.give_back();
        }
    }
}

impl Stage {
    /// One request in this stage.
    const fn one(self) -> u64 {
        match self {
            Stage::Begun => 1,
            Stage::Handed(period) => 1 << (COUNT_BITS * (1 + period as u32)),
        }
    }
}

fn number(period: usize) -> u8 {
    u8::try_from(period % usize::from(PERIODS)).unwrap_or(0)
}

/// What a waiting request holds: its stream, its task, and a short answer.
/// Source: `RssAnon` grew by 4.4 KiB for each of 3,200 requests that waited for their bodies
/// (`heads_are_not_kept_while_bodies_are_awaited` in `tests/tests/http_memory/main.rs`).
const OPEN_BYTES: usize = 5 * 1024;
/// Some requests at one time, as of a browser.
const SMALL_BYTES: usize = 32 * 1024;
/// A few requests.
const LEASE_BYTES: usize = 16 * 1024;
/// Unused lease that a connection keeps for its next requests.
const KEPT_BYTES: usize = 4 * LEASE_BYTES;
const PERIODS: u8 = 3;
const COUNT_BITS: u32 = 16;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A budget of which HTTP has so much, to a few bytes.
    fn share(http_bytes: usize) -> (Arc<Budget>, Arc<HttpShare>) {
        let budget = Budget::new(http_bytes / 5 * 32);
        let share = HttpShare::new(&budget);
        (budget, share)
    }

    #[test]
    fn requests_and_answers_are_charged_and_given_back() {
        let (budget, share) = share(16 * MIB);
        let ledger = Ledger::new(&share, MIB);
        for _ in 0..100 {
            ledger.open().unwrap();
        }
        assert!((100 * OPEN_BYTES..101 * OPEN_BYTES + LEASE_BYTES).contains(&budget.used()));
        let charge = ledger.charge(MIB).unwrap();
        assert!(budget.used() >= MIB + 100 * OPEN_BYTES);
        assert_eq!(ledger.charge(1).unwrap_err(), NoShare::Connection);
        assert_eq!(share.refused(NoShare::Connection), 1);
        drop(charge);
        assert!(budget.used() < 101 * OPEN_BYTES + LEASE_BYTES);
        for _ in 0..100 {
            ledger.close(Stage::Begun);
        }
        ledger.give_back();
        assert_eq!((budget.used(), share.used(), ledger.open_count()), (0, 0, 0));
    }

    #[test]
    fn bytes_that_wait_for_the_socket_are_charged_while_they_wait() {
        let (budget, share) = share(16 * MIB);
        let ledgers: Vec<_> = (0..3).map(|_| Ledger::new(&share, MIB)).collect();
        for ledger in &ledgers {
            assert_eq!(ledger.hold(10_000), Ok(()));
            assert_eq!(ledger.hold(LEASE_BYTES), Ok(()));
        }
        assert_eq!(share.unsent(), Footprint::new(3, 3 * LEASE_BYTES));
        assert_eq!(budget.used(), 3 * LEASE_BYTES);
        assert_eq!(ledgers[0].hold(0), Ok(()));
        assert_eq!((share.unsent().count, budget.used()), (2, 2 * LEASE_BYTES));
        // Without room they are counted, and the connection has to end.
        assert!(budget.take(Share::Http, share.bytes_max() - budget.used()));
        assert_eq!(ledgers[0].hold(LEASE_BYTES), Err(NoShare::Budget));
        assert_eq!(share.unsent(), Footprint::new(3, 3 * LEASE_BYTES));
        drop(ledgers);
        assert_eq!(share.unsent(), Footprint::new(0, 0));
        assert_eq!(share.used(), 0);
    }

    #[test]
    fn greedy_connections_leave_room_for_small_ones() {
        let (budget, share) = share(16 * MIB);
        let fill = |ledger: &Ledger| while ledger.open().is_ok() {};
        let greedy: Vec<_> = (0..100).map(|_| Ledger::new(&share, MIB)).collect();
        fill(&greedy[0]);
        assert!((7 * MIB..=8 * MIB).contains(&share.used()), "half of it: {}", share.used());
        assert_eq!(share.excess(), 0);
        greedy.iter().for_each(|ledger| fill(ledger));
        assert!(share.used() < 16 * MIB);
        assert!(share.excess() > 2 * MIB, "{}", share.excess());
        // These use the part that large holders cannot have.
        let small: Vec<_> = (0..20).map(|_| Ledger::new(&share, MIB)).collect();
        for ledger in &small {
            assert_eq!(ledger.open(), Ok(()));
        }
        assert!(share.refused(NoShare::Share) >= 100);
        drop((greedy, small));
        assert_eq!((budget.used(), share.excess()), (0, 0));
    }

    #[test]
    fn a_used_up_budget_refuses_too() {
        let (budget, share) = share(16 * MIB);
        let others = share.bytes_max() - 11_000;
        assert!(budget.take(Share::Http, others));
        let ledger = Ledger::new(&share, MIB);
        assert_eq!((ledger.open(), ledger.open()), (Ok(()), Ok(())));
        assert_eq!((ledger.open(), ledger.open_count()), (Err(NoShare::Budget), 2));
        assert!(share.is_tight());
        drop(ledger);
        assert_eq!(budget.used(), others);
    }

    #[test]
    fn a_charge_becomes_what_the_answer_has_come_to() {
        let (budget, share) = share(16 * MIB);
        let ledger = Ledger::new(&share, MIB);
        let mut charge = ledger.charge(600_000).unwrap();
        charge.fit(10).unwrap();
        assert!(budget.used() <= LEASE_BYTES);
        charge.fit(MIB - 1).unwrap();
        let other = ledger.charge(1).unwrap();
        assert_eq!(charge.fit(MIB), Err(NoShare::Connection));
        assert!(budget.used() >= MIB);
        drop(other);
        // It is the only one now.
        charge.fit(MIB + 1).unwrap();
        charge.overdraw(64 * MIB);
        drop(charge);
        assert_eq!((budget.used(), ledger.needed()), (0, 0));
    }

    #[test]
    fn an_answer_that_does_not_leave_is_stuck_after_a_whole_period() {
        let (_, share) = share(16 * MIB);
        let ledger = Ledger::new(&share, MIB);
        ledger.open().unwrap();
        for _ in 0..5 {
            share.turn_period();
            assert!(!ledger.is_stuck(), "the library does not have it");
        }
        let stage = ledger.hand();
        assert_eq!(ledger.open_count(), 1);
        assert!(!ledger.is_stuck());
        share.turn_period();
        assert!(!ledger.is_stuck());
        share.turn_period();
        assert!(ledger.is_stuck());
        ledger.close(stage);
        assert!(!ledger.is_stuck());
        assert_eq!(ledger.open_count(), 0);
    }
}
