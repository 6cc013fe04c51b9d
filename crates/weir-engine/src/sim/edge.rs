//! The device's end of a format: it turns a server's bytes back into frames, and makes a client's frames.

use weir_wire::format::{self, Format};
use weir_wire::ws::{self, Opcode};
use weir_wire::{ProstMessage, frame, json, v1};

use super::book::framed;
use super::dice::Dice;

/// The first whole unit in the bytes that a device has received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A message, as a frame.
    Frame(Vec<u8>),
    /// A message that came as an event, and the positions in its id.
    Event(Vec<u8>, Option<Vec<v1::Position>>),
    /// A ping, which asks a WebSocket for a sign of life.
    Ping,
    /// The answer to a WebSocket's ping.
    Pong(Vec<u8>),
    /// A WebSocket ends.
    Close(Option<u16>),
    /// A comment, which tells a reader of events that the server lives.
    Comment,
}

/// Cuts off the first unit, and returns its size; `None` if it is not whole.
pub(crate) fn cut(format: Format, bytes: &[u8]) -> Result<Option<(Unit, usize)>, String> {
    match format {
        Format::Stream => {
            let whole = frame::whole_bytes(bytes, usize::MAX).map_err(|error| error.to_string())?;
            let whole = whole.filter(|used| *used <= bytes.len());
            Ok(whole.map(|used| (Unit::Frame(bytes[..used].to_vec()), used)))
        }
        Format::WsProtobuf | Format::WsJson => cut_ws(format, bytes),
        Format::Sse => {
            let Some(end) = bytes.windows(2).position(|two| two == b"\n\n") else {
                return Ok(None);
            };
            let text = std::str::from_utf8(&bytes[..end]).map_err(|error| error.to_string())?;
            Ok(Some((event(text).ok_or_else(|| format!("no event: {text:?}"))?, end + 2)))
        }
    }
}

fn cut_ws(format: Format, bytes: &[u8]) -> Result<Option<(Unit, usize)>, String> {
    let whole = ws::decode_server_frame(bytes, usize::MAX).map_err(|error| error.to_string())?;
    let Some((head, used)) = whole else { return Ok(None) };
    if !head.is_final {
        return Err("a message in parts".into());
    }
    let payload = &bytes[head.payload];
    let unit = match (head.opcode, format) {
        (Opcode::Binary, Format::WsProtobuf) => Unit::Frame(framed(payload)),
        (Opcode::Text, Format::WsJson) => {
            let text = std::str::from_utf8(payload).map_err(|error| error.to_string())?;
            Unit::Frame(frame_of_json(text).ok_or_else(|| format!("not JSON of ours: {text}"))?)
        }
        (Opcode::Ping, _) if payload.is_empty() => Unit::Ping,
        (Opcode::Pong, _) => Unit::Pong(payload.to_vec()),
        (Opcode::Close, _) => {
            Unit::Close(ws::close_code(payload).map_err(|error| error.to_string())?)
        }
        (opcode, _) => return Err(format!("{opcode:?} on {format:?}")),
    };
    Ok(Some((unit, used)))
}

fn frame_of_json(text: &str) -> Option<Vec<u8>> {
    let message = json::server_message(text).ok()?;
    message.kind.as_ref()?;
    let mut out = Vec::new();
    frame::encode(&message, &mut out);
    Some(out)
}

/// An event without the empty line after it; `None` if Weir would not write it.
fn event(text: &str) -> Option<Unit> {
    if text == ":" {
        return Some(Unit::Comment);
    }
    let mut lines = text.lines().peekable();
    let mut field = |name: &str| {
        let value = lines.peek()?.strip_prefix(name)?;
        lines.next();
        Some(value)
    };
    let kind = field("event:").unwrap_or("push");
    let retry_ms = field("retry:").map(str::parse::<u32>);
    let data = field("data:")?;
    let id = field("id:");
    if lines.next().is_some() || matches!(retry_ms, Some(Err(_))) {
        return None;
    }
    let positions = match id {
        Some(id) => Some(format::parse_sse_id(id)?),
        None => None,
    };
    let frame = frame_of_json(&format!("{{\"{kind}\":{data}}}"))?;
    let (body, _) = frame::decode(&frame, usize::MAX).ok()??;
    let due_ms = match v1::ServerMessage::decode(body).ok()?.kind {
        Some(v1::server_message::Kind::Goodbye(goodbye)) => goodbye.retry_after_ms,
        Some(_) | None => 0,
    };
    let retry_ms = retry_ms.and_then(Result::ok).unwrap_or(0);
    (retry_ms == due_ms).then_some(Unit::Event(frame, positions))
}

/// A client's frame with a random mask.
pub(crate) fn client_frame(opcode: Opcode, payload: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mask = dice.below(u32::MAX).to_ne_bytes();
    ws::encode_client_frame(opcode, payload, mask, &mut bytes);
    bytes
}

/// The end of a WebSocket, with or without a code.
pub(crate) fn close_frame(code: Option<u16>, dice: &mut Dice) -> Vec<u8> {
    let code = code.map(u16::to_be_bytes);
    client_frame(Opcode::Close, code.as_ref().map_or(&[], |code| &code[..]), dice)
}

/// Bytes for which a server must end a WebSocket, and the code that it must send.
pub(crate) fn bad_ws(format: Format, kind: u32, dice: &mut Dice) -> (Vec<u8>, Option<u16>) {
    let right = if format == Format::WsJson { Opcode::Text } else { Opcode::Binary };
    match kind {
        0 => (vec![0x82, 0x00], Some(ws::PROTOCOL_ERROR)),
        1 => (vec![0xc2], Some(ws::PROTOCOL_ERROR)),
        2 => (client_frame(Opcode::Continuation, &[], dice), Some(ws::PROTOCOL_ERROR)),
        3 => (client_frame(Opcode::Close, &[3], dice), Some(ws::PROTOCOL_ERROR)),
        4 => (client_frame(Opcode::Text, &[0xff], dice), Some(ws::INVALID_PAYLOAD)),
        5 if right == Opcode::Binary => (client_frame(right, &[0xff, 0xff], dice), None),
        _ => {
            let wrong = if right == Opcode::Text { Opcode::Binary } else { Opcode::Text };
            (client_frame(wrong, b"x", dice), Some(ws::UNSUPPORTED_DATA))
        }
    }
}

/// Kinds of [`bad_ws`].
pub(crate) const BAD_KINDS: u32 = 7;

/// The beginning of a message over the limit of 1,024 bytes, whole or in parts.
pub(crate) fn oversized_ws(format: Format, dice: &mut Dice) -> Vec<u8> {
    let right = if format == Format::WsJson { Opcode::Text } else { Opcode::Binary };
    if dice.chance(1 << 15) {
        return vec![0x80 | right as u8, 0x80 | 126, 0x04, 0x01];
    }
    let mut bytes = client_frame(right, &[b' '; 600], dice);
    bytes[0] &= 0x7f;
    bytes.extend([0x80, 0x80 | 126, 0x02, 0x00]);
    bytes
}
