//! Several nodes over a real Redis: one topic for all, resuming elsewhere, histories, who is in a topic,
//! and a Redis that dies.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, PATIENCE, Redis, Server, now, program};
use weir_wire::v1::{self, client_message, push, server_message};

/// A node of the cluster in that Redis.
fn node(redis: &Redis, name: &str) -> Result<Server> {
    Server::start_with_http(&format!(
        r#"
[auth]
anonymous = true
[cluster]
redis = "{}"
node = "{name}"
presence_kept = "4s"
[[topic_classes]]
pattern = "room/*"
presence = true
presence_for = ["devices"]
[[topic_classes]]
pattern = "kept/*"
retention_messages = 100
history = true
publish = ["devices"]
[[topic_classes]]
pattern = "short/*"
retention_messages = 100
retention_bytes = 8192
message_bytes_max = 2048
history = true
publish = ["devices"]
[[topic_classes]]
pattern = "big/*"
retention_messages = 100
retention_bytes = 200000
history = true
[[topic_classes]]
pattern = "own/*"
scope = "node"
[[topic_classes]]
pattern = "*"
publish = ["devices"]
"#,
        redis.url()
    ))
}

fn publish(server: &Server, topic: &str, text: &str) -> Result<Value> {
    server.publish(&json!({"topic": topic, "text": text}))
}

fn texts(device: &mut Device, count: usize) -> Result<Vec<(u64, String)>> {
    let mut texts = Vec::new();
    while texts.len() < count {
        let push = device.push()?;
        let Some(push::Payload::Text(text)) = push.payload else { bail!("expected a text") };
        texts.push((push.offset, text));
    }
    Ok(texts)
}

fn subscribe(
    device: &mut Device,
    topic: &str,
    position: Option<v1::Position>,
) -> Result<v1::Subscribed> {
    let topic = topic.to_owned();
    let subscribe = v1::Subscribe { topic, position, presence: false };
    device.send(client_message::Kind::Subscribe(subscribe))?;
    subscribed(device)
}

fn subscribed(device: &mut Device) -> Result<v1::Subscribed> {
    match device.hear()? {
        Some(server_message::Kind::Subscribed(subscribed)) => Ok(subscribed),
        other => bail!("expected Subscribed, got {other:?}"),
    }
}

#[test]
fn a_message_reaches_the_subscribers_of_every_node_in_one_order() -> Result<()> {
    let redis = Redis::start()?;
    let nodes = [node(&redis, "a")?, node(&redis, "b")?, node(&redis, "c")?];
    let mut devices = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let mut device = Device::greet(node.tcp, &format!("d{index}"), &[])?;
        for topic in ["kept/a", "plain"] {
            assert_eq!(subscribe(&mut device, topic, None)?.topic, topic);
        }
        devices.push(device);
    }
    for topic in ["kept/a", "plain"] {
        let mut epochs = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let answer = publish(node, topic, &format!("m{index}"))?;
            assert_eq!(answer["offset"], index + 1, "{answer}");
            assert_eq!((&answer["connections"], &answer["nodes"]), (&json!(1), &json!(3)));
            epochs.push(answer["epoch"].clone());
        }
        assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
        for device in &mut devices {
            let expected: Vec<(u64, String)> =
                (0..3).map(|index| (index + 1, format!("m{index}"))).collect();
            assert_eq!(texts(device, 3)?, expected);
        }
    }
    // A topic of one node alone stays there.
    subscribe(&mut devices[0], "own/x", None)?;
    subscribe(&mut devices[1], "own/x", None)?;
    let answer = publish(&nodes[0], "own/x", "here")?;
    assert_eq!((&answer["offset"], &answer["nodes"]), (&json!(1), &Value::Null));
    assert_eq!(texts(&mut devices[0], 1)?, [(1, "here".to_owned())]);
    publish(&nodes[1], "own/x", "there")?;
    assert_eq!(texts(&mut devices[1], 1)?, [(1, "there".to_owned())]);
    Ok(())
}

#[test]
fn a_device_resumes_at_another_node_what_it_missed() -> Result<()> {
    let redis = Redis::start()?;
    let (mut first, second) = (node(&redis, "a")?, node(&redis, "b")?);
    let mut device = Device::greet(first.tcp, "d", &[])?;
    let position = subscribe(&mut device, "kept/a", None)?.position;
    publish(&second, "kept/a", "one")?;
    assert_eq!(texts(&mut device, 1)?, [(1, "one".to_owned())]);
    let mut seen = position.unwrap_or_default();
    seen.offset = 1;
    // Its node is killed, and it comes back to a node that did not know the topic.
    first.kill()?;
    publish(&second, "kept/a", "two")?;
    let third = node(&redis, "c")?;
    publish(&third, "kept/a", "three")?;
    for node in [&second, &third] {
        let mut device = Device::greet(node.tcp, "d", &[])?;
        let answer = subscribe(&mut device, "kept/a", Some(seen))?;
        assert_eq!((answer.recovered, answer.position), (true, Some(seen)));
        let missed = [(2, "two".to_owned()), (3, "three".to_owned())];
        assert_eq!(texts(&mut device, 2)?, missed);
    }
    // Of an epoch that nobody knows all that is kept comes.
    let mut device = Device::greet(third.tcp, "e", &[])?;
    let unknown = v1::Position { epoch: seen.epoch ^ 1, offset: 9 };
    let answer = subscribe(&mut device, "kept/a", Some(unknown))?;
    assert!(!answer.recovered);
    assert_eq!(texts(&mut device, 3)?.len(), 3);
    // Every node restarts: Redis has kept the messages.
    drop((second, third));
    let fourth = node(&redis, "d")?;
    let mut device = Device::greet(fourth.tcp, "d", &[])?;
    assert!(subscribe(&mut device, "kept/a", Some(seen))?.recovered);
    assert_eq!(texts(&mut device, 2)?.len(), 2);
    Ok(())
}

#[test]
fn a_resume_gets_what_redis_keeps_also_where_a_node_keeps_less() -> Result<()> {
    let redis = Redis::start()?;
    let (first, second) = (node(&redis, "a")?, node(&redis, "b")?);
    let mut device = Device::greet(first.tcp, "d", &[])?;
    let begin = subscribe(&mut device, "short/a", None)?.position.unwrap_or_default();
    let text = |number: u64| format!("{number:01000}");
    for number in 1..=120 {
        publish(&second, "short/a", &text(number))?;
    }
    texts(&mut device, 120)?;
    // Of the last hundred messages, which Redis keeps, a node keeps fewer than eight.
    let mut seen = begin;
    for (offset, is_recovered, first_offset) in [(30, true, 31), (5, false, 21)] {
        seen.offset = offset;
        for node in [&first, &second, &node(&redis, "c")?] {
            let mut device = Device::greet(node.tcp, "e", &[])?;
            let answer = subscribe(&mut device, "short/a", Some(seen))?;
            assert_eq!(answer.recovered, is_recovered, "{answer:?}");
            let expected: Vec<(u64, String)> =
                (first_offset..=120).map(|number| (number, text(number))).collect();
            assert!(texts(&mut device, expected.len())? == expected, "from {offset} on");
            let reads = node.metrics()?.sum("weir_cluster_resume_reads_total", "");
            assert!(reads > 0.0);
        }
    }
    Ok(())
}

fn history(node: &Server, topic: &str, query: &str) -> Result<Answer> {
    let topic = topic.replace('/', "%2F");
    Answer::get(node.http()?, &format!("/v1/topics/{topic}/history?{query}"))
}

/// A history, as its pages tell it.
struct Told {
    epoch: String,
    /// Of the first page.
    is_recovered: bool,
    messages: Vec<(u64, String)>,
    pages: usize,
}

/// Reads a history to its end, from a position on.
fn read_history(node: &Server, topic: &str, after: &str, limit: usize) -> Result<Told> {
    let mut told: Option<Told> = None;
    let mut after = after.to_owned();
    loop {
        let answer = history(node, topic, &format!("limit={limit}{after}"))?;
        ensure!(answer.status == 200, "{answer:?}");
        let page: Value = serde_json::from_str(&answer.body)?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a text");
        let messages = page["messages"].as_array().context("it has messages")?;
        let message = |one: &Value| Ok((text(&one["offset"])?.parse()?, text(&one["text"])?));
        let messages = messages.iter().map(message).collect::<Result<Vec<(u64, String)>>>()?;
        let epoch = text(&page["epoch"])?;
        let is_recovered = page["recovered"] == true;
        match &mut told {
            None => told = Some(Told { epoch, is_recovered, messages, pages: 1 }),
            Some(told) => {
                ensure!(is_recovered && epoch == told.epoch, "a later page misses something");
                told.messages.extend(messages);
                told.pages += 1;
            }
        }
        if page["more"] == false {
            return told.context("there was a page");
        }
        after = format!("&after={}", text(&page["next"])?);
    }
}

#[test]
fn a_history_is_what_redis_keeps_whatever_a_node_keeps() -> Result<()> {
    let redis = Redis::start()?;
    let (first, second) = (node(&redis, "a")?, node(&redis, "b")?);
    let mut device = Device::greet(first.tcp, "d", &[])?;
    subscribe(&mut device, "short/a", None)?;
    let text = |number: u64| format!("{number:01000}");
    let mut epoch = String::new();
    for number in 1..=120 {
        epoch = publish(&second, "short/a", &text(number))?["epoch"].to_string().replace('"', "");
    }
    texts(&mut device, 120)?;
    let kept = |from: u64| (from..=120).map(|number| (number, text(number)));
    let reads = |node: &Server| Ok::<_, anyhow::Error>(node.metrics()?.sum(READS, ""));
    let check = |node: &Server| -> Result<()> {
        // Of the hundred messages that Redis keeps, a node keeps fewer than eight.
        for (after, limit, is_recovered, from) in [
            (String::new(), 1000, false, 21),
            (String::new(), 7, false, 21),
            (format!("&after={epoch}-20"), 9, true, 21),
            (format!("&after={epoch}-5"), 1000, false, 21),
            (format!("&after={epoch}-50"), 30, true, 51),
            ("&after=00000000000000ff-50".to_owned(), 1000, false, 21),
            (format!("&after={epoch}-121"), 1000, false, 21),
        ] {
            let told = read_history(node, "short/a", &after, limit)?;
            let found = (&told.epoch, told.is_recovered);
            assert_eq!(found, (&epoch, is_recovered), "{after} {limit}");
            assert!(kept(from).eq(told.messages), "{after} {limit}");
            assert_eq!(told.pages, usize::try_from(120 - from + 1)?.div_ceil(limit));
        }
        assert!(reads(node)? > 0.0);
        // What it keeps itself costs Redis nothing, once it follows the topic.
        let newest = format!("&after={epoch}-118");
        let deadline = now() + PATIENCE;
        loop {
            let before = reads(node)?;
            let told = read_history(node, "short/a", &newest, 1000)?;
            assert!(told.is_recovered && kept(119).eq(told.messages));
            if reads(node)? == before {
                break;
            }
            ensure!(now() < deadline, "Redis is asked again and again");
        }
        let before = reads(node)?;
        read_history(node, "short/a", &format!("&after={epoch}-120"), 1000)?;
        assert_eq!(reads(node)?, before);
        Ok(())
    };
    check(&first)?;
    check(&second)?;
    // Nobody ever followed the topic at this node; then every node restarts.
    check(&node(&redis, "c")?)?;
    drop((device, first, second));
    check(&node(&redis, "d")?)?;
    Ok(())
}

#[test]
fn an_answer_of_history_is_as_long_as_it_may_be_wherever_it_comes_from() -> Result<()> {
    let redis = Redis::start()?;
    let (first, second) = (node(&redis, "a")?, node(&redis, "b")?);
    let text = "x".repeat(50_000);
    for _ in 0..30 {
        publish(&first, "big/a", &text)?;
    }
    let told = read_history(&second, "big/a", "", 100)?;
    let offsets: Vec<u64> = told.messages.iter().map(|(offset, _)| *offset).collect();
    assert_eq!((offsets, told.pages), ((1..=30).collect(), 2));
    let answer = history(&second, "big/a", "limit=100")?;
    assert!((1_000_000..=(1 << 20) + 1000).contains(&answer.body.len()), "{}", answer.body.len());
    Ok(())
}

#[test]
fn without_redis_no_history_is_told() -> Result<()> {
    let redis = Redis::start()?;
    let (first, second) = (node(&redis, "a")?, node(&redis, "b")?);
    let mut device = Device::greet(first.tcp, "d", &[])?;
    subscribe(&mut device, "kept/a", None)?;
    publish(&second, "kept/a", "one")?;
    texts(&mut device, 1)?;
    let before = read_history(&first, "kept/a", "", 100)?;
    assert_eq!(before.messages, [(1, "one".to_owned())]);
    redis.suspend()?;
    // The first requests may come before the node knows that Redis is silent.
    for _ in 0..3 {
        for (node, topic) in [(&first, "kept/b"), (&second, "kept/a")] {
            let answer = history(node, topic, "")?;
            assert_eq!(answer.status, 503, "{answer:?}");
            assert!(answer.head.to_ascii_lowercase().contains("\r\nretry-after: "), "{answer:?}");
        }
    }
    first.await_metrics("the loss of Redis", |metrics| {
        metrics.sum("weir_broker_reachable", "") == 0.0
    })?;
    // Nor by a node that follows the topic: others may have published meanwhile.
    assert_eq!(history(&first, "kept/a", "")?.status, 503);
    redis.resume()?;
    for node in [&first, &second] {
        node.await_metrics("the return of Redis", |metrics| {
            metrics.sum("weir_broker_reachable", "") == 1.0
        })?;
        let told = read_history(node, "kept/a", "", 100)?;
        assert_eq!((told.epoch, told.messages), (before.epoch.clone(), before.messages.clone()));
    }
    Ok(())
}

#[test]
fn a_redis_that_may_remove_keys_is_told() -> Result<()> {
    let redis = Redis::start()?;
    redis.command("CONFIG SET maxmemory-policy allkeys-lru")?;
    let node = node(&redis, "a")?;
    node.await_log("set its maxmemory-policy to noeviction", 1)?;
    node.await_metrics("the policy", |metrics| metrics.sum("weir_broker_evicting", "") == 1.0)?;
    Ok(())
}

#[test]
fn a_node_of_another_cluster_with_the_same_prefix_does_not_start() -> Result<()> {
    let redis = Redis::start()?;
    let _node = node(&redis, "a")?;
    let directory = tempfile::tempdir()?;
    let listen = "tcp = [\"127.0.0.1:0\"]\nhttp = []\nudp = []\nadmin = \"127.0.0.1:0\"\n";
    let cluster = format!("redis = \"{}\"\nid = \"other\"\n", redis.url());
    let config = format!("[listen]\n{listen}[store]\nkind = \"none\"\n[cluster]\n{cluster}");
    std::fs::write(directory.path().join("weir.toml"), config)?;
    // One that is not refused would serve for ever.
    let mut command = Command::new("timeout");
    command.arg("30").arg(program("weir")?).args(["serve", "--config", "weir.toml"]);
    let output = command.env_remove("WEIR_CONFIG").current_dir(directory.path()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = r#"the prefix "weir" belongs to another cluster, weir; this one is other"#;
    assert!(said.contains(expected), "{said}");
    Ok(())
}

#[test]
fn a_redis_that_loses_all_is_told_and_service_goes_on() -> Result<()> {
    let mut redis = Redis::start()?;
    let nodes = [node(&redis, "a")?, node(&redis, "b")?];
    let mut device = Device::greet(nodes[0].tcp, "d", &[])?;
    let before = subscribe(&mut device, "kept/a", None)?.position.unwrap_or_default();
    publish(&nodes[1], "kept/a", "one")?;
    assert_eq!(texts(&mut device, 1)?, [(1, "one".to_owned())]);
    redis.kill()?;
    nodes[1].await_metrics("the loss of Redis", |metrics| {
        metrics.sum("weir_broker_reachable", "") == 0.0
    })?;
    let answer = Answer::post(nodes[1].admin, "/v1/publish", r#"{"topic":"kept/a","text":"no"}"#)?;
    assert_eq!(answer.status, 503, "{}", answer.body);
    // A topic of the node alone is served, and the connection stays.
    subscribe(&mut device, "own/x", None)?;
    publish(&nodes[0], "own/x", "still here")?;
    assert_eq!(texts(&mut device, 1)?.len(), 1);
    redis.restart()?;
    for node in &nodes {
        node.await_metrics("the return of Redis", |metrics| {
            metrics.sum("weir_broker_reachable", "") == 1.0
        })?;
    }
    // What Redis has kept is gone, and the device is told before the first new message.
    publish(&nodes[1], "kept/a", "after")?;
    let told = subscribed(&mut device)?;
    let position = told.position.unwrap_or_default();
    assert!(!told.recovered && position.epoch != before.epoch, "{told:?}");
    let push = device.push()?;
    assert_eq!(push.payload, Some(push::Payload::Text("after".to_owned())));
    assert!(push.offset > position.offset);
    let metrics = nodes[0].metrics()?;
    for (name, labels) in [
        ("weir_cluster_epochs_total", r#"offsets="lost""#),
        ("weir_broker_resubscriptions_total", ""),
        ("weir_broker_commands_total", r#"kind="read""#),
        ("weir_broker_round_trip_seconds_count", ""),
    ] {
        assert!(metrics.sum(name, labels) > 0.0, "{name}");
    }
    // Of commands and of subscriptions: at the start, and after the loss.
    assert!(metrics.sum("weir_broker_connects_total", "") >= 4.0);
    let published = nodes[1].metrics()?.sum("weir_broker_publish_seconds_count", "");
    assert_eq!(published, 2.0);
    Ok(())
}

/// A device that hears who is in the topic; what it has heard of so far.
struct Watcher {
    device: Device,
    present: BTreeSet<String>,
}

impl Watcher {
    fn enter(node: &Server, id: &str, topic: &str) -> Result<Watcher> {
        let mut device = Device::greet(node.tcp, id, &[])?;
        let topic = topic.to_owned();
        let subscribe = v1::Subscribe { topic, position: None, presence: true };
        device.send(client_message::Kind::Subscribe(subscribe))?;
        subscribed(&mut device)?;
        Ok(Watcher { device, present: BTreeSet::new() })
    }

    /// Hears on until these devices are there, and no others that it has heard of.
    fn hear(&mut self, devices: &[&str]) -> Result<()> {
        while !self.present.iter().eq(devices) {
            let told = match self.device.hear()? {
                Some(server_message::Kind::Presence(told)) => told,
                // A new epoch, after Redis has lost all.
                Some(server_message::Kind::Subscribed(_)) => continue,
                other => bail!("expected Presence, got {other:?}"),
            };
            let name = |member: v1::Member| member.device_id;
            for left in told.left.into_iter().map(name) {
                self.present.remove(&left);
            }
            self.present.extend(told.joined.into_iter().map(name));
        }
        Ok(())
    }
}

/// The devices in `room/1`, as a node lists them.
fn listed(node: &Server) -> Result<BTreeSet<String>> {
    let answer = Answer::get(node.admin, "/v1/topics/room%2F1/presence")?;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let list: Value = serde_json::from_str(&answer.body)?;
    assert_eq!(list["complete"], true);
    let members = list["members"].as_array().context("it lists members")?;
    let devices = members.iter().filter_map(|member| member["device"].as_str());
    Ok(devices.map(str::to_owned).collect())
}

#[test]
fn who_is_in_a_topic_is_known_at_every_node() -> Result<()> {
    let mut redis = Redis::start()?;
    let (a, b, mut c) = (node(&redis, "a")?, node(&redis, "b")?, node(&redis, "c")?);
    let mut watcher = Watcher::enter(&a, "watcher", "room/1")?;
    let at_b = Device::greet(b.tcp, "at b", &["room/1"])?;
    let at_c = Device::greet(c.tcp, "at c", &["room/1"])?;
    watcher.hear(&["at b", "at c", "watcher"])?;
    for node in [&a, &b, &c] {
        assert!(listed(node)?.iter().eq(["at b", "at c", "watcher"]));
    }
    drop(at_b);
    watcher.hear(&["at c", "watcher"])?;
    // A node is killed: its members leave in the end.
    c.kill()?;
    drop(at_c);
    watcher.hear(&["watcher"])?;
    assert!(listed(&a)?.iter().eq(["watcher"]));
    // Redis loses all, and the nodes tell it again.
    let again = Device::greet(b.tcp, "again", &["room/1"])?;
    watcher.hear(&["again", "watcher"])?;
    redis.kill()?;
    a.await_metrics("the loss of Redis", |metrics| {
        metrics.sum("weir_broker_reachable", "") == 0.0
    })?;
    let answer = Answer::get(a.admin, "/v1/topics/room%2F1/presence")?;
    assert_eq!(answer.status, 503, "{}", answer.body);
    redis.restart()?;
    let deadline = now() + PATIENCE;
    while !listed(&b).is_ok_and(|listed| listed.iter().eq(["again", "watcher"])) {
        ensure!(now() < deadline, "the members are not entered again");
    }
    drop(again);
    watcher.hear(&["watcher"])?;
    Ok(())
}

/// Parts of histories that a node has read from Redis.
const READS: &str = "weir_cluster_history_reads_total";
