//! A node of a cluster is upgraded under load: the others notice nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, Numbers, PATIENCE, Redis, Server, now, rest};
use weir_wire::v1::{Ping, Publish, client_message, publish, push, server_message};

use super::upgrade;

fn node(redis: &Redis, name: &str) -> Result<Server> {
    Server::start_with_http(&format!(
        r#"
[auth]
anonymous = true
[limits]
connections_per_device_max = 1
publishes_per_second = 0
[cluster]
redis = "{}"
node = "{name}"
[[topic_classes]]
pattern = "room/*"
presence = true
presence_for = ["devices"]
[[topic_classes]]
pattern = "kept/*"
retention_messages = 100000
retention_bytes = 33554432
[[topic_classes]]
pattern = "*"
publish = ["devices"]
"#,
        redis.url()
    ))
}

/// Where numbers are published: the name, the key of a message, and its value.
const TARGETS: [(&str, &str, &str); 4] = [
    ("kept", "topic", "kept/x"),
    ("live", "topic", "live/x"),
    ("device", "device", "at a"),
    ("all", "all", ""),
];
/// Ends a stream of numbers.
const END: &str = "end";
const PROBE: &str = "probe";

/// `publish` publishes a text under a number, and the end last.
fn start(mut publish: impl FnMut(u64, &str) -> Result<()> + Send + 'static) -> Numbers {
    let mut next = 0;
    Numbers::start_by(move |number| {
        let Some(number) = number else { return publish(next, END) };
        next = number + 1;
        publish(number, &number.to_string())
    })
}

/// At a node, to every target.
fn numbers_at(name: &'static str, admin: SocketAddr) -> Numbers {
    start(move |number, text| {
        for (target, key, value) in TARGETS {
            let value = if key == "all" { json!(true) } else { json!(value) };
            let message = json!({key: value, "text": format!("{name} {target} {text}")});
            publish_once(admin, &format!("{name}-{target}-{number}"), &message)?;
        }
        Ok(())
    })
}

/// A device, which waits for each answer.
fn numbers_of(mut device: Device) -> Numbers {
    start(move |number, text| {
        let text = format!("device live {text}");
        publish_by(&mut device, u32::try_from(number + 1)?, "live/x", &text)
    })
}

/// Publishes under a key. What has no good answer is sent again.
pub(crate) fn publish_once(admin: SocketAddr, key: &str, message: &Value) -> Result<Value> {
    let (body, deadline) = (message.to_string(), now() + PATIENCE);
    let request = format!(
        "POST /v1/publish HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nIdempotency-Key: {key}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    loop {
        match Answer::ask(admin, &request) {
            Ok(answer) if answer.status == 200 => return Ok(serde_json::from_str(&answer.body)?),
            answer => ensure!(now() < deadline, "{answer:?}"),
        }
    }
}

/// What is refused is sent again.
fn publish_by(device: &mut Device, request: u32, topic: &str, text: &str) -> Result<()> {
    loop {
        device.send(client_message::Kind::Publish(Publish {
            topic: topic.to_owned(),
            payload: Some(publish::Payload::Text(text.to_owned())),
            request,
            ..Publish::default()
        }))?;
        loop {
            let heard = device.hear()?.context("the publishing device is closed")?;
            if matches!(&heard, server_message::Kind::Published(to) if to.request == request) {
                return Ok(());
            }
            if matches!(&heard, server_message::Kind::Error(to) if to.request == request) {
                break;
            }
            // It hears what is for all.
            ensure!(matches!(heard, server_message::Kind::Push(_)), "{heard:?}");
        }
    }
}

/// Hears these streams to their ends: the numbers of each in order, each once, and the offsets of a
/// topic without a gap.
fn hear(
    mut device: Device,
    name: &'static str,
    streams: Vec<String>,
) -> JoinHandle<Result<Device>> {
    thread::spawn(move || {
        let mut next: BTreeMap<String, u64> = streams.into_iter().map(|name| (name, 0)).collect();
        let mut offsets: BTreeMap<String, u64> = BTreeMap::new();
        while !next.is_empty() {
            let push = device.push().with_context(|| format!("{name} waits for {next:?}"))?;
            let Some(push::Payload::Text(text)) = push.payload else { bail!("{name}: no text") };
            if text == PROBE {
                continue;
            }
            if !push.topic.is_empty() {
                let offset = offsets.entry(push.topic).or_insert(push.offset - 1);
                ensure!(push.offset == *offset + 1, "{name}: {text} behind offset {offset}");
                *offset = push.offset;
            }
            let (stream, number) = text.rsplit_once(' ').context("a number")?;
            let Some(expected) = next.get_mut(stream) else { bail!("{name}: {text} is too much") };
            if number == END {
                next.remove(stream);
                continue;
            }
            ensure!(number == expected.to_string(), "{name}: {text} where {expected} is due");
            *expected += 1;
        }
        Ok(device)
    })
}

/// The nodes as one of them lists them.
fn nodes(at: &Server) -> Result<BTreeMap<String, u64>> {
    let listed: Value = serde_json::from_str(&Answer::get(at.admin, "/v1/nodes")?.body)?;
    let listed = listed["nodes"].as_array().context("it lists nodes")?;
    let each = listed.iter();
    let each = each.map(|node| Some((node["name"].as_str()?.to_owned(), node["number"].as_u64()?)));
    each.collect::<Option<_>>().context("a node has a name and a number")
}

/// The devices in a room as a node lists them.
fn present(at: &Server) -> Result<BTreeSet<String>> {
    let answer = Answer::get(at.admin, "/v1/topics/room%2F1/presence")?;
    let list: Value = serde_json::from_str(&answer.body)?;
    let members = list["members"].as_array().context("it lists members")?;
    Ok(members.iter().filter_map(|member| member["device"].as_str()).map(str::to_owned).collect())
}

#[test]
fn a_node_is_upgraded_twice_and_no_node_notices() -> Result<()> {
    let redis = Redis::start()?;
    let (a, b) = (node(&redis, "a")?, node(&redis, "b")?);
    let topics = ["kept/x", "live/x", "room/1"];
    let (at_a, at_b) =
        (Device::greet(a.tcp, "at a", &topics)?, Device::greet(b.tcp, "at b", &topics)?);
    let everyone = BTreeSet::from(["at a".to_owned(), "at b".to_owned()]);
    let deadline = now() + PATIENCE;
    while nodes(&a)?.len() < 2 || present(&b)? != everyone || !is_known(&b)? {
        ensure!(now() < deadline, "the nodes do not find each other");
        rest();
    }
    let numbers = nodes(&a)?;
    let streams = |has_device: bool| {
        let of_nodes =
            ["a", "b"].into_iter().flat_map(|node| TARGETS.map(|(name, ..)| (node, name)));
        let of_nodes = of_nodes.filter(|(_, name)| has_device || *name != "device");
        let streams = of_nodes.map(|(node, name)| format!("{node} {name}"));
        streams.chain(["device live".to_owned()]).collect::<Vec<String>>()
    };
    let hearing = [hear(at_a, "at a", streams(true)), hear(at_b, "at b", streams(false))];
    let publishers = [
        numbers_at("a", a.admin),
        numbers_at("b", b.admin),
        numbers_of(Device::greet(a.tcp, "publisher", &[])?),
    ];
    let mut newest = None;
    for _ in 0..2 {
        publishers.iter().try_for_each(|publisher| publisher.await_more(10))?;
        let (process, _) = upgrade(&a)?;
        drop(newest.replace(process));
        publishers.iter().try_for_each(|publisher| publisher.await_more(10))?;
    }
    let counts = publishers.map(Numbers::finish).into_iter().collect::<Result<Vec<u64>>>()?;
    ensure!(counts.iter().all(|count| *count >= 40), "{counts:?}");
    let mut devices = Vec::new();
    for heard in hearing {
        let mut device = heard.join().map_err(|_| anyhow!("a device has failed"))??;
        device.send(client_message::Kind::Ping(Ping { data: b"x".to_vec() }))?;
        // Nothing comes behind what was expected.
        let heard = device.hear()?;
        ensure!(matches!(heard, Some(server_message::Kind::Pong(_))), "{heard:?}");
        devices.push(device);
    }
    for server in [&a, &b] {
        ensure!(nodes(server)? == numbers && present(server)? == everyone);
        let lost = server.metrics()?.sum("weir_cluster_messages_total", "outcome=\"lost\"");
        ensure!(lost == 0.0, "{lost} messages are lost");
    }
    // The new process has the claims of the first one.
    let newer = Device::greet(b.tcp, "at a", &[])?;
    ensure!(devices[0].goodbye()?.reason == "replaced");
    drop(newer);
    Ok(())
}

/// Whether messages to the device reach its node.
fn is_known(at: &Server) -> Result<bool> {
    Ok(at.publish(&json!({"device": "at a", "text": PROBE}))?["nodes"] == 1)
}
