//! The protocols of other servers, as far as a client needs them that subscribes to one topic, and one that publishes:
//! NATS, and MQTT 3.1.1 with quality of service 0.

use serde::{Deserialize, Serialize};
use weir_wire::hot::{Payload, Push};

/// The protocol of a server over TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    /// Frames of weir.v1.
    #[default]
    Weir,
    /// Lines of NATS.
    Nats,
    /// Packets of MQTT 3.1.1.
    Mqtt,
}

/// The first piece of received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A message of the topic.
    Message,
    /// An answer that a new connection waits for.
    Ready,
    /// A ping, to be answered with [`answer_to_ping`].
    Ping,
    /// The answer to a ping of a publisher, or what needs no answer.
    Nothing,
}

/// The bytes that a new client sends; two answers follow.
pub(crate) fn greeting(protocol: Protocol, device: &str, topic: &str) -> Vec<u8> {
    match protocol {
        Protocol::Weir => Vec::new(),
        // Each ping is answered when everything before it is done.
        Protocol::Nats => {
            let connect = nats_connect(device);
            format!("{connect}PING\r\nSUB {topic} 1\r\nPING\r\n").into_bytes()
        }
        Protocol::Mqtt => {
            let mut out = mqtt_connect(device);
            let mut subscribe = vec![0, 1];
            mqtt_text(topic, &mut subscribe);
            subscribe.push(0);
            mqtt_packet(MQTT_SUBSCRIBE, &subscribe, &mut out);
            out
        }
    }
}

/// The bytes that a publisher sends first. With those of [`ping`] behind, an answer follows.
pub(crate) fn publisher_greeting(protocol: Protocol, name: &str) -> Vec<u8> {
    match protocol {
        Protocol::Weir => Vec::new(),
        Protocol::Nats => nats_connect(name).into_bytes(),
        Protocol::Mqtt => mqtt_connect(name),
    }
}

/// Appends a message.
pub(crate) fn publish(protocol: Protocol, topic: &str, text: &str, out: &mut Vec<u8>) {
    match protocol {
        Protocol::Weir => {}
        Protocol::Nats => {
            let bytes = text.len();
            out.extend_from_slice(format!("PUB {topic} {bytes}\r\n{text}\r\n").as_bytes());
        }
        Protocol::Mqtt => {
            let mut body = Vec::with_capacity(2 + topic.len() + text.len());
            mqtt_text(topic, &mut body);
            body.extend_from_slice(text.as_bytes());
            mqtt_packet(MQTT_PUBLISH, &body, out);
        }
    }
}

/// A publisher's ping: its answer says that the server has taken all messages before.
pub(crate) fn ping(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Weir => &[],
        Protocol::Nats => b"PING\r\n",
        Protocol::Mqtt => &[MQTT_PINGREQ, 0],
    }
}

/// Whether these bytes are the answer to [`ping`].
pub(crate) fn is_pong(protocol: Protocol, bytes: &[u8]) -> bool {
    match protocol {
        Protocol::Weir => false,
        Protocol::Nats => bytes == b"PONG\r\n",
        Protocol::Mqtt => bytes == [MQTT_PINGRESP, 0],
    }
}

/// What a client answers to a server's ping.
pub(crate) fn answer_to_ping(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Nats => b"PONG\r\n",
        Protocol::Weir | Protocol::Mqtt => &[],
    }
}

/// The first piece of `bytes` and its length; `None` if more bytes must come.
pub(crate) fn next(protocol: Protocol, bytes: &[u8]) -> Result<Option<(Piece, usize)>, String> {
    match protocol {
        Protocol::Weir => Err("frames are taken elsewhere".to_owned()),
        Protocol::Nats => nats_next(bytes),
        Protocol::Mqtt => mqtt_next(bytes),
    }
}

/// Converts a [`Piece::Message`] to the body of the frame with the same content.
pub(crate) fn body(protocol: Protocol, message: &[u8]) -> Result<Vec<u8>, String> {
    let found = match protocol {
        Protocol::Weir => None,
        Protocol::Nats => nats_message(message),
        Protocol::Mqtt => mqtt_message(message),
    };
    let (topic, text) = found.ok_or("a message that cannot be read")?;
    let text = str::from_utf8(text).map_err(|error| error.to_string())?;
    let push = Push { topic, payload: Payload::Text(text), ..Push::default() };
    let mut frame = Vec::new();
    push.encode_frame(&mut frame);
    let decoded =
        weir_wire::frame::decode(&frame, usize::MAX).map_err(|error| error.to_string())?;
    decoded.map(|(body, _)| body.to_vec()).ok_or_else(|| "a frame is whole".to_owned())
}

fn nats_connect(name: &str) -> String {
    format!(
        "CONNECT {{\"verbose\":false,\"pedantic\":false,\"name\":\"{name}\",\"lang\":\"bench\"}}\r\n"
    )
}

fn nats_next(bytes: &[u8]) -> Result<Option<(Piece, usize)>, String> {
    let Some(line) = nats_line(bytes) else {
        let too_long = bytes.len() > LINE_BYTES_MAX && !bytes.contains(&b'\n');
        return if too_long { Err("a line without end".to_owned()) } else { Ok(None) };
    };
    let used = line.len() + 2;
    let piece = match line {
        _ if line.starts_with(b"MSG ") => {
            let bytes_of_payload = nats_length(line).ok_or("a message without a length")?;
            let whole = used + bytes_of_payload + 2;
            return Ok((bytes.len() >= whole).then_some((Piece::Message, whole)));
        }
        b"PING" => Piece::Ping,
        b"PONG" => Piece::Ready,
        b"+OK" => Piece::Nothing,
        _ if line.starts_with(b"INFO ") => Piece::Nothing,
        _ => return Err(format!("the server says {:?}", String::from_utf8_lossy(line))),
    };
    Ok(Some((piece, used)))
}

fn nats_line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some(&bytes[..end])
}

/// The last word of `MSG subject sid [reply] length`.
fn nats_length(line: &[u8]) -> Option<usize> {
    str::from_utf8(line)
        .ok()?
        .rsplit(' ')
        .next()?
        .parse()
        .ok()
        .filter(|length| *length <= BYTES_MAX)
}

fn nats_message(message: &[u8]) -> Option<(&str, &[u8])> {
    let line = nats_line(message)?;
    let topic = str::from_utf8(line).ok()?.split(' ').nth(1)?;
    let from = line.len() + 2;
    let payload = message.get(from..from + nats_length(line)?)?;
    Some((topic, payload))
}

fn mqtt_connect(client: &str) -> Vec<u8> {
    let mut body = Vec::new();
    mqtt_text("MQTT", &mut body);
    // Version 3.1.1; a clean session.
    body.extend_from_slice(&[4, 2]);
    body.extend_from_slice(&MQTT_KEEP_ALIVE_S.to_be_bytes());
    mqtt_text(client, &mut body);
    let mut out = Vec::new();
    mqtt_packet(MQTT_CONNECT, &body, &mut out);
    out
}

fn mqtt_text(text: &str, out: &mut Vec<u8>) {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn mqtt_packet(kind: u8, body: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    let mut rest = body.len();
    loop {
        let seven = u8::try_from(rest & 127).unwrap_or(0);
        rest >>= 7;
        out.push(if rest > 0 { seven | 128 } else { seven });
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
}

fn mqtt_next(bytes: &[u8]) -> Result<Option<(Piece, usize)>, String> {
    let Some((body, whole)) = mqtt_body(bytes)? else { return Ok(None) };
    let piece = match (bytes[0], body) {
        (MQTT_PUBLISH, _) => Piece::Message,
        (MQTT_CONNACK, [_, 0]) | (MQTT_SUBACK, [_, _, 0]) => Piece::Ready,
        (MQTT_PINGRESP, _) => Piece::Nothing,
        (kind, _) => return Err(format!("a packet {kind:#04x} with {body:?}")),
    };
    Ok(Some((piece, whole)))
}

/// The body of the first packet, and the length of the packet.
fn mqtt_body(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, String> {
    let mut length = 0;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        if at > 4 {
            return Err("a length of more than four bytes".to_owned());
        }
        length |= usize::from(byte & 127) << (7 * (at - 1));
        if byte & 128 == 0 {
            let from = at + 1;
            return Ok(bytes.get(from..from + length).map(|body| (body, from + length)));
        }
    }
    Ok(None)
}

fn mqtt_message(message: &[u8]) -> Option<(&str, &[u8])> {
    let (body, _) = mqtt_body(message).ok()??;
    let (length, rest) = body.split_first_chunk()?;
    let (topic, payload) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    Some((str::from_utf8(topic).ok()?, payload))
}

const MQTT_CONNECT: u8 = 0x10;
const MQTT_CONNACK: u8 = 0x20;
const MQTT_PUBLISH: u8 = 0x30;
const MQTT_SUBSCRIBE: u8 = 0x82;
const MQTT_SUBACK: u8 = 0x90;
const MQTT_PINGREQ: u8 = 0xc0;
const MQTT_PINGRESP: u8 = 0xd0;
/// As long as the heartbeat that clients of Weir ask for.
const MQTT_KEEP_ALIVE_S: u16 = 15 * 60;
/// Longest line of NATS; `INFO` is the longest.
const LINE_BYTES_MAX: usize = 32 << 10;
/// Longest message accepted.
const BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use weir_wire::hot::FromServer;

    use super::*;

    /// What a server sends to a client that has greeted it, and then one message.
    fn said(protocol: Protocol) -> Vec<u8> {
        let nats = "INFO {\"a\":1}\r\nPONG\r\nPONG\r\nMSG a/b 1 6\r\nh\r\nllo\r\nPING\r\n";
        let mut mqtt = vec![MQTT_CONNACK, 2, 0, 0, MQTT_SUBACK, 3, 0, 1, 0];
        publish(Protocol::Mqtt, "a/b", "h\r\nllo", &mut mqtt);
        if protocol == Protocol::Nats { nats.as_bytes().to_vec() } else { mqtt }
    }

    fn pieces(protocol: Protocol, mut bytes: &[u8]) -> Vec<(Piece, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some((piece, used)) = next(protocol, bytes).expect("well-formed") {
            found.push((piece, bytes[..used].to_vec()));
            bytes = &bytes[used..];
        }
        assert!(bytes.is_empty());
        found
    }

    #[test]
    fn a_greeting_is_answered_twice_and_messages_follow() {
        for protocol in [Protocol::Nats, Protocol::Mqtt] {
            let found = pieces(protocol, &said(protocol));
            let ready = found.iter().filter(|(piece, _)| *piece == Piece::Ready).count();
            assert_eq!(ready, 2, "{protocol:?}");
            let (_, message) =
                found.iter().find(|(piece, _)| *piece == Piece::Message).expect("a message");
            let body = body(protocol, message).expect("a body");
            let Ok(FromServer::Push(push)) = FromServer::decode(&body) else { panic!("no push") };
            assert_eq!((push.topic, push.payload.as_bytes()), ("a/b", &b"h\r\nllo"[..]));
        }
    }

    #[test]
    fn a_piece_is_whole_or_waited_for() {
        for bytes in [&b"MSG a/b 1 2\r\nhi\r\n"[..], b"PING\r\n", b"INFO {}\r\n"] {
            check_cuts(Protocol::Nats, bytes);
        }
        for text in ["hi".to_owned(), "x".repeat(300)] {
            let mut bytes = Vec::new();
            publish(Protocol::Mqtt, "a/b", &text, &mut bytes);
            check_cuts(Protocol::Mqtt, &bytes);
        }
    }

    fn check_cuts(protocol: Protocol, bytes: &[u8]) {
        for end in 0..bytes.len() {
            assert_eq!(next(protocol, &bytes[..end]), Ok(None), "{protocol:?} {end}");
        }
        let (_, used) = next(protocol, bytes).expect("well-formed").expect("whole");
        assert_eq!(used, bytes.len());
    }

    #[test]
    fn refusals_are_errors() {
        assert!(next(Protocol::Nats, b"-ERR 'no'\r\n").is_err());
        assert!(next(Protocol::Nats, b"MSG a 1 x\r\n").is_err());
        assert!(next(Protocol::Mqtt, &[MQTT_CONNACK, 2, 0, 5]).is_err());
        assert!(next(Protocol::Mqtt, &[MQTT_SUBACK, 3, 0, 1, 128]).is_err());
        assert!(next(Protocol::Mqtt, &[MQTT_PUBLISH, 255, 255, 255, 255, 1]).is_err());
        assert!(body(Protocol::Mqtt, &[MQTT_PUBLISH, 1, 0]).is_err());
    }

    #[test]
    fn a_publisher_knows_the_answer_to_its_ping() {
        assert!(is_pong(Protocol::Nats, b"PONG\r\n"));
        assert!(is_pong(Protocol::Mqtt, &[MQTT_PINGRESP, 0]));
        assert!(!is_pong(Protocol::Mqtt, ping(Protocol::Mqtt)));
    }
}
