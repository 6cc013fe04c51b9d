//! A worker against a small scripted server.

mod churn;
mod echo;
mod offsets;
mod pings;
mod resume;
mod room;
mod tls;
mod transport;

use std::io::{BufRead, BufReader, PipeWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use weir_wire::hot::{Payload, Push};
use weir_wire::v1::{
    ClientMessage, Goodbye, Hello, ServerMessage, Subscribed, Welcome, client_message,
    server_message::Kind,
};
use weir_wire::{CloseReason, ProstMessage, frame};

use super::*;
use crate::payload::Header;
use crate::protocol::{Check, HelloPlan, SlowPlan, Streams, Transport, to_hex};

/// A worker in a thread, with both ends of its pipes.
struct Bench {
    orders: PipeWriter,
    answers: BufReader<std::io::PipeReader>,
    thread: JoinHandle<Result<()>>,
}

impl Bench {
    fn start() -> Bench {
        let (order_reader, orders) = std::io::pipe().unwrap();
        let (answers, answer_writer) = std::io::pipe().unwrap();
        let thread = thread::spawn(move || Worker::new(order_reader.into(), answer_writer)?.run());
        Bench { orders, answers: BufReader::new(answers), thread }
    }

    fn say(&mut self, order: &Order) {
        writeln!(self.orders, "{}", serde_json::to_string(order).unwrap()).unwrap();
    }

    fn hear(&mut self) -> Answer {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn tell(&mut self, order: &Order) {
        self.say(order);
        let answer = self.hear();
        assert!(matches!(answer, Answer::Done), "{answer:?}");
    }

    fn collect(&mut self, published: u32, wait_ms: u64) -> Tally {
        self.say(&Order::Collect(Collect { published: vec![published], wait_ms, slow_too: false }));
        let Answer::Collected(tally) = self.hear() else { panic!("no tally") };
        *tally
    }

    fn end(self) {
        drop(self.orders);
        self.thread.join().unwrap().unwrap();
    }
}

fn plan(addr: SocketAddr, count: u32) -> OpenPlan {
    OpenPlan {
        addr,
        first: 0,
        count,
        source: 99,
        window: 4,
        patience_ms: 10_000,
        size: 64,
        hello: Some(HelloPlan { token: "secret".to_owned(), subscribe: true }),
        streams: Streams::Count(1),
        topic_prefix: "bench/".to_owned(),
        slow: None,
        check: Check::Streams,
        transport: Transport::Tcp,
        protocol: Protocol::Weir,
        edge: None,
        tls: None,
    }
}

fn push(seq: u32) -> Vec<u8> {
    push_at(seq, 1)
}

fn push_at(seq: u32, offset: u64) -> Vec<u8> {
    let mut text = String::new();
    Header { stream: 0, seq, sent_ns: clock::realtime_ns() }.compose(64, &mut text);
    let mut out = Vec::new();
    let payload = Payload::Text(&text);
    Push { topic: "bench/0", payload, message_id: 1, offset, ..Push::default() }
        .encode_frame(&mut out);
    out
}

fn say(conn: &mut TcpStream, kind: Kind) {
    let mut out = Vec::new();
    frame::encode(&ServerMessage { kind: Some(kind) }, &mut out);
    conn.write_all(&out).unwrap();
}

/// Accepts a client and reads its `Hello`.
fn greeted(listener: &TcpListener) -> (TcpStream, Hello) {
    let (mut conn, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    let hello = loop {
        let mut buf = [0; 1024];
        let got = conn.read(&mut buf).unwrap();
        bytes.extend_from_slice(&buf[..got]);
        if let Some((body, _)) = frame::decode(&bytes, 1024).unwrap() {
            break ClientMessage::decode(body).unwrap();
        }
    };
    let Some(client_message::Kind::Hello(hello)) = hello.kind else { panic!("{hello:?}") };
    (conn, hello)
}

/// Accepts a client, checks its `Hello` and welcomes it.
fn welcome(listener: &TcpListener) -> TcpStream {
    let (mut conn, hello) = greeted(listener);
    let peer = conn.peer_addr().unwrap();
    assert!(peer.ip().to_string().starts_with("127.99."), "{peer}");
    assert_eq!((hello.device_id.len(), hello.token.as_str()), (24, "secret"));
    assert_eq!(hello.topics[0].topic, "bench/0");
    say(
        &mut conn,
        Kind::Welcome(Welcome { connection_id: 1, heartbeat_ms: 1000, server_time_ms: 0 }),
    );
    say(
        &mut conn,
        Kind::Subscribed(Subscribed {
            topic: "bench/0".to_owned(),
            position: None,
            recovered: true,
        }),
    );
    conn
}

/// Opens `count` connections.
fn open(plan_of: impl Fn(OpenPlan) -> OpenPlan, count: u32) -> (Bench, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bench = Bench::start();
    bench.say(&Order::Open(plan_of(plan(listener.local_addr().unwrap(), count))));
    let conns = (0..count).map(|_| welcome(&listener)).collect();
    let answer = bench.hear();
    assert!(
        matches!(answer, Answer::Opened { connected, error: None, .. } if connected == count),
        "{answer:?}"
    );
    bench.tell(&Order::Begin);
    (bench, conns)
}

#[test]
fn messages_are_counted_whole_in_pieces_and_together() {
    let (mut bench, mut conns) = open(|plan| plan, 10);
    for seq in 0..3 {
        let frame = push(seq);
        for conn in &mut conns {
            let (head, tail) = frame.split_at(if seq == 1 { 1 } else { 0 });
            conn.write_all(head).unwrap();
            conn.write_all(tail).unwrap();
        }
    }
    let both = [push(3), push(4)].concat();
    conns.iter_mut().for_each(|conn| conn.write_all(&both).unwrap());
    let tally = bench.collect(5, 10_000);
    assert_eq!(
        (tally.delivered, tally.lost(), tally.duplicates, tally.wrong),
        (50, 0, 0, 0),
        "{tally:?}"
    );
    assert_eq!((tally.open, tally.closed, tally.frame_bytes), (10, 0, push(0).len() as u64));
    bench.tell(&Order::Close);
    bench.end();
}

#[test]
fn gaps_duplicates_wrong_bytes_and_closes_are_told_apart() {
    let (mut bench, mut conns) = open(|plan| plan, 5);
    let frames: Vec<_> = (0..3).map(push).collect();
    let mut wrong = frames[1].clone();
    let at = wrong.len() - 40;
    wrong[at] ^= 1;
    conns[0].write_all(&[&frames[0][..], &frames[2]].concat()).unwrap();
    conns[1].write_all(&[&frames[0][..], &frames[1], &frames[1], &frames[2]].concat()).unwrap();
    conns[2].write_all(&[&frames[0][..], &wrong, &frames[2]].concat()).unwrap();
    let goodbye = Goodbye {
        code: u32::from(CloseReason::Stalled.code()),
        reason: String::new(),
        retry_after_ms: 0,
    };
    conns[3].write_all(&frames[0]).unwrap();
    say(&mut conns[3], Kind::Goodbye(goodbye));
    conns[3].shutdown(Shutdown::Both).unwrap();
    conns[4].write_all(&[0xff; 8]).unwrap();
    let tally = bench.collect(3, 500);
    assert_eq!((tally.gaps, tally.duplicates, tally.wrong), (2, 1, 2), "{tally:?}");
    assert_eq!(tally.missing, 2 + 3, "what closed connections miss is missing");
    assert_eq!(tally.closed_by.get("stalled"), Some(&1), "{tally:?}");
    assert_eq!(tally.closed_by.get("malformed"), Some(&1), "{tally:?}");
    assert_eq!((tally.open, tally.closed), (3, 2));
    assert_eq!(tally.errors.len(), 3, "{:?}", tally.errors);
    bench.end();
}

#[test]
fn slow_clients_stop_and_resume() {
    let slow = SlowPlan { share: 0.5, recv_buffer: 8192 };
    let (mut bench, mut conns) = open(|plan| OpenPlan { slow: Some(slow), ..plan }, 2);
    bench.tell(&Order::Read(Reading::Stop));
    let first = push(0);
    conns.iter_mut().for_each(|conn| conn.write_all(&first).unwrap());
    let tally = bench.collect(1, 10_000);
    assert_eq!(
        (tally.delivered, tally.lost(), tally.missing_slow, tally.open_slow),
        (1, 0, 1, 1),
        "{tally:?}"
    );
    bench.tell(&Order::Read(Reading::Full));
    bench.say(&Order::Collect(Collect { published: vec![1], wait_ms: 10_000, slow_too: true }));
    let Answer::Collected(tally) = bench.hear() else { panic!("no tally") };
    assert_eq!((tally.delivered, tally.missing_slow, tally.gaps_slow), (2, 0, 0), "{tally:?}");
    bench.tell(&Order::Read(Reading::Paced { bytes_per_second: 1e6, stagger_ms: 0 }));
    let rest: Vec<u8> = (1..40).flat_map(push).collect();
    conns.iter_mut().for_each(|conn| conn.write_all(&rest).unwrap());
    while bench.collect(40, 10).delivered < 80 {}
    bench.end();
}

#[test]
fn bare_connections_send_and_are_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bench = Bench::start();
    bench.say(&Order::Open(OpenPlan { hello: None, ..plan(listener.local_addr().unwrap(), 1) }));
    let (mut conn, _) = listener.accept().unwrap();
    assert!(matches!(bench.hear(), Answer::Opened { connected: 1, error: None, .. }));
    let frame = push(0);
    bench.tell(&Order::Emit { frame: to_hex(&frame) });
    let mut echo = vec![0; frame.len()];
    conn.read_exact(&mut echo).unwrap();
    conn.write_all(&echo).unwrap();
    let tally = bench.collect(1, 10_000);
    assert_eq!((tally.delivered, tally.lost(), tally.wrong), (1, 0, 0), "{tally:?}");
    bench.end();
}

#[test]
fn a_refused_connection_ends_the_connect_phase() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let mut bench = Bench::start();
    bench.say(&Order::Open(plan(addr, 3)));
    let Answer::Opened { connected: 0, error: Some(error), .. } = bench.hear() else {
        panic!("connected")
    };
    assert!(error.contains("connrefused") || error.contains("refused"), "{error}");
    bench.end();
}

#[test]
fn a_server_that_says_nothing_ends_the_connect_phase() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bench = Bench::start();
    bench
        .say(&Order::Open(OpenPlan { patience_ms: 50, ..plan(listener.local_addr().unwrap(), 3) }));
    let Answer::Opened { connected: 0, error: Some(error), .. } = bench.hear() else {
        panic!("connected")
    };
    assert!(error.contains("3 connections on their way"), "{error}");
    bench.end();
}
