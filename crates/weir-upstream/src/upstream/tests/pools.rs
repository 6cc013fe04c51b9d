//! Connections for HTTP/1.1: places, queue, reuse, upkeep.

use http_body::Body;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use super::*;

fn with(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = settings();
    change(&mut settings);
    settings
}

#[tokio::test(start_paused = true)]
async fn one_connection_serves_one_request_after_another() {
    let peers = Peers::new([Act::Answer(200)]);
    let upstream = peers.upstream(settings());
    for _ in 0..10 {
        assert_eq!(upstream.try_send(get()).await.unwrap(), 200);
        assert_eq!(upstream.try_send(post()).await.unwrap(), 200);
    }
    assert_eq!(peers.peer(0).dials(), 1);
    let status = &upstream.status().endpoints[0];
    assert_eq!((status.connections, status.connections_idle, status.in_flight), (1, 1, 0));
    assert_eq!((status.requests, status.failures), (20, 0));
}

#[tokio::test(start_paused = true)]
async fn the_connection_used_last_is_used_next() {
    let peers = Peers::new([Act::After(MS, 200)]);
    let upstream = peers.upstream(with(|it| it.pool.idle_timeout = 5 * SECOND));
    let send = || upstream.try_send(get());
    let (first, second, third) = tokio::join!(send(), send(), send());
    assert!([first, second, third].iter().all(Result::is_ok));
    assert_eq!(peers.peer(0).open(), 3);
    for _ in 0..10 {
        sleep(SECOND).await;
        upstream.try_send(get()).await.unwrap();
    }
    assert_eq!((peers.peer(0).dials(), peers.peer(0).open()), (3, 1), "the others were idle");
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_a_place_in_order_and_only_so_many() {
    let peers = Peers::new([Act::After(100 * MS, 200)]);
    let upstream = peers.upstream(with(|it| {
        it.pool.connections_max = 1;
        it.pool.waiting_max = 2;
    }));
    let send = || {
        let upstream = upstream.clone();
        tokio::spawn(async move { upstream.try_send(get()).await })
    };
    let (first, second, third) = (send(), send(), send());
    settle().await;
    assert_eq!(upstream.status().waiting, 2);
    let refused = upstream.try_send(get()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.may_have_been_sent()), ("full", false));
    first.await.unwrap().unwrap();
    settle().await;
    assert_eq!(upstream.status().waiting, 1);
    second.await.unwrap().unwrap();
    third.await.unwrap().unwrap();
    let status = upstream.status();
    assert_eq!((status.waiting, status.failures.full), (0, 1));
    assert_eq!(peers.peer(0).dials(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_the_deadline() {
    let peers = Peers::new([Act::Silent]);
    let upstream = peers.upstream(with(|it| {
        it.pool.connections_max = 1;
        it.deadline = SECOND;
    }));
    let deadline = Some(Instant::now() + 500 * MS);
    let waits = upstream.send(get(), SendOptions { deadline, ..SendOptions::default() });
    let (first, second) = tokio::join!(upstream.try_send(get()), waits);
    let (first, second) = (first.unwrap_err(), second.err().unwrap());
    assert_eq!((first.kind(), first.may_have_been_sent()), ("timed_out", true));
    assert_eq!((second.kind(), second.may_have_been_sent()), ("timed_out", false));
    let status = upstream.status();
    assert_eq!((status.waiting_timed_out, status.waiting), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_the_peer_has_closed_is_skipped() {
    let peers = Peers::new([Act::AnswerAndClose]);
    let upstream = peers.upstream(settings());
    for _ in 0..5 {
        upstream.try_send(post()).await.unwrap();
        settle().await;
    }
    assert_eq!(peers.peer(0).dials(), 5);
    let status = upstream.status();
    assert_eq!((status.retries, status.endpoints[0].failures), (0, 0));
    // Without a request, upkeep closes it.
    sleep(2 * SECOND).await;
    assert_eq!(upstream.status().endpoints[0].connections, 0);
}

#[tokio::test(start_paused = true)]
async fn to_drop_a_request_or_a_body_closes_the_connection_and_frees_its_place() {
    let peers = Peers::new([Act::Silent]);
    let upstream = peers.upstream(with(|it| it.pool.connections_max = 1));
    assert!(timeout(SECOND, upstream.try_send(get())).await.is_err());
    let status = upstream.status().endpoints.remove(0);
    assert_eq!((status.connections, status.in_flight), (0, 0));
    settle().await;
    assert_eq!(peers.peer(0).open(), 0);

    peers.peer(0).set(Act::Half);
    let answer = upstream.head(get()).await;
    assert_eq!(upstream.status().endpoints[0].connections, 1);
    drop(answer);
    let status = upstream.status().endpoints.remove(0);
    assert_eq!((status.connections, status.in_flight), (0, 0));
    settle().await;
    assert_eq!(peers.peer(0).open(), 0);

    peers.peer(0).set(Act::Unreachable);
    assert!(timeout(SECOND, upstream.try_send(get())).await.is_err());
    assert_eq!(upstream.status().endpoints[0].connections, 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_reads_to_its_end_is_no_failure() {
    let peers = Peers::new([Act::Half]);
    let upstream = peers.upstream(settings());
    let mut body = upstream.head(get()).await.into_body();
    assert!(!body.is_end_stream());
    let frame = body.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "do");
    assert!(timeout(SECOND, body.frame()).await.is_err(), "the rest never comes");
    drop(body);
    assert_eq!(upstream.status().endpoints[0].failures, 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_is_a_failure() {
    let peers = Peers::new([Act::Break]);
    let upstream = peers.upstream(settings());
    let mut body = upstream.head(get()).await.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "do");
    let error = body.frame().await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_sent()), ("broken", true));
    drop(body);
    settle().await;
    let status = upstream.status().endpoints.remove(0);
    assert_eq!((status.failures, status.in_flight, status.connections), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_upgraded_connection_keeps_its_place_until_it_ends() {
    let peers = Peers::new([Act::Switch]);
    let upstream = peers.upstream(with(|it| it.pool.connections_max = 1));
    let mut request = get();
    request.headers_mut().insert("connection", "upgrade".parse().unwrap());
    request.headers_mut().insert("upgrade", "echo".parse().unwrap());
    let answer = upstream.head(request).await;
    assert_eq!(answer.status(), 101);
    let mut upgraded = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    upgraded.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    upgraded.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
    let status = upstream.status().endpoints.remove(0);
    assert_eq!((status.connections, status.connections_idle), (1, 0));
    peers.peer(0).set(Act::Answer(200));
    assert!(timeout(SECOND, upstream.try_send(get())).await.is_err(), "there is one place");
    drop(upgraded);
    settle().await;
    assert_eq!(upstream.status().endpoints[0].connections, 0);
    upstream.try_send(get()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn connections_are_opened_ahead_and_kept() {
    let peers = Peers::new([Act::Answer(200), Act::Answer(200)]);
    let upstream = peers.upstream(with(|it| it.pool.connections_min = 2));
    sleep(10 * MS).await;
    assert_eq!([0, 1].map(|index| peers.peer(index).open()), [2, 2]);
    upstream.try_send(get()).await.unwrap();
    sleep(300 * SECOND).await;
    assert_eq!([0, 1].map(|index| peers.peer(index).open()), [2, 2]);
    assert_eq!([0, 1].map(|index| peers.peer(index).dials()), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn connections_are_rotated() {
    let peers = Peers::new([Act::Answer(200)]);
    let upstream = peers.upstream(with(|it| it.pool.age_max = 100 * SECOND));
    for _ in 0..100 {
        upstream.try_send(get()).await.unwrap();
        sleep(10 * SECOND).await;
    }
    let dials = peers.peer(0).dials();
    assert!((10..=14).contains(&dials), "{dials}");
    assert_eq!(peers.peer(0).open(), 1);
    drop(upstream);
    sleep(2 * SECOND).await;
    assert_eq!(peers.peer(0).open(), 0, "connections go with the upstream");
}

#[tokio::test(start_paused = true)]
async fn an_early_answer_does_not_stop_the_body_of_the_request() {
    let peers = Peers::new([Act::Answer(200)]);
    let upstream = peers.upstream(settings());
    let (send, body) = streamed();
    // The peer takes the request for one without a body, and answers at once.
    let answer = upstream.head(Request::post("/").body(body).unwrap()).await;
    send.send(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n")).await.unwrap();
    send.send(Bytes::from_static(b"more")).await.unwrap();
    settle().await;
    // The peer takes the first piece for another request: so it has arrived.
    assert_eq!(peers.peer(0).heads.lock().unwrap().len(), 2);
    drop(answer);
}
