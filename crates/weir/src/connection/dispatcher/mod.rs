//! The report dispatcher: carries out the reports of one shard, in order, as credits allow.

mod calls;
mod ended;
mod later;
mod recheck;
mod refresh;
mod run;
mod subscribe;
mod terms;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::coop;
use weir_engine::{
    Command, ConnId, CreditKind, DeviceRef, Footprint, Full, Item, Origin, PeerAddr, Report,
    TopicId, Transport, Urgent, rounded,
};
use weir_wire::format::Format;
use weir_wire::v1::{ClientMessage, Position, Published, Unsubscribe, Welcome};
use weir_wire::v1::{client_message, server_message};
use weir_wire::{CloseReason, ErrorCode, ProstMessage, handover, hot};

use crate::auth::devices::NotEntered;
use crate::auth::{Act, Grant, HeldGrant, OWN_GRANT};
use crate::backends::notices::Who;
use crate::backends::questions::Outcome;
use crate::base::clock::{unix_millis, unix_time};
use crate::base::frames;
use crate::base::model::{Accepted, Payload, Publication, Target};
use crate::connection::reports::Room;
use crate::core::adoptions::Pending;
use crate::core::events::EventKind;
use crate::core::handle::{Handle, Refusal};
use crate::core::recheck::Recheck;
use crate::core::rights::{Caller, CallerDevice, CameBy, Denied};
use crate::core::state::SharedState;
use crate::observe::traces::{note_failure, note_topic};
use crate::topics::Subscriber;
use ended::Ended;
use refresh::{Found, Refreshes};
pub(crate) use run::{TakenTerms, run};
use terms::Terms;
use waiting::{Answered, Waiting, What};

/// The jobs that result from one shard's reports.
///
/// Shape: one queue, so that each connection's adoption, messages and end keep their order. The
/// first job waits for its credit, and all others wait behind it. A job's follow-up jobs take its
/// place. Topics and devices are locked only once the credit is there, and no job waits under a
/// lock.
struct Dispatcher {
    shared: Arc<SharedState>,
    shard: usize,
    room: Arc<Room>,
    handle: Handle,
    jobs: VecDeque<Job>,
    carried_out: u64,
    terms: Terms,
    refreshes: Refreshes,
    waiting: Waiting,
}

/// Where the dispatcher gets the results of its tasks.
struct Results {
    /// Checked tokens; see [`Dispatcher::take_found`].
    found: mpsc::Receiver<Found>,
    /// Answers of hooks; see [`Dispatcher::take_answered`].
    answered: mpsc::Receiver<Answered>,
}

enum Job {
    /// Enter the connection in its device's record, welcome it, and subscribe the topics of
    /// `Hello`.
    Adopted {
        conn: ConnId,
        ticket: u64,
    },
    Received {
        conn: ConnId,
        device: DeviceRef,
        origin: Origin,
        body: Box<[u8]>,
    },
    Closed {
        conn: ConnId,
        device: DeviceRef,
        origin: Origin,
        reason: CloseReason,
        transport: Transport,
        peer: Option<PeerAddr>,
        age_ticks: u32,
        topics: Box<[TopicId]>,
    },
    Subscribe {
        conn: ConnId,
        device: DeviceRef,
        format: Format,
        topic: String,
        position: Option<Position>,
        presence: bool,
    },
    /// Carry out the first of what the connection has waiting.
    Next {
        conn: ConnId,
    },
    /// Push the next replay chunk.
    ResumeNext {
        conn: ConnId,
        topic: TopicId,
        resume: u32,
        after: u64,
    },
    Unsubscribe {
        conn: ConnId,
        device: DeviceRef,
        topic: String,
    },
    Send {
        conn: ConnId,
        frame: Box<[u8]>,
    },
    /// Close the connection after everything that is queued for it, on any shard.
    Evict {
        conn: ConnId,
        reason: CloseReason,
    },
    /// Close the connection at once.
    Close {
        conn: ConnId,
        reason: CloseReason,
    },
    /// End what the configuration no longer permits.
    Recheck(Box<Recheck>),
    /// End a subscription, or a resume, that is no longer permitted.
    Expel {
        conn: ConnId,
        device: DeviceRef,
        topic: String,
    },
}

/// The connection that sent a frame.
#[derive(Clone, Copy)]
struct Asker {
    conn: ConnId,
    device: DeviceRef,
    origin: Origin,
}

/// The mailbox has no credit, or the reserved queue has no room. The dispatcher must try the job
/// again.
struct OutOfCredit(Job);

impl Dispatcher {
    fn new(handle: Handle, shard: usize, room: Arc<Room>) -> (Self, Results) {
        let shared = Arc::clone(handle.shared());
        let terms = Terms::new(shared.config().auth.expiring_notice);
        let (refreshes, found) = Refreshes::new();
        let (waiting, answered) = Waiting::new(shared.counters());
        let dispatcher = Self {
            shared,
            shard,
            room,
            handle,
            jobs: VecDeque::new(),
            carried_out: 0,
            terms,
            refreshes,
            waiting,
        };
        (dispatcher, Results { found, answered })
    }

    /// Takes a report. Memberships and refused resumes are counted down at once, since their +1 or
    /// their number already exists. Other reports become jobs.
    fn take(&mut self, report: Report) {
        match report {
            Report::Adopted { conn, ticket } => self.jobs.push_back(Job::Adopted { conn, ticket }),
            Report::Received { conn, device, origin, body } => {
                self.jobs.push_back(Job::Received { conn, device, origin, body });
            }
            Report::Closed { conn, device, origin, reason, transport, peer, age_ticks, topics } => {
                let closed = Job::Closed {
                    conn,
                    device,
                    origin,
                    reason,
                    transport,
                    peer,
                    age_ticks,
                    topics,
                };
                self.jobs.push_back(closed);
            }
            Report::NotEntered { conn, topic } | Report::Left { conn, topic } => {
                self.shared.router.leave(topic, conn);
            }
            Report::Refused { ticket, reason } => {
                let pending = self.shared.adoptions[self.shard].take(ticket);
                debug_assert!(pending.is_some(), "a shard answers what it was offered");
                self.shared.counters().count_closed(reason);
                self.shared.admission.release(self.shard);
            }
            Report::ResumeNext { conn, topic, resume, after } => {
                self.jobs.push_back(Job::ResumeNext { conn, topic, resume, after });
            }
            Report::ResumeRefused { conn, topic, resume } => {
                self.shared.router.resume_refused(conn, topic, resume);
            }
            Report::Retired { topic } => self.shared.router.retired(topic),
            Report::Drained { number } => self.shared.drains.note_ended(self.shard, number),
        }
    }

    /// The waiting jobs and the terms of credentials.
    fn footprint(&self) -> Footprint {
        let mut sum = self.terms.footprint();
        sum += Footprint::new(self.jobs.len(), rounded(self.jobs.capacity() * size_of::<Job>()));
        sum += self.waiting.footprint();
        sum
    }

    /// Whether nothing is left to do, and no answer is awaited.
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.waiting.is_empty() && !self.refreshes.is_any()
    }

    /// Whether nothing is left to do but what another process can do: ask hooks again, and have
    /// tokens shown again.
    fn is_movable(&self) -> bool {
        self.jobs.is_empty()
    }

    /// What another process needs to go on.
    fn export(&self) -> handover::v1::Terms {
        handover::v1::Terms { waiting: self.waiting.export(), ..self.terms.export() }
    }

    /// The number of jobs carried out so far.
    fn carried_out(&self) -> u64 {
        self.carried_out
    }

    /// Carries out jobs until none is left, or until the first one has no credit; then returns
    /// `false`.
    async fn work(&mut self) -> bool {
        loop {
            let is_more = self.look_at_terms();
            while let Some(job) = self.jobs.pop_front() {
                if let Err(OutOfCredit(job)) = self.carry_out(job) {
                    self.jobs.push_front(job);
                    return false;
                }
                self.carried_out += 1;
                coop::consume_budget().await;
            }
            if !is_more {
                break;
            }
        }
        // Returns the memory after a burst.
        if self.jobs.capacity() > JOBS_KEPT {
            self.jobs.shrink_to(0);
        }
        true
    }

    fn carry_out(&mut self, job: Job) -> Result<(), OutOfCredit> {
        match job {
            Job::Adopted { conn, ticket } => self.welcome(conn, ticket),
            Job::Received { conn, device, origin, body } => {
                self.receive(Asker { conn, device, origin }, body);
                Ok(())
            }
            Job::Closed { conn, device, origin, reason, transport, peer, age_ticks, topics } => {
                self.receive_end(Ended {
                    conn,
                    device,
                    origin,
                    reason,
                    transport,
                    peer,
                    age_ticks,
                    topics,
                });
                Ok(())
            }
            Job::Subscribe { conn, device, format, topic, position, presence } => {
                let mut subscriber = Subscriber::new(conn, format);
                (subscriber.position, subscriber.presence) = (position, presence);
                self.subscribe(device, topic, subscriber)
            }
            Job::Next { conn } => {
                self.carry_out_next(conn);
                Ok(())
            }
            Job::ResumeNext { conn, topic, resume, after } => {
                let credit = self.shared.mailbox(self.shard).try_credit(CreditKind::Control);
                let next = (resume, after);
                let router = &self.shared.router;
                match credit.is_some_and(|credit| router.resume_next(credit, conn, topic, next)) {
                    true => Ok(()),
                    false => Err(OutOfCredit(Job::ResumeNext { conn, topic, resume, after })),
                }
            }
            Job::Unsubscribe { conn, device, topic } => self.unsubscribe(conn, device, topic),
            Job::Send { conn, frame } => {
                match self.shared.mailbox(conn.shard()).try_credit(CreditKind::Control) {
                    Some(credit) => credit.push(Command::Send(conn, Item::Frame(frame))),
                    None => return Err(OutOfCredit(Job::Send { conn, frame })),
                }
                Ok(())
            }
            Job::Evict { conn, reason } => {
                let mailbox = self.shared.mailbox(conn.shard());
                let pushed = mailbox.try_push(Command::Evict(conn, reason));
                pushed.map_err(|_| OutOfCredit(Job::Evict { conn, reason }))
            }
            Job::Close { conn, reason } => {
                let mailbox = self.shared.mailbox(conn.shard());
                let pushed = mailbox.try_urgent(Urgent::Close(conn, reason));
                pushed.map_err(|Full(_)| OutOfCredit(Job::Close { conn, reason }))
            }
            Job::Recheck(recheck) => {
                self.recheck(*recheck);
                Ok(())
            }
            Job::Expel { conn, device, topic } => self.expel(conn, device, topic),
        }
    }

    fn welcome(&mut self, conn: ConnId, ticket: u64) -> Result<(), OutOfCredit> {
        let Some(credit) = self.shared.mailbox(self.shard).try_credit(CreditKind::Control) else {
            return Err(OutOfCredit(Job::Adopted { conn, ticket }));
        };
        let Some(pending) = self.shared.adoptions[self.shard].take(ticket) else {
            debug_assert!(false, "a shard answers what it was offered");
            return Ok(());
        };
        let Pending {
            pin,
            heartbeat,
            origin,
            replaces,
            topics,
            answers_calls,
            unsettled,
            term,
            version,
            client,
            ..
        } = *pending;
        let order = unsettled.order();
        unsettled.settle();
        client.settle();
        if !self.is_still_admitted((&pin, origin), term.as_ref(), version) {
            self.jobs.push_front(Job::Close { conn, reason: CloseReason::Revoked });
            return Ok(());
        }
        let welcome = frames::encode(server_message::Kind::Welcome(Welcome {
            connection_id: conn.to_u64(),
            heartbeat_ms: u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX),
            server_time_ms: u64::try_from(unix_time().as_millis()).unwrap_or(0),
        }));
        let welcome = || credit.push(Command::Welcome(conn, welcome));
        match self.shared.devices.enter(&pin, (order, conn), replaces, welcome) {
            Ok(replaced) => {
                if let Some(term) = term {
                    self.terms.enter(conn, term, unix_millis());
                }
                if let Some(node) = &self.shared.node {
                    node.claim(&self.shared.devices, pin.device(), conn);
                }
                if answers_calls {
                    self.shared.calls.enter(conn);
                }
                self.tell(conn, pin.device(), || EventKind::Connected);
                self.subscribe_first(Asker { conn, device: pin.device(), origin }, topics);
                if let Some(replaced) = replaced {
                    let reason = CloseReason::Replaced;
                    self.jobs.push_front(Job::Evict { conn: replaced, reason });
                }
            }
            Err(not_entered) => {
                let reason = match not_entered {
                    NotEntered::Revoked => CloseReason::Revoked,
                    NotEntered::Replaced => CloseReason::Replaced,
                };
                self.jobs.push_front(Job::Close { conn, reason });
            }
        }
        Ok(())
    }

    /// `outcome`: the answer of the hook that decides about it.
    fn handle_frame(&mut self, asker: Asker, body: &[u8], outcome: Option<Outcome>) {
        // A replaced or revoked connection is about to be closed; its messages no longer count.
        if !self.shared.devices.has(asker.device, asker.conn) {
            return;
        }
        let handled = match hot::FromDevice::decode(body) {
            Ok(hot::FromDevice::Publish) => {
                let publish = hot::Publish::decode(body);
                publish.map(|publish| self.handle_publish(asker, &publish, outcome))
            }
            Ok(hot::FromDevice::Other) => {
                let message = ClientMessage::decode(body).map(|message| message.kind);
                let malformed = |_| weir_wire::WireError::MessageMalformed("not a ClientMessage");
                message.map_err(malformed).map(|kind| self.handle_message(asker, kind, outcome))
            }
            // The shard answers these.
            Ok(hot::FromDevice::Ping { .. } | hot::FromDevice::Unknown) => Ok(()),
            Err(error) => Err(error),
        };
        if handled.is_err() {
            self.jobs.push_front(Job::Evict { conn: asker.conn, reason: CloseReason::Malformed });
        }
    }

    fn handle_message(
        &mut self,
        asker: Asker,
        kind: Option<client_message::Kind>,
        outcome: Option<Outcome>,
    ) {
        use client_message::Kind;
        let conn = asker.conn;
        match kind {
            Some(Kind::Subscribe(subscribe)) => self.want_topic(asker, subscribe, outcome),
            Some(Kind::Unsubscribe(Unsubscribe { topic })) => self.leave_topic(asker, topic),
            Some(Kind::Refresh(refresh)) => self.refresh(asker, refresh.token),
            Some(Kind::Hello(_)) => {
                let message = "hello was already sent".to_owned();
                self.answer(conn, frames::error(ErrorCode::AlreadyGreeted, message, "", 0));
            }
            Some(Kind::Call(call)) => self.call(asker, call),
            Some(Kind::Answer(answer)) => self.take_answer(asker, answer),
            Some(Kind::Cancel(cancel)) => self.cancel_call(asker, cancel),
            // These do not reach this function.
            Some(Kind::Ping(_) | Kind::Publish(_)) | None => {}
        }
    }

    /// Whether the topic's class permits the act.
    fn check(&self, asker: Asker, act: Act, topic: &str) -> Result<(), Denied> {
        let grant = self.grant(asker);
        self.shared.permit(&caller(&grant, asker), act, topic).map(|_| ())
    }

    /// The grant of the asking connection.
    fn grant(&self, asker: Asker) -> HeldGrant<'_> {
        let auth = &self.shared.auth;
        match asker.origin.grant {
            OWN_GRANT => match self.terms.grant(asker.conn) {
                Some(own) => auth.grant(own),
                None => HeldGrant::Own(auth.nobody()),
            },
            number => auth.numbered(number),
        }
    }

    /// Tells the readers of events and the receivers of notices, if there are any.
    fn tell(&self, conn: ConnId, device: DeviceRef, kind: impl FnOnce() -> EventKind) {
        let (events, notices) = (&self.shared.events, &self.shared.notices);
        if !events.is_heard() && !notices.is_on() {
            return;
        }
        // A replaced or revoked connection has no further event but its end.
        let Some((device, order)) = self.shared.devices.entry_of(device, conn) else { return };
        let (who, kind) = (Who { device: &device, conn, order }, kind());
        match &kind {
            EventKind::Connected => notices.connected(who),
            EventKind::Subscribed(topic) => notices.subscribed(who, topic),
            EventKind::Unsubscribed(topic) => notices.unsubscribed(who, topic),
            // The end has its own place, and the gateway's events concern no connection.
            EventKind::Disconnected(_) | EventKind::Upgraded(_) | EventKind::UpgradeFailed(_) => {}
        }
        events.tell(conn, &device, kind);
    }

    fn handle_publish(
        &mut self,
        asker: Asker,
        publish: &hot::Publish<'_>,
        outcome: Option<Outcome>,
    ) {
        let limit = self.shared.router.name_bytes_max();
        let publication = publication_of(asker, publish);
        let mut span = self.shared.tracer.begin("publish", None);
        let grant = self.grant(asker);
        let caller = caller(&grant, asker);
        let published = match outcome {
            None => self.handle.publish_as(&caller, None, &publication),
            Some(outcome) => self.handle.publish_answered(&caller, &publication, outcome),
        };
        drop(grant);
        let published = published.map_err(Refusal::from);
        note_topic(&mut span, publish.topic);
        note_failure(&mut span, published.as_ref().err().map(|refusal| refusal.code.name()));
        let frame = match published {
            Ok(Some(publishing)) if publishing.accepted().is_none() => {
                return self.answer_later(asker, (publishing, span), publish);
            }
            Ok(_) if publish.request == 0 => return,
            Ok(publishing) => {
                let accepted = publishing.and_then(|publishing| publishing.accepted());
                published_frame(publish.request, accepted)
            }
            // An invalid name is not sent back, because it may be long.
            Err(Refusal { code: code @ ErrorCode::TopicName, message }) => {
                frames::error(code, message, "", publish.request)
            }
            Err(Refusal { code, message }) => {
                let topic = publish.topic;
                let topic = if topic.len() > limit { "" } else { topic };
                frames::error(code, message, topic, publish.request)
            }
        };
        self.answer(asker.conn, frame);
    }

    fn answer(&mut self, conn: ConnId, frame: Box<[u8]>) {
        self.jobs.push_front(Job::Send { conn, frame });
    }
}

/// A connection as a caller.
fn caller(grant: &Grant, asker: Asker) -> Caller<'_> {
    let device = CallerDevice::Connected(asker.device, asker.conn);
    Caller { grant, device, came_by: CameBy::Connection(asker.origin) }
}

/// The message of a frame.
fn publication_of<'a>(asker: Asker, publish: &hot::Publish<'a>) -> Publication<'a> {
    Publication {
        target: Target::Topic(publish.topic),
        payload: payload_of(publish),
        content_type: publish.content_type,
        key: publish.key,
        ttl: None,
        sender: Some(asker.conn),
        idempotency_key: None,
    }
}

/// The answer to a message that was accepted; `None`: the embedding program took it elsewhere.
fn published_frame(request: u32, accepted: Option<Accepted>) -> Box<[u8]> {
    frames::encode(server_message::Kind::Published(Published {
        request,
        message_id: accepted.map_or(0, |accepted| accepted.id),
        offset: accepted.and_then(|accepted| accepted.offset).unwrap_or(0),
        connections: accepted.map_or(0, |accepted| accepted.connections),
        epoch: accepted.and_then(|accepted| accepted.epoch).unwrap_or(0),
    }))
}

fn payload_of<'a>(publish: &hot::Publish<'a>) -> Payload<'a> {
    match publish.payload {
        hot::Payload::Text(text) => Payload::Text(text),
        hot::Payload::Data(data) => Payload::Data(data),
    }
}

/// Unused capacity that the queue of jobs keeps: 16 KiB.
const JOBS_KEPT: usize = 256;
const _: () = assert!(size_of::<Job>() <= 64);
