//! The start of an HTTP client: a request, an answer, and for WebSocket a `Hello`.

use std::io::Write;

use rustix::io::Errno;
use rustix::net::sockopt;
use weir_wire::format::Format;
use weir_wire::v1::{ClientMessage, Position};
use weir_wire::ws::{self, Opcode};
use weir_wire::{ProstMessage, frame, json};

use super::conn::{Conn, Phase, hello};
use super::{Worker, event_data};
use crate::clock;
use crate::protocol::HelloPlan;

/// The nonce of RFC 6455, §1.3, and the answer to it. A fixed nonce suffices to measure a server.
const NONCE: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// Longest head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;

impl<W: Write> Worker<W> {
    /// Handles the head of a server's answer; messages follow it.
    pub(super) fn read_head(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let Some(fd) = &mut conn.fd else { return };
        let stamp = match fd.receive(super::READ_BYTES, &mut self.inbox) {
            Ok(got) if got.bytes > 0 => got.stamp,
            Ok(_) => return self.end(index, "eof"),
            Err(error) => {
                return match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN | Errno::INTR) => {}
                    _ => self.end(index, &error.to_string()),
                };
            }
        };
        conn.partial.extend_from_slice(self.inbox.content());
        let Some(end) = conn.partial.windows(4).position(|four| four == b"\r\n\r\n") else {
            if conn.partial.len() > HEAD_BYTES_MAX {
                self.end(index, "head_without_end");
            }
            return;
        };
        let all = std::mem::take(&mut conn.partial);
        let (head, rest) = all.split_at(end + 4);
        if let Some(status) = busy(head) {
            return self.end(index, &format!("http_{status}"));
        }
        let result = check_head(conn.form, head).and_then(|()| self.say_hello(index));
        let conn = &mut self.conns[index];
        let result = result.and_then(|()| {
            conn.phase = Phase::Greeting;
            self.counter.take(index, conn, rest, stamp)
        });
        match result {
            Ok(()) => self.settle(index),
            Err(error) => {
                self.counter.note(error);
                self.end(index, "upgrade");
            }
        }
    }

    /// Over WebSocket, `Hello` comes first.
    fn say_hello(&mut self, index: usize) -> Result<(), String> {
        let Some(hello_plan) = self.plan.as_ref().and_then(|plan| plan.hello.as_ref()) else {
            return Ok(());
        };
        let conn = &mut self.conns[index];
        let topic = self.counter.topic(conn.stream);
        let message = hello(hello_plan, &conn.device, topic, conn.position);
        conn.say(&message)
    }

    /// The kernel has connected a client that begins with HTTP.
    pub(super) fn ask_for_messages(&mut self, index: usize) {
        let Some(plan) = &self.plan else { return };
        let conn = &mut self.conns[index];
        if let Some(away) = &mut conn.away {
            away.hello_ns = clock::realtime_ns();
        }
        let Some(fd) = &mut conn.fd else { return };
        let nobody = HelloPlan::default();
        let hello = plan.hello.as_ref().unwrap_or(&nobody);
        let host = plan.edge.unwrap_or(plan.addr).to_string();
        let topic = self.counter.topic(conn.stream);
        let request = request(conn.form, &host, (hello, &conn.device), topic, conn.position);
        let result = sockopt::socket_error(&*fd)
            .and_then(|error| error)
            .and_then(|()| {
                let interest = super::EventFlags::IN;
                super::epoll::modify(&self.epoll, &*fd, event_data(index), interest)
            })
            // A fresh socket takes a small request whole.
            .and_then(|()| fd.send(request.as_bytes()).map(|_| ()));
        match result {
            Ok(()) => conn.phase = Phase::Upgrading,
            Err(error) => self.end(index, &format!("connect_{error:?}").to_lowercase()),
        }
    }
}

impl Conn {
    /// Sends the message of this frame in the format of this client. `false`: the socket has no
    /// room, and nothing was sent.
    pub(super) fn pass(&mut self, framed: &[u8]) -> Result<bool, String> {
        let body = || match frame::decode(framed, usize::MAX) {
            Ok(Some((body, _))) => Ok(body),
            Ok(None) | Err(_) => Err("no frame".to_owned()),
        };
        let out = match self.form {
            Format::Stream => framed.to_vec(),
            Format::Sse => return Ok(false),
            Format::WsProtobuf => client_frame(Opcode::Binary, body()?),
            Format::WsJson => {
                let message = ClientMessage::decode(body()?).map_err(|error| error.to_string())?;
                client_frame(Opcode::Text, json::client_message_to_json(&message).as_bytes())
            }
        };
        match self.fd.as_mut().map(|fd| fd.send(&out)) {
            None | Some(Err(Errno::AGAIN)) => Ok(false),
            Some(Ok(sent)) if sent == out.len() => Ok(true),
            // Only a part of it was sent, so nothing can follow it.
            Some(Ok(_)) => Err("a message was sent in part".to_owned()),
            Some(Err(error)) => Err(format!("cannot send: {error}")),
        }
    }

    /// Sends a message in the format of this client, which is not the one of TCP.
    fn say(&mut self, message: &ClientMessage) -> Result<(), String> {
        match self.form {
            Format::Stream | Format::Sse => Ok(()),
            Format::WsProtobuf => self.send_frame(Opcode::Binary, &message.encode_to_vec()),
            Format::WsJson => {
                self.send_frame(Opcode::Text, json::client_message_to_json(message).as_bytes())
            }
        }
    }

    /// Sends a WebSocket frame.
    pub(super) fn send_frame(&mut self, opcode: Opcode, payload: &[u8]) -> Result<(), String> {
        let Some(fd) = &mut self.fd else { return Ok(()) };
        let out = client_frame(opcode, payload);
        match fd.send(&out) {
            Ok(sent) if sent == out.len() => Ok(()),
            Ok(sent) => Err(format!("{sent} of {} bytes were sent", out.len())),
            Err(error) => Err(format!("cannot send: {error}")),
        }
    }
}

fn client_frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ws::encode_client_frame(opcode, payload, rand::random(), &mut out);
    out
}

/// The first request of a client.
fn request(
    form: Format,
    host: &str,
    (plan, device): (&HelloPlan, &str),
    topic: &str,
    position: Option<Position>,
) -> String {
    let protocol = match form {
        Format::Stream | Format::Sse => return sse_request(host, (plan, device), topic, position),
        Format::WsProtobuf => "weir.v1.protobuf",
        Format::WsJson => "weir.v1.json",
    };
    format!(
        "GET /v1/connect HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {NONCE}\r\n\
         Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
    )
}

fn sse_request(
    host: &str,
    (plan, device): (&HelloPlan, &str),
    topic: &str,
    position: Option<Position>,
) -> String {
    let mut query = Vec::new();
    if plan.subscribe {
        query.push(format!("topic={topic}"));
    }
    let mut fields = String::new();
    if plan.token.is_empty() {
        query.push(format!("device={device}"));
    } else {
        fields += &format!("Authorization: Bearer {}\r\n", plan.token_of(device));
    }
    if let Some(Position { epoch, offset }) = position {
        fields += &format!("Last-Event-ID: {epoch:016x}-{offset}\r\n");
    }
    let query = query.join("&");
    format!(
        "GET /v1/sse?{query} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n{fields}\r\n"
    )
}

/// The status line of an answer, and its fields.
struct Answered<'a> {
    status: &'a str,
    fields: Vec<(&'a str, &'a str)>,
}

impl Answered<'_> {
    fn read(head: &[u8]) -> Result<Answered<'_>, String> {
        let head = std::str::from_utf8(head).map_err(|error| error.to_string())?;
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap_or_default();
        Ok(Answered { status, fields: lines.filter_map(|line| line.split_once(':')).collect() })
    }

    /// The number of the status; empty: there is none.
    fn code(&self) -> &str {
        self.status.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default()
    }

    /// Empty: it is not there.
    fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value.trim())
    }
}

/// The status of an answer that tells the client to come again later.
fn busy(head: &[u8]) -> Option<u16> {
    let answered = Answered::read(head).ok()?;
    let status = answered.code().parse().ok()?;
    (matches!(status, 429 | 503) && !answered.field("retry-after").is_empty()).then_some(status)
}

/// Checks that an answer fits the request.
fn check_head(form: Format, head: &[u8]) -> Result<(), String> {
    let answered = Answered::read(head)?;
    let (code, demanded) = match form {
        Format::Stream | Format::Sse => ("200", [("content-type", "text/event-stream")].to_vec()),
        Format::WsProtobuf => ("101", websocket("weir.v1.protobuf")),
        Format::WsJson => ("101", websocket("weir.v1.json")),
    };
    if answered.code() != code {
        return Err(format!("the server answered {:?} instead of {code}", answered.status));
    }
    for (name, value) in demanded {
        let said = answered.field(name);
        if said != value {
            return Err(format!("the server answered with {name} {said:?} instead of {value:?}"));
        }
    }
    Ok(())
}

fn websocket(protocol: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![("sec-websocket-accept", ACCEPT), ("sec-websocket-protocol", protocol)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_events_names_its_topic_and_who_it_is() {
        let plan = HelloPlan { token: String::new(), subscribe: true };
        let asked = request(Format::Sse, "h:1", (&plan, "me"), "bench/1/0", None);
        assert!(asked.starts_with("GET /v1/sse?topic=bench/1/0&device=me "), "{asked}");
        let plan = HelloPlan { token: "secret".to_owned(), subscribe: true };
        let position = Some(Position { epoch: 0xab, offset: 7 });
        let asked = request(Format::Sse, "h:1", (&plan, "me"), "t", position);
        for part in
            ["topic=t HTTP/1.1\r\n", "Bearer secret\r\n", "Last-Event-ID: 00000000000000ab-7\r\n"]
        {
            assert!(asked.contains(part), "{asked}");
        }
    }

    #[test]
    fn an_answer_must_be_what_was_asked_for() {
        let good = format!(
            "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\
             sec-websocket-protocol: weir.v1.json\r\n\r\n"
        );
        assert_eq!(check_head(Format::WsJson, good.as_bytes()), Ok(()));
        assert!(check_head(Format::WsProtobuf, good.as_bytes()).is_err());
        let wrong = good.replace(ACCEPT, "x");
        assert!(check_head(Format::WsJson, wrong.as_bytes()).is_err());
        let events = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        assert_eq!(check_head(Format::Sse, events), Ok(()));
        let error = check_head(Format::Sse, b"HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err();
        assert!(error.contains("404"), "{error}");
    }

    #[test]
    fn a_refusal_that_says_when_to_come_again_has_its_status() {
        let refusal = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\r\n";
        assert_eq!(busy(refusal), Some(503));
        assert_eq!(busy(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), None);
        assert_eq!(busy(b"HTTP/1.1 404 Not Found\r\nRetry-After: 1\r\n\r\n"), None);
        assert_eq!(busy(b"\xff\r\n\r\n"), None);
        assert!(check_head(Format::WsJson, refusal).unwrap_err().contains("503"));
    }
}
