//! A node that is emptied while it runs, or sends a share of its connections elsewhere.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use weir_client::{Client, Event, Options, Payload, Subscription};
use weir_tests::http2::{GOAWAY, Http2};
use weir_tests::{Answer, Authority, Crowd, Device, PATIENCE, Redis, Server, Socket, program};
use weir_wire::v1::{push, server_message};

/// What every connection is told.
const DRAINING: (u16, &str) = (4100, "draining");

/// Begins a drain, and returns the answer.
fn drain(server: &Server, options: &Value) -> Result<Value> {
    let answer = Answer::post(server.admin, "/v1/drain", &options.to_string())?;
    ensure!(answer.status == 202, "{answer:?}");
    Ok(serde_json::from_str(&answer.body)?)
}

fn cancel(server: &Server) -> Result<Value> {
    let answer = Answer::delete(server.admin, "/v1/drain")?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(serde_json::from_str(&answer.body)?)
}

fn await_state(server: &Server, state: &str) -> Result<Value> {
    server.await_answer("/v1/drain", |drain| drain["state"] == state)?;
    Ok(serde_json::from_str(&Answer::get(server.admin, "/v1/drain")?.body)?)
}

/// Whether it is ready, as probes and metrics say.
fn is_ready(server: &Server) -> Result<bool> {
    let answer = Answer::get(server.admin, "/readyz")?;
    let is_ready = answer.status == 200;
    ensure!(is_ready || answer.body.contains("not ready: drain"), "{answer:?}");
    let nodes: Value = serde_json::from_str(&Answer::get(server.admin, "/v1/nodes")?.body)?;
    ensure!(nodes["nodes"][0]["about"]["draining"] == !is_ready, "{nodes}");
    ensure!(server.metrics()?.sum("weir_draining", "") == f64::from(u8::from(!is_ready)));
    Ok(is_ready)
}

fn publish(server: &Server, text: &str) -> Result<()> {
    server.publish(&json!({"topic": "news", "text": text})).map(drop)
}

fn greet(server: &Server, name: &str, count: usize) -> Result<Vec<Device>> {
    (0..count)
        .map(|number| Device::greet(server.tcp, &format!("{name}-{number}"), &["news"]))
        .collect()
}

/// Sorts the devices by what they hear next: a goodbye, or this message. Returns those that stay.
fn stay(devices: Vec<Device>, text: &str) -> Result<Vec<Device>> {
    let mut staying = Vec::new();
    for mut device in devices {
        match device.hear()? {
            Some(server_message::Kind::Push(push)) => {
                ensure!(push.payload == Some(push::Payload::Text(text.to_owned())), "{push:?}");
                staying.push(device);
            }
            Some(server_message::Kind::Goodbye(goodbye)) => {
                ensure!((goodbye.code, &*goodbye.reason) == (4100, "draining"), "{goodbye:?}");
                ensure!(device.hear()?.is_none(), "it is told once");
            }
            other => bail!("{other:?}"),
        }
    }
    Ok(staying)
}

/// A connection over HTTP/1.1 that has had an answer and may ask again.
fn keep_alive(http: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("HEAD / HTTP/1.1\r\nHost: {http}\r\n\r\n").as_bytes())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(stream)
}

fn is_refused(server: &Server) -> Result<()> {
    let goodbye = Device::connect(server.tcp)?.goodbye()?;
    ensure!((goodbye.code, &*goodbye.reason) == (4100, "draining"), "{goodbye:?}");
    ensure!(goodbye.retry_after_ms >= 1_000, "{goodbye:?}");
    let answer = Answer::get(server.http()?, "/")?;
    ensure!(answer.status == 503, "{answer:?}");
    Ok(())
}

#[test]
fn a_node_is_emptied_and_admits_again() -> Result<()> {
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    let server = Server::start_with_all_doors(&certificate)?;
    let http = server.http()?;
    let mut crowd = Crowd::enter(&server, "d")?;
    let tls = server.tls.context("TLS")?;
    let mut secured = Device::connect_tls(tls, &authority.client()?)?;
    secured.say_hello("d-6", &["news"])?;

    // Announced: it is not ready, and everything goes on.
    let told = drain(&server, &json!({"lead": "1h"}))?;
    assert_eq!((&told["state"], &told["share"]), (&json!("announced"), &json!(1.0)), "{told}");
    assert_eq!((&told["lead_ms"], &told["over_ms"]), (&json!(3_600_000), &json!(60_000)));
    assert_eq!((&told["to_close"], &told["closed"]), (&json!(6), &json!(0)), "{told}");
    assert!(!is_ready(&server)?);
    let mut late = Device::greet(server.tcp, "late", &["news"])?;
    publish(&server, "still here")?;
    crowd.hear("still here")?;
    secured.push()?;
    late.push()?;
    let refused = Answer::post(server.admin, "/v1/drain", "{}")?;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.body.contains("a drain is announced"), "{refused:?}");
    assert_eq!(cancel(&server)?["state"], "cancelled");
    assert!(is_ready(&server)?);

    // All are told once, each in its way, also those that are not settled.
    let mut early = Socket::open(http)?;
    let mut silent = Device::connect(server.tcp)?;
    let mut kept = keep_alive(http)?;
    let mut streams = Http2::connect(http, &[])?;
    streams.get(1, "/")?;
    streams.body(1)?;
    server.await_metrics("all of them", |metrics| {
        metrics.connections("unsettled") == 2.0 && metrics.sum("weir_http_connections", "") == 3.0
    })?;
    let told = drain(&server, &json!({"lead": "0ms", "over": "500ms"}))?;
    assert_eq!(told["to_close"], 7, "{told}");
    crowd.are_told(DRAINING.0, DRAINING.1)?;
    assert_eq!(early.goodbye()?, (DRAINING.0, DRAINING.1.to_owned()));
    for device in [&mut secured, &mut late, &mut silent] {
        let goodbye = device.goodbye()?;
        assert_eq!((goodbye.code, &*goodbye.reason), (4100, "draining"));
    }
    assert_eq!(kept.read(&mut [0])?, 0, "it is closed");
    assert_eq!(streams.end()?, Some(0), "GOAWAY without an error");
    let over = await_state(&server, "drained")?;
    assert_eq!((&over["closed"], &over["connections"]), (&json!(7), &json!(0)), "{over}");
    assert_eq!(over["http_connections"], 0, "{over}");
    assert_eq!(server.metrics()?.closed("draining"), 9.0, "with the two that were not settled");

    // It stays up, and admits no connection until it is told to.
    assert!(!is_ready(&server)?);
    is_refused(&server)?;
    publish(&server, "nobody hears")?;
    assert_eq!(Answer::post(server.admin, "/v1/drain", "{}")?.status, 409);
    assert_eq!(cancel(&server)?["state"], "cancelled");
    assert!(is_ready(&server)?);
    let mut crowd = Crowd::enter(&server, "d")?;
    publish(&server, "again")?;
    crowd.hear("again")?;
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

#[test]
fn a_drain_that_is_cancelled_closes_no_more() -> Result<()> {
    let server = Server::start_with_http("[threads]\nshards = 2\n")?;
    let devices = greet(&server, "d", 20)?;
    let kept = (0..4).map(|_| keep_alive(server.http()?)).collect::<Result<Vec<_>>>()?;
    drain(&server, &json!({"lead": "0ms", "over": "1h"}))?;
    // The first of each shard is due at once, and the next in minutes.
    server.await_answer("/v1/drain", |drain| drain["closed"] == 2)?;
    is_refused(&server)?;
    publish(&server, "meanwhile")?;
    let mut devices = stay(devices, "meanwhile")?;
    assert_eq!(devices.len(), 18);
    let told = cancel(&server)?;
    assert_eq!((&told["state"], &told["closed"]), (&json!("cancelled"), &json!(2)), "{told}");
    assert!(is_ready(&server)?);
    devices.extend(greet(&server, "new", 2)?);
    publish(&server, "afterwards")?;
    assert_eq!(stay(devices, "afterwards")?.len(), 20);
    // HTTP connections that were not told are served on.
    for mut stream in kept {
        stream.write_all(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        assert_ne!(stream.read(&mut [0])?, 0);
    }
    assert_eq!(server.metrics()?.closed("draining"), 4.0, "with the two that were refused");
    // Cancelling again changes nothing.
    assert_eq!(cancel(&server)?["closed"], 2);
    Ok(())
}

#[test]
fn a_share_goes_and_the_others_stay() -> Result<()> {
    let server = Server::start_with_http("[threads]\nshards = 2\n")?;
    let mut devices = greet(&server, "d", 41)?;
    let kept = (0..10).map(|_| keep_alive(server.http()?)).collect::<Result<Vec<_>>>()?;
    // While it runs the node is not ready, but admits connections, which are not chosen.
    drain(&server, &json!({"share": 0.5, "lead": "0ms", "over": "1h"}))?;
    await_state(&server, "draining")?;
    assert!(!is_ready(&server)?);
    let newcomers = greet(&server, "new", 10)?;
    let closed = cancel(&server)?["closed"].as_u64().context("a count")?;
    publish(&server, "one")?;
    let before = devices.len();
    devices = stay(devices, "one")?;
    assert_eq!(devices.len() as u64, before as u64 - closed);
    devices.extend(stay(newcomers, "one")?);
    assert_eq!(devices.len() as u64, 51 - closed, "no newcomer has gone");

    let open = devices.len();
    let told = drain(&server, &json!({"share": 0.3, "lead": "0ms", "over": "1s"}))?;
    assert_eq!(told["connections"], open, "{told}");
    let over = await_state(&server, "drained")?;
    let share = (open * 3 + 5) / 10;
    assert_eq!((&over["to_close"], &over["closed"]), (&json!(share), &json!(share)), "{over}");
    assert!(is_ready(&server)?);
    publish(&server, "two")?;
    assert_eq!(stay(devices, "two")?.len(), open - share);
    Device::greet(server.tcp, "later", &["news"])?;
    let mut ended = 0;
    for mut stream in kept {
        stream.write_all(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        ended += usize::from(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    }
    assert_eq!(ended, 3, "of ten HTTP connections");
    Ok(())
}

/// A reader of events over HTTP/2 that came back over the same connection would not go elsewhere.
#[test]
fn readers_over_http2_are_told_to_leave_with_their_connection() -> Result<()> {
    let server = Server::start_with_http("")?;
    let mut reader = Http2::connect(server.http()?, &[])?;
    reader.get_events(1, "/v1/sse?device=d&topic=news")?;
    server.await_metrics("it to settle", |metrics| metrics.connections("settled") == 1.0)?;
    drain(&server, &json!({"share": 0.6, "lead": "0ms", "over": "0ms"}))?;
    let mut has_left = false;
    while let Some((kind, _, _)) = reader.hear()? {
        has_left |= kind == GOAWAY;
    }
    assert!(has_left, "the connection ends in order");
    assert_eq!(await_state(&server, "drained")?["closed"], 1);
    assert!(is_ready(&server)?);
    Ok(())
}

#[test]
fn a_signal_ends_a_node_that_is_being_emptied() -> Result<()> {
    for (share, lead, over) in [(1.0, "1h", "1h"), (1.0, "0ms", "1h"), (0.5, "0ms", "1h")] {
        let mut server = Server::start("[connection]\ndrain_timeout = \"1s\"\n")?;
        let mut devices = greet(&server, "d", 20)?;
        drain(&server, &json!({"share": share, "lead": lead, "over": over}))?;
        if lead == "0ms" {
            server.await_answer("/v1/drain", |drain| drain["closed"].as_u64() > Some(0))?;
        }
        server.signal(Signal::TERM)?;
        for device in &mut devices {
            let goodbye = device.goodbye()?;
            assert_eq!((goodbye.code, &*goodbye.reason), (4100, "draining"));
        }
        assert!(server.wait()?.success(), "{}", server.log());
        assert!(!server.log().contains("not all connections closed"), "{}", server.log());
    }
    Ok(())
}

/// `weir drain` with these options for this server.
fn weir(server: &Server, options: &str) -> Result<Command> {
    let mut command = Command::new(program("weir")?);
    command.arg("drain").args(options.split_whitespace());
    command.args(["--admin", &server.admin.to_string()]).env_clear();
    Ok(command)
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_command_drains_waits_tells_and_cancels() -> Result<()> {
    let server = Server::start("")?;
    let _devices = greet(&server, "d", 4)?;
    let run = |options: &str| Ok::<_, anyhow::Error>(said(&weir(&server, options)?.output()?));
    let open = |count: u32| format!("{count} connections and 0 of HTTP are open");
    assert_eq!(run("--status")?, (Some(0), format!("idle: {}", open(4)), String::new()));
    let (code, _, error) = run("--share 1.5")?;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("share is 1.5: it must be more than 0, and at most 1"), "{error}");
    let (code, _, error) = run("--status --over 1s")?;
    assert_eq!(code, Some(2), "{error}");

    let (code, line, error) = run("--share 0.5 --lead 0ms --over 200ms --wait")?;
    assert_eq!((code, line), (Some(0), format!("drained: 2 of 2 are closed; {}", open(2))));
    assert!(error.starts_with("weir: announced: the node is not ready, 2 are to be"), "{error}");
    let (_, line, _) = run("--lead 1h")?;
    assert!(line.starts_with("announced: the node is not ready, 2 are to be closed"), "{line}");
    let (code, _, error) = run("--over 1s")?;
    assert_eq!(code, Some(1));
    assert!(error.contains("409 Conflict: The node is drained already: a drain is"), "{error}");
    // A command that waits fails when another one cancels.
    let waiting =
        weir(&server, "--status --wait")?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut waiting = Some(waiting);
    let mut told = waiting.as_mut().and_then(|child| child.stderr.take()).context("piped")?;
    let mut first = [0; 16];
    told.read_exact(&mut first)?;
    assert_eq!(&first, b"weir: announced:");
    let (code, line, _) = run("--cancel --json")?;
    assert_eq!(code, Some(0));
    let cancelled: Value = serde_json::from_str(&line)?;
    assert_eq!((&cancelled["state"], &cancelled["closed"]), (&json!("cancelled"), &json!(0)));
    let mut rest = String::new();
    told.read_to_string(&mut rest)?;
    let output = waiting.take().context("it runs")?.wait_with_output()?;
    assert_eq!(output.status.code(), Some(1), "{rest}");
    assert!(rest.contains("weir: cancelled: 0 of 2 are closed"), "{rest}");
    Ok(())
}

/// Reads `kept/all` until `end`, and goes to the next node when it is told to leave. Returns the
/// offsets and the node that it was at last.
async fn follow(nodes: [SocketAddr; 2], name: String) -> Result<(Vec<u64>, usize)> {
    let (mut node, mut offsets) = (0, Vec::new());
    let mut topics = vec![Subscription::from("kept/all")];
    loop {
        let options = Options { topics, ..Options::device(name.as_str()) };
        let mut client = Client::connect(nodes[node], options).await?;
        loop {
            match client.next().await? {
                Some(Event::Push(push)) => {
                    offsets.push(push.offset);
                    if push.payload == Payload::Text("end".to_owned()) {
                        return Ok((offsets, node));
                    }
                }
                Some(Event::Subscribed(told)) => ensure!(told.lost_after.is_none(), "{told:?}"),
                // The other node is there at once, so it does not wait as long as it is told.
                Some(Event::Goodbye(goodbye)) => {
                    ensure!(goodbye.code == u32::from(DRAINING.0), "{goodbye:?}");
                    node = (node + 1) % nodes.len();
                    break;
                }
                other => bail!("{name}: {other:?}"),
            }
        }
        topics = client.positions();
    }
}

#[test]
fn clients_go_to_another_node_and_miss_nothing() -> Result<()> {
    const CLIENTS: usize = 30;
    let redis = Redis::start()?;
    let node = |name: &str| {
        Server::start(&format!(
            "[cluster]\nredis = \"{}\"\nnode = \"{name}\"\n\
             [[topic_classes]]\npattern = \"kept/*\"\nretention_messages = 10000\n",
            redis.url()
        ))
    };
    let (first, second) = (node("a")?, node("b")?);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let nodes = [first.tcp, second.tcp];
    let clients: Vec<_> =
        (0..CLIENTS).map(|index| runtime.spawn(follow(nodes, format!("c{index}")))).collect();
    first.await_metrics("all of them", |metrics| {
        metrics.sum("weir_memberships", "") == CLIENTS as f64
    })?;
    let mut count = 0_u64;
    let mut publish = |text: &str| {
        count += 1;
        // The node that is emptied publishes like the other one.
        let server = if count.is_multiple_of(2) { &first } else { &second };
        server.publish(&json!({"topic": "kept/all", "text": text})).map(|_| count)
    };
    for _ in 0..20 {
        publish("before")?;
    }
    drain(&first, &json!({"lead": "0ms", "over": "2s"}))?;
    second.await_answer("/v1/nodes", |nodes| {
        let mut nodes = nodes["nodes"].as_array().into_iter().flatten();
        nodes.any(|node| node["name"] == "a" && node["about"]["draining"] == true)
    })?;
    let state = |server: &Server| -> Result<Value> {
        Ok(serde_json::from_str(&Answer::get(server.admin, "/v1/drain")?.body)?)
    };
    while state(&first)?["state"] != "drained" {
        publish("meanwhile")?;
    }
    second.await_metrics("all of them", |metrics| {
        metrics.sum("weir_memberships", "") == CLIENTS as f64
    })?;
    let last = publish("end")?;
    for client in clients {
        let (offsets, node) = runtime.block_on(client)??;
        assert_eq!(offsets, (1..=last).collect::<Vec<_>>(), "each message once and in order");
        assert_eq!(node, 1);
    }
    assert_eq!(state(&first)?["closed"], CLIENTS);
    assert_eq!(first.metrics()?.connections("settled"), 0.0);
    Ok(())
}
