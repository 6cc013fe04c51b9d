//! Guests of a server that welcomes, refuses or says nothing.

use weir_wire::v1::{Goodbye, Welcome};

use super::*;
use crate::protocol::{ChurnPlan, ChurnTally, HelloPlan, Ways};

/// Runs guests against a script that gets each of them in turn.
fn churn(count: u64, script: impl Fn(u64, TcpStream) + Send + 'static) -> ChurnTally {
    churn_in(count, count, Ways::default(), script)
}

/// The same in other ways, with so many connections in all.
fn churn_in(
    count: u64,
    conns: u64,
    ways: Ways,
    script: impl Fn(u64, TcpStream) + Send + 'static,
) -> ChurnTally {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bench = Bench::start();
    bench.say(&Order::Churn(ChurnPlan {
        addr: listener.local_addr().unwrap(),
        source: 98,
        hello: HelloPlan::default(),
        topic: String::new(),
        rate: 200.0,
        count,
        hold_ms: 20,
        ways,
    }));
    let server = thread::spawn(move || {
        for number in 0..conns {
            let (mut conn, peer) = listener.accept().unwrap();
            assert!(peer.ip().to_string().starts_with("127.98."), "{peer}");
            assert!(conn.read(&mut [0; 1024]).unwrap() > 0);
            script(number, conn);
        }
    });
    let Answer::Churned(tally) = bench.hear() else { panic!("no tally") };
    server.join().unwrap();
    bench.end();
    *tally
}

#[test]
fn guests_are_welcomed_and_end_with_a_reset() {
    let tally = churn(5, |_, mut conn| {
        say(&mut conn, Kind::Welcome(Welcome::default()));
        let end = conn.read(&mut [0; 64]).unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    });
    assert_eq!((tally.welcomed, tally.failed.len()), (5, 0), "{tally:?}");
}

#[test]
fn guests_that_are_refused_are_told_apart_by_reason() {
    let tally = churn(3, |number, mut conn| match number {
        0 => {
            say(&mut conn, Kind::Welcome(Welcome::default()));
            conn.read(&mut [0; 64]).unwrap_err();
        }
        1 => {
            let code = u32::from(CloseReason::TooManyConnections.code());
            say(&mut conn, Kind::Goodbye(Goodbye { code, ..Goodbye::default() }));
        }
        _ => {}
    });
    assert_eq!(tally.welcomed, 1, "{tally:?}");
    assert_eq!(tally.failed.get("too_many_connections"), Some(&1), "{tally:?}");
    assert_eq!(tally.failed.values().sum::<u64>(), 2, "{tally:?}");
}

#[test]
fn guests_that_are_refused_come_again_until_they_are_welcome() {
    let ways = Ways { retry_ms: Some(20), ..Ways::default() };
    let tally = churn_in(3, 5, ways, |number, mut conn| {
        if number >= 2 {
            say(&mut conn, Kind::Welcome(Welcome::default()));
            conn.read(&mut [0; 64]).unwrap_err();
        }
    });
    assert_eq!((tally.welcomed, tally.failed.len()), (3, 0), "{tally:?}");
    assert_eq!(tally.refused.values().sum::<u64>(), 2, "{tally:?}");
}

#[test]
fn a_script_is_followed_byte_by_byte() {
    let ways = Ways { script: vec![7, 300, 5, 1], ..Ways::default() };
    let tally = churn_in(2, 2, ways, |_, mut conn| {
        // The first seven bytes are read already.
        conn.write_all(&[0; 299]).unwrap();
        conn.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        assert!(conn.read(&mut [0; 64]).is_err(), "one byte is to come before the next step");
        conn.set_read_timeout(None).unwrap();
        conn.write_all(&[0]).unwrap();
        conn.read_exact(&mut [0; 5]).unwrap();
        conn.write_all(&[0]).unwrap();
        conn.read(&mut [0; 64]).unwrap_err();
    });
    assert_eq!((tally.welcomed, tally.script), (2, vec![7, 300, 5, 1]));
}
