//! Devices that send datagrams during upgrades: each publish is carried out once, and a repeated one
//! gets the answer of before.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use weir_tests::{Datagrams, Events, Numbers, PATIENCE, Server, UnderWay, now, upgrade};

use super::RETAINED;
use super::hooks::{allow, asked};

fn numbered(topic: &str, number: u64) -> String {
    let publish = json!({"topic": topic, "text": number.to_string()});
    json!({"pt": "meter", "publish": publish, "id": number}).to_string()
}

/// Sends a datagram until its answer comes.
fn ask(client: &Datagrams, datagram: &str, id: u64) -> Result<Value> {
    let deadline = now() + PATIENCE;
    while now() < deadline {
        client.send(datagram)?;
        while let Some(answer) = client.hear_within(AGAIN)? {
            let answer: Value = serde_json::from_slice(&answer)?;
            // Another one is that of a datagram that was sent twice.
            if answer["id"] == id {
                return Ok(answer);
            }
        }
    }
    Err(anyhow!("no answer to {datagram}"))
}

/// A device that publishes numbers. A datagram without an answer is sent again.
fn meter(udp: SocketAddr, topic: String) -> Result<Numbers> {
    let client = Datagrams::new(udp)?;
    Ok(Numbers::start_by(move |number| {
        let Some(number) = number else { return Ok(()) };
        let answer = ask(&client, &numbered(&topic, number), number)?;
        let offset = (number + 1).to_string();
        ensure!(answer["published"]["offset"] == offset, "{answer} to {number}");
        Ok(())
    }))
}

#[test]
fn each_datagram_is_carried_out_once() -> Result<()> {
    let server = Server::start_with_datagrams(&format!(
        "{RETAINED}[limits]\npublishes_per_second = 0\n[udp]\nthreads = 2\nduplicate_window = \"10m\"\n\
         [[auth.tokens]]\ntoken = \"meter\"\ndevice = \"meter\"\n"
    ))?;
    let addrs: Vec<SocketAddr> = server.udp.into_iter().chain(server.udp_v6).collect();
    // Their ports choose the sockets.
    let topic = |number: usize| format!("feed/{number}");
    let meters = (0..4).map(|number| meter(addrs[number % addrs.len()], topic(number)));
    let meters: Vec<Numbers> = meters.collect::<Result<_>>()?;
    let old = Datagrams::new(server.udp_addr()?)?;
    let first = numbered("feed/old", 0);
    let published = ask(&old, &first, 0)?;
    ensure!(published["published"]["offset"] == "1", "{published}");
    let mut newest = None;
    for _ in 0..3 {
        meters.iter().try_for_each(|meter| meter.await_more(20))?;
        let (process, _) = upgrade(&server)?;
        drop(newest.replace(process));
        ensure!(ask(&old, &first, 0)? == published, "it was carried out twice");
        meters.iter().try_for_each(|meter| meter.await_more(20))?;
    }
    for (number, meter) in meters.into_iter().enumerate() {
        let count = meter.finish()?;
        let path = format!("/v1/sse?topic={}", topic(number));
        let headers = "Authorization: Bearer meter\r\nLast-Event-ID: none\r\n";
        let mut events = Events::get(server.http()?, &path, headers)?;
        events.settle(1)?;
        for number in (0..count).map(|number| number.to_string()) {
            let event = events.expect("")?;
            ensure!(event.data["text"] == number, "{event:?} where {number} is due");
        }
    }
    let metrics = server.metrics()?;
    ensure!(metrics.sum("weir_udp_lost_total", "") == 0.0, "{}", metrics.text());
    ensure!(metrics.sum_of("weir_udp_refused_total", &[("cause", "other")]) == 0.0);
    Ok(())
}

#[test]
fn a_datagram_that_waits_for_a_hook_is_answered_by_the_old_process() -> Result<()> {
    let hook = TcpListener::bind("127.0.0.1:0")?;
    let server = Server::start_with_datagrams(&format!(
        "{RETAINED}[[upstreams]]\nname = \"hook\"\naddresses = [\"{}\"]\n\
         [hooks.publish]\nupstream = \"hook\"\ntimeout = \"10s\"\n\
         [[auth.tokens]]\ntoken = \"meter\"\ndevice = \"meter\"\n",
        hook.local_addr()?
    ))?;
    let client = Datagrams::new(server.udp_addr()?)?;
    let heard = |id: u64| -> Result<Value> {
        let answer = client.hear_within(PATIENCE)?.context("no answer comes")?;
        let answer: Value = serde_json::from_slice(&answer)?;
        ensure!(answer["id"] == id, "{answer} where {id} is due");
        Ok(answer)
    };
    let first = numbered("feed/a", 0);
    client.send(&first)?;
    let question = asked(&hook)?;
    let mut under_way = UnderWay::begin(&server, &[])?;
    under_way.await_stage("committed")?;
    client.send(&first)?;
    // The new process takes one after the other.
    client.send(json!({"pt": "meter", "count": 1, "id": 7}).to_string())?;
    heard(7)?;
    allow(question)?;
    let published = heard(0)?;
    ensure!(published["published"]["offset"] == "1", "{published}");
    let (_newest, _) = under_way.finish(&server)?;
    client.send(&first)?;
    ensure!(heard(0)? == published, "it was carried out twice");
    client.send(numbered("feed/a", 1))?;
    // The next question is about the next message.
    allow(asked(&hook)?)?;
    let next = heard(1)?;
    ensure!(next["published"]["offset"] == "2", "{next}");
    Ok(())
}

#[test]
fn an_upgrade_that_fails_leaves_datagrams_as_they_were() -> Result<()> {
    let server = Server::start_with_datagrams(&format!(
        "{RETAINED}[[auth.tokens]]\ntoken = \"meter\"\ndevice = \"meter\"\n"
    ))?;
    let client = Datagrams::new(server.udp_addr()?)?;
    let published = ask(&client, &numbered("feed/a", 0), 0)?;
    let text = std::fs::read_to_string(server.config())?;
    std::fs::write(server.config(), format!("{text}[udp]\nthreads = 9\n"))?;
    let failed = upgrade(&server).err().context("another number of threads is refused")?;
    ensure!(failed.to_string().contains("9 threads for datagrams"), "{failed}");
    ensure!(ask(&client, &numbered("feed/a", 0), 0)? == published);
    let next = ask(&client, &numbered("feed/a", 1), 1)?;
    ensure!(next["published"]["offset"] == "2", "{next}");
    Ok(())
}

/// When a device sends a datagram again.
const AGAIN: Duration = Duration::from_millis(100);
