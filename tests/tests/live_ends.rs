//! How connections that came by HTTP end: readers that read nothing, streams that are reset, an operator who revokes, a
//! server that stops. Others are undisturbed, and nothing is left behind.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::http2::{CLOSED_WINDOW, DATA, Http2, PING, RST_STREAM, frame};
use weir_tests::{Answer, Crowd, Events, Metrics, PROTOCOLS, Server, Socket, masked};

const BUDGET: f64 = 8_388_608.0;
const SHORT: &str = "[connection]\nstall_timeout = \"2s\"\n[memory]\nbudget_bytes = 8388608\n";

/// The crowd hears on, nothing has panicked, memory is bounded, and nobody is left behind.
fn is_unharmed(server: &Server, mut crowd: Crowd) -> Result<()> {
    server.publish(&json!({"topic": "news", "text": "still here"}))?;
    crowd.hear("still here")?;
    drop(crowd);
    let metrics = server.await_metrics("an empty house", |metrics| {
        metrics.is_empty_house()
            && metrics.sum("weir_connections_by_protocol", "") == 0.0
            && metrics.sum("weir_http_connections", "") == 0.0
    })?;
    let peak = metrics.sum("weir_queued_bytes_peak", "");
    assert!(peak <= BUDGET, "{peak} bytes were queued against a budget of 8 MiB");
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

/// Publishes to `flood` until this holds, so much between two looks; the crowd hears on all the time.
fn flood(
    server: &Server,
    crowd: &mut Crowd,
    messages: usize,
    holds: impl Fn(&Metrics) -> bool,
) -> Result<()> {
    let filling = "x".repeat(10_000);
    for _ in 0..1_000 {
        if holds(&server.metrics()?) {
            return Ok(());
        }
        server.publish(&json!({"topic": "news", "text": "meanwhile"}))?;
        crowd.hear("meanwhile")?;
        for _ in 0..messages {
            // At the edge of the budget a publish is refused, which is as it should be.
            let message = json!({"topic": "flood", "text": filling}).to_string();
            let answer = Answer::post(server.admin, "/v1/publish", &message)?;
            ensure!(matches!(answer.status, 200 | 503), "{answer:?}");
        }
    }
    bail!("nobody is full; metrics:\n{}", server.metrics()?.text())
}

/// So many are above the high watermark; then nothing more is published, and they are closed for that.
fn flood_until_stalled(server: &Server, crowd: &mut Crowd, stalled: f64) -> Result<()> {
    // Those that have stalled first may have been closed when the last one does.
    flood(server, crowd, 5, |metrics| {
        metrics.sum("weir_connections_stalled", "") + metrics.closed("stalled") >= stalled
    })?;
    server.await_metrics("their end", |metrics| metrics.closed("stalled") == stalled)?;
    Ok(())
}

#[test]
fn readers_that_read_nothing_are_closed() -> Result<()> {
    let server = Server::start_with_http(SHORT)?;
    let http = server.http()?;
    let mut crowd = Crowd::enter(&server, "witness")?;
    let before = server.rss_anon()?;
    let mut events = Events::get(http, "/v1/sse?device=deaf-1&topic=flood", "")?;
    let mut socket = Socket::greet(http, "deaf-2", &["flood"])?;
    flood_until_stalled(&server, &mut crowd, 2.0)?;
    let grown = server.rss_anon()?.saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    // They get what had left, and the end.
    while events.hear()?.is_some() {}
    while socket.hear()?.is_some() {}
    is_unharmed(&server, crowd)
}

/// Where they are so many that the budget is used up first, some are closed for that, and it is kept.
#[test]
fn readers_that_read_nothing_keep_to_the_budget() -> Result<()> {
    let server = Server::start_with_http(
        "[connection]\nstall_timeout = \"60s\"\n[tcp]\nuser_timeout = \"2m\"\n[memory]\nbudget_bytes = 8388608\n",
    )?;
    let http = server.http()?;
    let mut crowd = Crowd::enter(&server, "witness")?;
    let mut closed = Http2::connect(http, CLOSED_WINDOW)?;
    let mut events = Vec::new();
    for index in 0..20 {
        let path = format!("/v1/sse?device=deaf-{index}&topic=flood");
        closed.get_events(2 * index + 1, &path)?;
        let path = format!("/v1/sse?device=deafer-{index}&topic=flood");
        events.push(Events::get(http, &path, "")?);
    }
    flood(&server, &mut crowd, 5, |metrics| metrics.closed("budget_exhausted") >= 10.0)?;
    let peak = server.metrics()?.sum("weir_queued_bytes_peak", "");
    assert!(peak <= 8_388_608.0, "{peak} bytes were queued against a budget of 8 MiB");
    drop((closed, events));
    is_unharmed(&server, crowd)
}

/// Over HTTP/2 the front has to hold to the same: whether the socket takes nothing, or the stream's window never opens.
#[test]
fn streams_of_http2_that_read_nothing_are_closed() -> Result<()> {
    let server = Server::start_with_http(SHORT)?;
    let http = server.http()?;
    let mut crowd = Crowd::enter(&server, "witness")?;
    let before = server.rss_anon()?;
    const STREAMS: u32 = 20;
    // Its window never opens, and it answers all that is asked.
    let mut closed = Http2::connect(http, CLOSED_WINDOW)?;
    for index in 0..STREAMS {
        let path = format!("/v1/sse?device=deaf-{index}&topic=flood");
        closed.get_events(2 * index + 1, &path)?;
    }
    // Its windows are those that there are in the beginning, and it reads nothing.
    let mut deaf = Http2::connect(http, &[])?;
    deaf.get(1, "/v1/sse?device=deaf&topic=flood")?;
    server.await_metrics("its stream", |metrics| {
        metrics.sum("weir_connections_by_protocol", "sse") == f64::from(STREAMS) + 3.0
    })?;
    flood_until_stalled(&server, &mut crowd, f64::from(STREAMS) + 1.0)?;
    let grown = server.rss_anon()?.saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    // Each stream ends though its window is closed, and the connection is there for other requests.
    let (mut ended, mut pings) = (BTreeSet::new(), 0);
    while ended.len() < STREAMS as usize {
        match closed.hear()?.context("the connection goes on")? {
            (RST_STREAM, stream, _) => drop(ended.insert(stream)),
            // One in 20 s.
            (PING, ..) if pings < 3 => pings += 1,
            (PING, ..) => bail!("only {ended:?} have ended"),
            _ => {}
        }
    }
    closed.get_events(1001, "/v1/sse?device=again&topic=news")?;
    let charged = server.metrics()?.sum("weir_queued_bytes", "");
    assert!(charged < BUDGET, "{charged}");
    drop((closed, deaf));
    is_unharmed(&server, crowd)
}

#[test]
fn a_stream_that_is_reset_leaves_nothing() -> Result<()> {
    let server = Server::start_with_http("")?;
    let mut conn = Http2::connect(server.http()?, &[])?;
    for round in 0..3_u32 {
        for index in 0..10 {
            let stream = 2 * (10 * round + index) + 1;
            conn.get_events(stream, &format!("/v1/sse?device=d{index}&topic=news"))?;
        }
        let count = |metrics: &Metrics| {
            metrics.sum_of("weir_connections_by_protocol", &[("protocol", "sse")])
        };
        server.await_metrics("ten streams", |metrics| count(metrics) == 10.0)?;
        for index in 0..10 {
            let stream = 2 * (10 * round + index) + 1;
            let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            std::io::Write::write_all(&mut conn.stream, &reset)?;
        }
        server.await_metrics("no streams", |metrics| {
            metrics.is_empty_house() && count(metrics) == 0.0
        })?;
    }
    // The connection is none the worse for it.
    conn.get_events(1001, "/v1/sse?device=d&topic=news")
}

/// A source has as many as it may, whichever way they come.
#[test]
fn streams_of_http2_count_for_their_source() -> Result<()> {
    let server = Server::start_with_http("[limits]\nconnections_per_source_max = 3\n")?;
    let mut conn = Http2::connect(server.http()?, &[])?;
    conn.get_events(1, "/v1/sse?device=d1&topic=news")?;
    conn.get_events(3, "/v1/sse?device=d2&topic=news")?;
    // Beside these two there is the connection that they come on.
    conn.get(5, "/v1/sse?device=d3&topic=news")?;
    let refusal = loop {
        match conn.hear()?.context("the connection goes on")? {
            (DATA, 5, body) => break String::from_utf8(body)?,
            (RST_STREAM, stream, _) => bail!("stream {stream} ends without a word"),
            _ => {}
        }
    };
    assert!(refusal.contains("weir:busy"), "{refusal}");
    let metrics = server.metrics()?;
    let refused =
        metrics.sum_of("weir_connections_refused_total", &[("cause", "source_connections")]);
    assert_eq!(refused, 1.0, "{}", metrics.text());
    // Each is given back once.
    drop(conn);
    server.await_metrics("no source", |metrics| metrics.sum("weir_sources", "") == 0.0)?;
    Ok(())
}

#[test]
fn who_is_revoked_is_told_in_every_way() -> Result<()> {
    let server = Server::start_with_http("")?;
    let mut crowd = Crowd::enter(&server, "d")?;
    let mut others = Crowd::enter(&server, "other")?;
    for number in 1..=5 {
        let answer = Answer::post(server.admin, &format!("/v1/devices/d-{number}/revoke"), "{}")?;
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    crowd.are_told(4201, "revoked")?;
    drop(crowd);
    server.publish(&json!({"topic": "news", "text": "meanwhile"}))?;
    others.hear("meanwhile")?;
    // One closed by an operator may come back at once.
    let list = Answer::get(server.admin, "/v1/connections")?.body;
    let list: Value = serde_json::from_str(&list)?;
    let list = list["connections"].as_array().context("a list")?;
    assert_eq!(list.len(), 5);
    for conn in list {
        let id = conn["id"].as_str().context("an id")?;
        let answer = Answer::delete(server.admin, &format!("/v1/connections/{id}"))?;
        assert_eq!(answer.status, 204);
    }
    others.are_told(4006, "closed_by_operator")?;
    drop(others);
    let crowd = Crowd::enter(&server, "d")?;
    is_unharmed(&server, crowd)
}

#[test]
fn a_server_that_stops_tells_all() -> Result<()> {
    let mut server =
        Server::start_with_http("[connection]\ndrain_timeout = \"2s\"\nstall_timeout = \"5s\"\n")?;
    let http = server.http()?;
    let mut crowd = Crowd::enter(&server, "d")?;
    server.await_metrics("all of them", |metrics| {
        PROTOCOLS.iter().all(|(name, count)| {
            metrics.sum_of("weir_connections_by_protocol", &[("protocol", name)]) == *count
        })
    })?;
    // Some are in the middle of something: not greeted, a message half sent, a window that never opens.
    let mut early = Socket::open(http)?;
    let mut half = Socket::greet(http, "half", &[])?;
    half.send(&masked(0x01, b"{"))?;
    let mut closed = Http2::connect(http, CLOSED_WINDOW)?;
    closed.get_events(1, "/v1/sse?device=closed&topic=news")?;
    server.publish(&json!({"topic": "news", "text": "last words"}))?;
    server.signal(Signal::TERM)?;
    crowd.hear("last words")?;
    crowd.are_told(4100, "draining")?;
    assert_eq!(early.goodbye()?, (4100, "draining".to_owned()));
    assert_eq!(half.goodbye()?, (4100, "draining".to_owned()));
    let began = now();
    assert!(server.wait()?.success(), "{}", server.log());
    // Longer than the drain, and far shorter than anything that would wait for the client.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the tests wait for another process")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
