//! What the fuzzer and the plain tests demand of each decoder, for any bytes at all.
//!
//! The twin of every decoder is prost. Where ours deliberately refuses more, the target says so in one place.

use weir_wire::hot::{self, FromDevice, Payload, Publish, Push};
use weir_wire::v1::{self, client_message, server_message};
use weir_wire::{PING_BYTES_MAX, ProstMessage, WireError, frame};

/// Takes any bytes; panics if the decoder does not keep its promises on them.
pub type Target = fn(&[u8]);

/// Every target under its name, which is also the name of its corpus.
pub const ALL: [(&str, Target); 4] =
    [("frame", frame), ("from_device", from_device), ("publish", publish), ("push", push)];

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
            assert_eq!(
                out,
                framed(&v1::ServerMessage { kind: Some(server_message::Kind::Push(twin)) })
            );
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

/// The one thing that prost takes and we do not: a hot kind behind another kind in the same message.
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

/// The frame as prost writes it.
fn framed(message: &impl ProstMessage) -> Vec<u8> {
    message.encode_length_delimited_to_vec()
}

/// A length prefix as prost writes it.
fn prost_length(bytes: usize, out: &mut Vec<u8>) {
    prost::encode_length_delimiter(bytes, out).expect("a vector takes any number of bytes");
}
