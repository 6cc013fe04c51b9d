//! Connections of every kind at once: frames, WebSockets, and events over HTTP/1.1 and HTTP/2.

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use weir_wire::ProstMessage;
use weir_wire::v1::{self, client_message, server_message};

use crate::device::Device;
use crate::events::{Event, Events};
use crate::http2::Streamed;
use crate::program::Server;
use crate::socket::{Socket, Upgrade, masked};

/// A connection of each kind, of a device each, all in `news`.
pub struct Crowd {
    device: Device,
    json: Socket,
    protobuf: Socket,
    events: Events<TcpStream>,
    streamed: Events<Streamed>,
}

/// The names that metrics have for them.
pub const PROTOCOLS: [(&str, f64); 4] =
    [("tcp", 1.0), ("websocket_json", 1.0), ("websocket_protobuf", 1.0), ("sse", 2.0)];

impl Crowd {
    /// `id`: what their device ids begin with.
    pub fn enter(server: &Server, id: &str) -> Result<Crowd> {
        let http = server.http()?;
        let device = Device::greet(server.tcp, &format!("{id}-1"), &["news"])?;
        let json = Socket::greet(http, &format!("{id}-2"), &["news"])?;
        let protobuf = greet_protobuf(http, &format!("{id}-3"))?;
        let path = |number: u8| format!("/v1/sse?device={id}-{number}&topic=news");
        let mut events = Events::get(http, &path(4), "")?;
        events.settle(1)?;
        let mut streamed = Events::over(Streamed::get(http, &path(5))?);
        streamed.settle(1)?;
        Ok(Crowd { device, json, protobuf, events, streamed })
    }

    /// All hear the message that is published.
    pub fn hear(&mut self, text: &str) -> Result<()> {
        let push = self.device.push()?;
        ensure!(push.payload == Some(v1::push::Payload::Text(text.into())), "{push:?}");
        ensure!(self.json.expect("push")?["text"] == text);
        ensure!(hear_protobuf(&mut self.protobuf)? == server_message::Kind::Push(push));
        ensure!(self.events.expect("")?.data["text"] == text);
        ensure!(self.streamed.expect("")?.data["text"] == text);
        Ok(())
    }

    /// All are told the same end, each in its way.
    pub fn are_told(&mut self, code: u16, reason: &str) -> Result<()> {
        let goodbye = self.device.goodbye()?;
        assert_eq!((goodbye.code, goodbye.reason.as_str()), (code.into(), reason));
        assert_eq!(self.json.goodbye()?, (code, reason.to_owned()));
        let heard = hear_protobuf(&mut self.protobuf)?;
        let server_message::Kind::Goodbye(goodbye) = heard else { panic!("no goodbye: {heard:?}") };
        assert_eq!((goodbye.code, goodbye.reason.as_str()), (code.into(), reason));
        assert_eq!(self.protobuf.closed()?, (code, reason.to_owned()));
        for event in [self.events.goodbye()?, self.streamed.goodbye()?] {
            check_goodbye(&event, code, reason);
        }
        Ok(())
    }
}

fn check_goodbye(event: &Event, code: u16, reason: &str) {
    assert_eq!((&event.data["code"], &event.data["reason"]), (&json!(code), &json!(reason)));
    // Whoever is to come back later is told when, in a way that browsers understand.
    let delay = event.data["retryAfterMs"].as_u64();
    assert_eq!(event.retry, delay);
    assert_eq!(delay.is_some(), (4100..4200).contains(&code), "{event:?}");
}

fn greet_protobuf(http: SocketAddr, device: &str) -> Result<Socket> {
    let whole = Upgrade::default();
    let headers = whole.headers.replace("weir.v1.json", "weir.v1.protobuf");
    let mut socket = Socket::open_by(http, &Upgrade { headers: &headers, ..Upgrade::default() })?;
    let subscribe = v1::Subscribe { topic: "news".into(), position: None, presence: false };
    let hello =
        v1::Hello { device_id: device.into(), topics: vec![subscribe], ..v1::Hello::default() };
    let hello = v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) };
    socket.send(&masked(0x82, &hello.encode_to_vec()))?;
    for is_as_wanted in [
        |kind: &_| matches!(kind, server_message::Kind::Welcome(_)),
        |kind: &_| matches!(kind, server_message::Kind::Subscribed(_)),
    ] {
        let heard = hear_protobuf(&mut socket)?;
        ensure!(is_as_wanted(&heard), "{heard:?}");
    }
    Ok(socket)
}

fn hear_protobuf(socket: &mut Socket) -> Result<server_message::Kind> {
    match socket.hear()? {
        Some((0x82, body)) => v1::ServerMessage::decode(&body[..])?.kind.context("a kind"),
        other => bail!("no binary message but {other:?}"),
    }
}
