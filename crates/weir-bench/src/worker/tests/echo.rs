//! The echo against scripts that answer, pause, lie or end.

use super::*;
use crate::protocol::{EchoPlan, EchoTally};

/// Opens a bare connection to a script and echoes over it.
fn echo(
    plan: EchoPlan,
    script: impl FnOnce(TcpStream) + Send + 'static,
) -> (EchoTally, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bench = Bench::start();
    bench.say(&Order::Open(OpenPlan {
        hello: None,
        ..self::plan(listener.local_addr().unwrap(), 1)
    }));
    let (conn, _) = listener.accept().unwrap();
    assert!(matches!(bench.hear(), Answer::Opened { connected: 1, error: None, .. }));
    let script = thread::spawn(move || script(conn));
    bench.say(&Order::Echo(plan));
    let Answer::Echoed(tally) = bench.hear() else { panic!("no tally") };
    bench.end();
    (*tally, script)
}

const ECHO: EchoPlan =
    EchoPlan { size: 64, bare: true, rate: None, warm_up_ms: 0, measure_ms: 200 };

#[test]
fn an_echo_is_counted_whole() {
    for rate in [None, Some(500.0)] {
        let (tally, script) = echo(EchoPlan { rate, ..ECHO }, |mut conn| {
            let mut buf = [0; 4096];
            while let Ok(got @ 1..) = conn.read(&mut buf) {
                conn.write_all(&buf[..got]).unwrap();
            }
        });
        script.join().unwrap();
        assert_eq!((tally.lost, tally.wrong, tally.closed), (0, 0, 0), "{tally:?}");
        assert!(tally.answered_in_all > 0, "{tally:?}");
        if rate.is_some() {
            assert_eq!(tally.answered_in_all, 100, "{tally:?}");
        }
    }
}

#[test]
fn a_pause_is_charged_with_every_message_that_it_held_up() {
    let (tally, script) = echo(EchoPlan { rate: Some(500.0), ..ECHO }, |mut conn| {
        let mut buf = [0; 4096];
        clock::sleep(Duration::from_millis(400));
        while let Ok(got @ 1..) = conn.read(&mut buf) {
            conn.write_all(&buf[..got]).unwrap();
        }
    });
    script.join().unwrap();
    assert_eq!((tally.lost, tally.answered_in_all), (0, 100), "{tally:?}");
    let mut lags = crate::stats::Lags::new();
    lags.add(&tally.lags);
    // More messages than fit on their way were due while nothing came back: the last of them after 200 ms.
    assert!(lags.quantile_ms(0.0).unwrap() >= 150.0, "{lags:?}");
}

#[test]
fn a_wrong_answer_and_a_missing_one_are_told_apart() {
    let (tally, script) = echo(ECHO, |mut conn| {
        let mut buf = [0; 4096];
        let got = conn.read(&mut buf).unwrap();
        buf[got - 1] ^= 1;
        conn.write_all(&buf[..got]).unwrap();
    });
    script.join().unwrap();
    assert_eq!((tally.wrong, tally.lost, tally.closed), (1, 1, 1), "{tally:?}");
    let (tally, script) = echo(ECHO, |mut conn| {
        let got = conn.read(&mut [0; 4096]).unwrap();
        assert!(got > 64);
    });
    script.join().unwrap();
    assert_eq!((tally.wrong, tally.lost, tally.closed), (0, 1, 1), "{tally:?}");
}
