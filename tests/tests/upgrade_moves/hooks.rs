//! A hook that answers slowly: frames wait for it, and the upgrade does not.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Result, bail, ensure};
use serde_json::json;
use weir_tests::{Device, PATIENCE, Server};
use weir_wire::v1::{self, client_message, publish, push, server_message};

use super::upgrade;

/// Takes a question of the hook, and does not answer yet.
pub(super) fn asked(hook: &TcpListener) -> Result<TcpStream> {
    let (mut stream, _) = hook.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut asked = Vec::new();
    while !asked.ends_with(b"}") {
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes)?;
        ensure!(count > 0, "the gateway hangs up");
        asked.extend_from_slice(&bytes[..count]);
    }
    Ok(stream)
}

pub(super) fn allow(mut stream: TcpStream) -> Result<()> {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
                   Content-Length: 14\r\n\r\n{\"allow\":true}";
    Ok(stream.write_all(answer)?)
}

/// A server whose devices ask a hook about each message.
fn start(more: &str) -> Result<(TcpListener, Server)> {
    let hook = TcpListener::bind("127.0.0.1:0")?;
    let server = Server::start(&format!(
        "[[upstreams]]\nname = \"hook\"\naddresses = [\"{}\"]\n\
         [hooks.publish]\nupstream = \"hook\"\ntimeout = \"10s\"\n\
         [[topic_classes]]\npattern = \"feed/*\"\npublish = [\"devices\"]\n{more}",
        hook.local_addr()?
    ))?;
    Ok((hook, server))
}

fn publish_one(device: &mut Device) -> Result<()> {
    let payload = Some(publish::Payload::Text("one".to_owned()));
    let publish =
        v1::Publish { topic: "feed/a".to_owned(), request: 5, payload, ..Default::default() };
    device.send(client_message::Kind::Publish(publish))
}

#[test]
fn a_device_that_has_ended_while_its_message_waits_moves_too() -> Result<()> {
    let (hook, server) = start("[limits]\nconnections_max = 2\n")?;
    let mut listener = Device::greet(server.tcp, "listener", &["feed/a"])?;
    let mut device = Device::greet(server.tcp, "d", &["feed/a"])?;
    publish_one(&mut device)?;
    let first = asked(&hook)?;
    drop(device);
    server.await_metrics("its end", |metrics| {
        metrics.sum("weir_connections", "state=\"settled\"") == 1.0
    })?;
    let (_newest, _) = upgrade(&server)?;
    let again = asked(&hook)?;
    drop(first);
    // It counts until its message is carried out.
    let metrics = server.metrics()?;
    ensure!(metrics.sum("weir_devices", "") == 2.0, "{}", metrics.text());
    ensure!(Device::greet(server.tcp, "e", &[]).is_err(), "one too many is let in");
    allow(again)?;
    let pushed = |listener: &mut Device, text: &str| -> Result<()> {
        let (heard, text) = (listener.push()?, Some(push::Payload::Text(text.to_owned())));
        ensure!(heard.payload == text, "{heard:?}");
        Ok(())
    };
    pushed(&mut listener, "one")?;
    server
        .await_metrics("the rest of its end", |metrics| metrics.sum("weir_devices", "") == 1.0)?;
    let published = server.publish(&json!({"topic": "feed/a", "text": "two"}))?;
    ensure!(published["connections"] == 1, "{published}");
    // Only once.
    pushed(&mut listener, "two")?;
    // Its place is free, and no other.
    let next = Device::greet(server.tcp, "e", &["feed/a"])?;
    ensure!(Device::greet(server.tcp, "f", &[]).is_err(), "one too many is let in");
    drop((listener, next));
    server.await_metrics("all ends", |metrics| {
        let counts = ["weir_devices", "weir_memberships", "weir_client_names"];
        counts.iter().all(|count| metrics.sum(count, "") == 0.0)
            && metrics.sum("weir_connections", "state=\"settled\"") == 0.0
    })?;
    Ok(())
}

#[test]
fn frames_that_wait_for_a_hook_move_and_ask_again() -> Result<()> {
    let (hook, server) = start("")?;
    let mut device = Device::greet(server.tcp, "d", &["feed/a"])?;
    publish_one(&mut device)?;
    let first = asked(&hook)?;
    // It stands behind the message, and is carried out behind it.
    let unsubscribe = v1::Unsubscribe { topic: "feed/a".to_owned() };
    device.send(client_message::Kind::Unsubscribe(unsubscribe))?;
    let (_newest, _) = upgrade(&server)?;
    let again = asked(&hook)?;
    drop(first);
    allow(again)?;
    // The device unsubscribes at once then, so it may hear the message, or not.
    let (mut published, mut pushed) = (0, 0);
    loop {
        match device.hear()? {
            Some(server_message::Kind::Published(told)) if told.request == 5 => published += 1,
            Some(server_message::Kind::Push(push)) => {
                let text = Some(push::Payload::Text("one".to_owned()));
                ensure!(push.payload == text, "{push:?}");
                pushed += 1;
            }
            Some(server_message::Kind::Unsubscribed(_)) => break,
            other => bail!("{other:?} after {published} answers and {pushed} messages"),
        }
    }
    ensure!(published == 1 && pushed <= 1, "{published} answers and {pushed} messages");
    Ok(())
}
