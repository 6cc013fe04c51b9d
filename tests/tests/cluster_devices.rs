//! Nodes over a real Redis: messages to the connections of a service, look-ups of them, and
//! idempotency keys of messages to devices and to all.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, PATIENCE, Redis, Server, now, rest};
use weir_wire::v1::{self, client_message, push, server_message};

/// A node of the cluster in that Redis: one connection a device, and a service.
fn node(redis: &Redis, name: &str) -> Result<Server> {
    Server::start(&format!(
        r#"
[auth]
anonymous = true
[[auth.services]]
token = "secret"
name = "backend"
may = ["publish", "subscribe"]
[limits]
connections_per_device_max = 1
[cluster]
redis = "{}"
node = "{name}"
"#,
        redis.url()
    ))
}

/// A connection of the service.
fn service(node: &Server, id: &str) -> Result<Device> {
    let mut device = Device::connect(node.tcp)?;
    let (device_id, token) = (id.to_owned(), "secret".to_owned());
    let hello = v1::Hello { device_id, token, ..v1::Hello::default() };
    device.send(client_message::Kind::Hello(hello))?;
    match device.hear()? {
        Some(server_message::Kind::Welcome(_)) => Ok(device),
        other => bail!("expected Welcome, got {other:?}"),
    }
}

/// The text of the next message that is no probe.
fn text(device: &mut Device) -> Result<String> {
    loop {
        match device.push()?.payload {
            Some(push::Payload::Text(text)) if text != PROBE => return Ok(text),
            Some(push::Payload::Text(_)) => {}
            other => bail!("expected a text, got {other:?}"),
        }
    }
}

fn publish(node: &Server, device: &str, text: &str) -> Result<Value> {
    node.publish(&json!({"device": device, "text": text}))
}

/// Waits until messages to a device reach so many nodes.
fn await_nodes(node: &Server, device: &str, count: u64) -> Result<()> {
    let deadline = now() + PATIENCE;
    while publish(node, device, PROBE)?["nodes"] != count {
        ensure!(now() < deadline, "messages to {device:?} never reach {count} nodes");
        rest();
    }
    Ok(())
}

/// The nodes of a device's connections, as a node lists them.
fn listed(node: &Server, device: &str) -> Result<Vec<u64>> {
    let path = format!("/v1/devices/{}", device.replace('/', "%2F"));
    let answer = Answer::get(node.admin, &path)?;
    ensure!(answer.status == 200, "{answer:?}");
    let found: Value = serde_json::from_str(&answer.body)?;
    ensure!(found["missing_nodes"].is_null(), "{found}");
    let connections = found["connections"].as_array().context("it lists connections")?;
    let number = |one: &Value| one["node"].as_u64().context("a connection has a node");
    let mut numbers = connections.iter().map(number).collect::<Result<Vec<u64>>>()?;
    numbers.sort_unstable();
    Ok(numbers)
}

#[test]
fn a_message_to_a_service_reaches_its_connections_at_every_node() -> Result<()> {
    let mut redis = Redis::start()?;
    let (a, b, c) = (node(&redis, "a")?, node(&redis, "b")?, node(&redis, "c")?);
    // More than a device may have, and one with a name of its own.
    let mut at_a = [service(&a, "")?, service(&a, "backend")?];
    let (mut at_b, mut named) = (service(&b, "backend")?, service(&b, "backend/4")?);
    await_nodes(&c, "backend", 2)?;
    await_nodes(&c, "backend/4", 1)?;
    for (node, from, connections) in [(&a, "a", 2), (&b, "b", 1), (&c, "c", 0)] {
        let answer = publish(node, "backend", from)?;
        let counts = (&answer["connections"], &answer["nodes"]);
        assert_eq!(counts, (&json!(connections), &json!(2)), "{answer}");
        for device in at_a.iter_mut().chain([&mut at_b]) {
            assert_eq!(text(device)?, from);
        }
        assert_eq!(publish(node, "backend/4", from)?["nodes"], 1);
        assert_eq!(text(&mut named)?, from);
        assert_eq!(listed(node, "backend")?.len(), 3);
    }
    let numbers = listed(&c, "backend")?;
    assert!(numbers[0] == numbers[1] && numbers[1] < numbers[2], "{numbers:?}");
    // Devices have their limit beside it.
    let mut first = Device::greet(a.tcp, "d", &[])?;
    await_nodes(&c, "d", 1)?;
    let mut second = Device::greet(b.tcp, "d", &[])?;
    assert_eq!(first.goodbye()?.reason, "replaced");
    // A node that has no connection of the service any more is not asked.
    drop(at_b);
    await_nodes(&a, "backend", 1)?;
    assert_eq!(publish(&b, "backend", "without b")?["nodes"], 1);
    for device in &mut at_a {
        assert_eq!(text(device)?, "without b");
    }
    // Redis forgets everything.
    redis.kill()?;
    a.await_metrics("the loss of Redis", |metrics| {
        metrics.sum("weir_broker_reachable", "") == 0.0
    })?;
    let refused = Answer::post(a.admin, "/v1/publish", r#"{"device":"backend","text":""}"#)?;
    assert_eq!(refused.status, 503, "{}", refused.body);
    redis.restart()?;
    for node in [&a, &b, &c] {
        node.await_metrics("the return of Redis", |metrics| {
            metrics.sum("weir_broker_reachable", "") == 1.0
        })?;
    }
    await_nodes(&c, "backend", 1)?;
    await_nodes(&c, "d", 1)?;
    publish(&b, "backend", "after")?;
    for device in &mut at_a {
        assert_eq!(text(device)?, "after");
    }
    publish(&a, "d", "after")?;
    assert_eq!(text(&mut second)?, "after");
    Ok(())
}

/// Publishes under an idempotency key.
fn publish_once(node: &Server, key: &str, message: &Value) -> Result<Value> {
    let (addr, body) = (node.admin, message.to_string());
    let answer = Answer::ask(
        addr,
        &format!(
            "POST /v1/publish HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nIdempotency-Key: {key}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    )?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(serde_json::from_str(&answer.body)?)
}

#[test]
fn a_message_that_is_sent_again_at_another_node_arrives_once() -> Result<()> {
    let redis = Redis::start()?;
    let (a, b) = (node(&redis, "a")?, node(&redis, "b")?);
    let mut device = Device::greet(b.tcp, "d", &[])?;
    let to = |target: &str, text: &str| match target {
        "all" => json!({"all": true, "text": text}),
        id => json!({"device": id, "text": text}),
    };
    // Nobody is there to get it: when it comes again it is sent.
    assert_eq!(publish_once(&a, "early", &to("later", "early"))?["nodes"], 0);
    await_nodes(&a, "d", 1)?;
    let mut expected = Vec::new();
    for target in ["d", "all"] {
        for key in ["one", "two"] {
            let text = format!("{key} to {target}");
            let first = publish_once(&a, key, &to(target, &text))?;
            for node in [&b, &a, &b] {
                let again = publish_once(node, key, &to(target, "again"))?;
                assert_eq!(again["nodes"], first["nodes"], "{again}");
            }
            expected.push(text);
        }
    }
    // Without a key each is sent.
    for node in [&a, &b] {
        node.publish(&to("d", "without"))?;
        expected.push("without".to_owned());
    }
    for expected in &expected {
        assert_eq!(text(&mut device)?, *expected);
    }
    let mut later = Device::greet(a.tcp, "later", &[])?;
    await_nodes(&b, "later", 1)?;
    assert_eq!(publish_once(&b, "early", &to("later", "late"))?["nodes"], 1);
    assert_eq!(text(&mut later)?, "late");
    Ok(())
}

const PROBE: &str = "probe";
