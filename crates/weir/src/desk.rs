//! Where the reports of one shard are carried out, in order, as credits allow.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::task::coop;
use tracing::{debug, error};
use weir_engine::{Command, ConnId, DeviceRef, Full, Item, Origin, Report, TopicId, Urgent};
use weir_wire::v1::{ClientMessage, Published, Subscribe, Unsubscribe, Welcome};
use weir_wire::v1::{client_message, server_message};
use weir_wire::{CloseReason, ErrorCode, ProstMessage, hot};

use crate::counters::SubscribeRefuseCause;
use crate::devices::Revoked;
use crate::events::{FromDevice, Refusal};
use crate::frames;
use crate::handle::{Handle, Payload, PublishError};
use crate::hub::{Hub, unix_time};
use crate::reports::{Room, cost};
use crate::router::{SubscribeError, validate_name};
use crate::tickets::Pending;

/// The jobs that one shard's reports have led to.
///
/// Shape: one queue, so that what concerns a connection happens in its order: its adoption, what it sent, its end. The
/// first job waits for its credit, and all others behind it; what a job leads to takes its place.
/// Topics and devices are locked only when the credit is there, and nothing waits under a lock.
pub(crate) struct Desk {
    hub: Arc<Hub>,
    shard: usize,
    room: Arc<Room>,
    handle: Handle,
    jobs: VecDeque<Job>,
}

enum Job {
    /// Enter the handle, welcome the device, subscribe what `Hello` asks for.
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
        reason: CloseReason,
        topics: Vec<TopicId>,
    },
    Subscribe {
        conn: ConnId,
        topic: String,
    },
    Unsubscribe {
        conn: ConnId,
        topic: String,
    },
    Send {
        conn: ConnId,
        frame: Box<[u8]>,
    },
    /// Behind what is queued for the connection, on whichever shard it is.
    Evict {
        conn: ConnId,
        reason: CloseReason,
    },
    /// At once.
    Close {
        conn: ConnId,
        reason: CloseReason,
    },
}

/// There is no credit, or no room in the reserved lane: the job is to be tried again.
struct Starved(Job);

impl Desk {
    pub(crate) fn new(hub: Arc<Hub>, shard: usize, room: Arc<Room>) -> Self {
        let handle = Handle::new(Arc::clone(&hub));
        Self { hub, shard, room, handle, jobs: VecDeque::new() }
    }

    /// Takes a report. Counts go down at once: each −1 has had its +1. The rest becomes a job.
    pub(crate) fn take(&mut self, report: Report) {
        match report {
            Report::Adopted { conn, ticket } => self.jobs.push_back(Job::Adopted { conn, ticket }),
            Report::Received { conn, device, origin, body } => {
                self.jobs.push_back(Job::Received { conn, device, origin, body });
            }
            Report::Closed { conn, device, reason, topics, .. } => {
                self.jobs.push_back(Job::Closed { conn, device, reason, topics });
            }
            Report::NotEntered { topic } | Report::Left { topic } => {
                self.hub.router.leave(topic, self.shard);
            }
            Report::Refused { ticket, reason } => {
                let pending = self.hub.tickets[self.shard].take(ticket);
                debug_assert!(pending.is_some(), "a shard answers what it was offered");
                self.hub.counters().count_closed(reason);
                self.hub.assignments.release(self.shard);
            }
            // Nothing is resumed yet.
            Report::ResumeNext { .. } => {}
            Report::Retired { topic } => self.hub.router.retired(topic),
            Report::Drained => self.hub.drained.add_permits(1),
        }
    }

    /// Carries out jobs until none is left, or the first has no credit: then `false`.
    pub(crate) async fn work(&mut self) -> bool {
        while let Some(job) = self.jobs.pop_front() {
            if let Err(Starved(job)) = self.carry_out(job) {
                self.jobs.push_front(job);
                return false;
            }
            coop::consume_budget().await;
        }
        // After a burst the memory is given back.
        if self.jobs.capacity() > JOBS_KEPT {
            self.jobs.shrink_to(0);
        }
        true
    }

    fn carry_out(&mut self, job: Job) -> Result<(), Starved> {
        match job {
            Job::Adopted { conn, ticket } => self.welcome(conn, ticket),
            Job::Received { conn, device, origin, body } => {
                self.handle_frame(conn, device, &body);
                self.room.give(cost(&Report::Received { conn, device, origin, body }));
                if self.room.take_awaited() {
                    self.hub.lane(self.shard).nudge();
                }
                Ok(())
            }
            Job::Closed { conn, device, reason, topics } => {
                debug!(%conn, %reason, "connection closed");
                self.hub.devices.remove(device, conn);
                for topic in topics {
                    self.hub.router.leave(topic, self.shard);
                }
                self.hub.assignments.release(self.shard);
                Ok(())
            }
            Job::Subscribe { conn, topic } => self.subscribe(conn, topic),
            Job::Unsubscribe { conn, topic } => {
                match self.hub.lane(self.shard).try_credit() {
                    Some(credit) => self.hub.router.unsubscribe(credit, conn, &topic),
                    None => return Err(Starved(Job::Unsubscribe { conn, topic })),
                }
                Ok(())
            }
            Job::Send { conn, frame } => {
                match self.hub.lane(conn.shard()).try_credit() {
                    Some(credit) => credit.push(Command::Send(conn, Item::Frame(frame))),
                    None => return Err(Starved(Job::Send { conn, frame })),
                }
                Ok(())
            }
            Job::Evict { conn, reason } => {
                let lane = self.hub.lane(conn.shard());
                let pushed = lane.try_push(Command::Evict(conn, reason));
                pushed.map_err(|_| Starved(Job::Evict { conn, reason }))
            }
            Job::Close { conn, reason } => {
                let lane = self.hub.lane(conn.shard());
                let pushed = lane.try_urgent(Urgent::Close(conn, reason));
                pushed.map_err(|Full(_)| Starved(Job::Close { conn, reason }))
            }
        }
    }

    fn welcome(&mut self, conn: ConnId, ticket: u64) -> Result<(), Starved> {
        let Some(credit) = self.hub.lane(self.shard).try_credit() else {
            return Err(Starved(Job::Adopted { conn, ticket }));
        };
        let Some(pending) = self.hub.tickets[self.shard].take(ticket) else {
            debug_assert!(false, "a shard answers what it was offered");
            return Ok(());
        };
        let Pending { pin, heartbeat, replaces, topics, unsettled: _unsettled, .. } = *pending;
        let welcome = frames::encode(server_message::Kind::Welcome(Welcome {
            connection_id: conn.to_u64(),
            heartbeat_ms: u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX),
            server_time_ms: u64::try_from(unix_time().as_millis()).unwrap_or(0),
        }));
        let welcome = || credit.push(Command::Welcome(conn, welcome));
        match self.hub.devices.enter(&pin, conn, replaces, welcome) {
            Ok(replaced) => {
                self.subscribe_first(conn, topics);
                if let Some(replaced) = replaced {
                    let reason = CloseReason::Replaced;
                    self.jobs.push_front(Job::Evict { conn: replaced, reason });
                }
            }
            Err(Revoked) => {
                self.jobs.push_front(Job::Close { conn, reason: CloseReason::Revoked });
            }
        }
        Ok(())
    }

    /// What `Hello` asks for comes before whatever the connection has sent since.
    fn subscribe_first(&mut self, conn: ConnId, topics: Vec<Subscribe>) {
        let limit = self.hub.config().limits.topics_per_connection_max;
        if topics.len() > limit {
            let message = format!(
                "hello asks for more topics than the limit of {limit} (limits.topics_per_connection_max)"
            );
            self.hub
                .counters()
                .count_subscribe_refused(SubscribeRefuseCause::TopicsPerConnectionMax);
            self.answer(conn, frames::error(ErrorCode::TooManyTopics, message, "", 0));
        }
        for Subscribe { topic, .. } in topics.into_iter().take(limit).rev() {
            self.jobs.push_front(Job::Subscribe { conn, topic });
        }
    }

    fn handle_frame(&mut self, conn: ConnId, device: DeviceRef, body: &[u8]) {
        // A connection that was replaced or revoked is about to be closed; it has no say any more.
        let Some(device) = self.hub.devices.id_of(device, conn) else { return };
        let handled = match hot::FromDevice::decode(body) {
            Ok(hot::FromDevice::Publish) => hot::Publish::decode(body)
                .map(|publish| self.handle_publish(conn, &device, &publish)),
            Ok(hot::FromDevice::Other) => {
                let message = ClientMessage::decode(body).map(|message| message.kind);
                let malformed = |_| weir_wire::WireError::MessageMalformed("not a ClientMessage");
                message.map_err(malformed).map(|kind| self.handle_message(conn, kind))
            }
            // Answered by the shard.
            Ok(hot::FromDevice::Ping { .. } | hot::FromDevice::Unknown) => Ok(()),
            Err(error) => Err(error),
        };
        if handled.is_err() {
            self.jobs.push_front(Job::Evict { conn, reason: CloseReason::Malformed });
        }
    }

    fn handle_message(&mut self, conn: ConnId, kind: Option<client_message::Kind>) {
        use client_message::Kind;
        match kind {
            Some(Kind::Subscribe(Subscribe { topic, .. })) => {
                self.jobs.push_front(Job::Subscribe { conn, topic });
            }
            Some(Kind::Unsubscribe(Unsubscribe { topic })) => {
                self.jobs.push_front(Job::Unsubscribe { conn, topic });
            }
            Some(Kind::Refresh(_)) => {
                let message = "credentials do not expire yet, so there is nothing to refresh";
                let message = message.to_owned();
                self.answer(conn, frames::error(ErrorCode::NotSupported, message, "", 0));
            }
            Some(Kind::Hello(_)) => {
                let message = "hello was said already".to_owned();
                self.answer(conn, frames::error(ErrorCode::AlreadyGreeted, message, "", 0));
            }
            // Not among the others that come here.
            Some(Kind::Ping(_) | Kind::Publish(_)) | None => {}
        }
    }

    fn subscribe(&mut self, conn: ConnId, topic: String) -> Result<(), Starved> {
        let Some(credit) = self.hub.lane(self.shard).try_credit() else {
            return Err(Starved(Job::Subscribe { conn, topic }));
        };
        if let Err((error, credit)) = self.hub.router.subscribe(credit, conn, &topic) {
            self.hub.counters().count_subscribe_refused(SubscribeRefuseCause::of(error));
            let frame = match error {
                // Not sent back: it may be long.
                SubscribeError::Name(error) => {
                    frames::error(ErrorCode::TopicName, error.to_string(), "", 0)
                }
                SubscribeError::TooManyTopics => {
                    let limit = self.hub.config().limits.topics_max;
                    let message = format!("{limit} topics exist, the limit (limits.topics_max)");
                    frames::error(ErrorCode::TooManyTopics, message, &topic, 0)
                }
            };
            credit.push(Command::Send(conn, Item::Frame(frame)));
        }
        Ok(())
    }

    fn handle_publish(&mut self, conn: ConnId, device: &str, publish: &hot::Publish<'_>) {
        let frame = match self.pass_on(conn, device, publish) {
            Ok(_) if publish.request == 0 => return,
            Ok(published) => frames::encode(server_message::Kind::Published(published)),
            Err(Refusal { code, message }) => frames::error(code, message, "", publish.request),
        };
        self.answer(conn, frame);
    }

    /// Gives what a device publishes to the embedding program.
    fn pass_on(
        &self,
        conn: ConnId,
        device: &str,
        publish: &hot::Publish<'_>,
    ) -> Result<Published, Refusal> {
        let Some(on_publish) = &self.hub.on_publish else {
            let message = "devices may not publish on this server".to_owned();
            return Err(Refusal { code: ErrorCode::NotPermitted, message });
        };
        validate_name(publish.topic, self.hub.config().limits.topic_bytes_max)
            .map_err(PublishError::from)?;
        let event = FromDevice {
            conn,
            device,
            topic: publish.topic,
            payload: match publish.payload {
                hot::Payload::Text(text) => Payload::Text(text),
                hot::Payload::Data(data) => Payload::Data(data),
            },
            content_type: publish.content_type,
            key: publish.key,
            handle: &self.handle,
        };
        // A panic of the embedding program's must not end the way back from the shard.
        let answer = catch_unwind(AssertUnwindSafe(|| on_publish(&event)));
        let accepted = answer.unwrap_or_else(|_| {
            error!(%conn, "on_publish panicked");
            let message = "the server failed to handle it".to_owned();
            Err(Refusal { code: ErrorCode::Busy, message })
        })?;
        Ok(Published {
            request: publish.request,
            message_id: accepted.map_or(0, |accepted| accepted.id),
            offset: accepted.and_then(|accepted| accepted.offset).unwrap_or(0),
            connections: accepted.map_or(0, |accepted| accepted.connections),
        })
    }

    fn answer(&mut self, conn: ConnId, frame: Box<[u8]>) {
        self.jobs.push_front(Job::Send { conn, frame });
    }
}

/// Room for jobs that is kept without use: 16 KiB and a bit.
const JOBS_KEPT: usize = 256;
const _: () = assert!(size_of::<Job>() <= 64);
