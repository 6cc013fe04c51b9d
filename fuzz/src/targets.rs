//! What the fuzzer and the plain tests demand of each decoder, for any bytes at all.
//!
//! The twin of every decoder is prost. Where ours deliberately refuses more, the target says so in one place.

use weir_wire::datagram::{self, Answer, Datagram, Form, NoRequest, Refused, Request};
use weir_wire::hot::{self, Batch, FromDevice, FromServer, Payload, Publish, Push};
use weir_wire::v1::{self, client_message, server_message};
use weir_wire::ws::{self, Assembly, Limits, Step, WsError};
use weir_wire::{PING_BYTES_MAX, ProstMessage, WireError, format, frame, json};

/// Takes any bytes; panics if the decoder does not keep its promises on them.
pub type Target = fn(&[u8]);

/// Every target under its name, which is also the name of its corpus.
pub const ALL: [(&str, Target); 10] = [
    ("batch", batch),
    ("client_json", client_json),
    ("datagram", datagram),
    ("frame", frame),
    ("from_device", from_device),
    ("from_server", from_server),
    ("publish", publish),
    ("push", push),
    ("sse_id", sse_id),
    ("websocket", websocket),
];

/// The frame decoder says the same however its input is cut, and what it lets pass is in canonical form.
pub fn frame(data: &[u8]) {
    const LIMIT: usize = 300;
    let whole = frame::decode(data, LIMIT);
    for end in 0..data.len().min(LIMIT + frame::LENGTH_BYTES_MAX) {
        let cut = frame::decode(&data[..end], LIMIT);
        assert!(cut == Ok(None) || cut == whole, "cut at {end}: {cut:?}, whole: {whole:?}");
    }
    match whole {
        Ok(Some((body, taken))) => {
            assert_eq!(frame::whole_bytes(data, LIMIT), Ok(Some(taken)));
            assert!(body.len() <= LIMIT);
            let mut again = Vec::new();
            prost_length(body.len(), &mut again);
            again.extend_from_slice(body);
            assert_eq!(again, data[..taken], "prefix is not canonical");
        }
        Ok(None) => assert!(data.len() < LIMIT + frame::LENGTH_BYTES_MAX),
        Err(WireError::FrameTooLarge { bytes, limit }) => {
            assert!(limit == LIMIT && bytes > LIMIT as u64 && u32::try_from(bytes).is_ok());
        }
        Err(error) => {
            assert_eq!(error, WireError::LengthMalformed);
            assert_eq!(frame::whole_bytes(data, LIMIT), Err(error));
        }
    }
}

/// The short way for calls says what the libraries say; an answer fits, says what was asked, and is not answered.
pub fn datagram(data: &[u8]) {
    let read = datagram::decode(data);
    assert_eq!(read, datagram::decode_by_library(data));
    let (form, id, answer, field) = match &read {
        Ok(Datagram { form, id, request: Request::Call { token, count } }) => {
            (*form, id.clone(), Answer::Call { token, count: *count }, "")
        }
        Ok(Datagram { form, id, request: Request::Activate { serial, .. } }) => (
            *form,
            id.clone(),
            Answer::Activated { token: serial, expires_at_ms: 1, gateways: &[] },
            "",
        ),
        Ok(Datagram { form, id, request: Request::Publish { .. } }) => {
            (*form, id.clone(), Answer::Published(&PUBLISHED), "")
        }
        Err(NoRequest::Malformed(error)) => {
            let (field, message) = (error.field.name(), &*error.reason);
            let refused = Refused { code: "malformed", field, message, retry_after_ms: 0 };
            (error.form, error.id.clone(), Answer::Refused(refused), field)
        }
        Err(NoRequest::Answer | NoRequest::Foreign) => return,
    };
    let mut out = Vec::new();
    assert!(answer.encode(form, &id, usize::MAX, &mut out));
    match form {
        Form::Json => drop(serde_json::from_slice::<serde_json::Value>(&out).expect("JSON")),
        Form::Protobuf => {
            let twin = v1::DatagramAnswer::decode(&*out).expect("a message");
            assert_eq!(twin.error.unwrap_or_default().field, field);
        }
    }
    let mut cut = Vec::new();
    let fits = answer.encode(form, &id, 3 * data.len(), &mut cut);
    assert!(cut.len() <= 3 * data.len() && fits != cut.is_empty());
    // A call is always answered.
    assert!(fits || !matches!(answer, Answer::Call { .. }));
    for answer in [&out, &cut].into_iter().filter(|answer| !answer.is_empty()) {
        assert_eq!(datagram::decode(answer), Err(NoRequest::Answer));
        for end in 0..answer.len() {
            assert!(!matches!(datagram::too_long(&answer[..end], end), NoRequest::Malformed(_)));
        }
    }
}

/// Classifying a frame from a device agrees with prost.
pub fn from_device(data: &[u8]) {
    let hot = FromDevice::decode(data);
    let twin = v1::ClientMessage::decode(data).map(|message| message.kind);
    match hot {
        Ok(FromDevice::Ping { data: ping }) => {
            let Ok(Some(client_message::Kind::Ping(twin))) = &twin else {
                panic!("a ping, prost says {twin:?}")
            };
            assert_eq!(ping, twin.data);
            assert!(ping.len() <= PING_BYTES_MAX);
            let mut out = Vec::new();
            hot::encode_ping_frame(ping, &mut out);
            assert_eq!(out, framed(&client(client_message::Kind::Ping(twin.clone()))));
        }
        Ok(FromDevice::Publish) => {
            assert!(
                matches!(twin, Ok(Some(client_message::Kind::Publish(_)))),
                "a publish, prost says {twin:?}"
            );
            assert!(Publish::decode(data).is_ok());
        }
        // The content is left to prost, which may refuse it.
        Ok(FromDevice::Other) => assert!(
            !matches!(
                twin,
                Ok(None | Some(client_message::Kind::Ping(_) | client_message::Kind::Publish(_)))
            ),
            "another kind, prost says {twin:?}"
        ),
        Ok(FromDevice::Unknown) => assert_eq!(twin, Ok(None)),
        Err(WireError::PingTooLarge(bytes)) => {
            let Ok(Some(client_message::Kind::Ping(twin))) = &twin else {
                panic!("a ping, prost says {twin:?}")
            };
            assert!(bytes > PING_BYTES_MAX && bytes == twin.data.len());
        }
        Err(error) => {
            assert!(twin.is_err() || is_second_kind(&error), "{error}, prost says {twin:?}")
        }
    }
}

/// Decoding `Publish` agrees with prost, and so does encoding what was decoded.
pub fn publish(data: &[u8]) {
    let twin = v1::ClientMessage::decode(data).map(|message| message.kind);
    match Publish::decode(data) {
        Ok(hot) => {
            let Ok(Some(client_message::Kind::Publish(mut twin))) = twin else {
                panic!("{hot:?}, prost says {twin:?}")
            };
            twin.payload.get_or_insert(v1::publish::Payload::Data(Vec::new()));
            assert_eq!(prost_publish(&hot), twin);
            let mut out = Vec::new();
            hot.encode_frame(&mut out);
            assert_eq!(out, framed(&client(client_message::Kind::Publish(twin))));
        }
        Err(error) => assert!(
            !matches!(twin, Ok(Some(client_message::Kind::Publish(_)))) || is_second_kind(&error),
            "{error}, prost says {twin:?}"
        ),
    }
}

/// Decoding `Push` agrees with prost, and so does encoding what was decoded.
pub fn push(data: &[u8]) {
    let twin = v1::ServerMessage::decode(data).map(|message| message.kind);
    match Push::decode(data) {
        Ok(Some(hot)) => {
            let Ok(Some(server_message::Kind::Push(mut twin))) = twin else {
                panic!("{hot:?}, prost says {twin:?}")
            };
            twin.payload.get_or_insert(v1::push::Payload::Data(Vec::new()));
            assert_eq!(prost_push(&hot), twin);
            let mut out = Vec::new();
            hot.encode_frame(&mut out);
            assert_eq!(out.len(), hot.frame_bytes());
            assert_eq!(out, framed(&server(server_message::Kind::Push(twin))));
        }
        // The content is left to prost, which may refuse it.
        Ok(None) => {
            assert!(!matches!(twin, Ok(Some(server_message::Kind::Push(_)))), "prost says {twin:?}")
        }
        Err(error) => {
            assert!(twin.is_err() || is_second_kind(&error), "{error}, prost says {twin:?}")
        }
    }
}

/// Classifying a frame from the server agrees with prost.
pub fn from_server(data: &[u8]) {
    let twin = v1::ServerMessage::decode(data).map(|message| message.kind);
    match FromServer::decode(data) {
        Ok(FromServer::Push(hot)) => assert_eq!(Push::decode(data), Ok(Some(hot))),
        Ok(FromServer::Batch(hot)) => assert_eq!(Batch::decode(data), Ok(Some(hot))),
        Ok(FromServer::Pong { data: pong }) => {
            let Ok(Some(server_message::Kind::Pong(twin))) = &twin else {
                panic!("a pong, prost says {twin:?}")
            };
            assert_eq!(pong, twin.data);
            let mut out = Vec::new();
            hot::encode_pong_frame(pong, &mut out);
            assert_eq!(out, framed(&server(server_message::Kind::Pong(twin.clone()))));
        }
        // The content is left to prost, which may refuse it.
        Ok(FromServer::Other) => assert!(
            !matches!(
                twin,
                Ok(None
                    | Some(
                        server_message::Kind::Push(_)
                            | server_message::Kind::Batch(_)
                            | server_message::Kind::Pong(_)
                    ))
            ),
            "another kind, prost says {twin:?}"
        ),
        Ok(FromServer::Unknown) => assert_eq!(twin, Ok(None)),
        Err(error) => {
            assert!(twin.is_err() || is_second_kind(&error), "{error}, prost says {twin:?}")
        }
    }
}

/// Decoding `Batch` and its messages agrees with prost, and so does making it from the messages in frames of their own.
pub fn batch(data: &[u8]) {
    let twin = v1::ServerMessage::decode(data).map(|message| message.kind);
    let hot = match Batch::decode(data) {
        Ok(Some(hot)) => hot,
        Ok(None) => {
            assert!(!matches!(twin, Ok(Some(server_message::Kind::Batch(_)))), "{twin:?}");
            return;
        }
        Err(error) => {
            assert!(twin.is_err() || is_second_kind(&error), "{error}, prost says {twin:?}");
            return;
        }
    };
    let mut read = hot.messages();
    let pushes: Result<Vec<Push<'_>>, WireError> = read.by_ref().collect();
    assert!(read.next().is_none(), "a message behind the last or behind an error");
    let Ok(pushes) = pushes else {
        assert!(twin.is_err(), "{pushes:?}, prost says {twin:?}");
        return;
    };
    let Ok(Some(server_message::Kind::Batch(mut twin))) = twin else {
        panic!("{hot:?}, prost says {twin:?}")
    };
    for message in &mut twin.messages {
        message.topic.clone_from(&twin.topic);
        message.payload.get_or_insert(v1::push::Payload::Data(Vec::new()));
    }
    assert_eq!((hot.topic, hot.first_offset), (&*twin.topic, twin.first_offset));
    assert_eq!((hot.last_offset, hot.message_count()), (twin.last_offset, twin.messages.len()));
    assert_eq!(pushes.iter().map(prost_push).collect::<Vec<_>>(), twin.messages);
    for frame_bytes_max in [usize::MAX, 200, 60, 0] {
        encoded_batch(&twin, &pushes, frame_bytes_max);
    }
}

/// The messages of a batch, encoded one by one and put together again, are what prost makes of them.
fn encoded_batch(twin: &v1::Batch, pushes: &[Push<'_>], frame_bytes_max: usize) {
    let frames: Vec<Vec<u8>> = pushes
        .iter()
        .map(|push| {
            let mut frame = Vec::new();
            let key = push.encode_frame(&mut frame);
            assert_eq!(&frame[key], push.key.as_bytes());
            frame
        })
        .collect();
    let singles: Vec<(u64, &[u8])> =
        pushes.iter().zip(&frames).map(|(push, frame)| (push.offset, frame.as_slice())).collect();
    let mut out = Vec::new();
    hot::encode_batch_frames(&twin.topic, &singles, frame_bytes_max, &mut out);
    assert_eq!(out, twin_batch_frames(twin, &frames, frame_bytes_max));
}

/// The same by prost: to each frame as many messages as the limit allows.
fn twin_batch_frames(twin: &v1::Batch, singles: &[Vec<u8>], frame_bytes_max: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut start = 0;
    while start < twin.messages.len() {
        let batch = |end: usize| {
            let mut messages = twin.messages[start..end].to_vec();
            messages.iter_mut().for_each(|message| message.topic.clear());
            server(server_message::Kind::Batch(v1::Batch {
                topic: twin.topic.clone(),
                first_offset: messages[0].offset,
                last_offset: messages[messages.len() - 1].offset,
                messages,
            }))
        };
        let fits = |end: &usize| batch(*end).encoded_len() <= frame_bytes_max;
        if let Some(end) = (start + 1..=twin.messages.len()).take_while(fits).last() {
            out.extend(framed(&batch(end)));
            start = end;
        } else {
            out.extend(&singles[start]);
            start += 1;
        }
    }
    out
}

/// What is read of a message of a device is what its own JSON says again, and an error is short.
pub fn client_json(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match json::client_message(text) {
        Ok(message) => {
            assert_eq!(json::client_body(text), Ok(message.encode_to_vec()));
            let again = json::client_message_to_json(&message);
            assert_eq!(json::client_message(&again), Ok(message));
        }
        Err(error) => {
            assert!(error.to_string().len() < 500, "{error}");
            assert_eq!(json::client_body(text), Err(error));
        }
    }
}

/// An id has one form: what is read of it is written as it was.
pub fn sse_id(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Some(positions) = format::parse_sse_id(text) else { return };
    let mut out = Vec::new();
    let positions = positions.iter().map(|position| (position.epoch, position.offset));
    format::sse_id(positions, &mut out);
    assert_eq!(out, [b"id:", data, b"\n\n"].concat());
}

/// However a stream of a client's frames is cut, the same comes out of it, and nothing over the limits.
pub fn websocket(data: &[u8]) {
    let Some((piece, stream)) = data.split_first() else { return };
    let at_once = received(stream, stream.len());
    assert_eq!(received(stream, usize::from(*piece)), at_once);
    assert_eq!(received(stream, 1), at_once);
}

/// What is heard of a stream that comes in pieces, and what ended it. Nothing is kept between them while no message has
/// begun, and otherwise an array and what was gathered.
fn received(stream: &[u8], piece: usize) -> (Vec<(String, Vec<u8>)>, Option<WsError>) {
    const LIMITS: Limits = Limits { message_bytes_max: 300, fragments_max: 4 };
    let (mut kept, mut input, mut heard) = (None, Vec::new(), Vec::new());
    for piece in stream.chunks(piece.max(1)) {
        input.extend_from_slice(piece);
        let mut assembly = kept.map(Assembly::from_bytes).unwrap_or_default();
        loop {
            let before = input.len();
            let used = match ws::next(&mut assembly, &mut input, LIMITS) {
                Ok(Step::More { needed }) => {
                    let most = LIMITS.message_bytes_max + ws::INPUT_BYTES_OVER;
                    assert!(before < needed && needed <= most, "{needed} of {before}");
                    break;
                }
                Ok(Step::Fragment { used }) => used,
                Ok(Step::Control { control, payload, used }) => {
                    assert!(payload.len() <= ws::CONTROL_BYTES_MAX);
                    let code = ws::close_code(&input[payload.clone()]);
                    heard.push((format!("{control:?} {code:?}"), input[payload].to_vec()));
                    used
                }
                Ok(Step::Message { is_text, body, used }) => {
                    assert!(body.len() <= LIMITS.message_bytes_max && assembly.is_idle());
                    assert!(!is_text || str::from_utf8(&input[body.clone()]).is_ok());
                    heard.push((format!("text: {is_text}"), input[body].to_vec()));
                    used
                }
                Err(error) => return (heard, Some(error)),
            };
            input.drain(assembly.bytes()..used);
            assert!(assembly.bytes() <= LIMITS.message_bytes_max && input.len() < before);
        }
        kept = (!assembly.is_idle()).then(|| assembly.to_bytes());
    }
    (heard, None)
}

/// The one thing that prost takes and we do not: a hot kind behind one that is not looked at in the same message.
fn is_second_kind(error: &WireError) -> bool {
    *error == WireError::MessageMalformed("a second kind in one message")
}

fn prost_publish(publish: &Publish<'_>) -> v1::Publish {
    v1::Publish {
        topic: publish.topic.to_owned(),
        payload: Some(match publish.payload {
            Payload::Text(text) => v1::publish::Payload::Text(text.to_owned()),
            Payload::Data(data) => v1::publish::Payload::Data(data.to_owned()),
        }),
        content_type: publish.content_type.to_owned(),
        key: publish.key.to_owned(),
        request: publish.request,
    }
}

fn prost_push(push: &Push<'_>) -> v1::Push {
    v1::Push {
        topic: push.topic.to_owned(),
        payload: Some(match push.payload {
            Payload::Text(text) => v1::push::Payload::Text(text.to_owned()),
            Payload::Data(data) => v1::push::Payload::Data(data.to_owned()),
        }),
        content_type: push.content_type.to_owned(),
        key: push.key.to_owned(),
        message_id: push.message_id,
        offset: push.offset,
        sender: push.sender,
    }
}

fn client(kind: client_message::Kind) -> v1::ClientMessage {
    v1::ClientMessage { kind: Some(kind) }
}

fn server(kind: server_message::Kind) -> v1::ServerMessage {
    v1::ServerMessage { kind: Some(kind) }
}

/// The frame as prost writes it.
fn framed(message: &impl ProstMessage) -> Vec<u8> {
    message.encode_length_delimited_to_vec()
}

/// A length prefix as prost writes it.
fn prost_length(bytes: usize, out: &mut Vec<u8>) {
    prost::encode_length_delimiter(bytes, out).expect("a vector takes any number of bytes");
}

const PUBLISHED: v1::Published =
    v1::Published { request: 0, message_id: 1, offset: 2, connections: 3, epoch: 4 };
