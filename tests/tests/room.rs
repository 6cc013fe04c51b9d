//! A room: many publish, all receive, in ticks; who comes back gets what was missed; who may not is told so.
#![expect(clippy::wildcard_enum_match_arm, reason = "whatever else comes is a failure")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::json;
use weir_tests::{Answer, Device, Server};
use weir_wire::v1::{self, client_message, push, server_message};
use weir_wire::{Advice, CloseReason};

/// A tick that no machine is too slow for: all that a test publishes falls into one.
const CLASSES: &str = r#"
[auth]
anonymous = true
[[auth.tokens]]
token = "the-token-of-a-player"
labels = ["player"]
[[auth.services]]
token = "the-token-of-the-judge"
name = "judge"
may = ["subscribe", "publish"]
[[auth.services]]
token = "the-token-of-the-watcher"
name = "watcher"
may = ["events"]
[limits]
publishes_per_second = 1
publish_burst = 8
[[topic_classes]]
pattern = "room/*"
tick = "2s"
publish = ["devices"]
[[topic_classes]]
pattern = "page/*"
tick = "2s"
conflation = true
[[topic_classes]]
pattern = "feed/*"
retention_messages = 8
[[topic_classes]]
pattern = "game/*"
publish = ["label:player"]
subscribe = ["label:player", "services"]
message_bytes_max = 100
[[topic_classes]]
pattern = "device/{device}/up"
publish = ["devices"]
subscribe = ["services"]
"#;

fn text(push: &v1::Push) -> &str {
    match &push.payload {
        Some(push::Payload::Text(text)) => text,
        other => panic!("expected text, got {other:?}"),
    }
}

fn publish(topic: &str, said: &str, request: u32) -> client_message::Kind {
    client_message::Kind::Publish(v1::Publish {
        topic: topic.into(),
        payload: Some(v1::publish::Payload::Text(said.into())),
        request,
        ..v1::Publish::default()
    })
}

fn subscribe(topic: &str, position: Option<v1::Position>) -> client_message::Kind {
    client_message::Kind::Subscribe(v1::Subscribe {
        topic: topic.into(),
        position,
        presence: false,
    })
}

/// Greets with a token; the connection's id.
fn greet(server: &Server, device_id: &str, token: &str) -> Result<(Device, u64)> {
    let mut device = Device::connect(server.tcp)?;
    device.send(client_message::Kind::Hello(v1::Hello {
        device_id: device_id.into(),
        token: token.into(),
        ..v1::Hello::default()
    }))?;
    match device.hear()? {
        Some(server_message::Kind::Welcome(welcome)) => Ok((device, welcome.connection_id)),
        other => bail!("expected Welcome, got {other:?}"),
    }
}

fn subscribed(device: &mut Device) -> Result<v1::Subscribed> {
    match device.hear()? {
        Some(server_message::Kind::Subscribed(subscribed)) => Ok(subscribed),
        other => bail!("expected Subscribed, got {other:?}"),
    }
}

fn error(device: &mut Device) -> Result<v1::Error> {
    match device.hear()? {
        Some(server_message::Kind::Error(error)) => Ok(error),
        other => bail!("expected Error, got {other:?}"),
    }
}

#[test]
fn what_the_players_say_in_a_tick_reaches_all_of_them_as_one_batch() -> Result<()> {
    let server = Server::start(CLASSES)?;
    let mut players = Vec::new();
    for index in 0..5 {
        let (mut player, conn) = greet(&server, &format!("p{index}"), "")?;
        player.send(subscribe("room/1", None))?;
        assert_eq!(subscribed(&mut player)?.topic, "room/1");
        players.push((player, conn));
    }
    // The first message begins the tick that all of them fall into, unless the clock ticks between them.
    for (index, (player, _)) in players.iter_mut().enumerate() {
        player.send(publish("room/1", &format!("move {index}"), 0))?;
    }
    let conns: Vec<u64> = players.iter().map(|(_, conn)| *conn).collect();
    for (player, _) in &mut players {
        let mut heard = Vec::new();
        while heard.len() < conns.len() {
            match player.hear()?.context("the stream goes on")? {
                server_message::Kind::Batch(batch) => {
                    assert_eq!(batch.topic, "room/1");
                    assert_eq!(batch.first_offset, batch.messages[0].offset);
                    assert_eq!(Some(batch.last_offset), batch.messages.last().map(|m| m.offset));
                    heard.extend(batch.messages);
                }
                server_message::Kind::Push(push) => heard.push(push),
                other => bail!("{other:?} in a room"),
            }
        }
        let offsets: Vec<u64> = heard.iter().map(|push| push.offset).collect();
        assert_eq!(offsets, [1, 2, 3, 4, 5]);
        let mut senders: Vec<u64> = heard.iter().map(|push| push.sender).collect();
        senders.sort_unstable();
        let mut expected = conns.clone();
        expected.sort_unstable();
        assert_eq!(senders, expected, "everybody hears everybody, with the sender's id");
    }
    Ok(())
}

#[test]
fn a_tick_keeps_the_newest_of_each_key() -> Result<()> {
    let server = Server::start(CLASSES)?;
    let mut page = Device::greet(server.tcp, "page", &["page/score"])?;
    let messages: Vec<_> = ["home 0", "guest 0", "home 1", "home 2", "guest 1"]
        .into_iter()
        .map(|said| json!({"topic": "page/score", "text": said, "key": said.split(' ').next()}))
        .collect();
    let answer =
        Answer::post(server.admin, "/v1/publish", &json!({"messages": messages}).to_string())?;
    assert_eq!(answer.status, 200, "{}", answer.body);
    // All were accepted within one tick, or the tick's end fell between two of them.
    let mut newest = std::collections::BTreeMap::new();
    let mut last = 0;
    while last < 5 {
        let heard = match page.hear()?.context("the stream goes on")? {
            server_message::Kind::Batch(batch) => batch.messages,
            server_message::Kind::Push(push) => vec![push],
            other => bail!("{other:?}"),
        };
        for push in heard {
            assert!(push.offset > last, "in order");
            last = push.offset;
            newest.insert(push.key.clone(), text(&push).to_owned());
        }
    }
    assert_eq!(newest["home"], "home 2");
    assert_eq!(newest["guest"], "guest 1");
    Ok(())
}

fn say(server: &Server, numbers: std::ops::RangeInclusive<u32>) -> Result<()> {
    for number in numbers {
        server.publish(&json!({"topic": "feed/a", "text": number.to_string()}))?;
    }
    Ok(())
}

fn resume(server: &Server, position: Option<v1::Position>) -> Result<(Device, v1::Subscribed)> {
    let (mut device, _) = greet(server, "reader", "")?;
    device.send(subscribe("feed/a", position))?;
    let answer = subscribed(&mut device)?;
    Ok((device, answer))
}

#[test]
fn who_comes_back_gets_exactly_what_was_missed_or_is_told() -> Result<()> {
    let mut server = Server::start(CLASSES)?;
    let (mut device, begin) = resume(&server, None)?;
    let epoch = begin.position.context("a position")?.epoch;
    say(&server, 1..=3)?;
    for number in 1..=3 {
        assert_eq!(text(&device.push()?), number.to_string());
    }
    drop(device);
    say(&server, 4..=9)?;

    let seen = v1::Position { epoch, offset: 3 };
    let (mut device, answer) = resume(&server, Some(seen))?;
    assert!(answer.recovered);
    assert_eq!(answer.position, Some(seen), "it goes on from there");
    say(&server, 10..=11)?;
    for number in 4..=11 {
        let push = device.push()?;
        assert_eq!((text(&push), push.offset), (number.to_string().as_str(), number));
    }
    drop(device);

    // The ring holds eight: offsets 4 to 11. One before them is lost, and all that is kept comes.
    let (_, answer) = resume(&server, Some(v1::Position { epoch, offset: 2 }))?;
    assert!(!answer.recovered);
    assert_eq!(answer.position, Some(v1::Position { epoch, offset: 3 }));
    // Nothing was missed; an offset that does not exist yet; another epoch.
    assert!(resume(&server, Some(v1::Position { epoch, offset: 11 }))?.1.recovered);
    assert!(!resume(&server, Some(v1::Position { epoch, offset: 12 }))?.1.recovered);
    assert!(!resume(&server, Some(v1::Position { epoch: epoch ^ 1, offset: 11 }))?.1.recovered);

    server.signal(rustix::process::Signal::TERM)?;
    server.wait()?;
    let again = Server::start(CLASSES)?;
    assert!(!resume(&again, Some(v1::Position { epoch, offset: 11 }))?.1.recovered);
    Ok(())
}

#[test]
fn a_backend_hears_what_devices_send() -> Result<()> {
    let server = Server::start(CLASSES)?;
    let (mut judge, _) = greet(&server, "", "the-token-of-the-judge")?;
    judge.send(subscribe("device/d1/up", None))?;
    subscribed(&mut judge)?;
    let (mut device, conn) = greet(&server, "d1", "")?;
    device.send(publish("device/d1/up", "21 degrees", 7))?;
    match device.hear()? {
        Some(server_message::Kind::Published(published)) => {
            assert_eq!((published.request, published.offset, published.connections), (7, 1, 1));
        }
        other => bail!("expected Published, got {other:?}"),
    }
    let push = judge.push()?;
    assert_eq!(
        (text(&push), push.sender, push.topic.as_str()),
        ("21 degrees", conn, "device/d1/up")
    );
    Ok(())
}

#[test]
fn what_is_not_permitted_is_refused_by_name() -> Result<()> {
    let server = Server::start(CLASSES)?;
    let (mut stranger, _) = greet(&server, "d2", "")?;
    let (mut player, _) = greet(&server, "p1", "the-token-of-a-player")?;

    for (act, topic) in [
        (publish("device/d1/up", "x", 1), "device/d1/up"),
        (publish("game/1", "x", 1), "game/1"),
        (publish("feed/a", "x", 1), "feed/a"),
        (publish("elsewhere", "x", 1), "elsewhere"),
        (subscribe("game/1", None), "game/1"),
        (subscribe("device/d2/up", None), "device/d2/up"),
    ] {
        stranger.send(act.clone())?;
        let error = error(&mut stranger)?;
        assert_eq!(error.code, "not_permitted", "{act:?}");
        assert!(error.message.contains(topic), "{act:?}: {}", error.message);
    }
    player.send(subscribe("game/1", None))?;
    subscribed(&mut player)?;
    player.send(publish("game/1", &"x".repeat(101), 2))?;
    let error = error(&mut player)?;
    assert_eq!((error.code.as_str(), error.request), ("too_large", 2));
    assert!(error.message.contains("100"), "{}", error.message);
    player.send(publish("game/1", "mate", 0))?;
    assert_eq!(text(&player.push()?), "mate");
    Ok(())
}

#[test]
fn who_publishes_too_fast_is_told_and_then_closed() -> Result<()> {
    let server = Server::start(CLASSES)?;
    let (mut device, _) = greet(&server, "d1", "")?;
    // The burst.
    for request in 1..=8 {
        device.send(publish("device/d1/up", "x", request))?;
        match device.hear()? {
            Some(server_message::Kind::Published(published)) => {
                assert_eq!(published.request, request);
            }
            other => bail!("expected Published, got {other:?}"),
        }
    }
    for request in 9..=100 {
        // The server may have closed by now.
        let _ = device.send(publish("device/d1/up", "x", request));
    }
    let mut refused = 0;
    let goodbye = loop {
        match device.hear()?.context("Goodbye comes first")? {
            // A second has passed, and one more was due.
            server_message::Kind::Published(_) => {}
            server_message::Kind::Error(error) => {
                assert_eq!(error.code, "rate_limited");
                assert!(error.message.contains("publishes_per_second"), "{}", error.message);
                assert!(error.request > 8, "{error:?}");
                refused += 1;
            }
            server_message::Kind::Goodbye(goodbye) => break goodbye,
            other => bail!("{other:?}"),
        }
    };
    assert!(refused >= 1, "it is told before it is closed");
    assert_eq!(goodbye.code, u32::from(CloseReason::RateLimited.code()));
    assert_eq!(Advice::from_code(goodbye.code), Some(Advice::ReconnectLater));
    server.await_metrics("the close to be counted", |m| m.closed("rate_limited") == 1.0)?;
    Ok(())
}

#[test]
fn service_tokens_open_what_they_may_and_no_more() -> Result<()> {
    let locked = format!("{CLASSES}\n[admin]\ntoken = \"the-token-of-the-operator\"\n");
    let server = Server::start(&locked)?;
    let ask = |method: &str, path: &str, token: &str, body: &str| {
        let (addr, length) = (server.admin, body.len());
        Answer::ask(
            addr,
            &format!(
                "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
                 Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            ),
        )
    };
    let message = json!({"topic": "feed/a", "text": "x"}).to_string();
    let judge = "the-token-of-the-judge";
    assert_eq!(ask("POST", "/v1/publish", judge, &message)?.status, 200);
    assert_eq!(ask("GET", "/v1/connections", judge, "")?.status, 403);
    assert_eq!(ask("GET", "/v1/events", judge, "")?.status, 403);
    let watcher = "the-token-of-the-watcher";
    assert_eq!(ask("POST", "/v1/publish", watcher, &message)?.status, 403);
    assert_eq!(ask("POST", "/v1/publish", "guessed", &message)?.status, 401);
    assert_eq!(ask("GET", "/v1/topics", "the-token-of-the-operator", "")?.status, 200);
    Ok(())
}

#[test]
fn events_tell_of_connects_and_ends_as_they_happen() -> Result<()> {
    let server = Server::start(CLASSES)?;
    let url = format!("http://{}/v1/events?type=connected,disconnected", server.admin);
    let mut curl = Command::new("curl")
        .args(["--silent", "--no-buffer", &url])
        .stdout(Stdio::piped())
        .spawn()
        .context("curl reads the stream")?;
    let lines = BufReader::new(curl.stdout.take().context("its output")?).lines();
    server.await_metrics("the reader", |m| m.sum("weir_event_readers", "") == 1.0)?;
    let device = Device::greet(server.tcp, "d1", &[])?;
    drop(device);
    let mut seen = Vec::new();
    for line in lines {
        let line = line?;
        if let Some(data) = line.strip_prefix("data:") {
            let event: serde_json::Value = serde_json::from_str(data.trim())?;
            assert_eq!(event["device"], "d1", "{event}");
            seen.push(event);
        }
        if seen.len() == 2 {
            break;
        }
    }
    curl.kill()?;
    curl.wait()?;
    assert!(seen[1].to_string().contains("peer_closed"), "{}", seen[1]);
    Ok(())
}
