//! Reloading under load: many configurations, good and bad, while clients stay. None is lost but those that a change
//! names; a bad configuration changes nothing; each answer says exactly what has been applied.

mod clients;
mod setup;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::{
    Answer, Authority, Crowd as AllKinds, Datagrams, Device, Server, Socket, Upgrade, now, program,
};
use weir_wire::v1::{self, client_message, server_message};

use clients::{Crowd, Told};
use setup::{Change, Dice, Setup, TOPICS};

/// `WEIR_RELOAD_CLIENTS` and `WEIR_RELOAD_CONFIGS` change these.
const CLIENTS: usize = 300;
const CONFIGS: usize = 200;
/// Of so many configurations, one is bad.
const BAD: usize = 5;

/// A server whose configuration is written anew again and again.
struct Stage {
    server: Server,
    /// The addresses, with which the file begins.
    head: String,
    /// The token of the admin API.
    admin: Arc<Mutex<String>>,
}

impl Stage {
    fn start(setup: &Setup) -> Result<Stage> {
        let server = Server::start(&setup.toml())?;
        let text = std::fs::read_to_string(server.config())?;
        let end = text.find("[admin]").context("the file goes on behind [listen]")?;
        let head = text[..end].to_owned();
        Ok(Stage { server, head, admin: Arc::default() })
    }

    fn write(&self, toml: &str) -> Result<()> {
        Ok(std::fs::write(self.server.config(), format!("{}{toml}", self.head))?)
    }

    fn reload(&self) -> Result<Answer> {
        post(self.server.admin, &self.admin.lock().expect("no panic"), "/v1/reload", "{}")
    }

    /// The same by the command.
    fn reload_by_command(&self) -> Result<Value> {
        let mut command = Command::new(program("weir")?);
        command.args(["reload", "--json", "--admin", &self.server.admin.to_string()]);
        let output =
            command.env("WEIR_ADMIN_TOKEN", &*self.admin.lock().expect("no panic")).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

fn post(admin: SocketAddr, token: &str, path: &str, body: &str) -> Result<Answer> {
    let length = body.len();
    let bearer = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    Answer::ask(
        admin,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{bearer}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
}

/// The keys of an answer, sorted.
fn told(answer: &Value, list: &str) -> Result<Vec<Change>> {
    let list = answer[list].as_array().context("a list")?;
    let mut told: Vec<Change> = list
        .iter()
        .map(|change| {
            let key = change["key"].as_str().unwrap_or_default().to_owned();
            (key, change["from"].clone(), change["to"].clone())
        })
        .collect();
    told.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(told)
}

fn sorted(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by(|a, b| a.0.cmp(&b.0));
    changes
}

fn number_of(variable: &str, default: usize) -> Result<usize> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable} is a number")),
        Err(_) => Ok(default),
    }
}

/// Publishes to all topics, again and again with that pause, until it is told to stop.
#[expect(clippy::disallowed_methods, reason = "a test that paces its messages")]
fn publish(
    stage: &Stage,
    pause: Duration,
    stop: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<Result<u64>> {
    let (admin, token, stop) = (stage.server.admin, Arc::clone(&stage.admin), Arc::clone(stop));
    let count = AtomicU64::new(0);
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            for topic in TOPICS {
                let body = json!({"topic": topic, "text": "x".repeat(50)}).to_string();
                let token = token.lock().expect("no panic").clone();
                let answer = post(admin, &token, "/v1/publish", &body)?;
                // The token may just have changed.
                ensure!([200, 401].contains(&answer.status), "{}", answer.body);
                count.fetch_add(u64::from(answer.status == 200), Ordering::Relaxed);
            }
            std::thread::sleep(pause);
        }
        Ok(count.into_inner())
    })
}

struct Walk {
    stage: Stage,
    crowd: Crowd,
    dice: Dice,
    /// In use.
    setup: Setup,
    clients: usize,
    closed: u64,
    unsubscribed: u64,
    bad: u64,
    changed: u64,
    longest: Duration,
}

impl Walk {
    /// Fills the places of those that have gone.
    fn fill(&mut self) -> Result<()> {
        let mut joining = Vec::new();
        let bound: Vec<String> =
            self.setup.tokens.iter().filter_map(|t| t.device.clone()).collect();
        let mut free: Vec<String> = self
            .setup
            .tokens
            .iter()
            .filter(|t| t.device.is_none())
            .map(|t| t.secret.clone())
            .collect();
        let services: BTreeMap<String, String> =
            self.setup.services.iter().map(|s| (s.secret.clone(), s.name.clone())).collect();
        free.extend(services.keys().cloned());
        while self.crowd.members.len() + joining.len() < self.clients {
            let number = self.crowd.number();
            let token = self.dice.one_of(&free).clone();
            let device = match services.get(&token) {
                Some(name) => format!("{name}/c{number}"),
                None => format!("c{number}"),
            };
            ensure!(!bound.contains(&device), "numbers are new");
            let mut topics = BTreeSet::new();
            for _ in 0..3 {
                let topic = *self.dice.one_of(&TOPICS);
                if self.setup.permits(&token, topic) {
                    topics.insert(topic.to_owned());
                }
            }
            joining.push((number, device, token, topics));
        }
        let mut awaited: usize = joining.iter().map(|(.., topics)| topics.len()).sum();
        self.crowd.enter(joining)?;
        // Others ask for topics that they may be in now.
        let numbers: Vec<usize> = self.crowd.members.keys().copied().take(20).collect();
        for number in numbers {
            let topic = *self.dice.one_of(&TOPICS);
            let member = &self.crowd.members[&number];
            if !member.topics.contains(topic) && self.setup.permits(&member.token, topic) {
                self.crowd.subscribe(number, topic)?;
                awaited += 1;
            }
        }
        while awaited > 0 {
            match self.crowd.hear()? {
                (_, Told::Subscribed) => awaited -= 1,
                other => bail!("{other:?} while clients subscribe"),
            }
        }
        Ok(())
    }

    fn step(&mut self, number: usize) -> Result<()> {
        if number % BAD == BAD - 1 {
            return self.bad_step();
        }
        let members: Vec<(String, String)> =
            self.crowd.members.values().map(|m| (m.token.clone(), m.device.clone())).collect();
        let devices_of = |secret: &str| -> Vec<String> {
            let mut own: Vec<String> = members
                .iter()
                .filter(|(token, _)| token == secret)
                .map(|(_, id)| id.clone())
                .collect();
            own.sort();
            own
        };
        let new = self.setup.next(&mut self.dice, number, &devices_of);
        self.stage.write(&new.toml())?;
        let began = now();
        let answer = match number % 10 {
            0 => self.stage.reload_by_command()?,
            _ => {
                let answer = self.stage.reload()?;
                ensure!(answer.status == 200, "{} {}", answer.status, answer.body);
                serde_json::from_str(&answer.body)?
            }
        };
        self.longest = self.longest.max(began.elapsed());
        let token = new.keys["admin.token"].as_str().unwrap_or_default().to_owned();
        *self.stage.admin.lock().expect("no panic") = token;
        let (changed, restart) = self.setup.difference(&new);
        self.changed += changed.len() as u64;
        assert_eq!(told(&answer, "changed")?, sorted(changed), "configuration {number}");
        assert_eq!(told(&answer, "restart")?, sorted(restart), "configuration {number}");
        self.setup = self.setup.applied(&new);
        self.check(number, &answer)?;
        self.fill()
    }

    /// Exactly those leave that the change names.
    fn check(&mut self, number: usize, answer: &Value) -> Result<()> {
        let (mut closed, mut left) = (BTreeSet::new(), BTreeSet::new());
        for (client, member) in &mut self.crowd.members {
            if !self.setup.admits(&member.token, &member.device) {
                closed.insert(*client);
                continue;
            }
            let forbidden = |topic: &String| !self.setup.permits(&member.token, topic);
            for topic in member.topics.iter().filter(|topic| forbidden(topic)) {
                left.insert((*client, topic.clone()));
            }
            member.topics.retain(|topic| self.setup.permits(&member.token, topic));
        }
        let counted = (answer["closed"].as_u64(), answer["unsubscribed"].as_u64());
        let expected = (Some(closed.len() as u64), Some(left.len() as u64));
        assert_eq!(counted, expected, "configuration {number}: {answer}");
        self.closed += closed.len() as u64;
        self.unsubscribed += left.len() as u64;
        for client in &closed {
            self.crowd.members.remove(client);
        }
        while !closed.is_empty() || !left.is_empty() {
            let is_named = match self.crowd.hear()? {
                (client, Told::Ended(4201)) => closed.remove(&client),
                (client, Told::Unsubscribed(topic, reason)) if reason == "not_permitted" => {
                    left.remove(&(client, topic))
                }
                (client, told) => bail!("configuration {number}: {client} tells {told:?}"),
            };
            ensure!(is_named, "configuration {number} ends what it does not name");
        }
        Ok(())
    }

    /// A bad configuration is refused with its key and place, and changes nothing.
    fn bad_step(&mut self) -> Result<()> {
        // What else is new in it is not applied either.
        let other = self.setup.next(&mut self.dice, 1_000_000, &|_| Vec::new());
        let (toml, key) = other.spoilt(&mut self.dice);
        self.stage.write(&toml)?;
        let answer = self.stage.reload()?;
        assert_eq!(answer.status, 422, "{key}: {}", answer.body);
        let problem: Value = serde_json::from_str(&answer.body)?;
        let detail = problem["detail"].as_str().unwrap_or_default();
        ensure!(detail.contains(key) && detail.contains("weir.toml:"), "{key}: {detail}");
        ensure!(self.crowd.heard().is_empty(), "a client hears of a bad configuration");
        self.bad += 1;
        Ok(())
    }

    /// Every client has got every message of its topics.
    fn end(&mut self) -> Result<()> {
        let token = self.stage.admin.lock().expect("no panic").clone();
        let mut last: HashMap<&str, u64> = HashMap::new();
        for topic in TOPICS {
            let body = json!({"topic": topic, "text": "last"}).to_string();
            let answer = post(self.stage.server.admin, &token, "/v1/publish", &body)?;
            let answer: Value = serde_json::from_str(&answer.body)?;
            last.insert(topic, answer["offset"].as_u64().unwrap_or(0));
        }
        let deadline = now() + weir_tests::PATIENCE;
        loop {
            self.crowd.ask()?;
            let mut behind = 0;
            for _ in 0..self.crowd.members.len() {
                let (client, Told::Seen(seen)) = self.crowd.hear()? else { bail!("no answer") };
                let topics = &self.crowd.members[&client].topics;
                ensure!(
                    topics.iter().eq(seen.keys().collect::<BTreeSet<_>>()),
                    "{topics:?} {seen:?}"
                );
                behind += seen.iter().filter(|(topic, at)| last[topic.as_str()] != **at).count();
            }
            if behind == 0 {
                return Ok(());
            }
            ensure!(now() < deadline, "{behind} subscriptions have not got all messages");
        }
    }
}

#[test]
fn configurations_come_into_use_under_load_and_nobody_else_is_lost() -> Result<()> {
    weir_tests::raise_open_files()?;
    let clients = number_of("WEIR_RELOAD_CLIENTS", CLIENTS)?;
    let configs = number_of("WEIR_RELOAD_CONFIGS", CONFIGS)?;
    let seed = number_of("WEIR_RELOAD_SEED", 20)? as u64;
    println!("seed {seed}");
    let setup = Setup::first();
    let stage = Stage::start(&setup)?;
    let crowd = Crowd::new(stage.server.tcp)?;
    let (dice, longest) = (Dice(seed), Duration::ZERO);
    let (closed, unsubscribed, bad, changed) = (0, 0, 0, 0);
    let mut walk =
        Walk { stage, crowd, dice, setup, clients, closed, unsubscribed, bad, changed, longest };
    walk.fill()?;
    let stop = Arc::<AtomicBool>::default();
    // A slow machine must deliver what a round brings to all clients.
    let pause = Duration::from_millis(clients as u64 / 20);
    let publisher = publish(&walk.stage, pause, &stop);
    let began = now();
    for number in 0..configs {
        walk.step(number).with_context(|| format!("configuration {number}"))?;
    }
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let published = publisher.join().map_err(|_| anyhow::anyhow!("the publisher fails"))??;
    walk.end()?;
    let Walk { closed, unsubscribed, bad, changed, longest, .. } = walk;
    println!(
        "{clients} clients, {configs} configurations ({bad} bad) in {took:.1?}, the longest reload {longest:.0?}: \
         {changed} keys changed, {closed} connections closed, {unsubscribed} subscriptions ended, \
         {published} messages published"
    );
    Ok(())
}

const ANONYMOUS: &str = "[auth]\nanonymous = true\n";

fn rewrite(server: &Server, from: &str, to: &str) -> Result<Value> {
    let text = std::fs::read_to_string(server.config())?;
    ensure!(text.contains(from), "{text}");
    std::fs::write(server.config(), text.replace(from, to))?;
    let answer = post(server.admin, "", "/v1/reload", "{}")?;
    ensure!(answer.status == 200, "{} {}", answer.status, answer.body);
    Ok(serde_json::from_str(&answer.body)?)
}

/// Frames over TCP and TLS, WebSockets with JSON and protobuf, events over HTTP/1.1 and HTTP/2.
#[test]
fn credentials_that_go_end_connections_of_every_kind() -> Result<()> {
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    let server = Server::start_with_all_doors(&format!("{ANONYMOUS}{certificate}"))?;
    let mut crowd = AllKinds::enter(&server, "a")?;
    let addr = server.tls.context("it listens with TLS")?;
    let mut secure = Device::connect_tls(addr, &authority.client()?)?;
    secure.say_hello("secure", &[])?;
    let token = "\n[[auth.tokens]]\ntoken = \"t\"\nlabels = [\"x\"]\n";
    let answer = rewrite(&server, ANONYMOUS, &format!("[auth]\nanonymous = false\n{token}"))?;
    assert_eq!(answer["closed"], 6, "{answer}");
    crowd.are_told(4201, "revoked")?;
    assert_eq!(secure.goodbye()?.code, 4201);
    let mut device = admitted(&server, "t")?;
    let answer = rewrite(&server, "labels = [\"x\"]", "labels = [\"y\"]")?;
    assert_eq!(
        told(&answer, "changed")?,
        [("auth.tokens[0].labels".to_owned(), json!(["x"]), json!(["y"]),)]
    );
    assert_eq!(answer["closed"], 0, "another label closes nobody");
    let answer = rewrite(&server, "token = \"t\"", "token = \"other\"")?;
    assert_eq!(answer["closed"], 1, "{answer}");
    ensure!(!answer.to_string().contains("other"), "a secret is shown: {answer}");
    let goodbye = device.goodbye()?;
    assert_eq!((goodbye.code, goodbye.reason.as_str()), (4201, "revoked"));
    assert_eq!(server.metrics()?.closed("revoked"), 7.0);
    Ok(())
}

fn admitted(server: &Server, token: &str) -> Result<Device> {
    let mut device = Device::connect(server.tcp)?;
    let hello = v1::Hello { device_id: "d".into(), token: token.into(), ..v1::Hello::default() };
    device.send(client_message::Kind::Hello(hello))?;
    match device.hear()? {
        Some(server_message::Kind::Welcome(_)) => Ok(device),
        other => bail!("expected Welcome, got {other:?}"),
    }
}

/// The request shows the token, and `Hello` comes only after the reload.
#[test]
fn a_token_that_goes_while_a_connection_is_opened_admits_it_no_more() -> Result<()> {
    let tokens = "[[auth.tokens]]\ntoken = \"one\"\n[[auth.tokens]]\ntoken = \"two\"\n";
    let server = Server::start_with_http(tokens)?;
    let open = |token: &str| {
        let whole = Upgrade::default();
        let headers = format!("{}Authorization: Bearer {token}\r\n", whole.headers);
        Socket::open_by(server.http()?, &Upgrade { headers: &headers, ..Upgrade::default() })
    };
    let (mut one, mut two) = (open("one")?, open("two")?);
    rewrite(&server, "[[auth.tokens]]\ntoken = \"one\"\n", "[[auth.tokens]]\ntoken = \"new\"\n")?;
    let hello = |id: &str| json!({"hello": {"deviceId": id}});
    one.say(&hello("a"))?;
    assert_eq!(one.goodbye()?, (4201, "revoked".to_owned()));
    two.say(&hello("b"))?;
    two.expect("welcome")?;
    Ok(())
}

#[test]
fn a_token_that_goes_is_not_answered_by_datagram() -> Result<()> {
    let tokens = "[[auth.tokens]]\ntoken = \"one\"\n[[auth.tokens]]\ntoken = \"two\"\n";
    let server =
        Server::start_with_datagrams(&format!("{tokens}[udp]\ntoken_cache_ttl = \"1m\"\n"))?;
    let client = Datagrams::new(server.udp.context("it answers datagrams")?)?;
    let call = |token: &str| client.ask(&json!({"pt": token, "count": 1}).to_string());
    for token in ["one", "two", "one", "two"] {
        assert_eq!(call(token)?["answer"], true);
    }
    rewrite(&server, "token = \"one\"", "token = \"new\"")?;
    assert_eq!(call("one")?["error"], "unauthorized");
    for token in ["two", "new"] {
        assert_eq!(call(token)?["answer"], true);
    }
    Ok(())
}

/// A class changes what it retains and how it sends; lower limits count for what comes.
#[test]
fn classes_and_limits_change_under_those_who_stay() -> Result<()> {
    let class = "[[topic_classes]]\npattern = \"*\"\nretention_messages = 10\nhistory = true\n";
    let extra = format!("{class}tick = \"0ms\"\n[limits]\nconnections_max = 100\n");
    let server = Server::start_with_http(&extra)?;
    let mut device = Device::greet(server.tcp, "a", &["news"])?;
    let publish = |text: &str| server.publish(&json!({"topic": "news", "text": text}));
    let kept = || -> Result<u64> {
        let topics = Answer::get(server.admin, "/v1/topics")?;
        let topics: Value = serde_json::from_str(&topics.body)?;
        topics["topics"][0]["retained_messages"].as_u64().context("a number")
    };
    for text in 0..8 {
        publish(&text.to_string())?;
        device.push()?;
    }
    assert_eq!(kept()?, 8);
    rewrite(&server, "retention_messages = 10\nhistory = true", "retention_messages = 3")?;
    assert_eq!(kept()?, 3);
    rewrite(&server, "tick = \"0ms\"", "tick = \"100ms\"")?;
    let offsets: Vec<u64> = (0..3)
        .map(|text| publish(&text.to_string())?["offset"].as_u64().context("an offset"))
        .collect::<Result<_>>()?;
    rewrite(&server, "tick = \"100ms\"", "tick = \"0ms\"")?;
    let last = publish("behind the tick")?["offset"].as_u64().context("an offset")?;
    match device.hear()? {
        Some(server_message::Kind::Batch(batch)) => {
            let gathered = batch.messages.iter().map(|push| push.offset);
            ensure!(gathered.eq(offsets), "{batch:?}");
        }
        other => bail!("expected Batch, got {other:?}"),
    }
    assert_eq!(device.push()?.offset, last);
    rewrite(&server, "retention_messages = 3\n", "")?;
    assert_eq!(kept()?, 0);
    let answer = rewrite(&server, "connections_max = 100", "connections_max = 1")?;
    assert_eq!((&answer["closed"], &answer["unsubscribed"]), (&json!(0), &json!(0)));
    let mut other = Device::connect(server.tcp)?;
    let refused = other.goodbye()?;
    assert_eq!(refused.reason, "too_many_connections");
    publish("still there")?;
    device.push()?;
    Ok(())
}

/// Keys that need a restart keep their values, and every reload names them. A signal does the same as the admin API.
#[test]
fn what_needs_a_restart_is_told_each_time() -> Result<()> {
    let server = Server::start("[tcp]\nuser_timeout = \"70s\"\n[log]\nlevel = \"info\"\n")?;
    let expected = [("tcp.user_timeout".to_owned(), json!("70s"), json!("80s"))];
    let answer = rewrite(&server, "\"70s\"", "\"80s\"")?;
    assert_eq!((told(&answer, "restart")?, told(&answer, "changed")?), (expected.into(), vec![]));
    let answer = rewrite(&server, "level = \"info\"", "level = \"debug\"")?;
    assert_eq!(told(&answer, "restart")?.len(), 1, "{answer}");
    assert_eq!(told(&answer, "changed")?[0].0, "log.level");
    server.await_log("DEBUG", 1)?;
    server.signal(Signal::HUP)?;
    server.await_log("SIGHUP: reloaded", 1)?;
    let text = std::fs::read_to_string(server.config())?;
    std::fs::write(server.config(), text.replace("debug", "loud=noise"))?;
    server.signal(Signal::HUP)?;
    server.await_log("the configuration is refused, and nothing has changed", 1)?;
    let mut command = Command::new(program("weir")?);
    let output = command.args(["reload", "--admin", &server.admin.to_string()]).output()?;
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(said.contains("log.level") && said.contains("weir.toml:"), "{said}");
    Ok(())
}
