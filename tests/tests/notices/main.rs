//! Notices: a real receiver is told what happens, at least once and in order, whoever is killed.

mod cluster;
mod receiver;
mod upgrades;

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::{Answer, Device, Server};
use weir_wire::v1::{self, client_message, server_message};

use receiver::{Receiver, SECRET};

/// Messages that devices publish while processes are killed; `WEIR_NOTICES` changes it.
const MESSAGES: usize = 1_500;
const ROUNDS: usize = 10;
const DEVICES: usize = 10;

/// The configuration with one receiver; `more` are further keys of it.
fn config(receiver: &Receiver, more: &str) -> String {
    format!(
        "{}\n[hooks]\nnotices_file = \"@/notices.db\"\n{}",
        upstream(receiver),
        table("audit", more)
    )
}

fn upstream(receiver: &Receiver) -> String {
    format!(
        "[limits]\npublishes_per_second = 0\n[[topic_classes]]\npattern = \"*\"\npublish = [\"devices\"]\n\
         [[upstreams]]\nname = \"api\"\naddresses = [\"127.0.0.1:{}\"]\n",
        receiver.port
    )
}

fn table(name: &str, more: &str) -> String {
    format!(
        "[[hooks.receivers]]\nname = \"{name}\"\nupstream = \"api\"\nsecret = \"{SECRET}\"\n\
         batch_delay = \"5ms\"\nbackoff_max = \"200ms\"\n{more}\n"
    )
}

const ALL: &str = "events = [\"connected\", \"disconnected\", \"subscribed\", \"unsubscribed\", \"published\", \
                   \"occupied\", \"vacated\"]";

/// Starts it with `@` as a directory for this test.
fn start(config: &str) -> Result<(Server, tempfile::TempDir)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_str().context("a path in UTF-8")?;
    Ok((Server::start(&config.replace('@', path))?, directory))
}

/// Publishes and waits for the answer.
fn publish(device: &mut Device, topic: &str, text: &str) -> Result<()> {
    device.send(client_message::Kind::Publish(v1::Publish {
        topic: topic.to_owned(),
        payload: Some(v1::publish::Payload::Text(text.to_owned())),
        request: 1,
        ..v1::Publish::default()
    }))?;
    loop {
        match device.hear()? {
            Some(server_message::Kind::Published(_)) => return Ok(()),
            Some(server_message::Kind::Push(_)) => {}
            other => bail!("expected Published, got {other:?}"),
        }
    }
}

fn await_delivery(server: &Server, name: &str) -> Result<()> {
    server.await_metrics("all notices to be delivered", |metrics| {
        let label = format!("receiver=\"{name}\"");
        metrics.sum("weir_notices_waiting", &label) == 0.0
            && metrics.sum("weir_notices_buffered", "") == 0.0
            && metrics.sum("weir_notices_delivered_total", &label) > 0.0
    })?;
    Ok(())
}

fn events(notices: &[Value]) -> Vec<&str> {
    notices.iter().filter_map(|notice| notice["event"].as_str()).collect()
}

#[test]
fn each_notice_arrives_in_order_though_gateway_and_receiver_are_killed() -> Result<()> {
    let messages = std::env::var("WEIR_NOTICES").ok().and_then(|text| text.parse().ok());
    let each = messages.unwrap_or(MESSAGES) / ROUNDS / DEVICES;
    let mut receiver = Receiver::new()?;
    receiver.start()?;
    let (mut server, _directory) = start(&config(&receiver, ALL))?;
    // By device: the texts that were acknowledged in each round.
    for round in 0..ROUNDS {
        let mut devices = (0..DEVICES)
            .map(|number| {
                Device::greet(server.tcp, &format!("d{number}"), &[&format!("t/{number}")])
            })
            .collect::<Result<Vec<_>>>()?;
        for message in 0..each {
            if message == each / 2 {
                receiver.kill()?;
            }
            for (number, device) in devices.iter_mut().enumerate() {
                publish(device, &format!("t/{number}"), &format!("{round}/{message}"))?;
            }
        }
        receiver.start()?;
        server.kill()?;
        server.restart()?;
    }
    // The last words: everybody comes once more, and goes in order.
    for number in 0..DEVICES {
        let mut device = Device::greet(server.tcp, &format!("d{number}"), &[])?;
        publish(&mut device, "t/end", "end")?;
    }
    server.await_metrics("an empty house", |metrics| metrics.is_empty_house())?;
    await_delivery(&server, "audit")?;
    let heard = receiver.once("audit")?;
    let crashes = heard.iter().filter(|notice| notice["reason"] == "crash").count();
    assert_eq!(crashes, ROUNDS, "each crash is told");
    let mut devices: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for notice in heard.iter().filter(|notice| notice["device"].is_string()) {
        devices.entry(notice["device"].as_str().context("a text")?).or_default().push(notice);
    }
    assert_eq!(devices.len(), DEVICES);
    let mut published = 0;
    for (device, notices) in devices {
        published += check(device, &notices, each)?;
    }
    assert_eq!(server.metrics()?.sum("weir_notices_dropped_total", ""), 0.0);
    // What a crash takes with it is little.
    let all = each * ROUNDS * DEVICES;
    println!("{crashes} crashes, {} notices, {published} of {all} messages", heard.len());
    ensure!(published * 10 >= all * 9, "{published} of {all} messages were told of");
    Ok(())
}

/// Checks the notices of one device: connections one after the other, each from its beginning to
/// its end, with its messages in order. Returns the number of messages.
fn check(device: &str, notices: &[&Value], each: usize) -> Result<usize> {
    let (mut connected, mut published, mut message) = (None, 0, None);
    let mut ends = HashSet::new();
    let mut last_claim = 0;
    for notice in notices {
        let about = || format!("{device}: {notice} among {:?}", notices.len());
        let identity = (notice["connection"].as_str(), notice["claim"].as_u64());
        match notice["event"].as_str().context("an event")? {
            "connected" => {
                ensure!(connected.is_none(), "{}", about());
                let claim = identity.1.with_context(about)?;
                ensure!(claim > last_claim, "{}", about());
                (connected, message, last_claim) = (Some(identity), None, claim);
                continue;
            }
            "disconnected" => {
                ensure!(connected.take() == Some(identity), "{}", about());
                ends.insert(notice["reason"].as_str().with_context(about)?);
                continue;
            }
            "published" => {
                let text = notice["message"]["text"].as_str().with_context(about)?;
                published += usize::from(text != "end");
                if let Some((_, number)) = text.split_once('/') {
                    let number: usize = number.parse()?;
                    ensure!(number < each, "{}", about());
                    ensure!(number == message.map_or(0, |before| before + 1), "{}", about());
                    message = Some(number);
                }
            }
            "subscribed" => {}
            _ => bail!("{}", about()),
        }
        ensure!(connected == Some(identity), "{}", about());
    }
    ensure!(connected.is_none(), "{device} is told to be there at the end");
    ensure!(ends.contains("gateway_lost"), "{ends:?}");
    Ok(published)
}

#[test]
fn a_receiver_that_is_down_costs_a_bounded_queue_and_learns_what_it_has_lost() -> Result<()> {
    let mut receiver = Receiver::new()?;
    let more = "events = [\"published\"]\nqueue_notices_max = 100";
    let (server, _directory) = start(&config(&receiver, more))?;
    let mut device = Device::greet(server.tcp, "d", &[])?;
    for number in 0..350 {
        publish(&mut device, "t", &number.to_string())?;
    }
    server.await_metrics("a full queue", |metrics| {
        metrics.sum("weir_notices_waiting", "") == 100.0
            && metrics.sum("weir_notices_dropped_total", "") == 250.0
            && metrics.sum("weir_notices_failing", "") == 1.0
            && metrics.sum("weir_notices_oldest_age_seconds", "") > 0.0
    })?;
    receiver.start()?;
    let heard = receiver.wait("audit", "the rest", |heard| heard.len() == 101)?;
    let lost = &heard[0];
    assert_eq!((&lost["event"], &lost["count"]), (&json!("lost"), &json!(250)));
    let texts = heard[1..].iter().map(|notice| notice["message"]["text"].as_str().unwrap_or(""));
    let expected: Vec<String> = (250..350).map(|number| number.to_string()).collect();
    assert_eq!(texts.collect::<Vec<_>>(), expected);
    await_delivery(&server, "audit")?;
    let metrics = server.metrics()?;
    assert_eq!(metrics.sum("weir_notices_oldest_age_seconds", ""), 0.0);
    assert_eq!(metrics.sum("weir_notices_failing", ""), 0.0);
    // One that refuses gets the same notices again.
    receiver.refuse(true)?;
    publish(&mut device, "t", "later")?;
    server.await_metrics("refusals", |metrics| {
        metrics.sum("weir_notices_failing", "") == 1.0
            && metrics.sum("weir_notices_waiting", "") == 1.0
    })?;
    receiver.refuse(false)?;
    receiver.wait("audit", "the last one", |heard| heard.len() == 102)?;
    Ok(())
}

#[test]
fn each_message_is_told_with_its_source() -> Result<()> {
    let mut receiver = Receiver::new()?;
    receiver.start()?;
    let services = "[[auth.services]]\ntoken = \"secret\"\nname = \"backend\"\nmay = [\"publish\"]";
    let config = config(&receiver, "events = [\"published\"]");
    let config = config.replace("[\"devices\"]", "[\"devices\", \"services\"]");
    let (server, _directory) = start(&format!("{config}\n{services}"))?;
    let mut device = Device::greet(server.tcp, "d", &[])?;
    publish(&mut device, "t", "by a device")?;
    server.publish(&json!({"topic": "t", "text": "by an operator"}))?;
    server.publish(&json!({"device": "d", "text": "to a device"}))?;
    let mut service = Device::connect(server.tcp)?;
    let (device_id, token) = ("backend".to_owned(), "secret".to_owned());
    let hello = v1::Hello { device_id, token, ..v1::Hello::default() };
    service.send(client_message::Kind::Hello(hello))?;
    ensure!(matches!(service.hear()?, Some(server_message::Kind::Welcome(_))));
    publish(&mut service, "t", "by a service")?;
    let heard = receiver.wait("audit", "three messages", |heard| heard.len() == 3)?;
    let told = heard.iter().map(|one| (&one["source"], &one["message"]["text"], &one["device"]));
    let expected = [
        (json!("device"), json!("by a device"), json!("d")),
        (json!("admin"), json!("by an operator"), Value::Null),
        (json!("service"), json!("by a service"), json!("backend")),
    ];
    assert!(
        told.eq(expected.iter().map(|(source, text, device)| (source, text, device))),
        "{heard:?}"
    );
    Ok(())
}

#[test]
fn a_receiver_reads_again_from_a_cursor() -> Result<()> {
    let mut receiver = Receiver::new()?;
    receiver.start()?;
    let (server, _directory) = start(&config(&receiver, "events = [\"published\"]"))?;
    let mut device = Device::greet(server.tcp, "d", &[])?;
    for number in 0..25 {
        publish(&mut device, "t", &number.to_string())?;
    }
    let heard = receiver.wait("audit", "all", |heard| heard.len() == 25)?;
    let read = |query: &str| -> Result<Value> {
        let answer = Answer::get(server.admin, &format!("/v1/hooks/audit/notices{query}"))?;
        ensure!(answer.status == 200, "{query}: {answer:?}");
        Ok(serde_json::from_str(&answer.body)?)
    };
    let (mut again, mut after) = (Vec::new(), String::new());
    loop {
        let page = read(&format!("?limit=10{after}"))?;
        let notices = page["notices"].as_array().context("a list")?.clone();
        after = format!("&after={}", page["next_after"].as_str().context("a cursor")?);
        if notices.is_empty() {
            break;
        }
        again.extend(notices);
    }
    assert_eq!(again, heard);
    let cursor = heard[19]["cursor"].as_str().context("a cursor")?;
    assert_eq!(read(&format!("?after={cursor}"))?["notices"], json!(heard[20..]));
    let other = Answer::get(server.admin, "/v1/hooks/audit/notices?after=00000000-1")?;
    assert_eq!((other.status, other.body.contains("another queue")), (400, true), "{other:?}");
    assert_eq!(Answer::get(server.admin, "/v1/hooks/nobody/notices")?.status, 404);
    Ok(())
}

#[test]
fn receivers_hear_of_their_topics_and_come_and_go_with_a_reload() -> Result<()> {
    let mut receiver = Receiver::new()?;
    receiver.start()?;
    let (server, directory) = start(&upstream(&receiver))?;
    let mut early = Device::greet(server.tcp, "early", &["room/0"])?;
    let text = std::fs::read_to_string(server.config())?;
    let hooks = format!("[hooks]\nnotices_file = \"{}/notices.db\"\n", directory.path().display());
    let rooms = "events = [\"subscribed\", \"published\", \"occupied\", \"vacated\"]\ntopics = [\"room/*\"]";
    let everything = table("everything", ALL);
    let reload = |receivers: &str| -> Result<()> {
        std::fs::write(server.config(), format!("{text}\n{hooks}{receivers}"))?;
        let answer = Answer::post(server.admin, "/v1/reload", "{}")?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    };
    reload(&format!("{}{everything}", table("rooms", rooms)))?;
    let device = Device::greet(server.tcp, "d", &["room/1", "hall"])?;
    publish(&mut early, "hall", "in the hall")?;
    publish(&mut early, "room/1", "in the room")?;
    drop(device);
    let is_over = |heard: &[Value]| {
        let vacated = heard.iter().filter(|notice| notice["event"] == "vacated").count();
        let ends = heard.iter().filter(|notice| notice["event"] == "disconnected").count();
        vacated == 2 && ends == 1
    };
    let heard = receiver.wait("everything", "the end of the visit", is_over)?;
    assert_eq!(events(&heard)[0], "connected");
    let of = |event: &str| heard.iter().filter(|notice| notice["event"] == event).count();
    assert_eq!([of("occupied"), of("vacated"), of("subscribed"), of("published")], [2; 4]);
    let expected = ["occupied", "subscribed", "published", "vacated"];
    let rooms = receiver.wait("rooms", "one room", |heard| heard.len() == 4)?;
    assert_eq!(events(&rooms), expected);
    assert!(rooms.iter().all(|notice| notice["topic"] == "room/1"), "{rooms:?}");
    // One goes; what was there before the first receiver ends with a notice all the same.
    reload(&everything)?;
    drop(early);
    receiver.wait("everything", "the end of the first one", |heard| {
        heard.iter().any(|notice| notice["event"] == "vacated" && notice["topic"] == "room/0")
            && heard
                .iter()
                .any(|notice| notice["event"] == "disconnected" && notice["device"] == "early")
    })?;
    assert_eq!(receiver.once("rooms")?.len(), 4);
    assert_eq!(Answer::get(server.admin, "/v1/hooks/rooms/notices")?.status, 404);
    reload("")?;
    Device::greet(server.tcp, "late", &[])?;
    assert_eq!(server.metrics()?.sum("weir_notices_buffered", ""), 0.0);
    Ok(())
}

#[test]
fn the_last_notices_are_sent_before_the_gateway_ends() -> Result<()> {
    let mut receiver = Receiver::new()?;
    receiver.start()?;
    let (mut server, directory) = start(&config(&receiver, ALL))?;
    let _devices = (0..50)
        .map(|number| Device::greet(server.tcp, &format!("d{number}"), &["t"]))
        .collect::<Result<Vec<_>>>()?;
    server.signal(Signal::TERM)?;
    assert!(server.wait()?.success(), "{}", server.log());
    let heard = receiver.once("audit")?;
    let ends = heard.iter().filter(|notice| notice["reason"] == "draining").count();
    assert_eq!(ends, 50);
    assert_eq!(events(&heard).last(), Some(&"vacated"));
    assert!(!directory.path().join("notices.db-wal").exists(), "the file is whole");
    // The next one has nothing to make up for.
    server.restart()?;
    Device::greet(server.tcp, "next", &[])?;
    let more = receiver.wait("audit", "the next one", |more| more.len() > heard.len())?;
    assert_eq!(
        (&more[heard.len()]["event"], &more[heard.len()]["device"]),
        (&json!("connected"), &json!("next"))
    );
    Ok(())
}
