//! When a request is tried again, and what each try tells the backend.

use http::HeaderValue;
use tokio::time::{Instant, sleep};

use super::*;

fn with(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = settings();
    settings.ejection.failures = 0;
    change(&mut settings);
    settings
}

/// Sends 100 requests. Returns how many had an answer 200, and how many each endpoint got.
async fn hundred(peers: &Peers, request: fn() -> Request<Outgoing>) -> (usize, Vec<usize>) {
    let upstream = peers.upstream(with(|it| it.retry.per_second = 100));
    let mut answered = 0;
    for _ in 0..100 {
        answered += usize::from(matches!(upstream.try_send(request()).await, Ok(200)));
    }
    (answered, peers.take_counts())
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_is_tried_at_another_endpoint() {
    let peers = Peers::new([Act::Refuse, Act::Answer(200)]);
    assert_eq!(hundred(&peers, post).await, (100, vec![0, 100]));
    assert!(peers.peer(0).dials() > 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_is_tried_again_only_if_it_is_idempotent() {
    let peers = Peers::new([Act::Cut, Act::Answer(200)]);
    let (answered, counts) = hundred(&peers, get).await;
    assert_eq!((answered, counts[1]), (100, 100));
    assert!(counts[0] > 0);
    let (answered, counts) = hundred(&peers, post).await;
    assert!(counts[0] > 0);
    assert_eq!((answered, counts[1]), (100 - counts[0], 100 - counts[0]));

    let upstream = peers.upstream(with(|it| it.retry.tries_max = 2));
    let options = || SendOptions { idempotent: Some(true), ..SendOptions::default() };
    for _ in 0..20 {
        assert_eq!(upstream.send(post(), options()).await.unwrap().status(), 200);
    }
    let options = || SendOptions { idempotent: Some(false), ..SendOptions::default() };
    let mut failed = 0;
    for _ in 0..20 {
        failed += u64::from(upstream.send(get(), options()).await.is_err());
    }
    assert_eq!(upstream.status().failures.broken, failed);
}

#[tokio::test(start_paused = true)]
async fn an_error_says_whether_any_try_was_sent() {
    let peers = Peers::new([Act::Cut, Act::Refuse]);
    let upstream = peers.upstream(with(|_| {}));
    for _ in 0..10 {
        let error = upstream.try_send(get()).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_sent()), ("broken", true));
    }
    let peers = Peers::new([Act::Refuse, Act::Refuse]);
    let upstream = peers.upstream(with(|_| {}));
    let error = upstream.try_send(get()).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_sent()), ("connect", false));
    assert_eq!(peers.peer(0).dials() + peers.peer(1).dials(), 3);
}

#[tokio::test(start_paused = true)]
async fn answers_that_say_unavailable_are_tried_again_and_else_passed_on() {
    let peers = Peers::new([Act::Answer(503), Act::Answer(200)]);
    let (answered, counts) = hundred(&peers, get).await;
    assert_eq!((answered, counts[1]), (100, 100));
    let (answered, counts) = hundred(&peers, post).await;
    assert_eq!(answered, counts[1], "a POST may have done something");

    let peers = Peers::new([Act::Answer(503), Act::Refuse]);
    let upstream = peers.upstream(with(|_| {}));
    for _ in 0..10 {
        assert_eq!(upstream.try_send(get()).await.unwrap(), 503, "better than none");
    }
    let peers = Peers::new([Act::Answer(500), Act::Answer(500)]);
    let upstream = peers.upstream(with(|_| {}));
    assert_eq!(upstream.try_send(get()).await.unwrap(), 500);
    assert_eq!(upstream.status().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn the_budget_bounds_the_load_of_retries() {
    let peers = Peers::new([Act::Answer(503); 3]);
    let upstream = peers.upstream(with(|it| it.retry.per_second = 0));
    for _ in 0..1_000 {
        assert_eq!(upstream.try_send(get()).await.unwrap(), 503);
    }
    let sent: usize = peers.take_counts().iter().sum();
    assert!((1_190..=1_200).contains(&sent), "{sent}");
    let status = upstream.status();
    assert_eq!(status.retries, sent as u64 - 1_000);
    assert!(status.retries_refused > 500);
}

#[tokio::test(start_paused = true)]
async fn a_body_of_which_a_piece_was_taken_is_not_sent_again() {
    let peers = Peers::new([Act::Cut, Act::Cut]);
    let upstream = peers.upstream(with(|_| {}));
    let options = SendOptions { idempotent: Some(true), ..SendOptions::default() };
    let (send, body) = streamed();
    send.send(Bytes::from_static(b"piece")).await.unwrap();
    let request = Request::put("/").body(body).unwrap();
    let error = upstream.send(request, options.clone()).await.err().unwrap();
    assert!(error.may_have_been_sent());
    assert_eq!(upstream.status().retries, 0);

    let peers = Peers::new([Act::Refuse, Act::Answer(200)]);
    let upstream = peers.upstream(with(|_| {}));
    for _ in 0..10 {
        let (send, body) = streamed();
        send.send(Bytes::from_static(b"piece")).await.unwrap();
        let request = Request::put("/").body(body).unwrap();
        upstream.send(request, options.clone()).await.unwrap();
    }
    assert!(upstream.status().retries > 0, "it was untouched");
}

#[tokio::test(start_paused = true)]
async fn a_try_has_its_time_and_all_tries_have_a_deadline() {
    let peers = Peers::new([Act::Silent, Act::Answer(200)]);
    let upstream = peers.upstream(with(|it| {
        it.try_timeout = SECOND;
        it.deadline = 10 * SECOND;
    }));
    let (mut slow, began) = (0, Instant::now());
    for _ in 0..20 {
        let began = Instant::now();
        assert_eq!(upstream.try_send(get()).await.unwrap(), 200);
        slow += u32::from(began.elapsed() >= SECOND);
    }
    assert!(slow >= 1 && began.elapsed() < SECOND * (slow + 1));

    let peers = Peers::new([Act::Silent, Act::Silent]);
    let upstream = peers.upstream(with(|it| {
        it.try_timeout = SECOND;
        it.retry.tries_max = 10;
        it.deadline = 2500 * MS;
    }));
    let began = Instant::now();
    let error = upstream.try_send(get()).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed().as_millis()), ("timed_out", 2500));
    assert_eq!(upstream.status().retries, 2);
    let deadline = Some(Instant::now() + 300 * MS);
    let options = SendOptions { deadline, ..SendOptions::default() };
    let began = Instant::now();
    upstream.send(get(), options).await.err().unwrap();
    assert_eq!(began.elapsed().as_millis(), 300);
    assert_eq!(upstream.status().endpoints.iter().map(|it| it.failures).sum::<u64>(), 3);
}

#[tokio::test(start_paused = true)]
async fn each_try_tells_how_long_its_caller_waits() {
    let peers = Peers::new([Act::Answer(200)]);
    let upstream = peers.upstream(with(|_| {}));
    upstream.try_send(get()).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "weir-deadline-ms"), "10000");
    let after = |wait| {
        let deadline = Some(Instant::now() + wait);
        SendOptions { deadline, ..SendOptions::default() }
    };
    upstream.send(get(), after(300 * MS)).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "weir-deadline-ms"), "300");

    let grpc = |theirs: Option<&'static str>| {
        let mut request = post();
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        if let Some(theirs) = theirs {
            request.headers_mut().insert("grpc-timeout", HeaderValue::from_static(theirs));
        }
        request
    };
    upstream.try_send(grpc(None)).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "grpc-timeout"), "", "it may last");
    upstream.try_send(grpc(Some("9H"))).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "grpc-timeout"), "9H");
    upstream.send(grpc(Some("9S")), after(300 * MS)).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "grpc-timeout"), "300m");
    upstream.send(grpc(Some("200m")), after(300 * MS)).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "grpc-timeout"), "200m");
    assert_eq!(header(&peers.peer(0).last_head(), "weir-deadline-ms"), "");
}

#[tokio::test(start_paused = true)]
async fn each_try_is_a_span() {
    let peers = Peers::new([Act::Answer(503), Act::Answer(503)]);
    let upstream = peers.upstream(with(|_| {}));
    let callers = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traceparent = Some(HeaderValue::from_static(callers));
    let options = SendOptions { traceparent, ..SendOptions::default() };
    let answer = upstream.send(get(), options).await.unwrap();
    let mut spans = Vec::new();
    for index in [0, 1] {
        for head in &*peers.peer(index).heads.lock().unwrap() {
            let sent = header(head, "traceparent").to_owned();
            assert_eq!((&sent[..36], &sent[52..]), (&callers[..36], "-01"));
            spans.push(sent);
        }
    }
    let answered = answer.body().traceparent().unwrap().to_str().unwrap().to_owned();
    assert!(spans.contains(&answered));
    spans.push(callers.to_owned());
    spans.sort();
    spans.dedup();
    assert_eq!(spans.len(), 4, "three tries, and the caller");
}

#[tokio::test(start_paused = true)]
async fn the_host_is_the_requests_or_the_settings_or_the_endpoints() {
    let peers = Peers::new([Act::Answer(200)]);
    let upstream = peers.upstream(with(|_| {}));
    upstream.try_send(get()).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "host"), "10.0.0.0:80");
    let mut request = get();
    request.headers_mut().insert("host", HeaderValue::from_static("own"));
    *request.version_mut() = http::Version::HTTP_2;
    upstream.try_send(request).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "host"), "own");
    let upstream = peers.upstream(with(|it| it.host = "named".to_owned()));
    upstream.try_send(get()).await.unwrap();
    assert_eq!(header(&peers.peer(0).last_head(), "host"), "named");
    sleep(SECOND).await;
}
