//! How a connection is taken from HTTP, and which connection gives way when there are too many.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use weir_engine::Transport;

use super::connection::Phase;
use super::orders::Order;
use super::upgrade::Taken;
use super::*;
use crate::base::model::Spoken;
use crate::{Config, Gateway};

/// Nothing here takes so long. A test that does hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway whose connections the tests drive themselves.
struct Rig {
    gateway: Gateway,
    listener: TcpListener,
}

impl Rig {
    async fn new(change: impl FnOnce(&mut Config)) -> Rig {
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::default();
        config.listen.tcp = vec![];
        config.listen.udp = vec![];
        config.listen.http = vec![free];
        config.listen.admin = None;
        config.threads.pin = false;
        config.memory.budget_bytes = 16 << 20;
        config.connection.drain_timeout = Duration::ZERO;
        change(&mut config);
        let gateway = Gateway::builder().config(config).start().await.unwrap();
        Rig { gateway, listener: TcpListener::bind(free).await.unwrap() }
    }

    fn edge(&self) -> &Arc<Edge> {
        self.gateway.parts().1.unwrap()
    }

    fn connection(&self) -> Arc<HttpConnection> {
        let local = self.listener.local_addr().unwrap();
        let ledger = self.edge().ledger();
        let caller = Caller { peer: None, local, is_tls: false, identity: None, ledger };
        let order = self.gateway.parts().0.admission.next_order();
        HttpConnection::new(self.edge(), caller, Dialect::Http1, (order, 0))
    }

    /// A peer, and the task that serves its connection.
    async fn converse(&self) -> (TcpStream, JoinHandle<ConversationEnd>) {
        let (peer, conversation, _guest) = self.converse_over(false).await;
        (peer, conversation)
    }

    /// The same, with the state of the connection; `narrow`: over sockets with very small buffers.
    async fn converse_over(
        &self,
        narrow: bool,
    ) -> (TcpStream, JoinHandle<ConversationEnd>, Arc<HttpConnection>) {
        let peer = TcpSocket::new_v4().unwrap();
        if narrow {
            peer.set_recv_buffer_size(1).unwrap();
        }
        let peer = peer.connect(self.listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = self.listener.accept().await.unwrap();
        if narrow {
            socket2::SockRef::from(&socket).set_send_buffer_size(1).unwrap();
        }
        let shared = self.gateway.parts().0;
        let Ok(unsettled) = shared.admission.enter(Transport::Tcp, Spoken::Http, None, false)
        else {
            panic!("there is room")
        };
        let connection = self.connection();
        let known = Arc::clone(&connection);
        let conversation = tokio::spawn(async move {
            h1::converse(
                &connection,
                Stream::plain(socket),
                Vec::new(),
                Admitted::Unsettled(unsettled),
            )
            .await
        });
        (peer, conversation, known)
    }
}

async fn taken(conversation: JoinHandle<ConversationEnd>) -> Box<Taken> {
    match timeout(PATIENCE, conversation).await.expect("it ends in time").unwrap() {
        ConversationEnd::Taken(taken) => taken,
        ConversationEnd::Over(end) => panic!("it is over: {end:?}"),
        ConversationEnd::Tunnel(..) => panic!("no route leads to an upstream"),
    }
}

const HELLO: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const CONNECT: &[u8] =
    b"GET /v1/connect HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Protocol: weir.v1.json\r\n\r\n";

/// The bytes behind an upgrade request are there in their order, whether hyper has read them or
/// not.
#[tokio::test]
async fn nothing_is_lost_behind_a_request_that_is_taken() {
    let rig = Rig::new(|_| {}).await;
    for (hellos, behind) in [(0, 0), (0, 1), (1, 100), (40, 100_000)] {
        let (mut peer, conversation) = rig.converse().await;
        let extra: Vec<u8> = (0..251).cycle().take(behind).collect();
        let said = [HELLO.repeat(hellos), CONNECT.to_vec(), extra.clone()].concat();
        // The peer sends as much as the sockets hold before anybody reads on.
        let saying = tokio::spawn(async move {
            peer.write_all(&said).await.unwrap();
            if behind > 0 {
                peer.shutdown().await.unwrap();
            }
            peer
        });
        let mut taken = taken(conversation).await;
        assert_eq!(taken.request.uri(), "/v1/connect");
        assert_eq!(taken.request.headers()["upgrade"], "websocket");
        let mut heard = taken.read_ahead.clone();
        if behind > 0 {
            taken.stream.read_to_end(&mut heard).await.unwrap();
        }
        assert!(heard == extra, "{} of {} bytes", heard.len(), extra.len());
        // The request itself has no answer yet, and can be answered.
        taken.stream.write_all(b"taken").await.unwrap();
        drop(taken);
        let mut heard = String::new();
        saying.await.unwrap().read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard.matches("Hello World").count(), hellos);
        assert!(heard.ends_with(if hellos > 0 { "Hello Worldtaken" } else { "taken" }), "{heard}");
    }
    rig.gateway.shutdown().await;
}

/// More answers than the sockets hold, for a peer that begins to read late.
#[tokio::test]
async fn a_slow_reader_gets_all_answers_first() {
    const HELLOS: usize = 50_000;
    let rig = Rig::new(|_| {}).await;
    let (peer, conversation, connection) = rig.converse_over(false).await;
    let (mut reading, mut writing) = peer.into_split();
    let saying = tokio::spawn(async move {
        writing.write_all(&HELLO.repeat(HELLOS)).await.unwrap();
        writing.write_all(CONNECT).await.unwrap();
        writing
    });
    while !is_blocked(&connection) {
        assert!(!conversation.is_finished());
        tokio::task::yield_now().await;
    }
    let listening = tokio::spawn(async move {
        let mut heard = String::new();
        reading.read_to_string(&mut heard).await.unwrap();
        heard
    });
    let mut taken = taken(conversation).await;
    taken.stream.write_all(b"taken").await.unwrap();
    drop(taken);
    let heard = timeout(PATIENCE, listening).await.unwrap().unwrap();
    assert_eq!(heard.matches("Hello World").count(), HELLOS);
    assert!(heard.ends_with("Hello Worldtaken"));
    drop(saying.await.unwrap());
    rig.gateway.shutdown().await;
}

/// An answer larger than the sockets hold, behind a body that nobody has read.
#[tokio::test]
async fn an_answer_leaves_whole_before_the_connection_does() {
    let rig = Rig::new(|_| {}).await;
    let (peer, conversation, connection) = rig.converse_over(true).await;
    let (mut reading, mut writing) = peer.into_split();
    // A long answer.
    let get = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";
    writing.write_all(&[get, CONNECT].concat()).await.unwrap();
    while !is_blocked(&connection) {
        tokio::task::yield_now().await;
    }
    sleep(Duration::from_millis(10)).await;
    assert!(!conversation.is_finished());
    let listening = tokio::spawn(async move {
        let mut heard = String::new();
        reading.read_to_string(&mut heard).await.unwrap();
        heard
    });
    let mut taken = taken(conversation).await;
    taken.stream.write_all(b"taken").await.unwrap();
    drop(taken);
    let heard = timeout(PATIENCE, listening).await.unwrap().unwrap();
    assert!(heard.starts_with("HTTP/1.1 200 ") && heard.contains("/v1/devices/token/refresh"));
    assert!(heard.ends_with("}taken"), "{}", &heard[heard.len() - 100..]);
    rig.gateway.shutdown().await;
}

/// Whether the socket takes no more answers.
fn is_blocked(connection: &HttpConnection) -> bool {
    let terms = connection::Terms { head: u32::MAX, idle: u32::MAX, body: u32::MAX, stall: 0 };
    connection.overdue(u32::MAX, &terms) == Some(End::Stalled)
}

/// Only the first request came with its connection.
#[tokio::test]
async fn later_requests_come_when_they_are_read() {
    let rig = Rig::new(|_| {}).await;
    let admission = &rig.gateway.parts().0.admission;
    let connection = rig.connection();
    let other = admission.next_order();
    connection.asked(false);
    assert!(connection.accept_order() < other);
    assert_eq!(connection.accept_order(), connection.accept_order());
    connection.asked(false);
    assert!(connection.accept_order() > other);
    rig.gateway.shutdown().await;
}

#[tokio::test]
async fn who_goes_away_is_not_kept() {
    let rig = Rig::new(|_| {}).await;
    let (mut peer, conversation) = rig.converse().await;
    peer.write_all(CONNECT).await.unwrap();
    drop(peer);
    // The end comes before the connection is taken, or behind the request: then the stream ends.
    match timeout(PATIENCE, conversation).await.unwrap().unwrap() {
        ConversationEnd::Tunnel(..) => panic!("no route leads to an upstream"),
        ConversationEnd::Over(end) => assert_eq!(end, End::Peer),
        ConversationEnd::Taken(mut taken) => {
            assert_eq!(taken.stream.read(&mut [0; 8]).await.unwrap(), 0);
        }
    }
    assert_eq!(rig.gateway.handle().counters().unsettled(), 0);
    rig.gateway.shutdown().await;
}

#[tokio::test]
async fn a_body_is_not_taken() {
    let rig = Rig::new(|_| {}).await;
    let (mut peer, conversation) = rig.converse().await;
    peer.write_all(b"GET /v1/sse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        .await
        .unwrap();
    peer.shutdown().await.unwrap();
    let mut heard = String::new();
    peer.read_to_string(&mut heard).await.unwrap();
    assert!(heard.starts_with("HTTP/1.1 400 "), "{heard}");
    assert!(matches!(conversation.await.unwrap(), ConversationEnd::Over(_)));
    rig.gateway.shutdown().await;
}

#[tokio::test]
async fn the_longest_silent_one_gives_way_and_the_busy_stay() {
    let rig = Rig::new(|config| config.http.connections_max = 2).await;
    let registry = &rig.edge().registry;
    let (first, second, third) = (rig.connection(), rig.connection(), rig.connection());
    let _first = registry.enter(&first);
    let second_place = registry.enter(&second);
    // A connection that works on a request is not silent.
    first.asked(false);
    let third_place = registry.enter(&third);
    assert!(third_place.is_some());
    assert_eq!(first.orders.order(), None);
    assert_eq!(second.orders.order(), Some(Order::End(End::Crowded)));
    third.asked(false);
    assert!(registry.enter(&rig.connection()).is_none());
    assert_eq!(registry.refusal().name(), "http_connections_max");
    assert_eq!(registry.count(), 2);
    // Another connection has taken its place, so it has none to give back.
    drop(second_place);
    assert_eq!(registry.count(), 2);
    drop(third_place);
    assert_eq!(registry.count(), 1);
    rig.gateway.shutdown().await;
}

#[tokio::test]
async fn a_phase_has_its_time() {
    let rig = Rig::new(|_| {}).await;
    let connection = rig.connection();
    let terms = connection::Terms { head: 10, idle: 20, body: 30, stall: 40 };
    let due = |at| connection.overdue(at, &terms);
    assert_eq!((due(10), due(11)), (None, Some(End::HeadTimeout)));
    connection.asked(true);
    assert_eq!((connection.phase(), due(30), due(31)), (Phase::Body, None, Some(End::BodyTimeout)));
    connection.heard_all();
    assert_eq!((connection.phase(), due(1_000)), (Phase::Asked, None));
    connection.blocked();
    assert_eq!((due(40), due(41)), (None, Some(End::Stalled)));
    connection.answered();
    connection.wrote();
    assert_eq!(
        (connection.phase(), connection.is_flushed(), due(41)),
        (Phase::Answered, false, None)
    );
    connection.flushed();
    assert_eq!((connection.phase(), connection.is_flushed()), (Phase::Idle, true));
    assert_eq!((due(20), due(21)), (None, Some(End::IdleTimeout)));
    connection.heard();
    assert_eq!((connection.phase(), due(11)), (Phase::Head, Some(End::HeadTimeout)));
    rig.gateway.shutdown().await;
}
