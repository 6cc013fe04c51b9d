//! `weir subscribe` against a scripted gateway: how it continues after the end of a connection, and
//! what it prints.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use weir_wire::v1::client_message::Kind as FromDevice;
use weir_wire::v1::server_message::Kind as ToDevice;
use weir_wire::{ProstMessage, frame, v1};

/// The gateway's end of one connection.
struct Gateway {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Gateway {
    /// Welcomes the next connection; returns the position that it requests.
    fn welcome(listener: &TcpListener) -> (Gateway, Option<(u64, u64)>) {
        let (socket, _) = listener.accept().unwrap();
        let mut gateway = Gateway { socket, unread: Vec::new() };
        let heard = gateway.hears();
        let FromDevice::Hello(hello) = heard else { panic!("expected Hello, heard {heard:?}") };
        let [asked] = hello.topics.as_slice() else { panic!("topics in {hello:?}") };
        gateway.says(ToDevice::Welcome(v1::Welcome {
            connection_id: 7,
            heartbeat_ms: 60_000,
            server_time_ms: 0,
        }));
        (gateway, position_of(asked))
    }

    fn hears(&mut self) -> FromDevice {
        loop {
            if let Some((body, taken)) = frame::decode(&self.unread, usize::MAX).unwrap() {
                let kind = v1::ClientMessage::decode(body).unwrap().kind.unwrap();
                self.unread.drain(..taken);
                return kind;
            }
            let mut bytes = [0; 1024];
            let count = self.socket.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "the subscriber is gone");
            self.unread.extend_from_slice(&bytes[..count]);
        }
    }

    fn says(&mut self, kind: ToDevice) {
        let mut bytes = Vec::new();
        frame::encode(&v1::ServerMessage { kind: Some(kind) }, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    fn subscribes(&mut self, epoch: u64, offset: u64, recovered: bool) {
        let position = Some(v1::Position { epoch, offset });
        self.says(ToDevice::Subscribed(v1::Subscribed {
            topic: "t".to_owned(),
            position,
            recovered,
        }));
    }

    fn pushes(&mut self, offset: u64) {
        self.says(ToDevice::Push(v1::Push {
            topic: "t".to_owned(),
            payload: Some(v1::push::Payload::Text("x".to_owned())),
            offset,
            ..v1::Push::default()
        }));
    }

    /// The client must connect again soon.
    fn closes(mut self) {
        let goodbye = v1::Goodbye { code: 4000, reason: "bye".to_owned(), retry_after_ms: 0 };
        self.says(ToDevice::Goodbye(goodbye));
    }
}

fn position_of(asked: &v1::Subscribe) -> Option<(u64, u64)> {
    asked.position.map(|at| (at.epoch, at.offset))
}

/// The lines, without those about connections coming and going.
fn lines(from: impl std::io::Read) -> Vec<String> {
    let is_told = |line: &String| !line.contains("connected to") && !line.contains("goodbye");
    BufReader::new(from).lines().map(Result::unwrap).filter(is_told).collect()
}

#[test]
fn it_goes_on_where_it_was_and_says_what_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let mut subscriber = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["subscribe", "t", "--device", "d", "--count", "5", "--addr", &addr])
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    let (mut gateway, asked) = Gateway::welcome(&listener);
    assert_eq!(asked, None);
    gateway.subscribes(1, 10, false);
    gateway.pushes(11);
    gateway.closes();

    let (mut gateway, asked) = Gateway::welcome(&listener);
    assert_eq!(asked, Some((1, 11)));
    gateway.subscribes(1, 11, true);
    gateway.pushes(12);
    gateway.says(ToDevice::Unsubscribed(v1::Unsubscribed {
        topic: "t".to_owned(),
        reason: "fell_behind".to_owned(),
        position: Some(v1::Position { epoch: 1, offset: 12 }),
    }));
    let heard = gateway.hears();
    let FromDevice::Subscribe(asked) = heard else { panic!("expected Subscribe, heard {heard:?}") };
    assert_eq!(position_of(&asked), Some((1, 12)));
    gateway.subscribes(1, 20, false);
    gateway.pushes(21);
    gateway.closes();

    let (mut gateway, asked) = Gateway::welcome(&listener);
    assert_eq!(asked, Some((1, 21)));
    gateway.subscribes(2, 3, false);
    gateway.pushes(4);
    // A node has found that its cluster has lost messages.
    gateway.subscribes(3, 0, false);
    gateway.pushes(1);

    assert!(subscriber.wait().unwrap().success());
    assert_eq!(lines(subscriber.stdout.unwrap()), ["t 11 x", "t 12 x", "t 21 x", "t 4 x", "t 1 x"]);
    let expected = [
        "weir: subscribed to \"t\"",
        "weir: subscribed to \"t\" again: the messages after offset 11 follow",
        "weir: fell behind in \"t\" after offset 12: the next messages are no longer kept; subscribing \
         again",
        "weir: subscribed to \"t\" again: missed messages are lost, offsets 13 to 20",
        "weir: subscribed to \"t\" again: the messages after offset 21 are lost, and offsets \
         begin anew",
        "weir: subscribed to \"t\" again: the messages after offset 4 are lost, and offsets begin anew",
    ];
    assert_eq!(lines(subscriber.stderr.unwrap()), expected);
}
