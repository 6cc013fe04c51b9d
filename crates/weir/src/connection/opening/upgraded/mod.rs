//! Connections that come from HTTP. A WebSocket sends `Hello`; for a reader of events its request
//! is the `Hello`.

use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use weir_engine::Share;
use weir_wire::format::Format;
use weir_wire::v1::{ClientMessage, Hello, client_message::Kind};
use weir_wire::ws::{self, Assembly, Control, Opcode, Step, WsError};
use weir_wire::{CloseReason, ErrorCode, ProstMessage, json};

use super::{Greeting, Named, RefusedOpening, Shown, read_more, say_goodbye, settle};
use crate::auth::{Admission, Bearer};
use crate::base::deadline::Deadline;
use crate::base::frames;
use crate::base::peer_charge::PeerCharge;
use crate::base::read_buffer::{ReadBuffer, reason_of};
use crate::core::state::SharedState;
use crate::limits::admission::Unsettled;
use crate::tls::stream::Stream;

/// A connection that has been taken from HTTP.
pub(crate) struct Upgraded {
    /// The head of the HTTP answer, which is sent first.
    pub(crate) head: Vec<u8>,
    /// Bytes that came after the request.
    pub(crate) read_ahead: Vec<u8>,
    /// The device that the client's certificate names.
    pub(crate) identity: Option<String>,
    pub(crate) format: Format,
    /// The start positions of a reader of events whose events name the positions of all its topics.
    pub(crate) positions: Option<Vec<(u64, u64)>>,
    pub(crate) caller: CallerIdentity,
}

/// The identity of the caller.
pub(crate) enum CallerIdentity {
    /// The request contained it, and it has been admitted.
    Is(Hello, Box<Admission>),
    /// The first message will tell it. If that has no token, the request's token counts. If it
    /// names no client program, the name in the request counts.
    Comes(Option<Bearer>, String),
}

/// The reason why no `Hello` was received.
struct NotUpgraded {
    reason: CloseReason,
    /// The last bytes for the peer, in its format.
    last: Vec<u8>,
}

/// Takes a connection to its shard, or tells it the reason of its refusal.
pub(crate) async fn run_upgraded(
    shared: &Arc<SharedState>,
    stream: Stream,
    unsettled: Unsettled,
    upgraded: Upgraded,
) {
    if let Err(refused) = take(shared, stream, unsettled, upgraded).await {
        // The place among the unsettled connections stays taken until the socket is closed.
        let (stream, _unsettled, NotUpgraded { reason, last }) = refused;
        say_goodbye(stream, &last, reason).await;
    }
}

/// The same for one end of a socket pair whose other end belongs to the gateway. Its last bytes
/// wait in the buffer and no input follows, so it needs no linger.
pub(crate) async fn run_paired(
    shared: &Arc<SharedState>,
    end: Stream,
    unsettled: Unsettled,
    upgraded: Upgraded,
) {
    if let Err((mut end, _unsettled, NotUpgraded { last, .. })) =
        take(shared, end, unsettled, upgraded).await
    {
        // The buffer is empty and has room. If writing fails nevertheless, the other end only sees
        // the close.
        let _ = end.write_all(&last).await;
    }
}

/// Takes a connection to its shard, or counts its refusal.
async fn take(
    shared: &Arc<SharedState>,
    mut stream: Stream,
    unsettled: Unsettled,
    upgraded: Upgraded,
) -> Result<(), (Stream, Unsettled, NotUpgraded)> {
    let format = upgraded.format;
    let mut draining = shared.draining.subscribe();
    let greeted = tokio::select! {
        // The head of the answer must leave first.
        biased;
        greeted = hear(shared, &mut stream, upgraded) => greeted,
        // The shared state holds the sender, so this ends only by draining.
        _ = draining.wait_for(|is_draining| *is_draining) => {
            Err(NotUpgraded::of(format, CloseReason::Draining))
        }
    };
    drop(draining);
    let (refused, not_upgraded) = match greeted {
        Ok(greeting) => match settle(shared, stream, greeting, unsettled).await {
            Ok(()) => return Ok(()),
            Err(refused) => {
                let not_upgraded = NotUpgraded::of(format, refused.reason);
                (refused, not_upgraded)
            }
        },
        Err(not_upgraded) => {
            let (reason, named) = (not_upgraded.reason, Named::default());
            (RefusedOpening { stream, unsettled, reason, named }, not_upgraded)
        }
    };
    refused.note(shared, format);
    let RefusedOpening { stream, unsettled, .. } = refused;
    Err((stream, unsettled, not_upgraded))
}

impl NotUpgraded {
    fn of(format: Format, reason: CloseReason) -> NotUpgraded {
        let last = match reason.can_be_told() {
            true => frames::goodbye_as(format, reason),
            false => Vec::new(),
        };
        NotUpgraded { reason, last }
    }

    fn closing(reason: CloseReason, code: u16, why: &str) -> NotUpgraded {
        let mut last = Vec::new();
        ws::put_close(code, why, &mut last);
        NotUpgraded { reason, last }
    }

    /// Answers a close of the peer; a close without a code gets an answer without a code.
    fn answering(code: Option<u16>) -> NotUpgraded {
        match code {
            Some(code) => Self::closing(CloseReason::PeerClosed, code, ""),
            None => {
                let mut last = Vec::new();
                ws::put_frame_head(Opcode::Close, 0, &mut last);
                NotUpgraded { reason: CloseReason::PeerClosed, last }
            }
        }
    }

    fn of_ws(error: WsError) -> NotUpgraded {
        NotUpgraded::closing(error.reason(), error.close_code(), &error.to_string())
    }
}

/// Sends the head and reads `Hello`.
async fn hear(
    shared: &SharedState,
    stream: &mut Stream,
    upgraded: Upgraded,
) -> Result<Greeting, NotUpgraded> {
    let Upgraded { head, read_ahead, identity, format, positions, caller } = upgraded;
    let deadline = Deadline::of(shared.config().connection.hello_timeout);
    say(stream, &head, &deadline).await.map_err(|reason| NotUpgraded::of(format, reason))?;
    let (hello, read_ahead, charge, shown) = match caller {
        CallerIdentity::Is(hello, admission) => {
            let charge = PeerCharge::none(shared.engine().budget(), Share::Unsettled);
            (hello, read_ahead, charge, Shown::Admitted(admission))
        }
        CallerIdentity::Comes(bearer, client) => {
            let heard = hear_hello(shared, stream, format, read_ahead, &deadline).await?;
            let (mut hello, read_ahead, charge) = heard;
            if hello.client.is_empty() {
                hello.client = client;
            }
            let shown = match bearer.filter(|_| hello.token.is_empty()) {
                Some(bearer) => Shown::Bearer(bearer),
                None => Shown::Token,
            };
            (hello, read_ahead, charge, shown)
        }
    };
    Ok(Greeting { hello, shown, deadline, identity, read_ahead, charge, format, positions })
}

async fn say(stream: &mut Stream, bytes: &[u8], deadline: &Deadline) -> Result<(), CloseReason> {
    let said = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    deadline.within(said).await?.map_err(|error| reason_of(&error))
}

/// The `Hello` of a WebSocket, the bytes after it, and the charge for both.
async fn hear_hello(
    shared: &SharedState,
    stream: &mut Stream,
    format: Format,
    read_ahead: Vec<u8>,
    deadline: &Deadline,
) -> Result<(Hello, Vec<u8>, PeerCharge), NotUpgraded> {
    let closed = |reason| NotUpgraded::of(format, reason);
    let message_bytes_max = shared.config().limits.hello_bytes_max();
    let limits = ws::Limits { message_bytes_max, fragments_max: ws::FRAGMENTS_MAX };
    let mut read_buffer = ReadBuffer::new(shared.engine().budget());
    read_buffer.extend(&read_ahead).map_err(closed)?;
    drop(read_ahead);
    let mut assembly = Assembly::default();
    loop {
        match ws::next(&mut assembly, &mut read_buffer.bytes, limits).map_err(NotUpgraded::of_ws)? {
            Step::More { .. } => {
                read_more(&mut read_buffer, stream, deadline).await.map_err(closed)?
            }
            Step::Fragment { used } => drop(read_buffer.bytes.drain(assembly.bytes()..used)),
            Step::Control { control, payload, used } => {
                let payload = &read_buffer.bytes[payload];
                match control {
                    Control::Ping => {
                        let mut pong = Vec::with_capacity(2 + payload.len());
                        ws::put_frame_head(Opcode::Pong, payload.len(), &mut pong);
                        pong.extend_from_slice(payload);
                        say(stream, &pong, deadline).await.map_err(closed)?;
                    }
                    Control::Pong => {}
                    Control::Close => {
                        let code = ws::close_code(payload).map_err(NotUpgraded::of_ws)?;
                        return Err(NotUpgraded::answering(code));
                    }
                }
                drop(read_buffer.bytes.drain(assembly.bytes()..used));
            }
            Step::Message { is_text, body, used } => {
                let hello = decode(format, is_text, &read_buffer.bytes[body])?;
                let read_ahead = read_buffer.bytes[used..].to_vec();
                return Ok((hello, read_ahead, read_buffer.into_charge()));
            }
        }
    }
}

fn decode(format: Format, is_text: bool, body: &[u8]) -> Result<Hello, NotUpgraded> {
    if is_text != (format == Format::WsJson) {
        let why = "the subprotocol does not use messages of this kind";
        return Err(NotUpgraded::closing(CloseReason::Malformed, ws::UNSUPPORTED_DATA, why));
    }
    let message = if is_text {
        json::client_message(std::str::from_utf8(body).unwrap_or_default())
            .map_err(|error| malformed(format, &error.to_string()))?
    } else {
        ClientMessage::decode(body).map_err(|error| malformed(format, &error.to_string()))?
    };
    match message.kind {
        Some(Kind::Hello(hello)) => Ok(hello),
        Some(_) | None => Err(malformed(format, "the first message has to be hello")),
    }
}

/// Tells the peer its error before the end.
fn malformed(format: Format, why: &str) -> NotUpgraded {
    let error = frames::error(ErrorCode::InvalidField, why.to_owned(), "", 0);
    let mut last = Vec::new();
    weir_wire::format::encode(format, &error, 0, &mut last);
    last.extend(frames::goodbye_as(format, CloseReason::Malformed));
    NotUpgraded { reason: CloseReason::Malformed, last }
}

#[cfg(test)]
mod tests;
