//! A device on a socket or in a TLS session, with as much of the protocol as these tests need.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_wire::v1::{
    ClientMessage, Hello, Presence, Push, ServerMessage, Subscribe, client_message, push,
    server_message,
};
use weir_wire::{ProstMessage as _, frame};

pub(super) struct Device<S = TcpStream> {
    pub(super) stream: S,
    read: Vec<u8>,
    pub(super) connection_id: u64,
}

impl Device {
    /// Connects and waits until it is subscribed to all `topics`.
    pub(super) async fn connect(addr: SocketAddr, id: &str, topics: &[&str]) -> Device {
        Device::over(TcpStream::connect(addr).await.unwrap(), id, topics).await
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Device<S> {
    /// The same over a stream that is connected.
    pub(super) async fn over(mut stream: S, id: &str, topics: &[&str]) -> Device<S> {
        let subscribe =
            |topic: &&str| Subscribe { topic: (*topic).to_owned(), ..Subscribe::default() };
        let hello = Hello {
            device_id: id.to_owned(),
            topics: topics.iter().map(subscribe).collect(),
            ..Hello::default()
        };
        let message = ClientMessage { kind: Some(client_message::Kind::Hello(hello)) };
        let mut bytes = Vec::new();
        frame::encode(&message, &mut bytes);
        stream.write_all(&bytes).await.unwrap();
        let mut device = Device { stream, read: Vec::new(), connection_id: 0 };
        let server_message::Kind::Welcome(welcome) = device.next().await else {
            panic!("the first message is Welcome")
        };
        device.connection_id = welcome.connection_id;
        for _ in topics {
            device.subscribed().await;
        }
        device
    }

    /// Subscribes, and waits for the answer.
    pub(super) async fn subscribe(&mut self, topic: &str, presence: bool) {
        let topic = topic.to_owned();
        let subscribe = Subscribe { topic, presence, ..Subscribe::default() };
        let kind = Some(client_message::Kind::Subscribe(subscribe));
        let mut bytes = Vec::new();
        frame::encode(&ClientMessage { kind }, &mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
        self.subscribed().await;
    }

    async fn subscribed(&mut self) {
        let next = self.next().await;
        assert!(matches!(next, server_message::Kind::Subscribed(_)), "{next:?}");
    }

    pub(super) async fn presence(&mut self) -> Presence {
        let next = self.next().await;
        let server_message::Kind::Presence(presence) = next else {
            panic!("not a Presence: {next:?}")
        };
        presence
    }

    pub(super) async fn push(&mut self) -> Push {
        let next = self.next().await;
        let server_message::Kind::Push(push) = next else { panic!("not a Push: {next:?}") };
        push
    }

    /// The reason of the next `Goodbye`.
    pub(super) async fn goodbye(&mut self) -> String {
        let next = self.next().await;
        let server_message::Kind::Goodbye(goodbye) = next else {
            panic!("not a Goodbye: {next:?}")
        };
        goodbye.reason
    }

    async fn next(&mut self) -> server_message::Kind {
        loop {
            if let Some((body, taken)) = frame::decode(&self.read, 1 << 20).unwrap() {
                let message = ServerMessage::decode(body).unwrap();
                self.read.drain(..taken);
                return message.kind.expect("a kind that is known");
            }
            assert_ne!(self.stream.read_buf(&mut self.read).await.unwrap(), 0, "closed");
        }
    }
}

pub(super) fn text_of(push: &Push) -> String {
    match &push.payload {
        Some(push::Payload::Text(text)) => text.clone(),
        other => panic!("not a text: {other:?}"),
    }
}
