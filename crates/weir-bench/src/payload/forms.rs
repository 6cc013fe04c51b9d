//! The formats of messages. Splits WebSocket frames and events into messages, and converts a
//! message to the body of a frame for its check.

use std::borrow::Cow;

use weir_wire::format::Format;
use weir_wire::ws::{self, Opcode};
use weir_wire::{ProstMessage, json};

/// The first piece of received bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// A message in its format.
    Message(&'a [u8]),
    /// A ping. The answer must have the same bytes.
    Ping(&'a [u8]),
    /// The end of the connection, with its code if it has one.
    Close(Option<u16>),
    /// A sign of life.
    Nothing,
}

/// Longest message accepted from a server.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The first piece of `bytes` and its length; `None` if more bytes must come. Not for
/// [`Format::Stream`].
pub(crate) fn next(form: Format, bytes: &[u8]) -> Result<Option<(Piece<'_>, usize)>, String> {
    match form {
        Format::Stream => Err("frames are taken elsewhere".to_owned()),
        Format::WsProtobuf => next_frame(Opcode::Binary, bytes),
        Format::WsJson => next_frame(Opcode::Text, bytes),
        Format::Sse => next_event(bytes),
    }
}

fn next_frame(expected: Opcode, bytes: &[u8]) -> Result<Option<(Piece<'_>, usize)>, String> {
    let frame = ws::decode_server_frame(bytes, MESSAGE_BYTES_MAX);
    let Some((head, used)) = frame.map_err(|error| error.to_string())? else { return Ok(None) };
    let payload = &bytes[head.payload];
    let piece = match head.opcode {
        Opcode::Close => Piece::Close(ws::close_code(payload).map_err(|error| error.to_string())?),
        Opcode::Ping => Piece::Ping(payload),
        Opcode::Pong => Piece::Nothing,
        Opcode::Text | Opcode::Binary if head.opcode == expected && head.is_final => {
            Piece::Message(payload)
        }
        Opcode::Text | Opcode::Binary | Opcode::Continuation => {
            return Err(format!("a frame of {:?}, final: {}", head.opcode, head.is_final));
        }
    };
    Ok(Some((piece, used)))
}

/// An event ends with an empty line; lines end with a line feed alone.
fn next_event(bytes: &[u8]) -> Result<Option<(Piece<'_>, usize)>, String> {
    let mut from = 0;
    while let Some(feed) = bytes[from..].iter().position(|byte| *byte == b'\n') {
        from += feed + 1;
        if bytes.get(from) == Some(&b'\n') {
            let event = &bytes[..from];
            // The event contains only a comment.
            let silent = event.starts_with(b":");
            let piece = if silent { Piece::Nothing } else { Piece::Message(event) };
            return Ok(Some((piece, from + 1)));
        }
    }
    if bytes.len() > MESSAGE_BYTES_MAX { Err("an event without end".to_owned()) } else { Ok(None) }
}

/// Converts a message to the body of the frame with the same content.
pub(crate) fn body(form: Format, message: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    match form {
        Format::Stream | Format::WsProtobuf => Ok(Cow::Borrowed(message)),
        Format::WsJson => from_json(text(message)?).map(Cow::Owned),
        Format::Sse => from_event(text(message)?).map(Cow::Owned),
    }
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

fn from_json(text: &str) -> Result<Vec<u8>, String> {
    let message = json::server_message(text).map_err(|error| error.to_string())?;
    Ok(message.encode_to_vec())
}

/// An event without a name is a message of a topic. The name of any other event is its kind.
fn from_event(text: &str) -> Result<Vec<u8>, String> {
    let mut name = "push";
    let mut data = None;
    for line in text.lines() {
        match line.split_once(':') {
            Some(("event", value)) => name = value,
            Some(("data", value)) if data.is_none() => data = Some(value),
            Some(("id" | "retry", _)) => {}
            Some(_) | None => return Err(format!("an event with the line {line:?}")),
        }
    }
    let data = data.ok_or_else(|| format!("an event {name:?} without data"))?;
    from_json(&format!("{{{name:?}:{data}}}"))
}

#[cfg(test)]
mod tests {
    use weir_wire::format::encode;
    use weir_wire::frame;
    use weir_wire::hot::{Payload, Push};
    use weir_wire::v1::{Goodbye, ServerMessage, Subscribed, Welcome, server_message::Kind};

    use super::*;

    const FORMS: [Format; 3] = [Format::WsProtobuf, Format::WsJson, Format::Sse];

    /// One frame of each kind that such a client receives.
    fn frames() -> Vec<u8> {
        let mut out = Vec::new();
        for kind in [
            Kind::Welcome(Welcome { connection_id: 7, heartbeat_ms: 1000, server_time_ms: 9 }),
            Kind::Subscribed(Subscribed { topic: "t".to_owned(), position: None, recovered: true }),
        ] {
            frame::encode(&ServerMessage { kind: Some(kind) }, &mut out);
        }
        let push = Push {
            topic: "t",
            payload: Payload::Text("a\nb \"c\""),
            message_id: 1,
            offset: 5,
            ..Push::default()
        };
        push.encode_frame(&mut out);
        out
    }

    fn bodies(form: Format, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while let Some((piece, used)) = next(form, bytes).unwrap() {
            let Piece::Message(message) = piece else { panic!("{piece:?}") };
            found.push(body(form, message).unwrap().into_owned());
            bytes = &bytes[used..];
        }
        assert!(bytes.is_empty());
        found
    }

    #[test]
    fn every_form_says_the_same() {
        let frames = frames();
        let mut rest = &frames[..];
        let mut expected = Vec::new();
        while let Some((body, used)) = frame::decode(rest, usize::MAX).unwrap() {
            expected.push(ServerMessage::decode(body).unwrap());
            rest = &rest[used..];
        }
        for form in FORMS {
            let mut out = Vec::new();
            encode(form, &frames, 0xabc, &mut out);
            let found = bodies(form, &out);
            let found: Vec<_> =
                found.iter().map(|body| ServerMessage::decode(&body[..]).unwrap()).collect();
            assert_eq!(found, expected, "{form:?}");
        }
    }

    #[test]
    fn a_piece_is_whole_or_waited_for() {
        for form in FORMS {
            let mut out = Vec::new();
            encode(form, &frames(), 0, &mut out);
            let (_, used) = next(form, &out).unwrap().unwrap();
            for end in 0..used {
                assert_eq!(next(form, &out[..end]), Ok(None), "{form:?} {end}");
            }
        }
    }

    #[test]
    fn what_is_no_message_is_told_apart() {
        let mut out = Vec::new();
        let goodbye = Goodbye { code: 4001, reason: "draining".to_owned(), retry_after_ms: 0 };
        frame::encode(&ServerMessage { kind: Some(Kind::Goodbye(goodbye)) }, &mut out);
        let mut shown = Vec::new();
        encode(Format::WsJson, &out, 0, &mut shown);
        let (_, used) = next(Format::WsJson, &shown).unwrap().unwrap();
        let close = next(Format::WsJson, &shown[used..]).unwrap().unwrap();
        assert_eq!(close, (Piece::Close(Some(4001)), shown.len() - used));
        assert_eq!(next(Format::Sse, b":\n\nx"), Ok(Some((Piece::Nothing, 3))));
        assert_eq!(next(Format::WsJson, b"\x89\x01x"), Ok(Some((Piece::Ping(b"x"), 3))));
        assert!(next(Format::WsJson, b"\x82\x01x").is_err(), "binary where text was agreed");
        assert!(next(Format::WsProtobuf, b"\x02\x01x").is_err(), "a part of a message");
        for event in ["data:{}\ndata:{}\n", "event:push\n", "what:is\ndata:{}\n", "data:{\n"] {
            assert!(body(Format::Sse, event.as_bytes()).is_err(), "{event:?}");
        }
    }
}
