//! Connections for HTTP/2.

use tokio::io::DuplexStream;
use tokio::time::sleep;

use super::*;
use crate::settings::Protocol;

fn with(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = settings();
    settings.protocol = Protocol::Http2;
    change(&mut settings);
    settings
}

/// Speaks HTTP/2: answers each request as `act` says.
fn serve(stream: DuplexStream, act: Act) {
    tokio::spawn(async move {
        let mut builder = h2::server::Builder::new();
        let max = if act == Act::Switch { 2 } else { 100 };
        let Ok(mut connection) =
            builder.max_concurrent_streams(max).handshake::<_, Bytes>(stream).await
        else {
            return;
        };
        let mut count = 0;
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            count += 1;
            if act == Act::Cut && count == 1 {
                respond.send_reset(h2::Reason::REFUSED_STREAM);
                continue;
            }
            if act == Act::AnswerAndClose {
                connection.graceful_shutdown();
            }
            tokio::spawn(async move {
                let mut body = request.into_body();
                while body.data().await.is_some() {}
                let wait = if let Act::After(wait, _) = act { wait } else { MS };
                sleep(if act == Act::Silent { 1_000 * SECOND } else { wait }).await;
                let answer = Response::builder().status(200).body(()).unwrap();
                if let Ok(mut stream) = respond.send_response(answer, false) {
                    let _ = stream.send_data(Bytes::from_static(b"done"), true);
                }
            });
        }
    });
}

async fn send_all(upstream: &Upstream, count: usize) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..count {
        let upstream = upstream.clone();
        tasks.spawn(async move { upstream.try_send(post()).await });
    }
    tasks.join_all().await.into_iter().filter(|result| matches!(result, Ok(200))).count()
}

#[tokio::test(start_paused = true)]
async fn many_requests_share_one_connection_and_its_dial() {
    let peers = Peers::serving([Act::After(10 * MS, 200)], Some(serve));
    let upstream = peers.upstream(with(|_| {}));
    assert_eq!(send_all(&upstream, 100).await, 100);
    assert_eq!(peers.peer(0).dials(), 1);
    let status = upstream.status().endpoints.remove(0);
    assert_eq!((status.connections, status.connections_idle, status.in_flight), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn streams_and_connections_are_bounded() {
    let peers = Peers::serving([Act::After(100 * MS, 200)], Some(serve));
    let upstream = peers.upstream(with(|it| {
        it.pool.streams_max = 10;
        it.pool.connections_max = 3;
    }));
    let sent = tokio::spawn({
        let upstream = upstream.clone();
        async move { send_all(&upstream, 50).await }
    });
    sleep(50 * MS).await;
    let status = upstream.status();
    assert_eq!((status.endpoints[0].connections, status.waiting), (3, 20));
    assert_eq!(sent.await.unwrap(), 50);
    assert_eq!((peers.peer(0).dials(), upstream.status().waiting), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn the_peer_may_permit_fewer_streams() {
    let peers = Peers::serving([Act::Switch], Some(serve));
    let upstream = peers.upstream(with(|_| {}));
    assert_eq!(send_all(&upstream, 1).await, 1);
    assert_eq!(send_all(&upstream, 6).await, 6);
    assert_eq!(peers.peer(0).dials(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_the_peer_refuses_is_tried_again_even_if_it_is_not_idempotent() {
    let peers = Peers::serving([Act::Cut], Some(serve));
    let upstream = peers.upstream(with(|_| {}));
    assert_eq!(send_all(&upstream, 1).await, 1);
    let status = upstream.status();
    assert_eq!((status.retries, status.endpoints[0].failures), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_goes_away_ends_its_streams_and_gets_no_more() {
    let peers = Peers::serving([Act::AnswerAndClose], Some(serve));
    let upstream = peers.upstream(with(|_| {}));
    for _ in 0..5 {
        assert_eq!(send_all(&upstream, 1).await, 1);
        settle().await;
    }
    assert_eq!(peers.peer(0).dials(), 5);
    assert_eq!(upstream.status().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_fails_fails_all_that_wait_for_it() {
    let peers = Peers::serving([Act::Refuse], Some(serve));
    let upstream = peers.upstream(with(|it| it.retry.tries_max = 1));
    assert_eq!(send_all(&upstream, 50).await, 0);
    assert_eq!(peers.peer(0).dials(), 1);
    let status = upstream.status();
    assert_eq!((status.failures.connect, status.endpoints[0].dial_failures), (50, 1));
    assert_eq!(status.endpoints[0].connections, 0);
}

#[tokio::test(start_paused = true)]
async fn to_drop_a_request_resets_only_its_stream() {
    let peers = Peers::serving([Act::Silent], Some(serve));
    let upstream = peers.upstream(with(|_| {}));
    let waits = tokio::spawn({
        let upstream = upstream.clone();
        async move { upstream.try_send(get()).await }
    });
    settle().await;
    let dropped = tokio::time::timeout(SECOND, upstream.try_send(get())).await;
    assert!(dropped.is_err());
    let status = upstream.status().endpoints.remove(0);
    assert_eq!((status.connections, status.in_flight), (1, 1));
    waits.abort();
    let _ = waits.await;
    assert_eq!(upstream.status().endpoints[0].in_flight, 0);
    assert_eq!(peers.peer(0).dials(), 1);
}

#[tokio::test(start_paused = true)]
async fn shared_connections_are_kept_up_too() {
    let peers = Peers::serving([Act::Answer(200)], Some(serve));
    let upstream = peers.upstream(with(|it| {
        it.pool.connections_min = 1;
        it.pool.age_max = 100 * SECOND;
    }));
    sleep(SECOND).await;
    assert_eq!(peers.peer(0).dials(), 1);
    sleep(1_000 * SECOND).await;
    let dials = peers.peer(0).dials();
    assert!((10..=15).contains(&dials), "{dials}");
    assert_eq!(upstream.status().endpoints[0].connections, 1);
}
