//! Which endpoint gets a request, and which is set aside.

use tokio::task::JoinSet;
use tokio::time::{advance, sleep};

use super::*;
use crate::status::EndpointState;

/// Sends `count` requests, ten at a time.
async fn load(upstream: &Upstream, count: usize) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let upstream = upstream.clone();
        tasks.spawn(async move {
            let mut failed = 0;
            for _ in 0..count / 10 {
                failed += usize::from(!matches!(upstream.try_send(get()).await, Ok(200)));
            }
            failed
        });
    }
    tasks.join_all().await.into_iter().sum()
}

#[tokio::test(start_paused = true)]
async fn equal_endpoints_get_equal_shares() {
    let peers = Peers::new([Act::After(5 * MS, 200); 4]);
    let upstream = peers.upstream(settings());
    assert_eq!(load(&upstream, 1_000).await, 0);
    for share in peers.take_counts() {
        assert!((200..300).contains(&share), "{share}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_endpoint_gets_little() {
    let peers =
        Peers::new([Act::After(5 * MS, 200), Act::After(5 * MS, 200), Act::After(100 * MS, 200)]);
    let upstream = peers.upstream(settings());
    assert_eq!(load(&upstream, 1_000).await, 0);
    let shares = peers.take_counts();
    assert!(shares[2] < 60, "{shares:?}");
    peers.peer(2).set(Act::After(5 * MS, 200));
    sleep(30 * SECOND).await;
    assert_eq!(load(&upstream, 10_000).await, 0);
    let shares = peers.take_counts();
    assert!(shares[2] > 1_000, "it has recovered: {shares:?}");
}

#[tokio::test(start_paused = true)]
async fn failing_fast_attracts_no_requests() {
    let peers = Peers::new([Act::After(5 * MS, 200), Act::After(5 * MS, 200), Act::Answer(503)]);
    let mut settings = settings();
    settings.ejection.failures = 0;
    settings.retry.tries_max = 1;
    let upstream = peers.upstream(settings);
    let failed = load(&upstream, 1_000).await;
    let shares = peers.take_counts();
    assert!(shares[2] < 30, "{shares:?}");
    assert_eq!(failed, shares[2]);
}

#[tokio::test(start_paused = true)]
async fn a_new_endpoint_gets_its_share_at_once() {
    let peers = Peers::new([Act::After(5 * MS, 200); 3]);
    peers.rename(&[0, 1]);
    let upstream = peers.upstream(settings());
    load(&upstream, 300).await;
    peers.take_counts();
    peers.rename(&[0, 1, 2]);
    load(&upstream, 300).await;
    let shares = peers.take_counts();
    assert!((60..150).contains(&shares[2]), "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_fails_is_set_aside_and_probed_by_one_request() {
    let peers = Peers::new([Act::After(5 * MS, 200), Act::After(5 * MS, 200), Act::Refuse]);
    let mut settings = settings();
    settings.ejection.failures = 3;
    let upstream = peers.upstream(settings);
    assert_eq!(load(&upstream, 300).await, 0, "its requests went to the others");
    let status = upstream.status();
    assert_eq!(status.endpoints[2].dial_failures, 3);
    assert_eq!(status.endpoints[2].ejections, 1);
    assert!(matches!(status.endpoints[2].state, EndpointState::SetAside(_)));
    assert_eq!((status.retries, status.failures.total()), (3, 0));
    // Time after time one probe, after twice as long.
    for (seconds, dials) in [(1, 4), (1, 4), (1, 5), (3, 5), (1, 6)] {
        advance(seconds * SECOND).await;
        assert_eq!(load(&upstream, 100).await, 0);
        assert_eq!(peers.peer(2).dials(), dials);
    }
    peers.peer(2).set(Act::Answer(200));
    advance(8 * SECOND).await;
    load(&upstream, 300).await;
    assert_eq!(upstream.status().endpoints[2].state, EndpointState::Available);
    peers.take_counts();
    load(&upstream, 300).await;
    assert!(peers.take_counts()[2] > 60);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_given_up_is_repeated() {
    let peers = Peers::new([Act::Answer(200), Act::Refuse]);
    let upstream = peers.upstream(settings());
    load(&upstream, 100).await;
    advance(SECOND).await;
    peers.peer(1).set(Act::Silent);
    let probe = tokio::time::timeout(100 * MS, upstream.try_send(get()));
    assert!(probe.await.is_err());
    assert!(matches!(upstream.status().endpoints[1].state, EndpointState::SetAside(_)));
    peers.peer(1).set(Act::Answer(200));
    upstream.try_send(get()).await.unwrap();
    assert_eq!(upstream.status().endpoints[1].state, EndpointState::Available);
}

#[tokio::test(start_paused = true)]
async fn only_a_share_is_set_aside_and_the_last_one_never() {
    let peers = Peers::new([Act::Answer(503); 4]);
    let mut settings = settings();
    settings.retry.tries_max = 1;
    let upstream = peers.upstream(settings.clone());
    load(&upstream, 400).await;
    let is_aside = |state: &EndpointState| matches!(state, EndpointState::SetAside(_));
    let aside = upstream.status().endpoints.iter().filter(|it| is_aside(&it.state)).count();
    assert_eq!(aside, 2);

    let peers = Peers::new([Act::Answer(503)]);
    let upstream = peers.upstream(settings);
    load(&upstream, 100).await;
    assert_eq!(upstream.status().endpoints[0].state, EndpointState::Available);
    assert_eq!(peers.take_counts(), [100]);
}

#[tokio::test(start_paused = true)]
async fn if_all_are_set_aside_all_are_used() {
    let peers = Peers::new([Act::Answer(503); 2]);
    let mut settings = settings();
    settings.retry.tries_max = 1;
    settings.ejection.percent_max = 100;
    settings.ejection.time = 60 * SECOND;
    let upstream = peers.upstream(settings);
    load(&upstream, 100).await;
    let is_aside = |state: &EndpointState| matches!(state, EndpointState::SetAside(_));
    assert!(upstream.status().endpoints.iter().all(|it| is_aside(&it.state)));
    peers.take_counts();
    load(&upstream, 100).await;
    assert_eq!(peers.take_counts().iter().sum::<usize>(), 100);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_leaves_the_names_drains() {
    let peers = Peers::new([Act::After(100 * MS, 200), Act::After(100 * MS, 200)]);
    let upstream = peers.upstream(settings());
    let running = tokio::spawn({
        let upstream = upstream.clone();
        async move { load(&upstream, 10).await }
    });
    sleep(50 * MS).await;
    assert!(peers.peer(0).open() > 0);
    peers.rename(&[1]);
    assert_eq!(upstream.try_send(get()).await.unwrap(), 200);
    assert_eq!(running.await.unwrap(), 0, "requests end in peace");
    settle().await;
    assert_eq!(peers.peer(0).open(), 0);
    assert_eq!(upstream.status().endpoints.len(), 1);
}
