//! Where the memory of the program is: named parts explain what its allocator has given out.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, PATIENCE, Server, now, raise_open_files, rest};
use weir_wire::frame;
use weir_wire::v1::{ClientMessage, Hello, Subscribe, client_message};

/// Devices of the test: some 1.2 MB of the server's memory.
const DEVICES: usize = 6_000;
/// Messages for devices that do not read: more than the kernel takes.
const MESSAGES: usize = 40;

fn memory(server: &Server) -> Result<Value> {
    let answer = Answer::get(server.admin, "/v1/debug/memory")?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(serde_json::from_str(&answer.body)?)
}

/// The growth of what the allocator has given out, and the share that the parts explain.
fn explained(memory: &Value) -> Result<(u64, f64)> {
    let explained = &memory["explained"];
    let share = explained["share"].as_f64().with_context(|| explained.to_string())?;
    Ok((explained["allocated"].as_u64().context("it has grown")?, share))
}

/// A report whose parts explain the memory. The parts are read one after the other, so messages that move meanwhile are
/// missed, or counted twice: it looks again until they rest. Memory without a name stays unexplained.
fn explained_memory(server: &Server) -> Result<Value> {
    let deadline = now() + PATIENCE;
    loop {
        let memory = memory(server)?;
        if (0.95..=1.05).contains(&explained(&memory)?.1) {
            return Ok(memory);
        }
        ensure!(now() < deadline, "{memory:#}");
        rest();
    }
}

/// A connection that has said `Hello` and reads nothing. So thousands fit one thread.
fn silent(server: &Server, number: usize) -> Result<TcpStream> {
    let subscribe = Subscribe { topic: format!("room/{}", number / 1000), ..Subscribe::default() };
    let hello = Hello {
        device_id: format!("device-{number:017}"),
        topics: vec![subscribe],
        ..Hello::default()
    };
    let mut bytes = Vec::new();
    frame::encode(&ClientMessage { kind: Some(client_message::Kind::Hello(hello)) }, &mut bytes);
    let mut stream = TcpStream::connect(server.tcp)?;
    stream.write_all(&bytes)?;
    Ok(stream)
}

#[test]
fn named_parts_explain_what_the_allocator_has_given_out() -> Result<()> {
    check_explained("")
}

#[test]
fn shards_with_descriptors_of_their_own_answer_too() -> Result<()> {
    check_explained("[threads]\nshards = 3\n[engine]\nown_descriptors = true\n")
}

/// Fails if memory is left without a name, or counted twice: at rest, and while messages wait.
fn check_explained(config: &str) -> Result<()> {
    raise_open_files()?;
    let server = Server::start(&format!("[connection]\nstall_timeout = \"50s\"\n{config}"))?;
    let devices = (0..DEVICES).map(|number| silent(&server, number)).collect::<Result<Vec<_>>>()?;
    let count = DEVICES as f64;
    server.await_metrics("all devices", |metrics| metrics.connections("settled") == count)?;
    let at_rest = explained_memory(&server)?;
    ensure!(explained(&at_rest)?.0 > 1_000_000, "{at_rest:#}");
    for _ in 0..MESSAGES {
        server.publish(&json!({"topic": "room/0", "text": "x".repeat(32 * 1024)}))?;
    }
    server
        .await_metrics("outboxes", |metrics| metrics.sum("weir_connections_stalled", "") > 0.0)?;
    let waiting = explained_memory(&server)?;
    let parts = waiting["parts"].as_array().context("a list")?;
    let has = |name: &str| parts.iter().any(|part| part["name"] == name && part["of"] == "*");
    ensure!(has("outboxes") && has("messages_waiting"), "{waiting:#}");
    drop(devices);
    Ok(())
}

/// Fails if the command does not print what the API answers.
#[test]
fn the_command_prints_parts_and_the_oldest_holders() -> Result<()> {
    let server = Server::start("")?;
    let _device = Device::greet(server.tcp, "d1", &["jobs/1"])?;
    let ask = |options: &[&str]| -> Result<String> {
        let mut command = Command::new(weir_tests::program("weir")?);
        command.arg("memory").args(options).args(["--admin", &server.admin.to_string()]);
        let output = command.output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let parts = ask(&[])?;
    for text in
        ["connections", "thread_stacks", "RssAnon", "jemalloc: allocated", "explained by parts"]
    {
        ensure!(parts.contains(text), "no {text:?} in {parts}");
    }
    let oldest = ask(&["--oldest", "--limit", "3"])?;
    ensure!(oldest.contains(r#"subscription, topic "jobs/1", device "d1""#), "{oldest}");
    let json: Value = serde_json::from_str(&ask(&["--json"])?)?;
    ensure!(json["rss_anon"].is_u64(), "{json}");
    Ok(())
}
