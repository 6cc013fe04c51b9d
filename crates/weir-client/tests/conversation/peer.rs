//! The scripted peer, and what the conversations have in common.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir_client::{Client, Event, Options, Payload, Push};
use weir_wire::v1::client_message::Kind as FromDevice;
use weir_wire::v1::server_message::Kind as ToDevice;
use weir_wire::{ProstMessage, frame, v1};

/// The other end of a client's connection; it says and expects what the test tells it to.
pub(crate) struct Peer<S = TcpStream> {
    pub(crate) socket: S,
    pub(crate) unread: Vec<u8>,
}

impl Peer {
    pub(crate) async fn accept(listener: &TcpListener) -> Peer {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        Peer::over(socket)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub(crate) fn over(socket: S) -> Peer<S> {
        Peer { socket, unread: Vec::new() }
    }

    pub(crate) async fn hears(&mut self) -> FromDevice {
        loop {
            if let Some((body, taken)) = frame::decode(&self.unread, usize::MAX).unwrap() {
                let message = v1::ClientMessage::decode(body).unwrap();
                self.unread.drain(..taken);
                return message.kind.unwrap();
            }
            assert_ne!(self.socket.read_buf(&mut self.unread).await.unwrap(), 0, "client is gone");
        }
    }

    pub(crate) async fn hears_hello(&mut self) -> v1::Hello {
        let heard = self.hears().await;
        let FromDevice::Hello(hello) = heard else { panic!("expected Hello, heard {heard:?}") };
        hello
    }

    pub(crate) async fn says(&mut self, kind: ToDevice) {
        self.says_bytes(&framed(kind)).await;
    }

    pub(crate) async fn says_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
        self.socket.flush().await.unwrap();
    }

    pub(crate) async fn welcomes(&mut self, heartbeat_ms: u32) {
        self.says(ToDevice::Welcome(v1::Welcome {
            connection_id: 77,
            heartbeat_ms,
            server_time_ms: 1_700_000_000_000,
        }))
        .await;
    }
}

pub(crate) fn framed(kind: ToDevice) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&v1::ServerMessage { kind: Some(kind) }, &mut bytes);
    bytes
}

pub(crate) async fn listener() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A client that has been welcomed with this heartbeat, and its peer.
pub(crate) async fn pair(options: Options, heartbeat_ms: u32) -> (Client, Peer) {
    let (listener, addr) = listener().await;
    let welcome = async {
        let mut peer = Peer::accept(&listener).await;
        peer.hears_hello().await;
        peer.welcomes(heartbeat_ms).await;
        peer
    };
    let (client, peer) = tokio::join!(Client::connect(addr, options), welcome);
    (client.unwrap(), peer)
}

pub(crate) async fn quiet_pair() -> (Client, Peer) {
    pair(Options::device("d"), 60_000).await
}

pub(crate) fn push(topic: &str, text: &str, offset: u64) -> v1::Push {
    v1::Push {
        topic: topic.to_owned(),
        payload: Some(v1::push::Payload::Text(text.to_owned())),
        content_type: "text/plain".to_owned(),
        key: "k".to_owned(),
        message_id: 0xfeed_0000_0000_0001,
        offset,
        sender: 3,
    }
}

pub(crate) fn pushed(topic: &str, text: &str, offset: u64) -> Event {
    Event::Push(Push {
        topic: topic.to_owned(),
        payload: Payload::Text(text.to_owned()),
        content_type: "text/plain".to_owned(),
        key: "k".to_owned(),
        message_id: 0xfeed_0000_0000_0001,
        offset,
        sender: 3,
    })
}
