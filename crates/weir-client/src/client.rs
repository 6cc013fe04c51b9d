//! One connection to a server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use weir_wire::v1::client_message::Kind as Say;
use weir_wire::v1::server_message::Kind as Hear;
use weir_wire::{PING_BYTES_MAX, ProstMessage, WireError, frame, v1};

use crate::buffer::FrameBuffer;
use crate::positions::Positions;
use crate::tls::Socket;
use crate::{
    Call, CallAnswer, ClientError, Event, Expiring, Goodbye, Options, Payload, Position,
    Publication, Push, Subscription,
};

/// A welcomed connection to a Weir server.
///
/// Shape: one socket, one buffer for incoming bytes, one for outgoing bytes; no task, no thread.
/// Limits: the client neither reads nor sends a frame above `frame_bytes_max`. At most one message
/// waits to be written; a method that sends another one waits first.
///
/// **Call [`Client::next`] again and again.** Only while the program polls it does the client send
/// pings, return answers and notice a dead server. If the program does not poll it for two
/// heartbeats, the server closes the connection.
///
/// The program may drop every method's future before it is done (in a `select!`, say) without
/// losing or repeating anything. Bytes of a half read frame stay in the buffer. The next call of
/// any method continues to write a half written message.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    incoming: FrameBuffer,
    /// Encoded frames. The socket has taken `outgoing[..written]`, and not the rest.
    outgoing: Vec<u8>,
    written: usize,
    /// TLS may hold bytes back until it is flushed.
    unflushed: bool,
    /// Messages of a batch that `next` has not returned yet.
    batched: VecDeque<Push>,
    /// The positions of the messages that `next` has returned.
    positions: Positions,
    heartbeat_ticks: Interval,
    heartbeat: Duration,
    /// Pings since the server was last heard.
    pings_unanswered: u32,
    connection_id: u64,
    server_time_ms: u64,
    frame_bytes_max: usize,
    ended: bool,
}

/// The event that woke `next`.
enum Woken {
    Read(usize),
    Wrote(usize),
    Flushed,
    Tick,
}

impl Client {
    /// Connects, introduces the device and waits for the server's `Welcome`.
    ///
    /// Errors: [`ClientError::Refused`] carries the server's own reason.
    /// [`ClientError::ConnectTimedOut`] comes when all steps together take longer than
    /// `connect_timeout`.
    pub async fn connect(
        addr: impl ToSocketAddrs,
        options: Options,
    ) -> Result<Client, ClientError> {
        match timeout(options.connect_timeout, Client::greet(addr, &options)).await {
            Ok(result) => result,
            Err(_elapsed) => Err(ClientError::ConnectTimedOut(options.connect_timeout)),
        }
    }

    /// The server's id for this connection. It stands in the server's logs and lists, and is the
    /// `sender` of the messages that this client publishes.
    pub fn connection_id(&self) -> u64 {
        self.connection_id
    }

    /// The agreed heartbeat. The client sends a ping this often, and the server closes after two
    /// missed ones.
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// The server's clock at `Welcome`, in milliseconds since 1970-01-01T00:00:00Z.
    pub fn server_time_ms(&self) -> u64 {
        self.server_time_ms
    }

    /// The topics that this connection is in or has asked for. Each has the position of the last
    /// message that [`Client::next`] has returned. As [`Options::topics`] of the next connection
    /// they let it miss nothing.
    ///
    /// The list has no topic that the client left, or that ended with [`Event::Unsubscribed`] and a
    /// reason. It has topics that the server refused, because the server may grant them the next
    /// time. The list remains after the connection has ended.
    /// Cost: a copy of every name.
    pub fn positions(&self) -> Vec<Subscription> {
        self.positions.to_subscriptions()
    }

    /// The next event from the server; `None` once the server has closed the connection in an
    /// orderly way.
    ///
    /// Each message of a batch comes as one [`Event::Push`], in order. A gap in the offsets means
    /// that the server left messages out, by the topic's rules.
    /// While it waits, it sends the pings of the heartbeat. After [`Event::Goodbye`] or an error it
    /// returns only `None`.
    /// Cost: no syscall while whole frames are buffered; one allocation a field of the event.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        let mut result = self.next_unless_ended().await;
        match &mut result {
            Ok(Some(Event::Push(push))) => self.positions.handle_seen(&push.topic, push.offset),
            Ok(Some(Event::Subscribed(told))) => {
                told.lost_after = self.positions.handle_subscribed(told);
            }
            Ok(Some(Event::Unsubscribed(told))) => self.positions.handle_unsubscribed(told),
            Ok(Some(Event::Error(error))) if error.request == 0 => {
                self.positions.handle_refused(&error.topic);
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => self.ended = true,
        }
        result
    }

    /// Asks to subscribe to a topic. The answer is [`Event::Subscribed`] or [`Event::Error`].
    pub async fn subscribe(&mut self, topic: impl Into<Subscription>) -> Result<(), ClientError> {
        self.say(Say::Subscribe(topic.into().to_wire())).await
    }

    /// Asks to subscribe to a topic from after this position on. `recovered` in the answer says
    /// whether all messages since then follow.
    pub async fn subscribe_from(
        &mut self,
        topic: &str,
        position: Position,
    ) -> Result<(), ClientError> {
        self.subscribe(Subscription {
            topic: topic.to_owned(),
            from: Some(position),
            presence: false,
        })
        .await
    }

    /// Asks to leave a topic. The answer is [`Event::Unsubscribed`].
    pub async fn unsubscribe(&mut self, topic: &str) -> Result<(), ClientError> {
        self.say(Say::Unsubscribe(v1::Unsubscribe { topic: topic.to_owned() })).await
    }

    /// Publishes to a topic. With a `request` other than 0 the answer, [`Event::Published`] or
    /// [`Event::Error`], carries that number. With 0 success is silent, and an error does not say
    /// which publish it answers.
    ///
    /// A subscriber of the topic gets its own messages too, with [`Client::connection_id`] as their
    /// `sender`.
    ///
    /// While the server does not take the message, this method waits and reads nothing. A program
    /// that publishes more than the network carries should drop the call and poll [`Client::next`],
    /// which continues to write.
    pub async fn publish(
        &mut self,
        topic: &str,
        payload: Payload,
        request: u32,
    ) -> Result<(), ClientError> {
        self.publish_message(Publication {
            topic: topic.to_owned(),
            payload,
            content_type: String::new(),
            key: String::new(),
            request,
        })
        .await
    }

    /// Publishes a message with all its fields; otherwise like [`Client::publish`].
    pub async fn publish_message(&mut self, message: Publication) -> Result<(), ClientError> {
        self.say(Say::Publish(message.into_wire())).await
    }

    /// Sends a ping in addition to those of the heartbeat. [`Event::Pong`] brings the same data
    /// back.
    ///
    /// Limits: 1 to [`PING_BYTES_MAX`] bytes. The server answers an empty ping too, but
    /// [`Client::next`] does not return that answer.
    pub async fn ping(&mut self, data: &[u8]) -> Result<(), ClientError> {
        if data.len() > PING_BYTES_MAX {
            return Err(ClientError::TooLarge { bytes: data.len(), limit: PING_BYTES_MAX });
        }
        self.say(Say::Ping(v1::Ping { data: data.to_vec() })).await
    }

    /// Calls a backend, over the routes of the server (`[[calls.routes]]`). [`Event::Answered`]
    /// brings the answer, with the same id.
    ///
    /// Limits: the id is not 0, and no other call of this client waits with it. A call without an
    /// answer when its time is over is answered by the server.
    pub async fn call(&mut self, call: Call) -> Result<(), ClientError> {
        self.say(Say::Call(call.into_wire())).await
    }

    /// Answers an [`Event::Call`]. The server drops an answer that comes after the deadline.
    pub async fn answer(&mut self, id: u32, answer: CallAnswer) -> Result<(), ClientError> {
        self.say(Say::Answer(answer.into_wire(id))).await
    }

    /// Gives a call of ours up. No answer follows, unless it is on its way already.
    pub async fn cancel(&mut self, id: u32) -> Result<(), ClientError> {
        self.say(Say::Cancel(v1::Cancel { id })).await
    }

    async fn next_unless_ended(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            if let Some(push) = self.batched.pop_front() {
                return Ok(Some(Event::Push(push)));
            }
            if let Some(event) = self.buffered_event()? {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            match self.woken().await? {
                Woken::Read(0) if self.incoming.holds_bytes() => {
                    return Err(ClientError::Truncated);
                }
                Woken::Read(0) => return Ok(None),
                Woken::Read(_) => self.pings_unanswered = 0,
                Woken::Wrote(bytes) => self.advance_written(bytes),
                Woken::Flushed => self.unflushed = false,
                Woken::Tick => self.handle_tick()?,
            }
        }
    }

    async fn greet(addr: impl ToSocketAddrs, options: &Options) -> Result<Client, ClientError> {
        let socket = TcpStream::connect(addr).await?;
        socket.set_nodelay(true)?;
        let socket = match &options.tls {
            None => Socket::Plain(socket),
            Some(tls) => Socket::Tls(Box::new(Box::pin(tls.connect(socket)).await?)),
        };
        let mut client = Client {
            socket,
            incoming: FrameBuffer::default(),
            outgoing: Vec::new(),
            written: 0,
            unflushed: false,
            batched: VecDeque::new(),
            positions: Positions::default(),
            // Replaced when the client and the server have agreed on a heartbeat.
            heartbeat_ticks: ticks(HEARTBEAT_MAX),
            heartbeat: HEARTBEAT_MAX,
            pings_unanswered: 0,
            connection_id: 0,
            server_time_ms: 0,
            frame_bytes_max: options.frame_bytes_max,
            ended: false,
        };
        let (hello, later) = options.hello();
        client.say(Say::Hello(hello)).await?;
        let welcome = client.welcome().await?;
        client.connection_id = welcome.connection_id;
        client.server_time_ms = welcome.server_time_ms;
        if welcome.heartbeat_ms > 0 {
            client.heartbeat = Duration::from_millis(u64::from(welcome.heartbeat_ms));
        }
        client.heartbeat_ticks = ticks(client.heartbeat);
        // They leave while `next` reads the answers.
        for topic in later {
            client.put(Say::Subscribe(topic))?;
        }
        Ok(client)
    }

    async fn welcome(&mut self) -> Result<v1::Welcome, ClientError> {
        loop {
            match self.buffered_kind()? {
                Some(Hear::Welcome(welcome)) => return Ok(welcome),
                Some(Hear::Goodbye(told)) => return Err(ClientError::Refused(told.into())),
                Some(_other) => {
                    return Err(ClientError::Protocol("the first message is no welcome"));
                }
                None => {}
            }
            let Client { incoming, socket, .. } = self;
            if poll_fn(|cx| incoming.poll_fill(cx, socket)).await? == 0 {
                return Err(ClientError::ClosedBeforeWelcome);
            }
        }
    }

    /// Waits for the socket or the heartbeat. If the wait is dropped, the next one continues its
    /// work.
    async fn woken(&mut self) -> Result<Woken, ClientError> {
        let Client { incoming, socket, heartbeat_ticks, unflushed, .. } = self;
        let unwritten = self.outgoing.get(self.written..).unwrap_or_default();
        let woken = poll_fn(|cx| {
            // Received bytes count before the clock: a caller who did not poll for a while has not
            // lost the server.
            if let Poll::Ready(read) = incoming.poll_fill(cx, socket) {
                return Poll::Ready(read.map(Woken::Read));
            }
            if !unwritten.is_empty() {
                if let Poll::Ready(wrote) = Pin::new(&mut *socket).poll_write(cx, unwritten) {
                    return Poll::Ready(wrote.map(Woken::Wrote));
                }
            } else if *unflushed && let Poll::Ready(flushed) = Pin::new(&mut *socket).poll_flush(cx)
            {
                return Poll::Ready(flushed.map(|()| Woken::Flushed));
            }
            heartbeat_ticks.poll_tick(cx).map(|_| Ok(Woken::Tick))
        });
        Ok(woken.await?)
    }

    fn handle_tick(&mut self) -> Result<(), ClientError> {
        if self.pings_unanswered == PINGS_UNANSWERED_MAX {
            return Err(ClientError::Silent {
                pings: self.pings_unanswered,
                heartbeat: self.heartbeat,
            });
        }
        self.pings_unanswered += 1;
        let ping = v1::ClientMessage { kind: Some(Say::Ping(v1::Ping::default())) };
        frame::encode(&ping, &mut self.outgoing);
        Ok(())
    }

    /// Encodes one message and waits until the socket has taken it.
    async fn say(&mut self, kind: Say) -> Result<(), ClientError> {
        if self.ended {
            return Err(ClientError::Ended);
        }
        self.flush().await?;
        self.put(kind)?;
        self.flush().await
    }

    /// Encodes one message behind those that wait. From here on the client sends it, even if this
    /// call is dropped.
    fn put(&mut self, kind: Say) -> Result<(), ClientError> {
        let message = v1::ClientMessage { kind: Some(kind) };
        let bytes = message.encoded_len();
        if bytes > self.frame_bytes_max {
            return Err(ClientError::TooLarge { bytes, limit: self.frame_bytes_max });
        }
        frame::encode(&message, &mut self.outgoing);
        self.positions.handle_said(&message);
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), ClientError> {
        while let Some(unwritten) =
            self.outgoing.get(self.written..).filter(|bytes| !bytes.is_empty())
        {
            let bytes = self.socket.write(unwritten).await?;
            self.advance_written(bytes);
        }
        if self.unflushed {
            self.socket.flush().await?;
            self.unflushed = false;
        }
        Ok(())
    }

    fn advance_written(&mut self, bytes: usize) {
        self.written += bytes;
        self.unflushed = true;
        if self.written == self.outgoing.len() {
            self.outgoing.clear();
            self.written = 0;
        }
    }

    /// The next event in the buffer. Skips messages that mean nothing to the program.
    fn buffered_event(&mut self) -> Result<Option<Event>, ClientError> {
        while !self.ended
            && let Some(kind) = self.buffered_kind()?
        {
            if let Some(event) = self.handle_kind(kind)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn handle_kind(&mut self, kind: Hear) -> Result<Option<Event>, ClientError> {
        let event = match kind {
            Hear::Push(push) => Event::Push(push.into()),
            Hear::Batch(batch) => return Ok(self.handle_batch(batch)),
            Hear::Pong(pong) if pong.data.is_empty() => return Ok(None),
            Hear::Pong(pong) => Event::Pong(pong.data),
            Hear::Subscribed(told) => Event::Subscribed(told.into()),
            Hear::Unsubscribed(told) => Event::Unsubscribed(told.into()),
            Hear::Presence(told) => Event::Presence(told.into()),
            Hear::Published(told) => Event::Published(told.into()),
            Hear::Error(told) => Event::Error(told.into()),
            Hear::Call(call) => Event::Call(call.into()),
            Hear::Answer(answer) => Event::Answered(answer.into()),
            Hear::Cancel(cancel) => Event::Cancelled(cancel.id),
            Hear::Expiring(told) => Event::Expiring(Expiring { expires_at_ms: told.expires_at_ms }),
            // This client never sends the request that it answers.
            Hear::Refreshed(_) => return Ok(None),
            Hear::Goodbye(told) => {
                self.ended = true;
                Event::Goodbye(Goodbye::from(told))
            }
            Hear::Welcome(_) => return Err(ClientError::Protocol("a second welcome")),
        };
        Ok(Some(event))
    }

    /// Splits a batch into its messages. All have the batch's topic.
    fn handle_batch(&mut self, batch: v1::Batch) -> Option<Event> {
        let v1::Batch { topic, messages, .. } = batch;
        self.batched.extend(
            messages.into_iter().map(|push| Push { topic: topic.clone(), ..Push::from(push) }),
        );
        self.batched.pop_front().map(Event::Push)
    }

    /// The next message in the buffer. Skips messages of a kind that this version does not know.
    fn buffered_kind(&mut self) -> Result<Option<Hear>, ClientError> {
        while let Some(body) = self.incoming.next_frame(self.frame_bytes_max)? {
            let message = v1::ServerMessage::decode(body)
                .map_err(|_| WireError::MessageMalformed("not a ServerMessage"))?;
            if message.kind.is_some() {
                return Ok(message.kind);
            }
        }
        Ok(None)
    }
}

/// Ticks one period apart. The first one comes after a period; late ticks do not come in bursts.
fn ticks(period: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Pings without an answer after which the server counts as dead. The server has the same rule: two
/// missed heartbeats.
const PINGS_UNANSWERED_MAX: u32 = 2;

/// Used if the server agrees to no heartbeat. It is the longest heartbeat that a server grants by
/// default.
const HEARTBEAT_MAX: Duration = Duration::from_secs(15 * 60);
