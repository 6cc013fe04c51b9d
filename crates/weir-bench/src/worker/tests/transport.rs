//! Clients to whom messages come over HTTP, against a small scripted server.

use weir_wire::format::{Format, encode};
use weir_wire::ws::{self, Opcode};

use super::*;

/// Reads up to the end of a head.
fn head(conn: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(conn.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Reads a client's WebSocket frame.
fn frame_of_client(conn: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut start = [0; 2];
    conn.read_exact(&mut start).unwrap();
    assert_eq!(start[1] & 0x80, 0x80, "a mask");
    let length = match start[1] & 0x7f {
        126 => {
            let mut length = [0; 2];
            conn.read_exact(&mut length).unwrap();
            usize::from(u16::from_be_bytes(length))
        }
        short => usize::from(short),
    };
    let mut mask = [0; 4];
    conn.read_exact(&mut mask).unwrap();
    let mut payload = vec![0; length];
    conn.read_exact(&mut payload).unwrap();
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    (start[0] & 0x0f, payload)
}

fn say_as(conn: &mut TcpStream, form: Format, frames: &[u8]) {
    let mut out = Vec::new();
    encode(form, frames, 7, &mut out);
    conn.write_all(&out).unwrap();
}

fn kind_frame(kind: Kind) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&ServerMessage { kind: Some(kind) }, &mut out);
    out
}

/// Lets a client in by its own form, in one piece with the first message or not.
fn let_in(listener: &TcpListener, form: Format) -> TcpStream {
    let (mut conn, _) = listener.accept().unwrap();
    let asked = head(&mut conn);
    let protocol = match form {
        Format::Stream => panic!("a client of frames at the address for HTTP"),
        Format::Sse => {
            assert!(asked.starts_with("GET /v1/sse?topic=bench/0 HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains("Authorization: Bearer secret\r\n"), "{asked}");
            let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n:\n\n";
            conn.write_all(answer.as_bytes()).unwrap();
            ""
        }
        Format::WsProtobuf => "weir.v1.protobuf",
        Format::WsJson => "weir.v1.json",
    };
    if form != Format::Sse {
        assert!(asked.starts_with("GET /v1/connect HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains(&format!("Sec-WebSocket-Protocol: {protocol}\r\n")), "{asked}");
        write!(
            conn,
            "HTTP/1.1 101 Switching Protocols\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )
        .unwrap();
        let (opcode, hello) = frame_of_client(&mut conn);
        let hello = if form == Format::WsJson {
            assert_eq!(opcode, 1);
            weir_wire::json::client_message(std::str::from_utf8(&hello).unwrap()).unwrap()
        } else {
            assert_eq!(opcode, 2);
            ClientMessage::decode(&hello[..]).unwrap()
        };
        let Some(client_message::Kind::Hello(hello)) = hello.kind else { panic!("{hello:?}") };
        assert_eq!((hello.token.as_str(), hello.topics[0].topic.as_str()), ("secret", "bench/0"));
    }
    let welcome = Welcome { connection_id: 1, heartbeat_ms: 1000, server_time_ms: 0 };
    say_as(&mut conn, form, &kind_frame(Kind::Welcome(welcome)));
    let subscribed = Subscribed { topic: "bench/0".to_owned(), position: None, recovered: true };
    say_as(&mut conn, form, &kind_frame(Kind::Subscribed(subscribed)));
    conn
}

fn open_by(transport: Transport, form: Format) -> (Bench, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut bench = Bench::start();
    let edge = Some(listener.local_addr().unwrap());
    bench.say(&Order::Open(OpenPlan { transport, edge, ..plan(nowhere, 1) }));
    let conn = let_in(&listener, form);
    let answer = bench.hear();
    assert!(matches!(answer, Answer::Opened { connected: 1, error: None, .. }), "{answer:?}");
    bench.tell(&Order::Begin);
    (bench, conn)
}

const FORMS: [(Transport, Format); 3] = [
    (Transport::Ws, Format::WsProtobuf),
    (Transport::WsJson, Format::WsJson),
    (Transport::Sse, Format::Sse),
];

#[test]
fn every_transport_delivers_and_is_verified() {
    for (transport, form) in FORMS {
        let (mut bench, mut conn) = open_by(transport, form);
        let mut whole = Vec::new();
        encode(form, &push_at(0, 1), 7, &mut whole);
        let (first, second) = whole.split_at(whole.len() / 2);
        conn.write_all(first).unwrap();
        conn.write_all(second).unwrap();
        say_as(&mut conn, form, &[push_at(1, 2), push_at(2, 3)].concat());
        let tally = bench.collect(3, 10_000);
        assert_eq!(
            (tally.delivered, tally.lost(), tally.duplicates, tally.wrong),
            (3, 0, 0, 0),
            "{transport:?} {tally:?}"
        );
        bench.end();
    }
}

#[test]
fn every_transport_tells_what_is_wrong() {
    for (transport, form) in FORMS {
        let (mut bench, mut conn) = open_by(transport, form);
        say_as(&mut conn, form, &push_at(0, 1));
        let mut wrong = Vec::new();
        encode(form, &push_at(1, 2), 7, &mut wrong);
        let at = wrong.windows(8).position(|part| part == b"00000001").unwrap() + 40;
        wrong[at] ^= 1;
        conn.write_all(&wrong).unwrap();
        let last = push_at(3, 4);
        say_as(&mut conn, form, &[&last[..], &last].concat());
        let code = u32::from(CloseReason::Stalled.code());
        let goodbye = Goodbye { code, reason: "stalled".to_owned(), retry_after_ms: 5 };
        say_as(&mut conn, form, &kind_frame(Kind::Goodbye(goodbye)));
        conn.shutdown(Shutdown::Write).unwrap();
        let tally = bench.collect(5, 10_000);
        assert_eq!(
            (tally.gaps, tally.duplicates, tally.wrong),
            (2, 1, 1),
            "{transport:?} {tally:?}"
        );
        assert_eq!(tally.closed_by.get("stalled"), Some(&1), "{transport:?} {tally:?}");
        bench.end();
    }
}

#[test]
fn pings_of_websocket_are_answered_and_its_close_too() {
    let (bench, mut conn) = open_by(Transport::Ws, Format::WsProtobuf);
    let mut out = Vec::new();
    ws::put_frame_head(Opcode::Ping, 2, &mut out);
    out.extend_from_slice(b"hi");
    ws::put_close(1001, "bye", &mut out);
    conn.write_all(&out).unwrap();
    assert_eq!(frame_of_client(&mut conn), (10, b"hi".to_vec()));
    assert_eq!(frame_of_client(&mut conn), (8, 1001_u16.to_be_bytes().to_vec()));
    bench.end();
}

#[test]
fn a_mixture_is_dealt_out_within_each_topic() {
    let plan = OpenPlan {
        transport: Transport::Mixed,
        streams: Streams::Count(4),
        ..plan(SocketAddr::from(([127, 0, 0, 1], 1)), 1)
    };
    for stream in 0..4 {
        let forms: Vec<Format> = (0..4).map(|round| plan.form_of(4 * round + stream)).collect();
        assert_eq!(forms, Format::ALL);
    }
}

#[test]
fn a_refused_upgrade_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bench = Bench::start();
    let edge = Some(listener.local_addr().unwrap());
    let plan = plan(SocketAddr::from(([127, 0, 0, 1], 1)), 1);
    bench.say(&Order::Open(OpenPlan { transport: Transport::Ws, edge, ..plan }));
    let (mut conn, _) = listener.accept().unwrap();
    head(&mut conn);
    conn.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").unwrap();
    let Answer::Opened { error: Some(error), .. } = bench.hear() else { panic!("it is open") };
    assert!(error.contains("503"), "{error}");
    bench.end();
}
