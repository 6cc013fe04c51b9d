//! Messages by offset, and clients that come back to another server.

use weir_wire::v1::Position;

use super::*;
use crate::protocol::{ComeBack, Seen};

/// Accepts a client and lets it go on at this offset; returns its id and the offset that it named.
fn welcome_at(listener: &TcpListener, offset: u64, recovered: bool) -> (TcpStream, String, u64) {
    let (mut conn, hello) = greeted(listener);
    let asked = hello.topics[0].position.map_or(0, |position| position.offset);
    say(
        &mut conn,
        Kind::Welcome(Welcome { connection_id: 2, heartbeat_ms: 1000, server_time_ms: 0 }),
    );
    subscribed(&mut conn, offset, recovered);
    (conn, hello.device_id, asked)
}

fn subscribed(conn: &mut TcpStream, offset: u64, recovered: bool) {
    let position = Some(Position { epoch: 7, offset });
    say(conn, Kind::Subscribed(Subscribed { topic: "bench/0".to_owned(), position, recovered }));
}

fn opened(listener: &TcpListener) -> (Bench, Vec<(TcpStream, String, u64)>) {
    let mut bench = Bench::start();
    let plan = plan(listener.local_addr().unwrap(), 2);
    bench.say(&Order::Open(OpenPlan { check: Check::Offsets, first: 10, ..plan }));
    let conns = (0..2).map(|_| welcome_at(listener, 40, false)).collect();
    assert!(matches!(bench.hear(), Answer::Opened { connected: 2, error: None, .. }));
    bench.tell(&Order::Begin);
    (bench, conns)
}

#[test]
fn who_comes_back_elsewhere_is_the_same_device_and_misses_nothing() {
    let [old, new] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let (mut bench, mut conns) = opened(&old);
    let first = push_at(0, 41);
    conns.iter_mut().for_each(|(conn, _, _)| conn.write_all(&first).unwrap());
    assert_eq!(bench.collect(41, 10_000).delivered, 2);
    let to = vec![new.local_addr().unwrap()];
    bench.tell(&Order::ComeBack(ComeBack { to, share: 1.0, spread_ms: 0, again_ms: None }));
    let mut back = [0, 1].map(|_| welcome_at(&new, 41, true));
    let devices = |conns: &[(TcpStream, String, u64)]| {
        let mut ids: Vec<String> = conns.iter().map(|(_, device, _)| device.clone()).collect();
        ids.sort();
        ids
    };
    assert_eq!(devices(&back), devices(&conns));
    let rest = [push_at(1, 42), push_at(2, 43)].concat();
    for (conn, _, asked) in &mut back {
        assert_eq!(*asked, 41);
        conn.write_all(&rest).unwrap();
    }
    let tally = bench.collect(43, 10_000);
    assert_eq!((tally.delivered, tally.lost(), tally.duplicates), (6, 0, 0), "{tally:?}");
    assert_eq!((tally.recovered, tally.away, tally.told), (2, 0, 0), "{tally:?}");
    let mut expected = Seen::default();
    (41..44).zip(0..).for_each(|(offset, seq)| expected.add(offset, 0, seq));
    assert_eq!(tally.seen, [(0, expected)], "{tally:?}");
    bench.end();
}

#[test]
fn a_gap_is_named_unless_the_client_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut bench, mut conns) = opened(&listener);
    let push = push_at(5, 43);
    conns[0].0.write_all(&push).unwrap();
    subscribed(&mut conns[1].0, 42, false);
    conns[1].0.write_all(&push).unwrap();
    let tally = bench.collect(43, 10_000);
    assert_eq!((tally.gaps, tally.told, tally.missing), (2, 1, 0), "{tally:?}");
    let [error] = &tally.errors[..] else { panic!("{tally:?}") };
    assert!(
        error.starts_with("client 1") && error.ends_with("topic bench/0: offset 43 follows 40")
    );
    bench.end();
}
