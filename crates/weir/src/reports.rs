//! What the shards say, handled in order: one task a shard.
//!
//! A report may ask for commands, and those for credits. Where there is none the task waits, and with it all later
//! reports of that shard: so what a connection asked for happens in its order, and the queue behind it fills until the
//! shard stops reading from those who ask. A shard never waits for the front, so its credits return and the task goes
//! on. Topics and devices are locked only once the credit is there.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::{debug, error};
use weir_engine::{Command, ConnId, Credit, DeviceRef, Front, Item, Mailbox, Report, Urgent};
use weir_wire::v1::{
    ClientMessage, Published, Subscribe, Welcome, client_message, server_message::Kind,
};
use weir_wire::{CloseReason, ProstMessage, hot};

use crate::devices::Revoked;
use crate::events::{FromDevice, Refusal};
use crate::frames;
use crate::handle::{Handle, Payload, PublishError};
use crate::hub::{Hub, unix_time};
use crate::lanes::{credit, urgent};
use crate::router::{SubscribeError, validate_name};
use crate::tickets::Pending;

/// The way back from a shard: a bounded queue, and a note that it was full.
pub(crate) struct Reporter {
    queue: mpsc::Sender<Report>,
    was_full: Arc<AtomicBool>,
}

/// The front's end of it.
pub(crate) struct Reports {
    queue: mpsc::Receiver<Report>,
    was_full: Arc<AtomicBool>,
}

/// A queue for one shard.
pub(crate) fn queue() -> (Reporter, Reports) {
    let (sender, receiver) = mpsc::channel(QUEUE_REPORTS);
    let was_full = Arc::new(AtomicBool::new(false));
    let reporter = Reporter { queue: sender, was_full: Arc::clone(&was_full) };
    (reporter, Reports { queue: receiver, was_full })
}

impl Front for Reporter {
    fn try_report(&mut self, report: Report) -> Result<(), Report> {
        let report = match self.queue.try_send(report) {
            Ok(()) => return Ok(()),
            // The gateway is gone: nobody is left to tell.
            Err(TrySendError::Closed(_)) => return Ok(()),
            Err(TrySendError::Full(report)) => report,
        };
        // Room made before the note would be missed: so once more behind it.
        self.was_full.store(true, Ordering::SeqCst);
        match self.queue.try_send(report) {
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(report)) => Err(report),
        }
    }
}

/// Handles the reports of one shard until it has stopped.
pub(crate) async fn run(hub: Arc<Hub>, shard: usize, mut reports: Reports) {
    let desk = Desk { hub: &hub, shard, handle: Handle::new(Arc::clone(&hub)) };
    let mut batch = Vec::with_capacity(BATCH_REPORTS);
    while reports.queue.recv_many(&mut batch, BATCH_REPORTS).await > 0 {
        if reports.was_full.swap(false, Ordering::SeqCst) {
            desk.lane().nudge();
        }
        for report in batch.drain(..) {
            desk.handle_report(report).await;
        }
    }
}

/// Where one shard's reports are handled.
struct Desk<'a> {
    hub: &'a Arc<Hub>,
    shard: usize,
    handle: Handle,
}

impl Desk<'_> {
    async fn handle_report(&self, report: Report) {
        match report {
            Report::Adopted { conn, ticket } => self.handle_adopted(conn, ticket).await,
            Report::Refused { ticket, reason } => {
                let pending = self.hub.tickets[self.shard].take(ticket);
                debug_assert!(pending.is_some(), "a shard answers what it was offered");
                self.hub.counters().count_closed(reason);
                self.hub.assignments.release(self.shard);
            }
            Report::Received { conn, device, body } => {
                self.handle_received(conn, device, &body).await;
            }
            Report::NotEntered { topic } | Report::Left { topic } => {
                self.hub.router.leave(topic, self.shard);
            }
            Report::Closed { conn, device, reason, topics } => {
                debug!(%conn, %reason, "connection closed");
                self.hub.devices.remove(device, conn);
                for topic in topics {
                    self.hub.router.leave(topic, self.shard);
                }
                self.hub.assignments.release(self.shard);
            }
            Report::Retired { topic } => self.hub.router.retired(topic),
            Report::Drained => self.hub.drained.add_permits(1),
        }
    }

    async fn handle_adopted(&self, conn: ConnId, ticket: u64) {
        let Some(pending) = self.hub.tickets[self.shard].take(ticket) else {
            debug_assert!(false, "a shard answers what it was offered");
            return;
        };
        let Pending { pin, heartbeat, topics, unsettled } = *pending;
        let welcome = frames::encode(Kind::Welcome(Welcome {
            connection_id: conn.to_u64(),
            heartbeat_ms: u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX),
            server_time_ms: u64::try_from(unix_time().as_millis()).unwrap_or(0),
        }));
        let credit = self.credit().await;
        let welcome = || credit.push(Command::Send(conn, Item::Frame(welcome)));
        let entered = self.hub.devices.enter(&pin, conn, welcome);
        drop((pin, unsettled));
        match entered {
            Ok(None) => {}
            Ok(Some(replaced)) => {
                let credit = credit_of(self.hub, replaced).await;
                credit.push(Command::Evict(replaced, CloseReason::Replaced));
            }
            Err(Revoked) => {
                urgent(self.lane(), Urgent::Close(conn, CloseReason::Revoked)).await;
                return;
            }
        }
        for subscribe in topics {
            self.subscribe(conn, subscribe).await;
        }
    }

    async fn handle_received(&self, conn: ConnId, device: DeviceRef, body: &[u8]) {
        // A connection that was replaced or revoked is about to be closed; it has no say any more.
        let Some(device) = self.hub.devices.id_of(device, conn) else { return };
        match hot::FromDevice::decode(body) {
            Ok(hot::FromDevice::Publish) => match hot::Publish::decode(body) {
                Ok(publish) => self.handle_publish(conn, &device, &publish).await,
                Err(_) => self.evict(conn, CloseReason::Malformed).await,
            },
            Ok(hot::FromDevice::Other) => match ClientMessage::decode(body) {
                Ok(message) => self.handle_message(conn, &device, message).await,
                Err(_) => self.evict(conn, CloseReason::Malformed).await,
            },
            Ok(hot::FromDevice::Unknown) => {
                let message = "a message of a kind that weir.v1 does not know".to_owned();
                self.answer_error(conn, "unknown_message", message, "", 0).await;
            }
            // The shard answers pings; one that it passes on asks for nothing.
            Ok(hot::FromDevice::Ping { .. }) => {}
            Err(_) => self.evict(conn, CloseReason::Malformed).await,
        }
    }

    async fn handle_message(&self, conn: ConnId, device: &str, message: ClientMessage) {
        use client_message::Kind as From;
        match message.kind {
            Some(From::Subscribe(subscribe)) => self.subscribe(conn, subscribe).await,
            Some(From::Unsubscribe(unsubscribe)) => {
                let credit = self.credit().await;
                self.hub.router.unsubscribe(credit, conn, &unsubscribe.topic);
            }
            Some(From::Refresh(refresh)) => {
                if self.hub.auth.authenticate(device, &refresh.token).is_err() {
                    let message = "the token is wrong or does not permit this device".to_owned();
                    self.answer_error(conn, "unauthorized", message, "", 0).await;
                }
            }
            Some(From::Hello(_)) => {
                let message = "hello was said already".to_owned();
                self.answer_error(conn, "unexpected_hello", message, "", 0).await;
            }
            // Classified as others before.
            Some(From::Ping(_) | From::Publish(_)) | None => {}
        }
    }

    async fn subscribe(&self, conn: ConnId, subscribe: Subscribe) {
        let credit = self.credit().await;
        let topic = subscribe.topic;
        if let Err((error, credit)) = self.hub.router.subscribe(credit, conn, &topic) {
            let (code, message) = match error {
                SubscribeError::Name(error) => ("topic_name", error.to_string()),
                SubscribeError::TooManyTopics => {
                    let limit = self.hub.config().limits.topics_max;
                    ("too_many_topics", format!("{limit} topics exist (limits.topics_max)"))
                }
            };
            // A name that is too long is not sent back.
            let topic = match error {
                SubscribeError::Name(_) => "",
                SubscribeError::TooManyTopics => &topic,
            };
            let frame = frames::error(code, message, topic, 0);
            credit.push(Command::Send(conn, Item::Frame(frame)));
        }
    }

    async fn handle_publish(&self, conn: ConnId, device: &str, publish: &hot::Publish<'_>) {
        let request = publish.request;
        let frame = match self.pass_on(conn, device, publish) {
            Ok(_) if request == 0 => return,
            Ok(published) => frames::encode(Kind::Published(published)),
            Err(Refusal { code, message }) => {
                let is_name = code == "topic_name";
                let topic = if is_name { "" } else { publish.topic };
                frames::error(code, message, topic, request)
            }
        };
        self.send(conn, frame).await;
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
            return Err(Refusal { code: "not_permitted", message });
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
            error!(%conn, "the program's on_publish panicked");
            let message = "the server failed to handle it".to_owned();
            Err(Refusal { code: "internal", message })
        })?;
        Ok(Published {
            request: publish.request,
            message_id: accepted.map_or(0, |accepted| accepted.id),
            offset: accepted.and_then(|accepted| accepted.offset).unwrap_or(0),
            connections: accepted.map_or(0, |accepted| accepted.connections),
        })
    }

    async fn answer_error(
        &self,
        conn: ConnId,
        code: &str,
        message: String,
        topic: &str,
        request: u32,
    ) {
        self.send(conn, frames::error(code, message, topic, request)).await;
    }

    async fn send(&self, conn: ConnId, frame: Box<[u8]>) {
        self.credit().await.push(Command::Send(conn, Item::Frame(frame)));
    }

    async fn evict(&self, conn: ConnId, reason: CloseReason) {
        self.credit().await.push(Command::Evict(conn, reason));
    }

    async fn credit(&self) -> Credit<'_, OwnedFd> {
        credit(self.lane()).await
    }

    fn lane(&self) -> &Mailbox<OwnedFd> {
        self.hub.lane(self.shard)
    }
}

async fn credit_of(hub: &Hub, conn: ConnId) -> Credit<'_, OwnedFd> {
    credit(hub.lane(conn.shard())).await
}

/// A burst of closes or of frames; behind it the shard waits, and the devices with it.
const QUEUE_REPORTS: usize = 4096;
/// Taken out at a time.
const BATCH_REPORTS: usize = 64;

#[cfg(test)]
mod tests;
