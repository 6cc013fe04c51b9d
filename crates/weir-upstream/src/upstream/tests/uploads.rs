//! How long a body may take that comes while it is sent.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, sleep};

use super::*;
use crate::settings::Protocol;

fn with(protocol: Protocol) -> Settings {
    let mut settings = settings();
    settings.protocol = protocol;
    settings.try_timeout = SECOND;
    settings.deadline = 3 * SECOND;
    settings.retry.tries_max = 1;
    settings
}

/// Speaks HTTP/1.1. It takes 64 KiB in the time of `act` until the last piece has come, and then
/// answers; `Cut` stops after the first bytes, and `Silent` never answers.
fn serve_http1(mut stream: DuplexStream, act: Act) {
    tokio::spawn(async move {
        let (mut piece, mut end) = (vec![0; 64 * 1024], Vec::new());
        while !end.ends_with(b"0\r\n\r\n") {
            let Ok(length @ 1..) = stream.read(&mut piece).await else { return };
            let from = length.saturating_sub(8);
            end.extend_from_slice(&piece[from..length]);
            pause(act, 1.0).await;
        }
        if act == Act::Silent {
            std::future::pending::<()>().await;
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").await;
        sleep(1_000 * SECOND).await;
    });
}

/// What comes before the next part of 64 KiB is taken.
async fn pause(act: Act, part: f64) {
    if let Act::After(wait, _) = act {
        sleep(wait.mul_f64(part)).await;
    } else if act == Act::Cut {
        std::future::pending::<()>().await;
    }
}

/// The same for HTTP/2.
fn serve_http2(stream: DuplexStream, act: Act) {
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            tokio::spawn(async move {
                let mut body = request.into_body();
                while let Some(Ok(piece)) = body.data().await {
                    let part = piece.len() as f64 / 65_536.0;
                    pause(act, part).await;
                    body.flow_control().release_capacity(piece.len()).unwrap();
                }
                if act == Act::Silent {
                    std::future::pending::<()>().await;
                }
                let answer = Response::builder().status(200).body(()).unwrap();
                let mut stream = respond.send_response(answer, false).unwrap();
                stream.send_data(Bytes::from_static(b"done"), true).unwrap();
            });
        }
    });
}

/// Sends pieces of this many bytes, each this long after the one before, to a peer that does `act`.
/// Without an end, the body comes to none. Tells the status, when it was there, and the failures
/// of the endpoint.
async fn upload(
    protocol: Protocol,
    act: Act,
    (pieces, bytes, pause, ends): (usize, usize, Duration, bool),
    options: SendOptions,
) -> (Option<u16>, Duration, u64) {
    let serve = match protocol {
        Protocol::Http1 => serve_http1,
        Protocol::Http2 => serve_http2,
    };
    let peers = Peers::serving([act], Some(serve));
    let upstream = peers.upstream(with(protocol));
    let (send, body) = streamed();
    let began = Instant::now();
    let sends = tokio::spawn(async move {
        for _ in 0..pieces {
            sleep(pause).await;
            if send.send(Bytes::from(vec![b'x'; bytes])).await.is_err() {
                return;
            }
        }
        if !ends {
            sleep(1_000 * SECOND).await;
        }
    });
    let answer = upstream.send(Request::put("/").body(body).unwrap(), options).await;
    let took = began.elapsed();
    sends.abort();
    if let Err(error) = &answer {
        assert_eq!((error.kind(), error.may_have_been_sent()), ("timed_out", true), "{error}");
    }
    let failures = upstream.status().endpoints[0].failures;
    (answer.ok().map(|answer| answer.status().as_u16()), took, failures)
}

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

fn is_about(took: Duration, expected: Duration) -> bool {
    took >= expected && took < expected + 50 * MS
}

#[tokio::test(start_paused = true)]
async fn a_body_may_come_slowly_for_longer_than_any_time() {
    for protocol in BOTH {
        let pieces = (20, 100, 900 * MS, true);
        let (status, took, failures) =
            upload(protocol, Act::Answer(200), pieces, SendOptions::default()).await;
        assert_eq!((status, failures), (Some(200), 0), "{protocol:?}");
        assert!(is_about(took, 18 * SECOND), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_may_take_a_body_slowly() {
    for protocol in BOTH {
        // A piece that the connection takes at once, and the service in many steps.
        let pieces = (30, 128 * 1024, MS, true);
        let (status, took, failures) =
            upload(protocol, Act::After(300 * MS, 200), pieces, SendOptions::default()).await;
        assert_eq!((status, failures), (Some(200), 0), "{protocol:?} {took:?}");
        assert!(took > 10 * SECOND, "{protocol:?} {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_is_ended_and_the_service_is_not_blamed() {
    for protocol in BOTH {
        let pieces = (5, 100, 900 * MS, false);
        let (status, took, failures) =
            upload(protocol, Act::Answer(200), pieces, SendOptions::default()).await;
        assert_eq!((status, failures), (None, 0), "{protocol:?}");
        assert!(is_about(took, 5_500 * MS), "{protocol:?} {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_stops_to_take_the_body_has_failed() {
    for protocol in BOTH {
        let pieces = (1_000, 64 * 1024, MS, true);
        let (status, took, failures) =
            upload(protocol, Act::Cut, pieces, SendOptions::default()).await;
        assert_eq!((status, failures), (None, 1), "{protocol:?}");
        assert!(took > SECOND && took < 1_500 * MS, "{protocol:?} {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_the_body_a_try_has_its_time() {
    for protocol in BOTH {
        let pieces = (4, 100, 900 * MS, true);
        let (status, took, failures) =
            upload(protocol, Act::Silent, pieces, SendOptions::default()).await;
        assert_eq!((status, failures), (None, 1), "{protocol:?}");
        assert!(is_about(took, 4_600 * MS), "{protocol:?} {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_callers_own_deadline_stays() {
    for protocol in BOTH {
        let deadline = Some(Instant::now() + 2 * SECOND);
        let options = SendOptions { deadline, ..SendOptions::default() };
        let pieces = (20, 100, 900 * MS, true);
        let (status, took, failures) = upload(protocol, Act::Answer(200), pieces, options).await;
        assert_eq!((status, failures), (None, 0), "{protocol:?}");
        assert!(is_about(took, 2 * SECOND), "{protocol:?} {took:?}");
    }
}
