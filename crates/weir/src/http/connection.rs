//! The state of one HTTP connection: its caller, its phase, and what it has to do.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use http::Request;

use super::Edge;
use super::interim::Interim;
use super::leaving::Leaving;
use super::orders::{Order, Orders};
use super::proxy::tunnel::Tunnel;
use crate::limits::admission::AcceptOrder;
use crate::limits::http_ledger::Ledger;
use crate::observe::counters::http::{Dialect, End};

/// The sender of a request, as its connection shows it.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The address that the connection comes from, if it is known.
    pub(crate) peer: Option<IpAddr>,
    /// The address of ours that accepted the connection.
    pub(crate) local: SocketAddr,
    /// Whether the connection uses TLS.
    pub(crate) is_tls: bool,
    /// The device that the client certificate names.
    pub(crate) identity: Option<String>,
    /// The account of the bytes that the connection holds.
    pub(crate) ledger: Arc<Ledger>,
}

/// One HTTP connection.
///
/// ```text
///  First ─head─▶ Asked ─answered─▶ Answered ─flushed─▶ Idle ─first byte─▶ Head ─head─▶ Asked …
///    with a body: Body until it is whole
/// ```
///
/// Over HTTP/2 many requests are in progress at one time, and their counts give the phase. It is
/// `Asked` while the gateway works on one of them. It is `Answered` while they only wait for
/// bodies, or for answers to leave. Otherwise it is `Idle`.
///
/// Shape: the connection's task, its stream and the registry share it. Over HTTP/1.1 only the task
/// writes the phase.
/// Limits: [`HttpConnection::overdue`] bounds the time in a phase.
/// Cost: a request makes some relaxed loads and stores, and does not read a clock.
pub(crate) struct HttpConnection {
    pub(super) caller: Caller,
    pub(super) edge: Arc<Edge>,
    dialect: Dialect,
    /// The accept order of its first request.
    accept_order: AcceptOrder,
    /// Interim answers; only over HTTP/2.
    pub(super) interim: Option<Box<Interim>>,
    /// The connection's place in the registry. Only the registry writes it.
    pub(super) place: AtomicUsize,
    /// The phase, and the tick of its beginning or of the last progress in it.
    state: AtomicU64,
    /// The tick since which the socket takes no bytes, plus one; 0: the socket takes bytes.
    blocked: AtomicU32,
    /// The number of requests so far.
    requests: AtomicU32,
    /// The number of requests over HTTP/2 that the gateway works on now.
    ours: AtomicU32,
    /// The answers over HTTP/2 that have to make progress.
    answers: Mutex<Vec<Weak<Leaving>>>,
    has_answers: AtomicBool,
    /// Counts the polls of the connection's task; only over HTTP/2.
    turn: AtomicU32,
    /// Whether all written bytes have left.
    is_flushed: AtomicBool,
    /// Whether the connection is within an answer; only over HTTP/1.1.
    is_sending: AtomicBool,
    has_ended: AtomicBool,
    pub(super) orders: Orders,
    /// The request that asked for an upgrade. The upgrade takes the connection from HTTP.
    parked: Mutex<Option<Request<()>>>,
    is_parked: AtomicBool,
    /// Whether the gateway does not read the body that comes, because an upstream does not take it.
    holds_body: AtomicBool,
    /// Whether the end of the peer's side ends the request in progress; only over HTTP/1.1.
    watches_peer: AtomicBool,
    /// What the connection becomes when its last answer has left.
    tunnel: Mutex<Option<Box<Tunnel>>>,
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No request has come yet.
    First,
    /// The connection is between two requests.
    Idle,
    /// A part of a head has come.
    Head,
    /// A head has come, and its body is still to come.
    Body,
    /// The gateway works on the request.
    Asked,
    /// The answer is ready, and on its way.
    Answered,
}

/// The longest times that a connection may be in a phase, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) head: u32,
    pub(super) idle: u32,
    pub(super) body: u32,
    pub(super) stall: u32,
}

impl HttpConnection {
    /// `since`: the tick in which the connection was accepted.
    pub(super) fn new(
        edge: &Arc<Edge>,
        caller: Caller,
        dialect: Dialect,
        (accept_order, since): (AcceptOrder, u32),
    ) -> Arc<HttpConnection> {
        let phase = if dialect == Dialect::Http2 { Phase::Idle } else { Phase::First };
        Arc::new(HttpConnection {
            caller,
            edge: Arc::clone(edge),
            dialect,
            accept_order,
            interim: (dialect == Dialect::Http2).then(Box::default),
            place: AtomicUsize::new(usize::MAX),
            state: AtomicU64::new(packed(phase, since)),
            blocked: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            ours: AtomicU32::new(0),
            answers: Mutex::default(),
            has_answers: AtomicBool::new(false),
            turn: AtomicU32::new(0),
            is_flushed: AtomicBool::new(true),
            is_sending: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            orders: Orders::default(),
            parked: Mutex::new(None),
            is_parked: AtomicBool::new(false),
            holds_body: AtomicBool::new(false),
            watches_peer: AtomicBool::new(false),
            tunnel: Mutex::new(None),
        })
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(super) fn phase(&self) -> Phase {
        self.state().0
    }

    /// The phase, and the tick of its beginning or of the last progress in it.
    fn state(&self) -> (Phase, u32) {
        let (phase, since) = unpacked(self.state.load(Ordering::Relaxed));
        if self.dialect == Dialect::Http1 {
            return (phase, since);
        }
        let phase = match (self.ours.load(Ordering::Relaxed), self.caller.ledger.open_count()) {
            (1.., _) => Phase::Asked,
            (0, 1..) => Phase::Answered,
            (0, 0) => Phase::Idle,
        };
        (phase, since)
    }

    fn set(&self, phase: Phase) {
        self.state.store(packed(phase, self.now()), Ordering::Relaxed);
    }

    /// The current tick.
    pub(super) fn now(&self) -> u32 {
        self.edge.registry.now()
    }

    /// Notes that a request over HTTP/2 made progress.
    pub(super) fn touch(&self) {
        self.set(Phase::Idle);
    }

    /// Notes that bytes have come.
    pub(super) fn heard(&self) {
        if self.dialect == Dialect::Http2 {
            return;
        }
        match self.phase() {
            Phase::Idle => self.set(Phase::Head),
            Phase::Body => self.set(Phase::Body),
            // The time of a first head runs from the accept. Bytes that come during our turn belong
            // to a later request.
            Phase::First | Phase::Head | Phase::Asked | Phase::Answered => {}
        }
    }

    /// Charges the bytes of read buffers that the peer's header table may keep.
    pub(super) fn keep(&self, bytes: usize) {
        if self.caller.ledger.keep(bytes).is_err() {
            self.orders.tell(Order::End(End::Memory));
        }
    }

    /// Charges the bytes that wait for a socket that takes none.
    pub(super) fn hold(&self, bytes: usize) {
        if self.caller.ledger.hold(bytes).is_err() {
            self.orders.tell(Order::End(End::Memory));
        }
    }

    /// Notes that a head has come. Returns the number of requests so far, including this one.
    pub(super) fn asked(&self, has_body: bool) -> u32 {
        match self.dialect {
            Dialect::Http1 => {
                self.holds_body.store(false, Ordering::Relaxed);
                self.set(if has_body { Phase::Body } else { Phase::Asked });
            }
            Dialect::Http2 => self.touch(),
        }
        // One task takes all heads, over HTTP/2 too.
        let requests = self.requests.load(Ordering::Relaxed).saturating_add(1);
        self.requests.store(requests, Ordering::Relaxed);
        requests
    }

    /// Whether the bytes that come belong to a head; always false over HTTP/2.
    pub(super) fn is_at_head(&self) -> bool {
        matches!(self.phase(), Phase::First | Phase::Head) && self.dialect == Dialect::Http1
    }

    /// The number of requests so far.
    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The accept order of the last request. The first request has that of the connection; every
    /// later one gets a new one when it is read.
    pub(super) fn accept_order(&self) -> AcceptOrder {
        match self.requests() {
            0 | 1 => self.accept_order,
            _ => self.edge.shared.admission.next_order(),
        }
    }

    /// The gateway begins to work on a request.
    pub(super) fn begun(&self) {
        if self.dialect == Dialect::Http2 {
            self.ours.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The request waits for its body, so it is the peer's turn.
    pub(super) fn awaits(&self) {
        if self.dialect == Dialect::Http2 {
            self.ours.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the connection has made as many requests as it may.
    pub(super) fn is_at_last_request(&self) -> bool {
        let max = self.edge.requests_max;
        max != 0 && self.requests.load(Ordering::Relaxed) >= max
    }

    /// Notes that the body is whole.
    pub(super) fn heard_all(&self) {
        match self.dialect {
            Dialect::Http1 if self.phase() == Phase::Body => self.set(Phase::Asked),
            Dialect::Http1 => {}
            Dialect::Http2 => self.gave_up_body(),
        }
    }

    /// The gateway no longer waits for the body. Over HTTP/1.1 the body must still pass before the
    /// next request.
    pub(super) fn gave_up_body(&self) {
        if self.dialect == Dialect::Http2 {
            self.ours.fetch_add(1, Ordering::Relaxed);
            self.touch();
        }
    }

    /// The body of a request over HTTP/1.1 waits for an upstream, or for the peer again.
    pub(super) fn hold_body(&self, is_held: bool) {
        if self.dialect == Dialect::Http2 || self.phase() != Phase::Body {
            return;
        }
        let was_held = self.holds_body.load(Ordering::Relaxed);
        if was_held && !is_held {
            // From now on the peer is waited for.
            self.set(Phase::Body);
        }
        if was_held != is_held {
            self.holds_body.store(is_held, Ordering::Relaxed);
        }
    }

    /// Whether the peer's end has to end the request in progress; over HTTP/2 a reset does that.
    pub(super) fn watch_peer(&self, is_watched: bool) {
        if self.dialect == Dialect::Http1 {
            self.watches_peer.store(is_watched, Ordering::Relaxed);
        }
    }

    pub(super) fn watches_peer(&self) -> bool {
        self.watches_peer.load(Ordering::Relaxed)
    }

    /// Keeps the tunnel for the connection's task, until the answer has left.
    pub(super) fn become_tunnel(&self, tunnel: Box<Tunnel>) {
        *self.tunnel.lock().expect("no panic happens under a connection's lock") = Some(tunnel);
    }

    /// Takes the tunnel. It is no phase of a request, so no time of a request runs any more.
    pub(super) fn take_tunnel(&self) -> Option<Box<Tunnel>> {
        let tunnel = self.tunnel.lock().expect("no panic happens under a connection's lock").take();
        if tunnel.is_some() {
            self.set(Phase::Asked);
        }
        tunnel
    }

    /// Notes that an answer is ready, or that a stream of answers has ended.
    pub(super) fn answered(&self) {
        self.watches_peer.store(false, Ordering::Relaxed);
        match self.dialect {
            // The handler did not read the body, so the phase stays `Body` until it has passed.
            Dialect::Http1 if self.phase() == Phase::Body => {}
            Dialect::Http1 => self.set(Phase::Answered),
            Dialect::Http2 => {
                self.ours.fetch_sub(1, Ordering::Relaxed);
                self.touch();
            }
        }
    }

    /// Notes the beginning or end of an answer in several pieces, over HTTP/1.1.
    pub(super) fn set_sending(&self, is_sending: bool) {
        self.is_sending.store(is_sending, Ordering::Relaxed);
    }

    /// Begins to watch the progress of an answer.
    pub(super) fn watch_answer(&self) -> Arc<Leaving> {
        let leaving = Leaving::new(&self.edge);
        self.answers().push(Arc::downgrade(&leaving));
        self.has_answers.store(true, Ordering::Relaxed);
        leaving
    }

    /// Resets the streams of answers that made no progress for longer than `stall` ticks.
    pub(super) fn look_at_answers(&self, now: u32, stall: u32) {
        if !self.has_answers.load(Ordering::Relaxed) {
            return;
        }
        let mut answers = self.answers();
        answers.retain(|leaving| match leaving.upgrade() {
            Some(leaving) => {
                leaving.look(now, stall);
                true
            }
            None => false,
        });
        if answers.is_empty() {
            *answers = Vec::new();
            self.has_answers.store(false, Ordering::Relaxed);
        }
    }

    fn answers(&self) -> MutexGuard<'_, Vec<Weak<Leaving>>> {
        self.answers.lock().expect("no panic happens under the lock of a connection's answers")
    }

    /// The result of a write over HTTP/1.1: the socket has taken bytes, or takes none.
    pub(super) fn sent(&self, is_taken: bool) {
        match is_taken {
            true => self.wrote(),
            false => self.blocked(),
        }
    }

    /// The number of the turn that the connection's task has begun; only over HTTP/2.
    pub(super) fn turn(&self) -> u32 {
        self.turn.load(Ordering::Relaxed)
    }

    pub(super) fn begin_turn(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    /// The socket has taken bytes, but some are still to be sent.
    pub(super) fn wrote(&self) {
        self.is_flushed.store(false, Ordering::Relaxed);
        self.blocked.store(0, Ordering::Relaxed);
    }

    /// The socket takes no bytes.
    pub(super) fn blocked(&self) {
        self.is_flushed.store(false, Ordering::Relaxed);
        if self.blocked.load(Ordering::Relaxed) == 0 {
            self.blocked.store(self.now().saturating_add(1), Ordering::Relaxed);
        }
    }

    /// All bytes have left.
    pub(super) fn flushed(&self) {
        if self.is_flushed.load(Ordering::Relaxed) {
            return;
        }
        self.is_flushed.store(true, Ordering::Relaxed);
        self.blocked.store(0, Ordering::Relaxed);
        let is_over = !self.is_sending.load(Ordering::Relaxed);
        if self.dialect == Dialect::Http1 && self.phase() == Phase::Answered && is_over {
            self.set(Phase::Idle);
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.is_flushed.load(Ordering::Relaxed)
    }

    /// The peer has ended its side.
    pub(super) fn ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// The tick since which it is the peer's turn; `None`: it is the gateway's turn.
    pub(super) fn silent_since(&self) -> Option<u32> {
        // A peer that does not read its answer is not waiting for us.
        if let Some(since) = self.blocked_since() {
            return Some(since);
        }
        let (phase, since) = self.state();
        match (phase, self.dialect) {
            (Phase::Body, Dialect::Http1) if self.holds_body.load(Ordering::Relaxed) => None,
            (Phase::First | Phase::Idle | Phase::Head | Phase::Body, _)
            | (Phase::Answered, Dialect::Http2) => Some(since),
            (Phase::Asked, _) | (Phase::Answered, Dialect::Http1) => None,
        }
    }

    fn blocked_since(&self) -> Option<u32> {
        self.blocked.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The reason why the connection has to end now, if there is one.
    pub(super) fn overdue(&self, now: u32, terms: &Terms) -> Option<End> {
        let is_over = |since, term| now.saturating_sub(since) > term;
        if self.blocked_since().is_some_and(|since| is_over(since, terms.stall)) {
            return Some(End::Stalled);
        }
        let (phase, since) = self.state();
        let (term, end) = match phase {
            Phase::Body if self.holds_body.load(Ordering::Relaxed) => return None,
            Phase::First | Phase::Head => (terms.head, End::HeadTimeout),
            Phase::Idle => (terms.idle, End::IdleTimeout),
            Phase::Body => (terms.body, End::BodyTimeout),
            Phase::Asked | Phase::Answered => return None,
        };
        is_over(since, term).then_some(end)
    }

    /// Keeps the upgrade request for the task, which takes the connection from HTTP.
    pub(super) fn park(&self, request: Request<()>) {
        *self.parked() = Some(request);
        self.is_parked.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    pub(super) fn take_parked(&self) -> Option<Request<()>> {
        self.parked().take()
    }

    fn parked(&self) -> MutexGuard<'_, Option<Request<()>>> {
        self.parked.lock().expect("no panic happens under a connection's lock")
    }
}

impl Phase {
    const ALL: [Phase; 6] =
        [Phase::First, Phase::Idle, Phase::Head, Phase::Body, Phase::Asked, Phase::Answered];
}

fn packed(phase: Phase, since: u32) -> u64 {
    (phase as u64) << 32 | u64::from(since)
}

fn unpacked(state: u64) -> (Phase, u32) {
    let phase = Phase::ALL[usize::try_from(state >> 32).unwrap_or(0)];
    (phase, u32::try_from(state & u64::from(u32::MAX)).unwrap_or(0))
}
