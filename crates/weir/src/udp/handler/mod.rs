//! The request handler: answers a datagram, hands it to the front, or drops it.

mod elsewhere;
mod jobs;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::time::timeout;
use weir_engine::datagrams::{Outbox, Peer, Received};
use weir_engine::{Nanos, Waker};
use weir_wire::datagram::{self, Answer, Datagram, Form, Id, Malformed, NoRequest, Request};
use weir_wire::v1;

use super::backend::{Backend, DatagramRefusal, Validity};
use super::own::OwnAddrs;
use super::tokens::{Known, TokenState, Tokens};
use crate::base::config::UdpConfig;
use crate::limits::duplicates::{Before, Duplicates, Key};
use crate::limits::rates::Rates;
use crate::limits::sources::Source;
use crate::observe::counters::Counters;
use crate::observe::counters::udp::{Count, Tally};
pub(super) use elsewhere::Memory;
pub(crate) use elsewhere::TellEnded;
use elsewhere::{Audience, KNOWN_ELSEWHERE};
use jobs::{Done, JobOutcome, Jobs, Ticket, What};

/// The values that all UDP threads share.
pub(super) struct Shared {
    pub(super) config: UdpConfig,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) counters: Arc<Counters>,
    pub(super) runtime: runtime::Handle,
    pub(super) rates: Arc<Rates>,
    pub(super) own: OwnAddrs,
}

/// The handler of one thread.
///
/// Limits: at most `udp.queue_max` requests wait for the front. Tokens and answers have their own
/// limits.
pub(super) struct Handler {
    shared: Arc<Shared>,
    tokens: Tokens,
    /// The version of the credentials for which tokens of the configuration are remembered.
    version: u64,
    duplicates: Retries,
    /// Tokens that the front is looking up, each with its waiting calls.
    checks: HashMap<Box<str>, Vec<Waiter>>,
    /// Requests to the front that have no answer yet, and waiting calls.
    waiting: usize,
    /// Requests that the old process of an upgrade carries out.
    begun_elsewhere: HashSet<Key>,
    known_elsewhere_until: Nanos,
    audience: Audience,
    jobs: Arc<Jobs>,
    tally: Tally<u64>,
}

/// The answers to requests that may come again.
pub(super) type Retries = Duplicates<Box<[u8]>>;

/// No answers.
fn new_retries(config: &UdpConfig) -> Retries {
    Duplicates::new(config.duplicates_max, config.duplicate_window)
}

/// The destination and form of an answer.
#[derive(Debug, Clone)]
struct Reply<'a> {
    peer: Peer,
    form: Form,
    id: Id<'a>,
    bytes_max: usize,
}

/// A call whose token is being looked up.
struct Waiter {
    reply: Reply<'static>,
    count: u64,
}

impl Handler {
    /// It knows what a thread of another process remembers, if there was one.
    pub(super) fn new(shared: Arc<Shared>, waker: Waker, memory: Option<Memory>) -> Handler {
        let config = &shared.config;
        let Memory { retries, begun } = memory.unwrap_or_else(|| Memory::new(config));
        Handler {
            tokens: Tokens::new(config.token_cache_max, config.token_cache_ttl),
            version: shared.backend.version(),
            duplicates: retries,
            checks: HashMap::new(),
            waiting: 0,
            begun_elsewhere: begun,
            known_elsewhere_until: Nanos::now().after(KNOWN_ELSEWHERE),
            audience: Audience::default(),
            jobs: Jobs::new(waker),
            tally: Tally::default(),
            shared,
        }
    }

    /// Whether the front has answered everything, and nothing is left to tell another process.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.has_told()
    }

    pub(super) fn count(&mut self, count: Count, by: u64) {
        self.tally.add(count, by);
    }

    pub(super) fn flush_counts(&mut self) {
        self.shared.counters.udp.take(&mut self.tally);
    }

    /// Handles a datagram.
    ///
    /// Cost: a call with a known token allocates nothing.
    pub(super) fn handle(&mut self, received: &Received<'_>, outbox: &mut Outbox, now: Nanos) {
        let Received { bytes, is_cut, peer } = *received;
        if self.shared.own.has_sent(&peer) {
            self.count(Count::RefusedSource, 1);
            return;
        }
        if self.shared.rates.take(Source::of(peer.ip()), now).is_err() {
            self.count(Count::RefusedRate, 1);
            return;
        }
        // Source addresses can be forged, so an answer is at most three times as long as the
        // request: the owner of a forged address gets no flood.
        let limit = self.shared.config.datagram_bytes_max;
        let bytes_max = (bytes.len() * AMPLIFICATION_MAX).min(limit);
        let read =
            if is_cut { Err(datagram::too_long(bytes, limit)) } else { datagram::decode(bytes) };
        match read {
            Ok(Datagram { form, id, request }) => {
                let reply = Reply { peer, form, id, bytes_max };
                self.handle_request(reply, request, bytes, outbox, now);
            }
            // The sender of an answer gets no error: it might answer that, and so on.
            Err(NoRequest::Answer) => self.count(Count::RefusedAnswer, 1),
            Err(NoRequest::Foreign) => self.count(Count::RefusedForeign, 1),
            Err(NoRequest::Malformed(malformed)) => {
                self.tally.add_malformed(malformed.field);
                let Malformed { form, id, field, ref path, ref reason } = malformed;
                let field = if path.is_empty() { field.name() } else { path };
                let (code, message, retry_after_ms) = ("malformed", &**reason, 0);
                let refused = datagram::Refused { code, field, message, retry_after_ms };
                let reply = Reply { peer, form, id, bytes_max };
                self.answer(&reply, &Answer::Refused(refused), outbox);
            }
        }
    }

    fn handle_request(
        &mut self,
        reply: Reply<'_>,
        request: Request<'_>,
        bytes: &[u8],
        outbox: &mut Outbox,
        now: Nanos,
    ) {
        match request {
            Request::Call { token, count } => self.handle_call(reply, token, count, outbox, now),
            Request::Activate { serial, key } => {
                let like = match &reply.id {
                    Id::None => self.duplicates.key(&serial, (&reply.peer, bytes)),
                    id @ (Id::Number(_) | Id::Text(_)) => {
                        self.duplicates.key(&serial, (&reply.peer, id, &key))
                    }
                };
                let what = What::Activate { serial, key };
                self.ask(reply, like, what, outbox, now);
            }
            Request::Publish { token, publish } => {
                let like = match &reply.id {
                    Id::None => self.duplicates.key(&token, (&reply.peer, bytes)),
                    id @ (Id::Number(_) | Id::Text(_)) => {
                        self.duplicates.key(&token, (&reply.peer, id))
                    }
                };
                self.ask(reply, like, What::Publish { token, publish }, outbox, now);
            }
        }
    }

    fn handle_call(
        &mut self,
        reply: Reply<'_>,
        token: Cow<'_, str>,
        count: u64,
        outbox: &mut Outbox,
        now: Nanos,
    ) {
        let version = self.shared.backend.version();
        if self.version != version {
            self.version = version;
            self.tokens.forget_configured();
        }
        match self.tokens.find(token.as_bytes(), now) {
            Known::Valid { is_stale } => {
                self.count(Count::Calls, 1);
                self.answer(&reply, &Answer::Call { token: &token, count }, outbox);
                if is_stale {
                    self.look_up(&token, reply.peer.ip());
                }
            }
            Known::Invalid => self.refuse(&reply, &DatagramRefusal::unauthorized(), outbox),
            Known::Nothing => {
                if !self.has_room() || !self.look_up(&token, reply.peer.ip()) {
                    self.refuse_for_queue(&reply, outbox);
                    return;
                }
                if let Some(waiters) = self.checks.get_mut(&*token) {
                    waiters.push(Waiter { reply: reply.into_owned(), count });
                    self.enter();
                }
            }
        }
    }

    /// Asks the front to look a token up, unless it already does. `false`: too many requests wait.
    fn look_up(&mut self, token: &str, source: IpAddr) -> bool {
        if self.checks.contains_key(token) {
            return true;
        }
        if !self.has_room() {
            return false;
        }
        self.checks.insert(token.into(), Vec::new());
        self.count(Count::Checks, 1);
        let done = Done::Check { token: token.into(), source };
        self.spawn(done, What::Check { token: token.into() });
        true
    }

    /// Hands a request to the front, unless it is a repeated one.
    fn ask(&mut self, reply: Reply<'_>, like: Key, what: What, outbox: &mut Outbox, now: Nanos) {
        match self.duplicates.begin(like, now) {
            Before::Never if self.waiting < self.shared.config.queue_max => {
                self.spawn(Done::Ask { like, reply: reply.into_owned() }, what);
            }
            Before::Never => {
                self.end(like, None, now);
                self.refuse_for_queue(&reply, outbox);
            }
            Before::InProgress => self.count(Count::Joined, 1),
            // A shorter request with the same id must not get a longer answer than its bytes
            // permit. An empty answer did not fit at all, so nothing of it is left.
            Before::Answered(answer) if answer.is_empty() || answer.len() > reply.bytes_max => {
                self.count(Count::TooShort, 1);
            }
            Before::Answered(answer) => {
                outbox.push(reply.peer, |out| {
                    out.extend_from_slice(answer);
                    true
                });
                self.count(Count::Repeated, 1);
            }
        }
    }

    fn spawn(&mut self, done: Done, what: What) {
        self.enter();
        let backend = Arc::clone(&self.shared.backend);
        let source = done.source();
        let ticket = Ticket::new(Arc::clone(&self.jobs), done);
        self.shared.runtime.spawn(async move {
            // Without an answer, dropping the ticket reports that.
            if let Ok(outcome) = timeout(FRONT_TIMEOUT, what.ask(&*backend, source)).await {
                ticket.finish(outcome);
            }
        });
    }

    /// Sends the answers to jobs that the front has finished.
    pub(super) fn handle_done(&mut self, outbox: &mut Outbox, now: Nanos) {
        for (done, outcome) in self.jobs.take() {
            self.leave(1);
            match done {
                Done::Check { token, .. } => self.handle_checked(&token, outcome, outbox, now),
                Done::Ask { like, reply } => self.handle_asked(like, &reply, outcome, outbox, now),
            }
        }
    }

    fn handle_checked(
        &mut self,
        token: &str,
        outcome: JobOutcome,
        outbox: &mut Outbox,
        now: Nanos,
    ) {
        let waiters = self.checks.remove(token).unwrap_or_default();
        self.leave(waiters.len());
        let refused = match outcome {
            JobOutcome::Checked(validity) => {
                let known = match validity {
                    Some(Validity { ends_in, configured }) => {
                        TokenState::Valid { ends_in, is_configured: configured.is_some() }
                    }
                    None => TokenState::Invalid,
                };
                // If the configuration has changed since, it is looked up again the next time.
                let configured = validity.and_then(|validity| validity.configured);
                if configured.is_none_or(|version| version == self.shared.backend.version()) {
                    self.tokens.put(token.as_bytes(), known, now);
                }
                if validity.is_some() { None } else { Some(DatagramRefusal::unauthorized()) }
            }
            JobOutcome::Refused(refused) => Some(refused),
            JobOutcome::Activated(_) | JobOutcome::Published(_) => None,
        };
        for Waiter { reply, count } in waiters {
            match &refused {
                None => {
                    self.count(Count::Calls, 1);
                    self.answer(&reply, &Answer::Call { token, count }, outbox);
                }
                Some(refused) => self.refuse(&reply, refused, outbox),
            }
        }
    }

    fn handle_asked(
        &mut self,
        like: Key,
        reply: &Reply<'_>,
        outcome: JobOutcome,
        outbox: &mut Outbox,
        now: Nanos,
    ) {
        let published;
        let (answer, is_done) = match &outcome {
            JobOutcome::Activated(activated) => {
                self.count(Count::Activations, 1);
                let (token, gateways) = (activated.token.as_str(), &*activated.gateways);
                let expires_at_ms = activated.expires_at;
                (Answer::Activated { token, expires_at_ms, gateways }, true)
            }
            JobOutcome::Published(accepted) => {
                self.count(Count::Publishes, 1);
                // Without the number of a request, and without the epoch: an answer is kept short.
                published = v1::Published {
                    message_id: accepted.map_or(0, |accepted| accepted.id),
                    offset: accepted.and_then(|accepted| accepted.offset).unwrap_or(0),
                    connections: accepted.map_or(0, |accepted| accepted.connections),
                    ..v1::Published::default()
                };
                (Answer::Published(&published), true)
            }
            JobOutcome::Refused(refused) => {
                self.count_refused(refused);
                (Answer::Refused(wire(refused)), false)
            }
            JobOutcome::Checked(_) => {
                self.end(like, None, now);
                return;
            }
        };
        let mut bytes = Vec::new();
        let fits = answer.encode(reply.form, &reply.id, reply.bytes_max, &mut bytes);
        if fits {
            outbox.push(reply.peer, |out| {
                out.extend_from_slice(&bytes);
                true
            });
        } else {
            self.count(Count::TooShort, 1);
        }
        // A request that was carried out is remembered even if its answer does not fit, so that it
        // is not carried out again. A refusal is not remembered: unknown peers could fill the
        // memory with refusals.
        self.end(like, is_done.then(|| bytes.into()), now);
    }

    fn refuse(&mut self, reply: &Reply<'_>, refused: &DatagramRefusal, outbox: &mut Outbox) {
        self.count_refused(refused);
        self.answer(reply, &Answer::Refused(wire(refused)), outbox);
    }

    fn refuse_for_queue(&mut self, reply: &Reply<'_>, outbox: &mut Outbox) {
        self.count(Count::RefusedQueue, 1);
        let refused = DatagramRefusal::busy("too many requests wait (udp.queue_max)");
        self.answer(reply, &Answer::Refused(wire(&refused)), outbox);
    }

    fn count_refused(&mut self, refused: &DatagramRefusal) {
        let is_credentials = refused.code == DatagramRefusal::UNAUTHORIZED;
        let cause = if is_credentials { Count::RefusedCredentials } else { Count::RefusedOther };
        self.count(cause, 1);
    }

    fn answer(&mut self, reply: &Reply<'_>, answer: &Answer<'_>, outbox: &mut Outbox) {
        let Reply { peer, form, id, bytes_max } = reply;
        if !outbox.push(*peer, |out| answer.encode(*form, id, *bytes_max, out)) {
            self.count(Count::TooShort, 1);
        }
    }

    fn has_room(&self) -> bool {
        self.waiting < self.shared.config.queue_max
    }

    fn enter(&mut self) {
        self.waiting += 1;
        self.shared.counters.udp.enter();
    }

    fn leave(&mut self, count: usize) {
        self.waiting -= count;
        self.shared.counters.udp.leave(count as u64);
    }
}

impl Reply<'_> {
    fn into_owned(self) -> Reply<'static> {
        let Reply { peer, form, id, bytes_max } = self;
        Reply { peer, form, id: id.into_owned(), bytes_max }
    }
}

fn wire(refused: &DatagramRefusal) -> datagram::Refused<'_> {
    let after = refused.retry_after.map_or(0, |after| after.as_millis().max(1));
    datagram::Refused {
        code: refused.code,
        field: refused.field,
        message: &refused.message,
        retry_after_ms: u32::try_from(after).unwrap_or(u32::MAX),
    }
}

/// The limit of RFC 9000 section 8.1 for addresses that are not proven.
const AMPLIFICATION_MAX: usize = 3;
/// A slow store answers earlier than this, with a refusal.
pub(super) const FRONT_TIMEOUT: Duration = Duration::from_secs(10);
