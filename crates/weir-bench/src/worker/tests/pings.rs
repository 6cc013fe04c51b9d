//! Pings beside messages.

use weir_wire::v1::Pong;

use super::*;
use crate::protocol::PublishPlan;

/// Reads a ping of the client.
fn ping(conn: &mut TcpStream) -> Vec<u8> {
    let mut buf = [0; 64];
    let got = conn.read(&mut buf).unwrap();
    let (body, used) = frame::decode(&buf[..got], 64).unwrap().unwrap();
    assert_eq!(used, got);
    let Some(client_message::Kind::Ping(ping)) = ClientMessage::decode(body).unwrap().kind else {
        panic!("no ping")
    };
    ping.data
}

#[test]
fn a_ping_without_an_answer_shows_and_an_answer_without_a_ping() {
    let (mut bench, mut conns) = open(|plan| plan, 2);
    // Two pings in a hundredth of a second, and nobody publishes.
    let plan = PublishPlan { rate: 100.0, count: 1, pings: 200.0, ..PublishPlan::default() };
    bench.say(&Order::Publish(plan));
    assert!(matches!(bench.hear(), Answer::Published(published) if published.sent.is_empty()));
    let data: Vec<Vec<u8>> = conns.iter_mut().map(ping).collect();
    say(&mut conns[0], Kind::Pong(Pong { data: data[0].clone() }));
    let tally = bench.collect(0, 200);
    assert_eq!((tally.pongs, tally.unanswered), (1, 1), "{tally:?}");
    say(&mut conns[1], Kind::Pong(Pong { data: data[1].clone() }));
    let tally = bench.collect(0, 10_000);
    assert_eq!((tally.pongs, tally.unanswered), (2, 0), "{tally:?}");
    assert_eq!(tally.errors, Vec::<String>::new());
    let mut lags = crate::stats::Lags::new();
    lags.add(&tally.lags_ping);
    assert_eq!(lags.count(), 2);
    say(&mut conns[0], Kind::Pong(Pong { data: data[0].clone() }));
    conns[0].write_all(&push(0)).unwrap();
    conns[1].write_all(&push(0)).unwrap();
    let tally = bench.collect(1, 10_000);
    assert!(tally.errors[0].contains("unexpected"), "{tally:?}");
    bench.end();
}
