//! A gateway on free ports and a scripted device, so that a test reads as the conversation.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir::{Config, Gateway, GatewayBuilder};
use weir_wire::v1::{ClientMessage, Hello, ServerMessage, Subscribe};
pub(crate) use weir_wire::v1::{client_message::Kind as Says, server_message::Kind as Hears};
use weir_wire::{CloseReason, ProstMessage, frame};

/// Nothing here takes this long; what does, hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Free ports, two shards, a small budget, a short drain.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
    config.listen.tcp = vec![free];
    config.listen.udp = vec![];
    config.listen.admin = None;
    config.listen.http = vec![];
    config.threads.shards = 2;
    config.threads.pin = false;
    config.memory.budget_bytes = 16 << 20;
    config.connection.drain_timeout = Duration::ZERO;
    config
}

pub(crate) async fn start(config: Config) -> Gateway {
    start_with(Gateway::builder().config(config)).await
}

pub(crate) async fn start_with(builder: GatewayBuilder) -> Gateway {
    builder.start().await.unwrap()
}

pub(crate) struct Peer<S = TcpStream> {
    pub(crate) stream: S,
    buf: Vec<u8>,
}

impl Peer {
    pub(crate) async fn connect(gateway: &Gateway) -> Peer {
        Peer::over(TcpStream::connect(gateway.tcp_addrs()[0]).await.unwrap())
    }

    /// Connects and says hello without a token; returns when `Welcome` has come.
    pub(crate) async fn settled(gateway: &Gateway, device: &str, topics: &[&str]) -> Peer {
        let mut peer = Peer::connect(gateway).await;
        peer.say(hello(device, "", topics)).await;
        peer.welcome().await;
        for topic in topics {
            assert_eq!(peer.subscribed().await.0, *topic);
        }
        peer
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// Over a stream that is connected.
    pub(crate) fn over(stream: S) -> Self {
        Peer { stream, buf: Vec::new() }
    }

    pub(crate) async fn say(&mut self, kind: Says) {
        self.stream.write_all(&encode(kind)).await.unwrap();
    }

    /// The next message; `None` at the end of the stream.
    pub(crate) async fn hear(&mut self) -> Option<Hears> {
        timeout(PATIENCE, self.read()).await.expect("the gateway says something in time")
    }

    pub(crate) async fn welcome(&mut self) -> weir_wire::v1::Welcome {
        match self.hear().await {
            Some(Hears::Welcome(welcome)) => welcome,
            other => panic!("no welcome but {other:?}"),
        }
    }

    /// Topic and offset of the next `Subscribed`.
    pub(crate) async fn subscribed(&mut self) -> (String, u64) {
        match self.hear().await {
            Some(Hears::Subscribed(subscribed)) => {
                (subscribed.topic, subscribed.position.unwrap().offset)
            }
            other => panic!("no subscribed but {other:?}"),
        }
    }

    pub(crate) async fn push(&mut self) -> weir_wire::v1::Push {
        match self.hear().await {
            Some(Hears::Push(push)) => push,
            other => panic!("no push but {other:?}"),
        }
    }

    pub(crate) async fn error(&mut self) -> weir_wire::v1::Error {
        match self.hear().await {
            Some(Hears::Error(error)) => error,
            other => panic!("no error but {other:?}"),
        }
    }

    /// Hears `Goodbye` for this reason, and then the end.
    pub(crate) async fn expect_goodbye(&mut self, reason: CloseReason) {
        match self.hear().await {
            Some(Hears::Goodbye(goodbye)) => {
                assert_eq!(
                    (goodbye.code, goodbye.reason.as_str()),
                    (reason.code().into(), reason.name())
                );
            }
            other => panic!("no goodbye for {reason} but {other:?}"),
        }
        assert_eq!(self.hear().await, None);
    }

    async fn read(&mut self) -> Option<Hears> {
        loop {
            if let Some((body, taken)) = frame::decode(&self.buf, 1 << 20).unwrap() {
                let message = ServerMessage::decode(body).unwrap();
                self.buf.drain(..taken);
                return message.kind;
            }
            if self.stream.read_buf(&mut self.buf).await.unwrap() == 0 {
                assert!(self.buf.is_empty(), "the stream ends within a frame");
                return None;
            }
        }
    }
}

pub(crate) fn encode(kind: Says) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&ClientMessage { kind: Some(kind) }, &mut out);
    out
}

pub(crate) fn hello(device: &str, token: &str, topics: &[&str]) -> Says {
    let subscribe =
        |topic: &&str| Subscribe { topic: (*topic).to_owned(), position: None, presence: false };
    Says::Hello(Hello {
        device_id: device.to_owned(),
        token: token.to_owned(),
        topics: topics.iter().map(subscribe).collect(),
        ..Hello::default()
    })
}

/// Asks again until it holds: for what the shards report in their own time.
pub(crate) async fn eventually(mut holds: impl FnMut() -> bool, what: &str) {
    let ask = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, ask).await.unwrap_or_else(|_| panic!("never: {what}"));
}
