//! Calls that wait for their answers while the connections move.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use anyhow::{Result, bail, ensure};
use serde_json::json;
use weir_tests::{Answer, Device, PATIENCE, Server, UnderWay};
use weir_wire::v1::{self, answer, call, client_message, server_message};

/// A server whose devices may call this backend.
fn start(backend: &TcpListener, extra: &str) -> Result<Server> {
    let addr = backend.local_addr()?;
    Server::start(&format!(
        "{extra}[[upstreams]]\nname = \"shop\"\naddresses = [\"{addr}\"]\n\
         [[calls.routes]]\nmethod = \"shop/*\"\nupstream = \"shop\"\n"
    ))
}

/// A device that answers calls.
fn answering(server: &Server, id: &str) -> Result<Device> {
    let mut device = Device::connect(server.tcp)?;
    let hello = v1::Hello { device_id: id.to_owned(), calls: true, ..v1::Hello::default() };
    device.send(client_message::Kind::Hello(hello))?;
    let heard = device.hear()?;
    ensure!(matches!(heard, Some(server_message::Kind::Welcome(_))), "{heard:?}");
    Ok(device)
}

/// Has the device call the backend; returns what the backend has of it.
fn call_backend(device: &mut Device, id: u32, backend: &TcpListener) -> Result<TcpStream> {
    let payload = Some(call::Payload::Text("?".to_owned()));
    let (method, deadline_ms) = ("shop/price".to_owned(), 30_000);
    let call = v1::Call { id, method, payload, deadline_ms, ..v1::Call::default() };
    device.send(client_message::Kind::Call(call))?;
    let (mut stream, _) = backend.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut asked = Vec::new();
    while !asked.ends_with(b"?") {
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes)?;
        ensure!(count > 0, "the gateway hangs up");
        asked.extend_from_slice(&bytes[..count]);
    }
    Ok(stream)
}

/// Calls the device as a backend does.
fn ask(server: &Server) -> thread::JoinHandle<Result<Answer>> {
    let admin = server.admin;
    let body = json!({"method": "lock/open", "text": "front", "deadline_ms": 30_000}).to_string();
    thread::spawn(move || Answer::post(admin, "/v1/devices/lock/call", &body))
}

fn called(device: &mut Device) -> Result<u32> {
    match device.hear()? {
        Some(server_message::Kind::Call(call)) => Ok(call.id),
        other => bail!("expected Call, got {other:?}"),
    }
}

fn answered(device: &mut Device) -> Result<v1::Answer> {
    match device.hear()? {
        Some(server_message::Kind::Answer(answer)) => Ok(answer),
        other => bail!("expected Answer, got {other:?}"),
    }
}

#[test]
fn calls_in_both_directions_are_answered_after_an_upgrade() -> Result<()> {
    let backend = TcpListener::bind("127.0.0.1:0")?;
    let server = start(&backend, "")?;
    let mut device = answering(&server, "lock")?;
    let asking = ask(&server);
    let id = called(&mut device)?;
    let mut asked = call_backend(&mut device, 7, &backend)?;
    // It ends when the old process has left, which waits for the answers.
    let mut upgrading = UnderWay::begin(&server, &[])?;
    upgrading.await_stage("committed")?;
    let payload = Some(answer::Payload::Text("open".to_owned()));
    let answer = v1::Answer { id, payload, ..v1::Answer::default() };
    device.send(client_message::Kind::Answer(answer))?;
    let told = asking.join().map_err(|_| anyhow::anyhow!("the caller has failed"))??;
    ensure!(told.status == 200 && told.body == r#"{"text":"open"}"#, "{told:?}");
    asked.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nsold",
    )?;
    let answer = answered(&mut device)?;
    let text = Some(answer::Payload::Text("sold".to_owned()));
    ensure!((answer.id, &answer.payload) == (7, &text), "{answer:?}");
    let (_newest, _) = upgrading.finish(&server)?;
    // The id is free again, and the new process asks the backend.
    let mut asked = call_backend(&mut device, 7, &backend)?;
    asked.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
    ensure!(answered(&mut device)?.id == 7);
    Ok(())
}

#[test]
fn the_end_of_the_old_process_ends_its_calls() -> Result<()> {
    let backend = TcpListener::bind("127.0.0.1:0")?;
    let mut server = start(&backend, "")?;
    let mut device = answering(&server, "lock")?;
    let asking = ask(&server);
    let id = called(&mut device)?;
    let _asked = call_backend(&mut device, 7, &backend)?;
    let mut upgrading = UnderWay::begin(&server, &[])?;
    upgrading.await_stage("committed")?;
    server.signal(rustix::process::Signal::KILL)?;
    ensure!(asking.join().map_err(|_| anyhow::anyhow!("it has failed"))?.is_err(), "no answer");
    let (mut cancelled, mut uncertain) = (0, 0);
    for _ in 0..2 {
        match device.hear()? {
            Some(server_message::Kind::Cancel(cancel)) if cancel.id == id => cancelled += 1,
            Some(server_message::Kind::Answer(answer)) if answer.id == 7 => {
                ensure!(answer.code == "uncertain", "{answer:?}");
                uncertain += 1;
            }
            other => bail!("{other:?}"),
        }
    }
    ensure!((cancelled, uncertain) == (1, 1));
    device.send(client_message::Kind::Answer(v1::Answer { id, ..v1::Answer::default() }))?;
    server.await_metrics("the late answer", |metrics| {
        metrics.sum("weir_call_answers_late_total", "") == 1.0
    })?;
    drop(upgrading);
    server.kill()
}

#[test]
fn a_call_that_the_old_process_gives_up_counts_in_the_new_one() -> Result<()> {
    let backend = TcpListener::bind("127.0.0.1:0")?;
    let server = start(&backend, "[upgrade]\nlinger = \"100ms\"\n")?;
    let mut device = answering(&server, "lock")?;
    let _silent = call_backend(&mut device, 7, &backend)?;
    let (_newest, _) = UnderWay::begin(&server, &[])?.finish(&server)?;
    let answer = answered(&mut device)?;
    ensure!((answer.id, answer.code.as_str()) == (7, "uncertain"), "{answer:?}");
    let reached = |limit: &str, count| {
        let limit = format!("limit=\"{limit}\"");
        server.await_metrics(&limit, |metrics| {
            metrics.text().contains(&limit)
                && metrics.sum("weir_upgrade_limits_reached_total", &limit) == count
        })
    };
    reached("linger", 1.0)?;
    reached("held_back", 0.0)?;
    reached("publishes", 0.0)?;
    // The one after it knows of it, too.
    let (_newest, _) = UnderWay::begin(&server, &[])?.finish(&server)?;
    reached("linger", 1.0)?;
    Ok(())
}
