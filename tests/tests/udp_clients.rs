//! Datagrams of strangers, sent to the program: malformed, forged, repeated, in floods. Each gets a clear answer or none,
//! none gets more than three times what it sent, and nobody else notices.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use weir_tests::{Datagrams, Metrics, PATIENCE, Server, now, program};
use weir_wire::ProstMessage;
use weir_wire::v1::{self, datagram_request::Kind};

#[path = "udp_clients/forged.rs"]
mod forged;

const STORE: &str = "[store]\npath = \"devices.db\"\n";
const ADD: &str = r#"{"devSn":"add","devKey":"abc"}"#;

fn udp(server: &Server, name: &str, label: &str) -> Result<f64> {
    Ok(server.metrics()?.sum(&format!("weir_udp_{name}_total"), label))
}

/// Numbers that look random and are the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or(0) % below
    }
}

#[test]
fn a_device_activates_calls_and_publishes_over_both_families() -> Result<()> {
    let server = Server::start_with_datagrams(&format!(
        "{STORE}[[topic_classes]]\npattern = \"fleet/{{device}}\"\npublish = [\"devices\"]\n"
    ))?;
    server.import("add,abc\n")?;
    let addrs = [server.udp, server.udp_v6];
    for (round, addr) in addrs.into_iter().flatten().enumerate() {
        let client = Datagrams::new(addr)?;
        let activated = client.ask(ADD)?;
        let token = activated["pt"].as_str().context("a token")?;
        assert_eq!(token.len(), 22, "{activated}");
        assert_eq!(
            client.ask(&json!({"pt": token, "count": 7}).to_string())?,
            json!({"answer": true, "pt": token, "count": 7})
        );
        let publish = |topic: &str| {
            let said =
                json!({"pt": token, "publish": {"topic": topic, "text": "hello"}, "id": topic});
            client.ask(&said.to_string())
        };
        let published = publish("fleet/add")?;
        assert!(published["published"]["messageId"].is_string(), "{published}");
        let refused = publish("fleet/other")?;
        assert_eq!(
            (&refused["error"], &refused["field"]),
            (&json!("not_permitted"), &json!("publish"))
        );
        let generation = u64::try_from(round)? + 1;
        assert_eq!(server.stored("add")?["generation"], generation, "{addr}");
    }
    assert!(server.udp_v6.is_some() || std::net::UdpSocket::bind("[::1]:0").is_err());
    Ok(())
}

#[test]
fn a_listener_that_is_not_on_loopback_has_to_be_asked_for() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("weir.toml");
    for addr in ["0.0.0.0:0", "[::]:0"] {
        let config = format!("[listen]\nudp = [\"{addr}\"]\n[store]\nkind = \"none\"\n");
        std::fs::write(&path, config)?;
        let mut command = Command::new(program("weir")?);
        command.arg("--config").arg(&path).env_remove("WEIR_CONFIG").stdin(Stdio::null());
        let output = command.output()?;
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("udp.cleartext") && told.contains(addr), "{told}");
    }
    Ok(())
}

/// What is wrong is named; what is cut, empty or noise is answered or dropped, and never with more than three times its
/// length.
#[test]
fn nothing_that_is_sent_gets_more_than_three_times_its_length() -> Result<()> {
    let gateways: Vec<String> =
        (0..16).map(|number| format!("{}:{number}", "g".repeat(250))).collect();
    let server = Server::start_with_datagrams(&format!(
        "{STORE}[activation]\nfailures_per_source_per_minute = 0\ngateways = {gateways:?}\n"
    ))?;
    server.import("add,abc\nother,abc\n")?;
    let client = Datagrams::new(server.udp_addr()?)?;
    let token = client.ask(r#"{"devSn":"other","devKey":"abc"}"#)?["pt"]
        .as_str()
        .context("a token")?
        .to_owned();
    let valid = valid_datagrams(&token);
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    let (mut came, mut answered) = (1.0, 0);
    for batch in 0..80 {
        let mut clients = Vec::new();
        for round in 0..50 {
            let client = Datagrams::from([127, 1, batch, round], server.udp_addr()?)?;
            let mut datagram = valid[usize::from(round) % valid.len()].clone();
            mutate(&mut datagram, &mut noise);
            // Again: what is remembered, or in progress, is not worth more.
            client.send(&datagram)?;
            client.send(&datagram)?;
            came += 2.0;
            clients.push((client, datagram));
        }
        server.await_metrics("all of them", |metrics| {
            let count = |name: &str| metrics.sum(&format!("weir_udp_{name}_total"), "");
            let joined = metrics.sum_of("weir_udp_duplicates_total", &[("how", "joined")]);
            let dropped = ["answer", "foreign"]
                .map(|cause| metrics.sum_of("weir_udp_refused_total", &[("cause", cause)]));
            let done = count("sent") + count("too_short") + joined + dropped[0] + dropped[1];
            count("received") == came && done == came
        })?;
        for (client, datagram) in clients {
            // What was sent on this machine is there.
            while let Some(answer) = client.heard()? {
                answered += 1;
                let limit = (3 * datagram.len()).min(1200);
                assert!(!answer.is_empty() && answer.len() <= limit, "{datagram:?}: {answer:?}");
            }
        }
    }
    let metrics = server.metrics()?;
    assert!(f64::from(answered) > came / 4.0, "{answered} of {came}");
    assert!(metrics.sum("weir_udp_malformed_total", "") > 100.0, "{}", metrics.text());
    assert!(metrics.sum("weir_udp_too_short_total", "") > 0.0, "{}", metrics.text());
    assert_eq!(client.ask(&json!({"pt": token, "count": 9}).to_string())?["count"], 9);
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

fn valid_datagrams(token: &str) -> Vec<Vec<u8>> {
    let protobuf = |token: &str, kind| {
        v1::DatagramRequest { id: 300, token: token.to_owned(), kind: Some(kind) }.encode_to_vec()
    };
    let activate = v1::Activate { serial: "add".to_owned(), key: "abc".to_owned() };
    let publish = json!({"pt": token, "publish": {"topic": "news", "text": "hello"}, "id": "x"});
    vec![
        json!({"pt": token, "count": 7}).to_string().into_bytes(),
        json!({"pt": token, "count": 7, "id": "a name"}).to_string().into_bytes(),
        ADD.to_owned().into_bytes(),
        json!({"devSn": "add", "devKey": "abc", "id": 18_446_744_073_709_551_615_u64})
            .to_string()
            .into_bytes(),
        json!({"devSn": "add", "devKey": "wrong", "room": "x".repeat(600)})
            .to_string()
            .into_bytes(),
        publish.to_string().into_bytes(),
        protobuf(token, Kind::Count(5)),
        protobuf("", Kind::Activate(activate)),
        protobuf("nobody's", Kind::Count(5)),
    ]
}

/// Cuts it, turns bytes, or adds some: about one in eight stays as it is.
fn mutate(datagram: &mut Vec<u8>, noise: &mut Noise) {
    match noise.next(8) {
        0 => {}
        1 => datagram.truncate(noise.next(datagram.len() + 1)),
        2 => datagram.extend((0..noise.next(2_000)).map(|_| b' ')),
        3 => {
            let at = noise.next(datagram.len());
            datagram.insert(at, b"{}[]\",:\\\x00\xff"[noise.next(10)]);
        }
        4 => datagram.iter_mut().for_each(|byte| *byte = noise.next(256).to_le_bytes()[0]),
        _ => {
            for _ in 0..=noise.next(3) {
                let at = noise.next(datagram.len());
                datagram[at] = noise.next(256).to_le_bytes()[0];
            }
        }
    }
}

#[test]
fn what_is_malformed_is_named_and_counted() -> Result<()> {
    let server = Server::start_with_datagrams(STORE)?;
    let client = Datagrams::new(server.udp_addr()?)?;
    let pad = |members: &str| format!("{{{members},\"room\":\"{}\"}}", "x".repeat(100));
    let cases = [
        (pad(r#""pt":null"#), "datagram", ""),
        (pad(r#""pt":["a"],"count":1"#), "pt", "expected a string"),
        (pad(r#""pt":"a","count":-1"#), "count", "-1"),
        (pad(r#""pt":"a","count":18446744073709551616"#), "count", "expected u64"),
        (pad(r#""devSn":true,"devKey":"k""#), "devSn", "expected a string"),
        (pad(r#""devSn":"a\u0000","devKey":"k""#), "devSn", "U+0000"),
        (pad(&format!(r#""devSn":"{}","devKey":"k""#, "s".repeat(129))), "devSn", "128"),
        (pad(&format!(r#""devSn":"s","devKey":"{}""#, "k".repeat(257))), "devKey", "256"),
        (pad(r#""devSn":"s","devKey":"k","id":"""#), "id", "1 to 64 bytes"),
        (pad(r#""devSn":"s","devKey":"k","id":-1"#), "id", ""),
        (pad(r#""pt":"a","publish":{"text":"no topic"}"#), "publish.topic", ""),
        (pad(&format!(r#""pt":"a","x":{}"#, "[".repeat(900))), "datagram", "8 levels"),
        (pad(&format!(r#""pt":"a","x":"{}""#, "y".repeat(1_500))), "datagram", "1200 bytes"),
    ];
    for (datagram, field, says) in &cases {
        let refused = client.ask(datagram)?;
        let shown = &datagram[..datagram.len().min(60)];
        assert_eq!(refused["error"], "malformed", "{shown}: {refused}");
        assert_eq!(refused["field"], *field, "{shown}: {refused}");
        let message = refused["message"].as_str().context("a message")?;
        assert!(!message.is_empty() && message.contains(says), "{shown}: {message}");
    }
    server.await_metrics("all of them", |metrics| {
        let count = |field| metrics.sum_of("weir_udp_malformed_total", &[("field", field)]);
        let counts = ["datagram", "pt", "count", "devSn", "devKey", "id", "publish"].map(count);
        counts == [3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 1.0]
    })?;
    assert_eq!(server.metrics()?.sum("weir_store_requests_total", ""), 0.0);
    Ok(())
}

/// A retry must not activate twice; another port is another sender, and so is the same one after the window.
#[test]
fn what_is_repeated_is_done_once_within_the_window() -> Result<()> {
    let server =
        Server::start_with_datagrams(&format!("{STORE}[udp]\nduplicate_window = \"10s\"\n"))?;
    server.import("add,abc\n")?;
    let addr = server.udp_addr()?;
    let generation =
        || -> Result<u64> { server.stored("add")?["generation"].as_u64().context("a generation") };
    let client = Datagrams::new(addr)?;
    // All at once, so that some come while the first is in progress.
    for _ in 0..50 {
        client.send(ADD)?;
    }
    let first: Value = serde_json::from_slice(&client.hear()?)?;
    assert_eq!(client.ask(ADD)?, first);
    assert_eq!(generation()?, 1);
    let numbered = r#"{"devSn":"add","devKey":"abc","id":5}"#;
    client.send(numbered)?;
    // Answers to those before may be on their way.
    let second = loop {
        let answer: Value = serde_json::from_slice(&client.hear()?)?;
        if answer["id"] == 5 {
            break answer;
        }
        assert_eq!(answer, first);
    };
    // The same id in other words is the same request.
    assert_eq!(client.ask(r#"{ "id" : 5, "devKey" : "abc", "devSn" : "add" }"#)?, second);
    assert_ne!(second["pt"], first["pt"]);
    assert_eq!(generation()?, 2);
    let other = Datagrams::new(addr)?;
    let third = other.ask(numbered)?;
    assert!(third["pt"] != second["pt"] && third["pt"].is_string(), "{third}");
    assert_eq!(generation()?, 3);
    // Another one's answer is nobody else's, and a wrong key with the same id is another request.
    let guessed =
        client.ask(r#"{"devSn":"add","devKey":"abd","id":5,"room":"for what is told"}"#)?;
    assert_eq!(guessed["error"], "unauthorized", "{guessed}");
    assert_eq!(generation()?, 3);
    assert!(udp(&server, "duplicates", "")? >= 2.0);
    // After the window it is a request like any other.
    let deadline = 200;
    for round in 0.. {
        ensure!(round < deadline, "the window does not end");
        if client.ask(numbered)?["pt"] != second["pt"] {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(generation()?, 4);
    Ok(())
}

/// Ten thousand guesses from one address, some hundred at a time.
#[test]
fn ten_thousand_guesses_are_limited_and_counted() -> Result<()> {
    const GUESSES: usize = 10_000;
    const AT_ONCE: usize = 200;
    let server = Server::start_with_datagrams(STORE)?;
    server.import("add,abc\n")?;
    let addr = server.udp_addr()?;
    let guesser = Datagrams::from([127, 0, 0, 3], addr)?;
    let (mut tried, mut limited) = (0, 0);
    for first in (0..GUESSES).step_by(AT_ONCE) {
        for number in first..first + AT_ONCE {
            let key = format!("guess-{number:05}");
            guesser.send(json!({"devSn": "add", "devKey": key, "id": number}).to_string())?;
        }
        for _ in 0..AT_ONCE {
            let refused: Value = serde_json::from_slice(&guesser.hear()?)?;
            match refused["error"].as_str() {
                Some("unauthorized") => tried += 1,
                Some("rate_limited") => {
                    limited += 1;
                    ensure!(refused["retryAfterMs"].as_u64().is_some_and(|ms| ms > 0), "{refused}");
                }
                _ => anyhow::bail!("{refused}"),
            }
        }
    }
    // The burst, and what some minutes on a slow machine forgive.
    assert!((20..80).contains(&tried), "{tried} were tried");
    assert_eq!(server.activations("wrong_key")?, f64::from(tried));
    assert_eq!(server.activations("limited")?, f64::from(limited));
    assert_eq!(udp(&server, "refused", "credentials")?, f64::from(tried));
    assert_eq!(guesser.ask(ADD)?["error"], "rate_limited", "the right one too");
    let device = Datagrams::from([127, 0, 0, 4], addr)?;
    assert!(device.ask(ADD)?["pt"].is_string(), "the device itself is not locked");
    // Addresses of datagrams can be forged: by a connection it activates from there too.
    assert_eq!(server.activate([127, 0, 0, 3], "add", "abc")?.status, 200);
    Ok(())
}

/// Addresses that are forged, and one that sends without end: what is kept of them is bounded, and a device is served.
#[test]
fn floods_from_many_addresses_take_bounded_room() -> Result<()> {
    const SOURCES: usize = 20_000;
    let server = Server::start_with_datagrams(&format!(
        "{STORE}[udp]\ndatagrams_per_source_per_second = 10\ndatagrams_per_source_burst = 20\n"
    ))?;
    server.import("add,abc\n")?;
    let addr = server.udp_addr()?;
    let device = Datagrams::from([127, 9, 9, 9], addr)?;
    let token = device.ask(ADD)?["pt"].as_str().context("a token")?.to_owned();
    let before = server.rss_anon()?;
    for number in 0..SOURCES {
        let [high, low] = u16::try_from(number)?.to_be_bytes();
        let stranger = Datagrams::from([127, 77, high, low], addr)?;
        stranger.send(json!({"devSn": format!("d{number}"), "devKey": "guess"}).to_string())?;
        stranger.send(
            json!({"pt": format!("forged-{number:015}"), "count": 1, "x": "y".repeat(900)})
                .to_string(),
        )?;
    }
    // What came before is behind us, so the first datagrams of the next flood find room.
    call_until_answered(&device, &token, 2)?;
    // One address that is beyond its rate is not answered; the device is.
    let flooder = Datagrams::from([127, 66, 0, 1], addr)?;
    for number in 0..2_000 {
        flooder.send(json!({"pt": token, "count": number}).to_string())?;
    }
    call_until_answered(&device, &token, 3)?;
    // The kernel tells of those it has lost with one that comes behind them.
    let answered = call_until_answered(&flooder, &token, 5_000)?;
    assert!((1..400).contains(&answered), "{answered}");
    let rate = [("cause", "rate")];
    let refused = |metrics: &Metrics| metrics.sum_of("weir_udp_refused_total", &rate);
    let metrics = server.await_metrics("what became of the flood", |metrics| {
        refused(metrics) + metrics.sum("weir_udp_lost_total", "") >= 1_600.0
    })?;
    assert!(refused(&metrics) > 0.0, "{}", metrics.text());
    assert!(metrics.sum("weir_udp_waiting", "") <= 2.0 * 4_096.0);
    server.await_metrics("an end", |metrics| metrics.sum("weir_udp_waiting", "") == 0.0)?;
    let grown = server.rss_anon()?.saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

/// Calls each second until that is answered, for in a flood some are lost, or told to come again; how many answers to
/// others came before.
fn call_until_answered(client: &Datagrams, token: &str, count: u64) -> Result<u32> {
    let call = json!({"pt": token, "count": count}).to_string();
    let deadline = now() + PATIENCE;
    let mut others = 0;
    while now() < deadline {
        client.send(&call)?;
        while let Some(answer) = client.hear_within(Duration::from_secs(1))? {
            let answer: Value = serde_json::from_slice(&answer)?;
            if answer["count"] == count {
                return Ok(others);
            }
            ensure!(answer["count"].is_u64() || answer["retryAfterMs"].is_u64(), "{answer}");
            others += 1;
        }
    }
    bail!("no answer to {call}, and {others} to others")
}

/// What has come is answered when the server is told to end, one turn of a thread at the least, and its end is clean.
#[test]
fn an_end_in_the_middle_of_a_flood_is_an_end() -> Result<()> {
    const CALLS: u64 = 100;
    /// A thread that is held up has no time for more.
    const TURN: usize = 64;
    let mut server = Server::start_with_datagrams(STORE)?;
    server.import("add,abc\n")?;
    let addr = server.udp_addr()?;
    let client = Datagrams::new(addr)?;
    let token = client.ask(ADD)?["pt"].as_str().context("a token")?.to_owned();
    let call = |count: u64| json!({"pt": token, "count": count}).to_string();
    // The thread knows the token from then on.
    client.ask(&call(CALLS))?;
    for count in 0..CALLS {
        client.send(call(count))?;
    }
    server.signal(rustix::process::Signal::TERM)?;
    let deadline = now() + PATIENCE;
    let mut answers = Vec::new();
    // A socket that is closed is told by the kernel to who sends there.
    while client.send(call(CALLS)).is_ok()
        && let Ok(heard) = client.hear_within(Duration::from_millis(5))
    {
        ensure!(now() < deadline, "the socket is not closed; log:\n{}", server.log());
        answers.extend(heard);
    }
    while let Some(answer) = client.heard()? {
        answers.push(answer);
    }
    assert!(server.wait()?.success(), "{}", server.log());
    let count_of =
        |answer: &Vec<u8>| serde_json::from_slice::<Value>(answer).ok()?["count"].as_u64();
    let answered = answers.iter().filter_map(count_of).filter(|count| *count < CALLS).count();
    assert!(answered >= TURN, "{answered} of {CALLS}");
    Ok(())
}
