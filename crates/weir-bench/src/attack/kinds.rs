//! The attacks: what each connection sends, how often, and whether it reads.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use weir_wire::frame;
use weir_wire::v1::{
    ClientMessage, Hello, Refresh, Subscribe, Unsubscribe, client_message::Kind as Message,
};

use super::http2;
use super::plan::Plan;

/// One attack.
pub(super) struct Attack {
    /// The name in the report.
    pub(super) name: &'static str,
    /// The address of the attack.
    pub(super) to: SocketAddr,
    /// Whether the attack sends datagrams instead of using connections.
    pub(super) datagrams: bool,
    /// Connections held at the same time.
    pub(super) connections: u32,
    /// The first bytes of each connection, by its number.
    pub(super) opening: Box<dyn Fn(u32) -> Vec<u8>>,
    /// The bytes that follow, in turn, for ever; one datagram per piece.
    pub(super) pieces: Vec<Vec<u8>>,
    /// Pieces a second, on each connection.
    pub(super) rate: f64,
    /// Frames, requests or datagrams in a piece.
    pub(super) units: u32,
    /// Whether the attacker reads answers.
    pub(super) reads: bool,
    /// Time after which a new connection replaces this one. A connection that is closed earlier is
    /// replaced at once.
    pub(super) renewed: Option<Duration>,
}

/// A topic of long messages that nobody reads.
const NOISE: &str = "noise/1";
/// The topic whose history is requested.
pub(crate) const HISTORY: &str = "kept/1";

/// All attacks.
pub(super) fn all(plan: &Plan) -> Vec<Attack> {
    vec![
        heads(plan),
        long_paths(plan),
        unread_publishes(plan),
        unread_histories(plan),
        missing_bodies(plan),
        ping_acks(plan),
        refused_bodies(plan),
        frames(plan, "subscribe", subscribe),
        frames(plan, "unsubscribe", unsubscribe),
        frames(plan, "refresh", refresh),
        frames(plan, "hello", |index| hello(&device("again", index), "", &[])),
        half_hellos(plan),
        half_handshakes(plan),
        noise_readers(plan),
        noise(plan),
        datagrams(plan, "datagram_answers", 24_000.0, |index| {
            format!(
                r#"{{"id":{index},"error":"malformed","field":"pt","message":"no valid token"}}"#
            )
        }),
        datagrams(plan, "datagram_publishes", 9_000.0, |index| {
            format!(r#"{{"pt":"guess-{index}","publish":{{"topic":"news","text":"{index}"}}}}"#)
        }),
        datagrams(plan, "datagram_jwts", 8_000.0, |index| {
            format!(r#"{{"pt":"{}","count":1}}"#, signed(index))
        }),
    ]
}

impl Attack {
    fn on(name: &'static str, to: SocketAddr, connections: u32, opening: Vec<u8>) -> Attack {
        Attack {
            name,
            to,
            datagrams: false,
            connections,
            opening: Box::new(move |_| opening.clone()),
            pieces: Vec::new(),
            rate: 0.0,
            units: 1,
            reads: false,
            renewed: Some(RENEWED),
        }
    }
}

/// Requests with hundreds of header fields of one byte each, whose bodies never come.
fn heads(plan: &Plan) -> Attack {
    let mut opening = http2::closed_windows();
    let path = http2::field(http2::PATH, b"/v1/devices/activate");
    let many = http2::NEWEST.repeat(480);
    for index in 0..STREAMS {
        let first = if index == 0 { http2::kept_new(b"a", b"") } else { http2::NEWEST.to_vec() };
        let start = [http2::POST, http2::HTTP, &path, &authority(), &first, &many];
        http2::head(&mut opening, http2::stream(index), &start, false);
    }
    Attack { reads: true, ..Attack::on("h2_heads", plan.http, 150, opening) }
}

/// Requests for a long unknown path, of a few bytes each. The client lets no answer leave.
fn long_paths(plan: &Plan) -> Attack {
    let mut opening = http2::closed_windows();
    let path = [b"/".as_slice(), &[b'p'; 3_900]].concat();
    for index in 0..STREAMS {
        let path =
            if index == 0 { http2::kept(http2::PATH, &path) } else { http2::NEWEST.to_vec() };
        let start = [http2::GET, http2::HTTP, &path, &authority()];
        http2::head(&mut opening, http2::stream(index), &start, true);
    }
    Attack { reads: true, ..Attack::on("h2_paths", plan.http, 50, opening) }
}

/// Publishes of a thousand messages that are refused one by one. The client lets no answer leave.
fn unread_publishes(plan: &Plan) -> Attack {
    let mut opening = http2::closed_windows();
    let path = http2::field(http2::PATH, b"/v1/publish");
    let token = bearer(plan);
    let messages = vec![r#"{"topic":"","text":""}"#; 1_000].join(",");
    let body = format!(r#"{{"messages":[{messages}]}}"#);
    // As many as the connection's window permits before it is opened.
    for index in 0..2 {
        let token = if index == 0 { token.clone() } else { http2::NEWEST.to_vec() };
        let start = [http2::POST, http2::HTTP, &path, &authority(), &token];
        http2::head(&mut opening, http2::stream(index), &start, false);
        http2::body(&mut opening, http2::stream(index), body.as_bytes());
    }
    Attack { reads: true, ..Attack::on("h2_publishes", plan.http, 20, opening) }
}

/// Requests for histories of a megabyte. The client lets no answer leave.
fn unread_histories(plan: &Plan) -> Attack {
    let mut opening = http2::closed_windows();
    let place = format!("/v1/topics/{}/history?limit=1000", HISTORY.replace('/', "%2F"));
    let path = http2::field(http2::PATH, place.as_bytes());
    let token = bearer(plan);
    for index in 0..STREAMS {
        let token = if index == 0 { token.clone() } else { http2::NEWEST.to_vec() };
        let start = [http2::GET, http2::HTTP, &path, &authority(), &token];
        http2::head(&mut opening, http2::stream(index), &start, true);
    }
    Attack { reads: true, ..Attack::on("h2_histories", plan.http, 4, opening) }
}

/// As many connections as HTTP permits, each with a request whose body does not come.
fn missing_bodies(plan: &Plan) -> Attack {
    let mut opening = http2::usual_windows();
    let path = http2::field(http2::PATH, b"/v1/devices/activate");
    let start = [http2::POST, http2::HTTP, &path, &authority()];
    http2::head(&mut opening, http2::stream(0), &start, false);
    let attack = Attack::on("h2_bodies", plan.http, plan.http_connections, opening);
    Attack { reads: true, renewed: Some(Duration::from_secs(7)), ..attack }
}

/// Answers to pings that nobody sent.
fn ping_acks(plan: &Plan) -> Attack {
    let mut piece = Vec::new();
    (0..100).for_each(|_| http2::ping_ack(&mut piece));
    let attack = Attack::on("h2_ping_acks", plan.http, 1, http2::usual_windows());
    Attack { pieces: vec![piece], rate: 300.0, units: 100, reads: true, renewed: None, ..attack }
}

/// Bodies that the server refuses at their beginning, and that the client sends all the same.
fn refused_bodies(plan: &Plan) -> Attack {
    let head =
        "POST /nothing-here HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000000\r\n\r\n";
    let attack = Attack::on("h1_refused_bodies", plan.http, 20, head.into());
    Attack { pieces: vec![vec![b'b'; 16_384]], rate: 10.0, reads: true, ..attack }
}

/// A settled device that sends the same frame for ever.
fn frames(plan: &Plan, name: &'static str, says: fn(u32) -> Message) -> Attack {
    let mut piece = Vec::new();
    (0..100).for_each(|index| piece.extend(framed(says(index))));
    Attack {
        opening: Box::new(move |index| framed(hello(&device(name, index), "", &[]))),
        pieces: vec![piece],
        rate: 700.0,
        units: 100,
        reads: true,
        renewed: None,
        ..Attack::on(name, plan.tcp, 1, Vec::new())
    }
}

/// Incomplete first frames, nearly as long as a settled device may send.
fn half_hellos(plan: &Plan) -> Attack {
    let mut whole = framed(hello("somebody", &"t".repeat(62 << 10), &[]));
    whole.truncate(whole.len() - 1);
    Attack { reads: true, ..Attack::on("half_hellos", plan.tcp, 530, whole) }
}

/// Incomplete records of a TLS handshake.
fn half_handshakes(plan: &Plan) -> Attack {
    // A ClientHello of 60 KiB in records of 16 KiB; the last record is incomplete.
    let message = [[1, 0, 0xf0, 0].as_slice(), &[3, 3], &vec![0; 61_434]].concat();
    let mut opening = Vec::new();
    for part in message.chunks(16_384) {
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes();
        opening.extend([22, 3, 1, length[0], length[1]]);
        opening.extend(part);
    }
    opening.truncate(opening.len() - 1);
    Attack { reads: true, ..Attack::on("half_handshakes", plan.tls, 500, opening) }
}

/// Devices that subscribe to long messages and read none.
fn noise_readers(plan: &Plan) -> Attack {
    Attack {
        opening: Box::new(|index| framed(hello(&device("deaf", index), "", &[NOISE]))),
        renewed: None,
        ..Attack::on("noise_readers", plan.tcp, 2_000, Vec::new())
    }
}

/// The service that publishes the long messages.
fn noise(plan: &Plan) -> Attack {
    let body = format!(r#"{{"topic":"{NOISE}","text":"{}"}}"#, "n".repeat(32 << 10));
    let mut piece = String::from("POST /v1/publish HTTP/1.1\r\nHost: 127.0.0.1\r\n");
    // Writing to a string cannot fail.
    let _ = write!(piece, "Authorization: Bearer {}\r\n", plan.token);
    let _ = write!(piece, "Content-Type: application/json\r\n");
    let _ = write!(piece, "Content-Length: {}\r\n\r\n{body}", body.len());
    let attack = Attack::on("noise", plan.http, 1, Vec::new());
    Attack { pieces: vec![piece.into()], rate: 500.0, reads: true, renewed: None, ..attack }
}

fn datagrams(plan: &Plan, name: &'static str, rate: f64, says: fn(u32) -> String) -> Attack {
    Attack {
        datagrams: true,
        pieces: (0..PIECES).map(|index| says(index).into()).collect(),
        rate,
        ..Attack::on(name, plan.udp, 1, Vec::new())
    }
}

fn subscribe(index: u32) -> Message {
    Message::Subscribe(Subscribe {
        topic: format!("forbidden/{index}"),
        position: None,
        presence: false,
    })
}

fn unsubscribe(index: u32) -> Message {
    Message::Unsubscribe(Unsubscribe { topic: format!("forbidden/{index}") })
}

fn refresh(index: u32) -> Message {
    Message::Refresh(Refresh { token: format!("guess-{index}") })
}

fn hello(device: &str, token: &str, topics: &[&str]) -> Message {
    let topic =
        |topic: &&str| Subscribe { topic: (*topic).to_owned(), position: None, presence: false };
    Message::Hello(Hello {
        device_id: device.to_owned(),
        token: token.to_owned(),
        client: "siege".to_owned(),
        heartbeat_ms: 0,
        topics: topics.iter().map(topic).collect(),
        calls: false,
    })
}

fn framed(message: Message) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&ClientMessage { kind: Some(message) }, &mut out);
    out
}

fn device(name: &str, index: u32) -> String {
    format!("siege-{name}-{index}")
}

fn authority() -> Vec<u8> {
    http2::field(http2::AUTHORITY, b"127.0.0.1")
}

fn bearer(plan: &Plan) -> Vec<u8> {
    http2::kept(http2::AUTHORIZATION, format!("Bearer {}", plan.token).as_bytes())
}

/// A token of the right form with an invalid signature.
fn signed(index: u32) -> String {
    let claims = format!(r#"{{"sub":"siege-{index}","exp":4102444800}}"#);
    let signature = [u8::try_from(index % 251).unwrap_or(0) + 1; 64];
    format!(
        "{}.{}.{}",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","typ":"JWT"}"#),
        URL_SAFE_NO_PAD.encode(claims),
        URL_SAFE_NO_PAD.encode(signature)
    )
}

/// Requests on one connection: as many as the server permits.
const STREAMS: u32 = 100;
/// Different datagrams of one attack: more than it sends in a second.
const PIECES: u32 = 72_000;
/// Beyond the server's default timeouts of ten seconds, so that the server ends the connections.
const RENEWED: Duration = Duration::from_secs(15);
