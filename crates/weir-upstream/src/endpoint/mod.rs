//! One endpoint of an upstream: its health, its load, and its connections.

mod health;
mod http1;
mod http2;
mod latency;
mod places;
mod wire;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;
use tokio::time::Instant;

use self::health::Health;
use self::latency::Latency;
use self::places::Places;
use crate::names::Endpoint;
use crate::settings::{Protocol, Settings};
use crate::status::EndpointStatus;

pub(crate) use health::Standing;
pub(crate) use http1::Http1;
pub(crate) use http2::Http2;
pub(crate) use places::{Place, Queue};

/// An endpoint as the balancer and the pool know it.
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    /// The `Host` of requests that bring none.
    pub(crate) host: HeaderValue,
    pub(crate) authority: Authority,
    rules: Arc<Rules>,
    in_flight: AtomicUsize,
    places: Arc<Places>,
    /// The streams of a connection that it permits, as far as we know.
    streams_max: Arc<AtomicUsize>,
    state: Mutex<State>,
}

/// What all endpoints of an upstream share.
pub(crate) struct Rules {
    pub(crate) settings: Settings,
    pub(crate) queue: Arc<Queue>,
    /// When the next endpoint that was set aside is due for a probe: microseconds since `began`.
    next_probe: AtomicU64,
    began: Instant,
    /// The endpoints that the names have.
    count: AtomicUsize,
    /// Of those, the ones that are set aside or probed.
    aside: AtomicUsize,
}

struct State {
    latency: Latency,
    health: Health,
    /// Idle connections for HTTP/1.1. The last one was used last, and is used next.
    #[expect(clippy::vec_box, reason = "answers hold them too, and moving one costs more")]
    idle: Vec<Box<Http1>>,
    /// Connections for HTTP/2.
    shared: Vec<Shared>,
    /// The names no longer have it.
    is_gone: bool,
    requests: u64,
    failures: u64,
    dial_failures: u64,
    ejections: u64,
}

/// A connection for HTTP/2 and the streams that it has.
struct Shared {
    connection: Arc<Http2>,
    streams: usize,
    idle_since: Instant,
}

/// What the balancer sees.
pub(crate) struct Look {
    pub(crate) standing: Standing,
    pub(crate) has_room: bool,
    /// In microseconds. `None`: not measured yet.
    pub(crate) latency: Option<f64>,
    pub(crate) in_flight: usize,
}

/// A request that the endpoint works on. Ends with the body of the answer.
pub(crate) struct Flight {
    pub(crate) target: Arc<Target>,
    /// When it was sent, until its result is known.
    sent_at: Option<Instant>,
    is_probe: bool,
}

/// A connection for a request.
pub(crate) enum Taken {
    /// An open connection that is used again.
    Idle(Box<Http1>),
    /// A place for a new connection.
    Free(Arc<Place>),
    /// A stream of a connection for HTTP/2.
    Stream(Stream),
}

/// A stream of a connection for HTTP/2. It is free again when it is dropped.
pub(crate) struct Stream {
    target: Arc<Target>,
    pub(crate) connection: Arc<Http2>,
}

impl Rules {
    pub(crate) fn new(settings: Settings) -> Rules {
        let queue = Arc::new(Queue::new(settings.pool.waiting_max));
        let (count, aside) = Default::default();
        let (next_probe, began) = (AtomicU64::new(u64::MAX), Instant::now());
        Rules { settings, queue, next_probe, began, count, aside }
    }

    /// There are so many endpoints now.
    pub(crate) fn set_count(&self, count: usize) {
        self.count.store(count, Ordering::Relaxed);
    }

    /// Returns false if the bounded share of endpoints is set aside already.
    fn count_one_aside(&self) -> bool {
        let most = self.count.load(Ordering::Relaxed) * self.settings.ejection.percent_max / 100;
        let counted = self.aside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |aside| {
            (aside < most).then_some(aside + 1)
        });
        counted.is_ok()
    }

    /// Whether an endpoint that was set aside may be due for a probe.
    pub(crate) fn is_probe_due(&self, now: Instant) -> bool {
        self.next_probe.load(Ordering::Relaxed) <= self.micros(now)
    }

    /// The next probe is due when the first of `targets` is.
    pub(crate) fn schedule_probes(&self, targets: &[Arc<Target>]) {
        self.next_probe.store(u64::MAX, Ordering::Relaxed);
        let due = targets.iter().filter_map(|target| target.state().health.due_at()).min();
        due.into_iter().for_each(|due| self.schedule_probe(due));
    }

    fn schedule_probe(&self, due: Instant) {
        self.next_probe.fetch_min(self.micros(due), Ordering::Relaxed);
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }
}

impl Target {
    /// Errors: its address is no authority of a URI.
    pub(crate) fn new(endpoint: &Endpoint, rules: &Arc<Rules>) -> Option<Target> {
        let host = match rules.settings.host.as_str() {
            "" => endpoint.authority(),
            host => host.to_owned(),
        };
        Some(Target {
            endpoint: endpoint.clone(),
            host: HeaderValue::from_str(&host).ok()?,
            authority: host.parse().ok()?,
            rules: Arc::clone(rules),
            in_flight: AtomicUsize::new(0),
            places: Places::new(rules.settings.pool.connections_max, Arc::clone(&rules.queue)),
            streams_max: Arc::new(AtomicUsize::new(rules.settings.pool.streams_max)),
            state: Mutex::new(State {
                latency: Latency::UNKNOWN,
                health: Health::NEW,
                idle: Vec::new(),
                shared: Vec::new(),
                is_gone: false,
                requests: 0,
                failures: 0,
                dial_failures: 0,
                ejections: 0,
            }),
        })
    }

    pub(crate) fn look(&self, now: Instant) -> Look {
        let state = self.state();
        let has_room = !state.idle.is_empty()
            || self.places.has_room()
            || state.shared.iter().any(|shared| shared.has_room(now, &self.rules.settings));
        Look {
            standing: state.health.standing(now),
            has_room,
            latency: state.latency.micros(now),
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }

    /// Makes the next request a probe, if one is due.
    pub(crate) fn probe(&self, now: Instant) -> bool {
        let mut state = self.state();
        let is_due = state.health.standing(now) == Standing::Due;
        if is_due {
            state.health.probe();
        }
        is_due
    }

    /// A connection: an idle one, or a place for a new one. `None`: there is no room.
    pub(crate) fn take(self: &Arc<Self>, now: Instant) -> Option<Taken> {
        match self.rules.settings.protocol {
            Protocol::Http1 => self.take_http1(now),
            Protocol::Http2 => self.take_http2(now),
        }
    }

    fn take_http1(&self, now: Instant) -> Option<Taken> {
        loop {
            // The lock is free before the connection is looked at, or dropped.
            let idle = self.state().idle.pop();
            let Some(mut connection) = idle else { break };
            if now < connection.expires && connection.is_idle() {
                return Some(Taken::Idle(connection));
            }
        }
        self.places.take().map(Taken::Free)
    }

    fn take_http2(self: &Arc<Self>, now: Instant) -> Option<Taken> {
        let mut state = self.state();
        let (usable, ended) =
            std::mem::take(&mut state.shared).into_iter().partition(|it| it.is_usable(now));
        state.shared = usable;
        let settings = &self.rules.settings;
        let found = state.shared.iter_mut().find(|shared| shared.has_room(now, settings));
        let connection = match found {
            Some(shared) => {
                shared.streams += 1;
                Some(Arc::clone(&shared.connection))
            }
            None => self.places.take().map(|place| {
                let connection = Arc::new(self.new_http2(place, now));
                state.shared.push(Shared {
                    connection: Arc::clone(&connection),
                    streams: 1,
                    idle_since: now,
                });
                connection
            }),
        };
        drop(state);
        drop::<Vec<Shared>>(ended);
        let target = Arc::clone(self);
        connection.map(|connection| Taken::Stream(Stream { target, connection }))
    }

    fn new_http2(&self, place: Arc<Place>, now: Instant) -> Http2 {
        Http2::new(place, self.expires(now), Arc::clone(&self.streams_max))
    }

    /// A connection for HTTP/1.1 is without a request again.
    pub(crate) fn park(&self, mut connection: Box<Http1>, now: Instant) {
        if now < connection.expires && connection.is_idle() {
            connection.idle_since = now;
            let mut state = self.state();
            if !state.is_gone {
                state.idle.push(connection);
                drop(state);
                self.places.queue().freed();
            }
        }
    }

    /// Until when a connection that is opened now gets requests. The jitter keeps connections that
    /// were opened together from ending together.
    pub(crate) fn expires(&self, now: Instant) -> Instant {
        let age_max = self.rules.settings.pool.age_max;
        let jitter = self.rules.micros(now).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        now + age_max - age_max / 1024 * u32::try_from(jitter).unwrap_or(0)
    }

    /// An answer came.
    pub(crate) fn succeeded(&self, now: Instant, took: Duration) {
        let mut state = self.state();
        if state.health.succeeded(now) {
            self.rules.aside.fetch_sub(1, Ordering::Relaxed);
            // What it was before its failures says nothing now.
            state.latency = Latency::UNKNOWN;
        }
        state.latency.observe(now, took);
    }

    /// No answer came, or one that says that the endpoint does not work. It may be set aside for that,
    /// if not too many are.
    pub(crate) fn failed(&self, now: Instant, took: Duration, is_dial: bool) {
        let settings = &self.rules.settings;
        let mut state = self.state();
        state.failures += 1;
        state.dial_failures += u64::from(is_dial);
        state.latency.failed(now, took, settings.try_timeout);
        if !state.health.failed(now, &settings.ejection) || state.is_gone {
            return;
        }
        // A probe that fails was counted before.
        let is_available = state.health.standing(now) == Standing::Available;
        if is_available && !self.rules.count_one_aside() {
            return;
        }
        state.health.set_aside(now, &settings.ejection);
        state.ejections += 1;
        if let Some(due) = state.health.due_at() {
            self.rules.schedule_probe(due);
        }
    }

    /// The names no longer have it: it gets no requests, and its connections end with theirs.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.is_gone = true;
        if state.health.standing(Instant::now()) != Standing::Available {
            self.rules.aside.fetch_sub(1, Ordering::Relaxed);
        }
        state.health = Health::NEW;
        let (idle, shared) = (std::mem::take(&mut state.idle), std::mem::take(&mut state.shared));
        drop(state);
        drop((idle, shared));
    }

    /// Closes idle connections that are closed by the peer, too old, or idle for too long.
    pub(crate) fn tidy(&self, now: Instant) {
        let pool = &self.rules.settings.pool;
        let is_long = |since: Instant| now.saturating_duration_since(since) >= pool.idle_timeout;
        let mut spare = self.places.open().saturating_sub(pool.connections_min);
        let mut at = 0;
        loop {
            // A few at a time: requests look for them meanwhile.
            let mut state = self.state();
            let end = state.idle.len().min(at + TIDY_AT_ONCE);
            let mut some: Vec<_> = state.idle.drain(at.min(end)..end).collect();
            drop(state);
            if some.is_empty() {
                break;
            }
            some.retain_mut(|connection| {
                let is_spare = spare > 0 && is_long(connection.idle_since);
                spare -= usize::from(is_spare);
                !is_spare && now < connection.expires && connection.is_idle()
            });
            let kept = some.len();
            let mut state = self.state();
            at = at.min(state.idle.len());
            state.idle.splice(at..at, some);
            at += kept;
        }
        let mut state = self.state();
        let (kept, ended) = std::mem::take(&mut state.shared).into_iter().partition(|shared| {
            let is_spare = spare > 0 && shared.streams == 0 && is_long(shared.idle_since);
            spare -= usize::from(is_spare);
            !is_spare && shared.is_usable(now)
        });
        state.shared = kept;
        drop(state);
        drop::<Vec<Shared>>(ended);
    }

    /// A connection that should be opened ahead of requests, if there are too few.
    pub(crate) fn warm(self: &Arc<Self>, now: Instant) -> Option<Taken> {
        let state = self.state();
        let is_wanted = state.health.standing(now) == Standing::Available
            && !state.is_gone
            && self.places.open() < self.rules.settings.pool.connections_min;
        drop(state);
        let place = is_wanted.then(|| self.places.take()).flatten()?;
        match self.rules.settings.protocol {
            Protocol::Http1 => Some(Taken::Free(place)),
            Protocol::Http2 => {
                let connection = Arc::new(self.new_http2(place, now));
                let shared =
                    Shared { connection: Arc::clone(&connection), streams: 1, idle_since: now };
                self.state().shared.push(shared);
                Some(Taken::Stream(Stream { target: Arc::clone(self), connection }))
            }
        }
    }

    pub(crate) fn status(&self, now: Instant) -> EndpointStatus {
        let state = self.state();
        let shared_idle = state.shared.iter().filter(|shared| shared.streams == 0).count();
        #[expect(clippy::cast_possible_truncation, reason = "of a number that is never negative")]
        #[expect(clippy::cast_sign_loss, reason = "it is never negative")]
        let latency_us = state.latency.micros(now).unwrap_or(0.0) as u64;
        EndpointStatus {
            address: self.endpoint.to_string(),
            state: state.health.status(now),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            connections: self.places.open(),
            connections_idle: state.idle.len() + shared_idle,
            requests: state.requests,
            failures: state.failures,
            dial_failures: state.dial_failures,
            ejections: state.ejections,
            latency_us,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn is_usable(&self, now: Instant) -> bool {
        self.connection.is_usable(now)
    }

    fn has_room(&self, now: Instant, settings: &Settings) -> bool {
        // A peer that permits none may permit some later.
        let max = settings.pool.streams_max.min(self.connection.streams_max().max(1));
        self.streams < max && self.is_usable(now)
    }
}

impl Flight {
    pub(crate) fn new(target: Arc<Target>, is_probe: bool) -> Flight {
        target.in_flight.fetch_add(1, Ordering::Relaxed);
        Flight { target, sent_at: None, is_probe }
    }

    /// A try begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.sent_at = Some(now);
        self.target.state().requests += 1;
    }

    /// The time before does not count: the body of the request moved.
    pub(crate) fn exclude_until(&mut self, moved: Instant) {
        self.sent_at = self.sent_at.map(|sent_at| sent_at.max(moved));
    }

    /// The try has a result. Returns how long it took.
    pub(crate) fn end(&mut self, now: Instant) -> Duration {
        let sent_at = self.sent_at.take();
        sent_at.map_or(Duration::ZERO, |sent_at| now.saturating_duration_since(sent_at))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.target.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.sent_at.is_none() && !self.is_probe {
            return;
        }
        let now = Instant::now();
        let mut state = self.target.state();
        if let Some(sent_at) = self.sent_at {
            // Given up by the caller: all that is known is that it takes longer.
            state.latency.unanswered(now, now.saturating_duration_since(sent_at));
        }
        if self.is_probe {
            state.health.probe_ended(now);
            let due = state.health.due_at();
            drop(state);
            due.into_iter().for_each(|due| self.target.rules.schedule_probe(due));
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.target.state();
        let is_this = |shared: &&mut Shared| Arc::ptr_eq(&shared.connection, &self.connection);
        if let Some(shared) = state.shared.iter_mut().find(is_this) {
            let now = Instant::now();
            shared.streams -= 1;
            shared.idle_since = now;
            // It keeps no place if it could not be opened, or has ended.
            state.shared.retain(|shared| shared.is_usable(now));
        }
        drop(state);
        self.target.places.queue().freed();
    }
}

/// Idle connections that are looked at together.
const TIDY_AT_ONCE: usize = 16;
