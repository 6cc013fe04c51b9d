//! Clients that drop and come back.

use weir_wire::v1::Position;

use super::*;
use crate::protocol::ComeBack;

/// Accepts a client that comes back and tells how it is received; where it wants to go on.
fn welcome_back(
    listener: &TcpListener,
    recovered: bool,
    position: Option<Position>,
) -> (TcpStream, Option<Position>) {
    let (mut conn, hello) = greeted(listener);
    let asked = hello.topics[0].position;
    say(
        &mut conn,
        Kind::Welcome(Welcome { connection_id: 2, heartbeat_ms: 1000, server_time_ms: 0 }),
    );
    let position = position.or(asked);
    say(
        &mut conn,
        Kind::Subscribed(Subscribed { topic: "bench/0".to_owned(), position, recovered }),
    );
    (conn, asked)
}

#[test]
fn who_comes_back_goes_on_where_it_left_off() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bench = Bench::start();
    bench.say(&Order::Open(plan(listener.local_addr().unwrap(), 2)));
    let begin = Some(Position { epoch: 7, offset: 41 });
    let mut conns: Vec<TcpStream> =
        (0..2).map(|_| welcome_back(&listener, false, begin).0).collect();
    assert!(matches!(bench.hear(), Answer::Opened { connected: 2, error: None, .. }));
    bench.tell(&Order::Begin);
    let before = push_at(0, 42);
    conns.iter_mut().for_each(|conn| conn.write_all(&before).unwrap());
    assert_eq!(bench.collect(1, 10_000).delivered, 2);
    bench.tell(&Order::ComeBack(ComeBack {
        to: Vec::new(),
        share: 0.5,
        spread_ms: 20,
        again_ms: None,
    }));
    let missed = [push_at(1, 43), push_at(2, 44)].concat();
    let (mut back, asked) = welcome_back(&listener, true, None);
    assert_eq!(asked, Some(Position { epoch: 7, offset: 42 }));
    let live = push_at(3, 45);
    for conn in [&mut conns[0], &mut back] {
        conn.write_all(&missed).unwrap();
        conn.write_all(&live).unwrap();
    }
    let tally = bench.collect(4, 10_000);
    assert_eq!((tally.delivered, tally.lost(), tally.duplicates), (8, 0, 0), "{tally:?}");
    assert_eq!((tally.recovered, tally.unrecovered, tally.away), (1, 0, 0), "{tally:?}");
    assert_eq!((tally.closed, tally.open, tally.wrong), (0, 2, 0), "{tally:?}");
    bench.tell(&Order::ComeBack(ComeBack {
        to: Vec::new(),
        share: 1.0,
        spread_ms: 0,
        again_ms: None,
    }));
    let fresh = Some(Position { epoch: 8, offset: 0 });
    let backs = [0, 1].map(|_| welcome_back(&listener, false, fresh));
    assert!(backs.iter().all(|(_, asked)| *asked == Some(Position { epoch: 7, offset: 45 })));
    let [(mut first, _), (mut second, _)] = backs;
    let again = push_at(4, 1);
    first.write_all(&again).unwrap();
    second.write_all(&[again, push_at(6, 3)].concat()).unwrap();
    let tally = bench.collect(7, 300);
    assert_eq!((tally.unrecovered, tally.gaps, tally.missing), (2, 1, 2), "{tally:?}");
    bench.end();
}

#[test]
fn who_is_refused_comes_again_if_it_may() {
    let reason = CloseReason::ALL[CloseReason::COUNT - 1];
    for (again_ms, refused, closed) in [(Some(1), 1, 0), (None, 0, 1)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut bench = Bench::start();
        bench.say(&Order::Open(plan(listener.local_addr().unwrap(), 1)));
        let begin = Some(Position { epoch: 7, offset: 41 });
        let _before = welcome_back(&listener, false, begin);
        let _ = bench.hear();
        bench.tell(&Order::ComeBack(ComeBack {
            to: Vec::new(),
            share: 1.0,
            spread_ms: 0,
            again_ms,
        }));
        bench.tell(&Order::Begin);
        let (mut conn, _) = greeted(&listener);
        let code = u32::from(reason.code());
        say(&mut conn, Kind::Goodbye(Goodbye { code, ..Goodbye::default() }));
        drop(conn);
        let back = again_ms.map(|_| {
            let (mut back, _) = welcome_back(&listener, true, None);
            back.write_all(&push_at(0, 42)).unwrap();
            back
        });
        let tally = bench.collect(1, 10_000);
        assert_eq!(tally.refused.get(reason.name()).copied().unwrap_or(0), refused, "{tally:?}");
        assert_eq!((tally.closed, tally.recovered), (closed, refused), "{tally:?}");
        drop(back);
        bench.end();
    }
}
