//! A connection before it settles: from accept to the offer to a shard.
//!
//! ```text
//!  accepted ─PROXY, TLS─▶ secured ─Hello─▶ authenticated ─place on a shard─▶ offered ─Adopted─▶ settled (dispatcher)
//!     │                       │                  │                              │
//!     └ no handshake: alert   └── hello_timeout, malformed, unauthorized, limits ┴──▶ Goodbye, closed
//! ```
//!
//! WebSocket and event connections come from HTTP and join where `Hello` is read: see `upgraded`.
//!
//! PROXY exists only behind a configured proxy, and TLS only on a listener with TLS.

mod arrival;
mod refused;
mod upgraded;

use std::io::{self, IoSlice, Write};
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use weir_engine::tls::Alert;
use weir_engine::{Credit, NotPassed, Origin};
use weir_store::Millis;
use weir_wire::format::Format;
use weir_wire::v1::{ClientMessage, Hello, Subscribe, client_message::Kind};
use weir_wire::{CloseReason, ProstMessage, WireError, frame};

use crate::auth::Term;
use crate::auth::devices::Pin;
use crate::auth::{Admission, Bearer, GrantRef, NoBearer, OWN_GRANT, TokenOrigin};
use crate::base::config::LimitsConfig;
use crate::base::deadline::Deadline;
use crate::base::frames;
use crate::base::mailboxes::credit;
use crate::base::model::Spoken;
use crate::base::peer_charge::PeerCharge;
use crate::base::proxy;
use crate::base::read_buffer::ReadBuffer;
use crate::base::workers::behind_the_others;
use crate::connection::farewell::{Farewell, turn_away};
use crate::connection::linger::{Linger, SHORT, TlsEnd, say_last};
use crate::core::adoptions::{NotAsked, Offer, Pending, Unasked};
use crate::core::state::SharedState;
use crate::limits::admission::Unsettled;
use crate::observe::counters::ConnectRefuseCause;
use crate::tls::NotSecured;
use crate::tls::stream::{NotMovable, Parts, Stream};
pub(crate) use arrival::{arrive, unless_draining};
use refused::{Named, RefusedOpening};
pub(crate) use upgraded::{CallerIdentity, Upgraded, run_paired, run_upgraded};

/// Takes a connection to its shard, or tells it the reason of its refusal.
///
/// With `is_proxied` the connection comes through a proxy, whose header names the source.
/// Cost: a silent connection needs this future and no buffer. The bytes of others count in the byte
/// budget.
pub(crate) async fn run(
    shared: Arc<SharedState>,
    mut stream: Stream,
    mut unsettled: Unsettled,
    is_proxied: bool,
) {
    let refused = match greet(&shared, &mut stream, &mut unsettled, is_proxied).await {
        Ok(greeting) => settle(&shared, stream, greeting, unsettled).await,
        Err(NotGreeted::TurnedAway(cause)) => {
            // A source over its limits gets no linger, because other connections wait for its
            // place.
            let farewell = if stream.is_plain() { Farewell::Goodbye } else { Farewell::Reset };
            turn_away(&shared, stream.socket(), unsettled.addr(), cause, farewell);
            return;
        }
        Err(NotGreeted::Closed(reason)) => {
            Err(RefusedOpening { stream, unsettled, reason, named: Named::default() })
        }
    };
    if let Err(refused) = refused {
        refused.note(&shared, Format::Stream);
        // The place among the unsettled connections stays taken until the socket is closed.
        let RefusedOpening { stream, unsettled: _unsettled, reason, .. } = refused;
        let last = if reason.can_be_told() { frames::goodbye(reason) } else { Box::default() };
        say_goodbye(stream, &last, reason).await;
    }
}

/// A connection's `Hello`, and the data with it.
struct Greeting {
    hello: Hello,
    shown: Shown,
    /// The deadline also covers the look-up of the token.
    deadline: Deadline,
    /// The device that the client's certificate names.
    identity: Option<String>,
    read_ahead: Vec<u8>,
    /// For the kept parts of `hello`, and for `read_ahead`.
    charge: PeerCharge,
    format: Format,
    positions: Option<Vec<(u64, u64)>>,
}

/// The credentials that the connection has shown.
pub(crate) enum Shown {
    /// The token is in `Hello`.
    Token,
    /// The request had a token, which has been checked.
    Bearer(Bearer),
    /// The whole admission is known.
    Admitted(Box<Admission>),
}

/// The reason why the greeting ended early.
pub(crate) enum NotGreeted {
    /// The peer or the deadline caused it. The peer is told the reason as far as possible.
    Closed(CloseReason),
    /// The PROXY header or the handshake shows that there is no place for it.
    TurnedAway(ConnectRefuseCause),
}

impl From<CloseReason> for NotGreeted {
    fn from(reason: CloseReason) -> Self {
        NotGreeted::Closed(reason)
    }
}

impl From<NotSecured> for NotGreeted {
    fn from(not_secured: NotSecured) -> Self {
        match not_secured {
            NotSecured::Closed(reason) => NotGreeted::Closed(reason),
            NotSecured::Refused => NotGreeted::TurnedAway(ConnectRefuseCause::Handshakes),
        }
    }
}

/// Reads the PROXY header and makes the TLS handshake, where the listener has them, and reads
/// `Hello`.
async fn greet(
    shared: &SharedState,
    stream: &mut Stream,
    unsettled: &mut Unsettled,
    is_proxied: bool,
) -> Result<Greeting, NotGreeted> {
    let mut deadline = Deadline::of(shared.config().connection.hello_timeout);
    let arrived = arrive(shared, stream, unsettled, is_proxied, Spoken::Frames, &mut deadline);
    let (read_buffer, secured) = arrived.await?;
    let identity = secured.and_then(|secured| secured.identity);
    let greeting = hear_hello(shared, stream, (read_buffer, is_proxied), deadline, identity);
    unless_draining(shared, Duration::ZERO, greeting).await
}

/// Reads `Hello`.
async fn hear_hello(
    shared: &SharedState,
    stream: &mut Stream,
    (mut read_buffer, is_proxied): (ReadBuffer, bool),
    deadline: Deadline,
    identity: Option<String>,
) -> Result<Greeting, NotGreeted> {
    let hello_bytes_max = shared.config().limits.hello_bytes_max();
    loop {
        // The PROXY signature may have come in pieces.
        if !is_proxied && stream.is_plain() && proxy::is_signed(&read_buffer.bytes) {
            return Err(NotGreeted::TurnedAway(ConnectRefuseCause::ProxyHeader));
        }
        match frame::decode(&read_buffer.bytes, hello_bytes_max) {
            Ok(None) => read_more(&mut read_buffer, stream, &deadline).await?,
            Ok(Some((body, taken))) => {
                let hello = decode_hello(body)?;
                let read_ahead = read_buffer.bytes[taken..].to_vec();
                let charge = read_buffer.into_charge();
                let (format, positions, shown) = (Format::Stream, None, Shown::Token);
                return Ok(Greeting {
                    hello,
                    shown,
                    deadline,
                    identity,
                    read_ahead,
                    charge,
                    format,
                    positions,
                });
            }
            Err(WireError::FrameTooLarge { .. }) => return Err(CloseReason::FrameTooLarge.into()),
            Err(
                WireError::LengthMalformed
                | WireError::MessageMalformed(_)
                | WireError::PingTooLarge(_),
            ) => return Err(CloseReason::Malformed.into()),
        }
    }
}

pub(crate) async fn read_more(
    read_buffer: &mut ReadBuffer,
    stream: &mut Stream,
    deadline: &Deadline,
) -> Result<(), CloseReason> {
    deadline.within(read_buffer.read_more(stream)).await?
}

fn decode_hello(body: &[u8]) -> Result<Hello, CloseReason> {
    match ClientMessage::decode(body).map(|message| message.kind) {
        Ok(Some(Kind::Hello(hello))) => Ok(hello),
        Ok(_) | Err(_) => Err(CloseReason::Malformed),
    }
}

/// Authenticates, finds a shard, waits for room in its mailbox, and offers the connection.
async fn settle(
    shared: &Arc<SharedState>,
    stream: Stream,
    greeting: Greeting,
    unsettled: Unsettled,
) -> Result<(), RefusedOpening> {
    let Greeting { mut hello, mut charge, read_ahead, format, positions, .. } = greeting;
    let Greeting { shown, deadline, identity, .. } = greeting;
    let (heartbeat, topics) = (
        agree_heartbeat(shared, hello.heartbeat_ms),
        wished_topics(&shared.config().limits, &mut hello),
    );
    let kept = topics_bytes(&topics) + read_ahead.len();
    if charge.set(kept + hello_bytes(&hello)).is_err() {
        let (reason, named) = (CloseReason::BudgetExhausted, Named::claimed(shared, &hello));
        return Err(RefusedOpening { stream, unsettled, reason, named });
    }
    let origin = TokenOrigin::Connection(unsettled.addr());
    let admitted = admit(shared, shown, identity.as_deref(), &hello, origin, &deadline).await;
    let (admission, pin) = match admitted {
        Ok(admitted) => admitted,
        Err(reason) => {
            let named = Named::claimed(shared, &hello);
            return Err(RefusedOpening { stream, unsettled, reason, named });
        }
    };
    let client = shared.clients.enter(&hello.client);
    let answers_calls = hello.calls;
    // Not kept while the mailbox is full, because a token may be as long as a frame.
    drop(hello);
    shared.formats.add(format);
    let (grant, term) = carried(&admission);
    let placed = place(shared, stream, &unsettled, &mut charge, kept).await;
    let (shard, credit, parts) = match placed {
        Ok(placed) => placed,
        Err((stream, reason)) => {
            let named = Named::admitted(&admission, &client);
            return Err(RefusedOpening { stream, unsettled, reason, named });
        }
    };
    let pending = Box::new(Pending {
        pin,
        heartbeat,
        priority: admission.priority,
        origin: Origin::new(unsettled.source(), grant, format, client.number()),
        client,
        version: admission.version,
        term,
        positions,
        publish_limited: !admission.is_service,
        replaces: !admission.is_service,
        answers_calls,
        topics,
        unsettled,
        _charge: charge,
    });
    let Ok(offer) = offered(parts, read_ahead) else {
        shared.admission.release(shard);
        shared.counters().count_closed(CloseReason::SocketError);
        return Ok(());
    };
    match shared.adoptions[shard].offer(credit, offer, pending) {
        Ok(false) => {}
        Ok(true) => {
            // Other connections that are ready now offer theirs first, so that the shard wakes once
            // for all.
            behind_the_others().await;
            shared.adoptions[shard].ring(shared.mailbox(shard));
        }
        Err(not_asked) => Box::pin(offer_again(shared, shard, format, not_asked)).await,
    }
    Ok(())
}

/// Offers a connection again until its socket enters the passage to its shard. If that takes too
/// long, or the shard takes no more connections, the connection is told.
async fn offer_again(
    shared: &SharedState,
    shard: usize,
    format: Format,
    mut not_asked: NotAsked<'_>,
) {
    let began = Instant::now();
    let mut pause = OFFER_PAUSE_MIN;
    let (offer, reason) = loop {
        let Unasked { credit, offer, pending } = match not_asked {
            NotAsked::Closed(offer) => break (offer, CloseReason::Draining),
            NotAsked::NotPassed(cause, unasked) => {
                shared.counters().count_not_passed(cause);
                let refused = match cause {
                    NotPassed::Ended => break (unasked.offer, CloseReason::Internal),
                    NotPassed::Full => ConnectRefuseCause::Mailbox,
                    NotPassed::InFlight => ConnectRefuseCause::Descriptors,
                };
                if began.elapsed() >= OFFER_TIMEOUT {
                    let reason = unasked.pending.unsettled.refuse(refused);
                    break (unasked.offer, reason);
                }
                *unasked
            }
        };
        sleep(pause).await;
        pause = (pause * 2).min(OFFER_PAUSE_MAX);
        match shared.adoptions[shard].offer(credit, offer, pending) {
            Ok(false) => return,
            Ok(true) => return shared.adoptions[shard].ring(shared.mailbox(shard)),
            Err(again) => not_asked = again,
        }
    };
    shared.admission.release(shard);
    shared.counters().count_closed(reason);
    say_goodbye_for_shard(offer, format, reason);
}

/// Finds a place on a shard, and takes the connection apart for it.
async fn place<'a>(
    shared: &'a SharedState,
    stream: Stream,
    unsettled: &Unsettled,
    charge: &mut PeerCharge,
    kept: usize,
) -> Result<(usize, Credit<'a, OwnedFd>, Parts), (Stream, CloseReason)> {
    let (shard, credit) = match find_place(shared, unsettled).await {
        Ok(found) => found,
        Err(reason) => return Err((stream, reason)),
    };
    match take_apart(shared, stream, charge, kept) {
        Ok(parts) => Ok((shard, credit, parts)),
        Err(refused) => {
            shared.admission.release(shard);
            Err(refused)
        }
    }
}

/// Chooses a shard, counts the connection there, and waits for room in its mailbox.
async fn find_place<'a>(
    shared: &'a SharedState,
    unsettled: &Unsettled,
) -> Result<(usize, Credit<'a, OwnedFd>), CloseReason> {
    let shard = shared.admission.settle().map_err(|cause| unsettled.refuse(cause))?;
    match timeout(OFFER_TIMEOUT, credit(shared.mailbox(shard))).await {
        Ok(credit) => Ok((shard, credit)),
        Err(_) => {
            shared.admission.release(shard);
            Err(unsettled.refuse(ConnectRefuseCause::Mailbox))
        }
    }
}

/// Takes the connection apart. Charges its received but unread bytes in addition to the `kept`
/// ones.
fn take_apart(
    shared: &SharedState,
    stream: Stream,
    charge: &mut PeerCharge,
    kept: usize,
) -> Result<Parts, (Stream, CloseReason)> {
    if charge.set(kept + stream.input_bytes()).is_err() {
        return Err((stream, CloseReason::BudgetExhausted));
    }
    stream.into_parts().map_err(|(stream, obstacle)| match obstacle {
        NotMovable::Ended => (stream, CloseReason::PeerClosed),
        NotMovable::HalfSent => {
            shared.counters().tls.count_not_moved();
            (stream, CloseReason::Stalled)
        }
    })
}

/// Admits the connection: finds its device and its permissions. This waits only for an unknown
/// token, or for an id that the store may keep, and not for longer than `Hello` may take.
///
/// Once the connection has its pin, a revocation of the device reaches it. A revocation between the
/// check of the token and the pin fails here.
async fn admit(
    shared: &SharedState,
    shown: Shown,
    named: Option<&str>,
    hello: &Hello,
    origin: TokenOrigin,
    deadline: &Deadline,
) -> Result<(Admission, Pin), CloseReason> {
    let admit = |bearer: &Bearer| shared.auth.admit(named, &hello.device_id, bearer);
    let claim = match shown {
        Shown::Admitted(admission) => Err(*admission),
        Shown::Bearer(bearer) => Ok(admit(&bearer)?),
        Shown::Token => {
            let mark = shared.devices.mark();
            Ok(admit(&match shared.auth.look(&hello.token, mark) {
                Some(found) => found?,
                // In a box of its own; otherwise every unsettled connection would reserve room for
                // it.
                None => {
                    let asked = shared.auth.ask(&hello.token, origin, mark);
                    Box::pin(ask(shared, deadline, asked)).await?
                }
            })?)
        }
    };
    let admission = match claim.map(|claim| claim.settled(&shared.auth)) {
        Err(admission) | Ok(Ok(admission)) => admission,
        Ok(Err(claim)) => Box::pin(ask(shared, deadline, shared.auth.confirm(claim))).await?,
    };
    let pin = shared.devices.pin_since(&admission.device, admission.mark)?;
    if let (true, Some(devices)) = (admission.is_kept, &shared.device_store) {
        devices.note_seen(&admission.device);
    }
    Ok((admission, pin))
}

/// Waits for the stores of tokens and devices, as long as `Hello` may take.
async fn ask<T>(
    shared: &SharedState,
    deadline: &Deadline,
    asked: impl Future<Output = Result<T, NoBearer>>,
) -> Result<T, CloseReason> {
    let mut draining = shared.draining.subscribe();
    tokio::select! {
        asked = deadline.within(asked) => match asked {
            Ok(asked) => Ok(asked?),
            // The deadline has passed, but the gateway let the connection wait.
            Err(_) => Err(CloseReason::StoreUnavailable),
        },
        // The shared state holds the sender, so this ends only by draining.
        _ = draining.wait_for(|is_draining| *is_draining) => Err(CloseReason::Draining),
    }
}

/// The number of the grant that the shard carries, and the term that the front keeps for
/// credentials of the connection's own.
fn carried(admission: &Admission) -> (u16, Option<Term>) {
    match (&admission.grant, admission.ends) {
        (GrantRef::Numbered(number), None) => (*number, None),
        (grant, ends) => {
            let term = Term { ends: ends.unwrap_or(Millis::MAX), grant: grant.clone() };
            (OWN_GRANT, Some(term))
        }
    }
}

fn offered(parts: Parts, mut read_ahead: Vec<u8>) -> io::Result<Offer> {
    read_ahead.extend(parts.read_ahead);
    let socket = OwnedFd::from(parts.socket.into_std()?);
    Ok(Offer { socket, read_ahead, tls: parts.tls })
}

/// Sends the goodbye in the place of a shard that takes no more connections.
fn say_goodbye_for_shard(offer: Offer, format: Format, reason: CloseReason) {
    let mut goodbye = frames::goodbye_as(format, reason);
    if let Some(mut tls) = offer.tls {
        let plaintext = mem::take(&mut goodbye);
        let sealed = tls
            .session
            .seal(&[IoSlice::new(&plaintext)], &mut goodbye)
            .and_then(|_| tls.session.seal_alert(Alert::CloseNotify, &mut goodbye));
        if sealed.is_err() {
            return;
        }
    }
    let _ = std::net::TcpStream::from(offer.socket).write(&goodbye);
}

/// The topics of `Hello`, with at most one more than allowed; the extra one shows that there are
/// too many.
///
/// A topic without a name takes two bytes on the wire and 56 here, so the longest `Hello` would
/// hold megabytes. A too long name is cut just above the limit, so that it is still recognised as
/// too long.
fn wished_topics(limits: &LimitsConfig, hello: &mut Hello) -> Vec<Subscribe> {
    let mut topics = std::mem::take(&mut hello.topics);
    topics.truncate(limits.topics_per_connection_max + 1);
    topics.shrink_to_fit();
    for Subscribe { topic, .. } in &mut topics {
        let is_end = |at: &usize| topic.is_char_boundary(*at);
        if let Some(end) = (limits.topic_bytes_max + 1..topic.len()).find(is_end) {
            topic.truncate(end);
            topic.shrink_to_fit();
        }
    }
    topics
}

/// Bytes of `Hello` without its topics.
fn hello_bytes(hello: &Hello) -> usize {
    hello.device_id.capacity() + hello.token.capacity() + hello.client.capacity()
}

fn topics_bytes(topics: &Vec<Subscribe>) -> usize {
    let names: usize = topics.iter().map(|subscribe| subscribe.topic.capacity()).sum();
    topics.capacity() * size_of::<Subscribe>() + names
}

fn agree_heartbeat(shared: &SharedState, wished_ms: u32) -> Duration {
    let config = shared.config();
    let connection = &config.connection;
    match wished_ms {
        0 => connection.heartbeat,
        ms => Duration::from_millis(u64::from(ms))
            .clamp(connection.heartbeat_min, connection.heartbeat_max),
    }
}

/// Sends `Goodbye` if the peer can read it, and waits a moment for the peer's end.
async fn say_goodbye(mut stream: Stream, last: &[u8], reason: CloseReason) {
    let is_readable = !stream.is_unsecured() && reason != CloseReason::TlsRecord;
    let last = if is_readable { last } else { &[] };
    let linger = Linger { time: LINGER_TIMEOUT, silence: LINGER_TIMEOUT, ..SHORT };
    let said = say_last(&mut stream, last, Some(&linger), TlsEnd::AtOnce);
    // The socket is closed now, whether or not this succeeded.
    let _ = timeout(LINGER_TIMEOUT, said).await;
}

/// For the last bytes and the peer's end together. Longer in tests, so that a slow machine does not
/// fail.
const LINGER_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(60) } else { SHORT.time };
/// A mailbox that stays full for so long shows that the server is overloaded.
const OFFER_TIMEOUT: Duration = Duration::from_secs(5);
/// A turn of a busy shard takes about this long.
const OFFER_PAUSE_MIN: Duration = Duration::from_millis(1);
const OFFER_PAUSE_MAX: Duration = Duration::from_millis(16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_of_what_hello_asks_for_than_can_be() {
        let limits =
            LimitsConfig { topics_per_connection_max: 4, topic_bytes_max: 8, ..Default::default() };
        let names = ["12345678", "123456789", "1234567890", "1234567äää", "", "six"];
        let topics =
            names.map(|name| Subscribe { topic: name.to_owned(), position: None, presence: false });
        let mut hello = Hello { topics: topics.into(), ..Hello::default() };
        let wished = wished_topics(&limits, &mut hello);
        let wished: Vec<&str> = wished.iter().map(|upgrade| upgrade.topic.as_str()).collect();
        assert_eq!(wished, ["12345678", "123456789", "123456789", "1234567ä", ""]);
    }
}
