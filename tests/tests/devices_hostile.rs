//! What strangers try at activation over HTTP: bodies that are none, keys that are guessed, differences that would tell
//! what was wrong, and tokens that have been withdrawn or have ended.

use std::fs::{Permissions, set_permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::http2::{DATA, END_HEADERS, HEADERS, Http2, frame};
use weir_tests::{
    Answer, Datagrams, Device, Events, PATIENCE, Server, Socket, Upgrade, with_longer_times,
};
use weir_wire::CloseReason;
use weir_wire::v1::{self, client_message, server_message};

const STORE: &str = "[store]\npath = \"devices.db\"\n";
const STRICT: &str = "[store]\npath = \"devices.db\"\n[auth]\nanonymous = false\n[limits]\nconnections_per_device_max = 10\n";
const PATHS: [&str; 2] = ["/auth/gw/active", "/v1/devices/activate"];

fn post(addr: SocketAddr, path: &str, body: &[u8]) -> Result<Value> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("a head")?;
    let problem: Value = serde_json::from_str(body)?;
    ensure!(head.starts_with(&format!("HTTP/1.1 {} ", problem["status"])), "{head}: {problem}");
    ensure!(head.contains("content-type: application/problem+json"), "{head}");
    Ok(problem)
}

fn post_by_http2(addr: SocketAddr, path: &str, body: &[u8]) -> Result<Value> {
    let mut peer = Http2::connect(addr, &[])?;
    peer.post(1, path, body)?;
    Ok(serde_json::from_slice(&peer.body(1)?)?)
}

/// What the program makes is its owner's alone, whatever the umask leaves open, and what others may change is told.
#[test]
fn what_is_kept_is_not_for_others() -> Result<()> {
    let mut server = Server::start_with_umask_0(
        "[store]\npath = \"state/deep/devices.db\"\n[tls]\ndevelopment_directory = \"state/tls\"\n\
         [access_log]\npath = \"access.log\"\n",
    )?;
    server.import("add,abc\n")?;
    server.token("add", "abc")?;
    let state = server.directory().join("state");
    let mut seen = Vec::new();
    look(&state, &mut seen)?;
    seen.push((mode(&server.directory().join("access.log"))?, "access.log".to_owned()));
    assert!(seen.len() > 6, "{seen:?}");
    for (mode, name) in &seen {
        // The access log may be read by a group.
        assert_eq!(mode & 0o027, 0, "{name} has mode {mode:04o}");
    }
    assert!(!server.log().contains("set its mode"), "{}", server.log());
    server.kill()?;
    for name in ["state/deep", "state/deep/devices.db", "state/tls/development.pem"] {
        set_permissions(server.directory().join(name), Permissions::from_mode(0o777))?;
    }
    server.restart()?;
    for says in
        ["state/deep: has mode 0777", "devices.db: has mode 0777", "development.pem: has mode 0777"]
    {
        assert!(server.log().contains(says), "{says} in {}", server.log());
    }
    Ok(())
}

/// A directory and what is in it: modes and names.
fn look(path: &Path, seen: &mut Vec<(u32, String)>) -> Result<()> {
    seen.push((mode(path)?, path.display().to_string()));
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            look(&entry?.path(), seen)?;
        }
    }
    Ok(())
}

fn mode(path: &Path) -> Result<u32> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
}

/// Bodies that are no activation: what they are refused with, and what that names.
fn bad_bodies() -> Vec<(Vec<u8>, &'static str, &'static str)> {
    let with = |serial: &str, key: &str| format!(r#"{{"devSn":{serial},"devKey":{key}}}"#);
    let long = |bytes: usize| format!("\"{}\"", "s".repeat(bytes));
    let deep = |levels: usize| format!(r#"{{"devSn":"a","devKey":"k","x":{}"#, "[".repeat(levels));
    let texts = [
        (" ".to_owned(), "", "EOF while parsing a value"),
        ("null".to_owned(), "", "invalid type: null, expected a JSON object"),
        ("[\"a\",\"k\"]".to_owned(), "", "invalid type: sequence, expected a JSON object"),
        ("{\"devSn\":\"a\",\"devKey\":\"k\"".to_owned(), "", "EOF while parsing an object"),
        ("{\"devSn\":\"a\",\"devKey\":\"k\"} {}".to_owned(), "", "trailing characters"),
        ("{\"devSn\":\"a\",\"devKey\":\"k\",}".to_owned(), "", "trailing comma"),
        ("\u{feff}{}".to_owned(), "", "expected value"),
        (deep(8_000), "x", "EOF while parsing a list"),
        ("{\"devKey\":\"k\"}".to_owned(), "devSn", "devSn is missing"),
        (with("null", "\"k\""), "devSn", "devSn is missing"),
        (with("true", "\"k\""), "devSn", "invalid type: boolean `true`, expected a string"),
        (with("\"a\"", "1.5"), "devKey", "invalid type: floating point `1.5`, expected a string"),
        (with("\"a\"", "[\"k\"]"), "devKey", "invalid type: sequence, expected a string"),
        (with("\"\\ud800\"", "\"k\""), "devSn", "unexpected end of hex escape"),
        (with("\"a\u{1}\"", "\"k\""), "devSn", "control character"),
        (with("\"a\\u0000\"", "\"k\""), "devSn", "devSn has the control character '\\0'"),
        (with("\"a\\u0085\"", "\"k\""), "devSn", "devSn has the control character '\\u{85}'"),
        (with(&long(129), "\"k\""), "devSn", "devSn has 129 bytes; at most 128 are allowed"),
        (with("\"a\"", &long(257)), "devKey", "devKey has 257 bytes; at most 256 are allowed"),
        (with("\"a\"", "\"\""), "devKey", "devKey is empty"),
        (with("\"a\"", "\"\\u0000\""), "devKey", "devKey has the control character '\\0'"),
    ];
    let mut bodies: Vec<_> =
        texts.into_iter().map(|(text, field, says)| (text.into_bytes(), field, says)).collect();
    let latin = b"{\"devSn\":\"\xe4\",\"devKey\":\"k\"}".to_vec();
    bodies.push((latin, "devSn", "invalid unicode code point"));
    bodies
}

#[test]
fn each_kind_of_bad_body_is_named_over_both_versions() -> Result<()> {
    let server = Server::start_with_http(STORE)?;
    let addr = server.http_addr()?;
    for (index, (body, field, says)) in bad_bodies().into_iter().enumerate() {
        let path = PATHS[index % 2];
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let problem = post(addr, path, &body)?;
        assert_eq!(problem["status"], 400, "{shown}: {problem}");
        assert_eq!(problem["field"].as_str().unwrap_or_default(), field, "{shown}: {problem}");
        let detail = problem["detail"].as_str().context("a detail")?;
        assert!(detail.contains(says) && detail.len() < 300, "{shown}: {detail}");
        assert_eq!(post_by_http2(addr, path, &body)?, problem, "{shown}");
    }
    let metrics = server.metrics()?;
    assert_eq!(metrics.sum("weir_store_requests_total", ""), 0.0, "nothing of it was asked for");
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

/// A body over the limit is refused by what is announced of it, or when the limit is reached.
#[test]
fn a_megabyte_is_refused_without_being_read() -> Result<()> {
    let server = Server::start_with_http(STORE)?;
    let addr = server.http_addr()?;
    let before = server.rss_anon()?;
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    let told = |answer: &str| {
        answer.starts_with("HTTP/1.1 413 ") && answer.contains("the limit of 16384 bytes")
    };
    for round in 0..200 {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let path = PATHS[round % 2];
        let (headers, begins) = match round % 4 {
            0 => ("Content-Length: 1000000\r\n", String::new()),
            1 => ("Content-Length: 1000000\r\nExpect: 100-continue\r\n", String::new()),
            2 => ("Transfer-Encoding: chunked\r\n", format!("{chunk}{chunk}")),
            _ => ("Content-Length: 16385\r\n", String::new()),
        };
        // The rest never comes: whoever waited for it would hang.
        write!(stream, "POST {path} HTTP/1.1\r\nHost: a\r\n{headers}\r\n{begins}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        assert!(told(&answer), "{headers}: {answer}");
    }
    for _ in 0..50 {
        let mut peer = Http2::connect(addr, &[])?;
        let head = [&[0x83, 0x86, 0x04, 15], PATHS[0].as_bytes(), &[0x01, 1, b'a']].concat();
        peer.stream.write_all(&frame(HEADERS, END_HEADERS, 1, &head))?;
        for _ in 0..2 {
            peer.stream.write_all(&frame(DATA, 0, 1, &[b'x'; 16_384]))?;
        }
        let problem: Value = serde_json::from_slice(&peer.body(1)?)?;
        assert_eq!((&problem["status"], &problem["title"]), (&json!(413), &json!("Too large")));
    }
    let grown = server.rss_anon()?.saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more");
    Ok(())
}

/// Ten thousand guesses of one device's key, as many at a time as connections take.
#[test]
fn a_crowd_of_guesses_is_limited_and_harms_nobody_else() -> Result<()> {
    const CONNECTIONS: usize = 20;
    const GUESSES: usize = 500;
    let server = Server::start_with_datagrams(STORE)?;
    server.import("add,abc\n")?;
    let addr = server.http_addr()?;
    let guessers: Vec<_> = (0..CONNECTIONS)
        .map(|connection| std::thread::spawn(move || guess(addr, connection * GUESSES, GUESSES)))
        .collect();
    let mut answers = String::new();
    for guesser in guessers {
        answers.push_str(&guesser.join().ok().context("a guesser ends")??);
    }
    let count = |text: &str| answers.matches(text).count();
    let (tried, limited) = (count("HTTP/1.1 401 "), count("HTTP/1.1 429 "));
    assert_eq!(tried + limited, CONNECTIONS * GUESSES);
    // The burst, and what some minutes on a slow machine forgive.
    assert!((20..80).contains(&tried), "{tried} were tried");
    assert_eq!(count("retry-after: "), limited);
    assert_eq!(count("urn:problem-type:weir:too-many-failures"), limited);
    assert_eq!(server.activations("limited")?, limited as f64);
    assert_eq!(server.activations("wrong_key")?, tried as f64);
    // The right key is not told from there either; the device itself is elsewhere.
    assert_eq!(server.activate([127, 0, 0, 1], "add", "abc")?.status, 429);
    assert_eq!(server.activate([127, 0, 0, 9], "add", "abc")?.status, 200);
    let by_datagram = Datagrams::new(server.udp_addr()?)?;
    let activated = by_datagram.ask(r#"{"devSn":"add","devKey":"abc","id":1}"#)?;
    assert!(activated["pt"].is_string(), "{activated}");
    Ok(())
}

fn guess(addr: SocketAddr, first: usize, count: usize) -> Result<String> {
    let mut requests = String::new();
    for number in first..first + count {
        let body = json!({"devSn": "add", "devKey": format!("guess-{number:05}")}).to_string();
        let end = if number + 1 == first + count { "Connection: close\r\n" } else { "" };
        let length = body.len();
        requests.push_str(&format!(
            "POST /auth/gw/active HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{end}\r\n{body}"
        ));
    }
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut writing = stream.try_clone()?;
    let writer = std::thread::spawn(move || writing.write_all(requests.as_bytes()));
    let mut answers = String::new();
    stream.read_to_string(&mut answers)?;
    writer.join().ok().context("the writer ends")??;
    Ok(answers)
}

/// The whole answer but its date.
fn without_date(answer: &Answer) -> String {
    let lines = answer.head.lines().filter(|line| !line.starts_with("date: "));
    lines.chain([answer.body.as_str()]).collect::<Vec<_>>().join("\n")
}

/// Unknown, wrong and withdrawn: the same answer, after the same trips to the store.
#[test]
fn nothing_tells_what_was_wrong() -> Result<()> {
    let limits = "[activation]\nfailures_per_source_per_minute = 0\n";
    let server = Server::start_with_datagrams(&format!("{STORE}{limits}"))?;
    server.import("add,abc\ngone,abc\n")?;
    let revoked = Answer::post(server.admin, "/v1/devices/gone/revoke", "")?;
    assert_eq!(revoked.status, 204);
    let client = Datagrams::new(server.udp_addr()?)?;
    let mut heard = Vec::new();
    for (serial, key) in [("nix", "abc"), ("add", "abd"), ("gone", "abc"), ("gone", "abd")] {
        let before = server.metrics()?;
        let answer = server.activate([127, 0, 0, 1], serial, key)?;
        let body = json!({"devSn": serial, "devKey": key}).to_string();
        let by_http2 = post_by_http2(server.http_addr()?, PATHS[0], body.as_bytes())?;
        client.send(json!({"devSn": serial, "devKey": key, "id": 7}).to_string())?;
        let datagram = String::from_utf8(client.hear()?)?;
        let after = server.metrics()?;
        let trips: Vec<f64> = ["weir_store_requests_total", "weir_store_batches_total"]
            .iter()
            .flat_map(|name| ["issue", "check"].map(|kind| (name, kind)))
            .map(|(name, kind)| {
                let labels = [("kind", kind)];
                after.sum_of(name, &labels) - before.sum_of(name, &labels)
            })
            .collect();
        assert_eq!(trips, [3.0, 0.0, 3.0, 0.0], "{serial}/{key}");
        heard.push((without_date(&answer), by_http2, datagram));
    }
    assert!(heard[0].0.starts_with("HTTP/1.1 401 "), "{heard:?}");
    assert!(heard[0].2.contains("\"unauthorized\""), "{heard:?}");
    assert!(heard.iter().all(|one| *one == heard[0]), "{heard:#?}");
    assert_eq!(server.activations("wrong_key")?, 3.0);
    assert_eq!(server.activations("unknown_device")?, 3.0);
    assert_eq!(server.activations("revoked")?, 6.0);
    // Tokens: of a device that is shut out, of nobody, and what cannot be one.
    let token = server.token("add", "abc")?;
    assert_eq!(Answer::post(server.admin, "/v1/devices/add/revoke", "")?.status, 204);
    let refused = |token: &str| -> Result<String> {
        let addr = server.http_addr()?;
        let answer = Answer::ask(
            addr,
            &format!(
                "POST /v1/devices/token/refresh HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
                 Authorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n"
            ),
        )?;
        Ok(without_date(&answer))
    };
    let withdrawn = refused(&token)?;
    assert!(withdrawn.starts_with("HTTP/1.1 401 "), "{withdrawn}");
    assert_eq!(refused("AAAAAAAAAAAAAAAAAAAAAA")?, withdrawn);
    assert_eq!(refused("x")?, withdrawn);
    Ok(())
}

/// A connection of each kind, of one device.
struct Crowd {
    device: Device,
    socket: Socket,
    events: Events<TcpStream>,
}

fn hello(token: &str) -> client_message::Kind {
    client_message::Kind::Hello(v1::Hello { token: token.to_owned(), ..v1::Hello::default() })
}

impl Crowd {
    fn enter(server: &Server, token: &str) -> Result<Crowd> {
        let mut device = Device::connect(server.tcp)?;
        device.send(hello(token))?;
        let welcome = device.hear()?;
        ensure!(matches!(welcome, Some(server_message::Kind::Welcome(_))), "{welcome:?}");
        let http = server.http_addr()?;
        let mut socket = Socket::open(http)?;
        socket.say(&json!({"hello": {"token": token}}))?;
        socket.expect("welcome")?;
        let bearer = format!("Authorization: Bearer {token}\r\n");
        let mut events = Events::get(http, "/v1/sse?topic=news", &bearer)?;
        events.settle(1)?;
        Ok(Crowd { device, socket, events })
    }

    fn are_told(&mut self, reason: CloseReason) -> Result<()> {
        let (code, name) = (reason.code(), reason.name());
        let goodbye = self.device.goodbye()?;
        assert_eq!((goodbye.code, goodbye.reason.as_str()), (code.into(), name));
        assert_eq!(self.socket.goodbye()?, (code, name.to_owned()));
        let goodbye = self.events.goodbye()?;
        assert_eq!(goodbye.data, json!({"code": code, "reason": name}));
        Ok(())
    }
}

/// Who comes with this token by TCP, WebSocket, events or a datagram hears that it is not valid.
fn nobody_is_let_in(server: &Server, token: &str) -> Result<()> {
    let unauthorized = CloseReason::Unauthorized;
    let mut device = Device::connect(server.tcp)?;
    device.send(hello(token))?;
    assert_eq!(device.goodbye()?.reason, unauthorized.name());
    let http = server.http_addr()?;
    let mut socket = Socket::open(http)?;
    socket.say(&json!({"hello": {"token": token}}))?;
    assert_eq!(socket.goodbye()?, (unauthorized.code(), unauthorized.name().to_owned()));
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let headers = format!("{}{bearer}", Upgrade::default().headers);
    let upgraded = Socket::open_by(http, &Upgrade { headers: &headers, ..Upgrade::default() });
    assert!(upgraded.is_err_and(|error| error.to_string().contains(" 401 ")));
    let events = Events::get(http, "/v1/sse?topic=news", &bearer);
    assert!(events.is_err_and(|error| error.to_string().contains(" 401 ")));
    let client = Datagrams::new(server.udp_addr()?)?;
    let refused = client.ask(&json!({"pt": token, "count": 1}).to_string())?;
    assert_eq!((&refused["error"], &refused["field"]), (&json!("unauthorized"), &json!("pt")));
    Ok(())
}

#[test]
fn a_device_that_is_revoked_is_out_by_whichever_way_it_came() -> Result<()> {
    let server = Server::start_with_datagrams(STRICT)?;
    server.import("add,abc\nother,abc\n")?;
    let mut crowd = Crowd::enter(&server, &server.token("add", "abc")?)?;
    // A newer token leaves the older ones their time of grace.
    let token = server.token("add", "abc")?;
    let mut newer = Crowd::enter(&server, &token)?;
    let mut others = Crowd::enter(&server, &server.token("other", "abc")?)?;
    let wrong = without_date(&server.activate([127, 0, 0, 1], "add", "wrong")?);
    assert_eq!(Answer::post(server.admin, "/v1/devices/add/revoke", "")?.status, 204);
    crowd.are_told(CloseReason::Revoked)?;
    newer.are_told(CloseReason::Revoked)?;
    nobody_is_let_in(&server, &token)?;
    assert_eq!(without_date(&server.activate([127, 0, 0, 1], "add", "abc")?), wrong);
    // Imported again with another key it may come back, and its old tokens may not.
    server.import("add,abc\n")?;
    assert_eq!(server.activate([127, 0, 0, 1], "add", "abc")?.status, 401);
    server.import("add,another\n")?;
    nobody_is_let_in(&server, &token)?;
    Crowd::enter(&server, &server.token("add", "another")?)?;
    server.publish(&json!({"topic": "news", "text": "still here"}))?;
    assert_eq!(others.events.expect("")?.data["text"], "still here");
    Ok(())
}

/// A token lives for a minute at least; one that has been replaced ends after `activation.grace`.
#[test]
fn a_token_that_ends_is_told_and_prolonged_or_ends_its_connections() -> Result<()> {
    with_longer_times(|scale| {
        let grace = format!("[activation]\ntoken_ttl = \"1h\"\ngrace = \"{}s\"\n", 4 * scale);
        tell_prolong_and_end(&Server::start_with_datagrams(&format!("{STRICT}{grace}"))?)
    })
}

fn tell_prolong_and_end(server: &Server) -> Result<()> {
    server.import("add,abc\nother,abc\n")?;
    let (token, replaced) = (server.token("add", "abc")?, server.token("other", "abc")?);
    let (_, next) = (server.token("add", "abc")?, server.token("other", "abc")?);
    let mut ending = Crowd::enter(server, &token)?;
    let mut prolonged = Crowd::enter(server, &replaced)?;
    let told = |crowd: &mut Crowd| -> Result<u64> {
        let Some(server_message::Kind::Expiring(expiring)) = crowd.device.hear()? else {
            anyhow::bail!("no Expiring");
        };
        let at = json!(expiring.expires_at_ms.to_string());
        ensure!(crowd.socket.expect("expiring")?["expiresAtMs"] == at);
        ensure!(crowd.events.expect("expiring")?.data["expiresAtMs"] == at);
        Ok(expiring.expires_at_ms)
    };
    told(&mut ending)?;
    let first_end = told(&mut prolonged)?;
    // That of another device prolongs nothing.
    let refresh = |token: &str| v1::Refresh { token: token.to_owned() };
    prolonged.device.send(client_message::Kind::Refresh(refresh(&token)))?;
    let refused = prolonged.device.hear()?;
    ensure!(
        matches!(&refused, Some(server_message::Kind::Error(error)) if error.code == "not_permitted"),
        "{refused:?}"
    );
    prolonged.socket.say(&json!({"refresh": {"token": next}}))?;
    let refreshed = prolonged.socket.expect("refreshed")?;
    let end = refreshed["expiresAtMs"].as_str().context("an end")?.parse::<u64>()?;
    // A newer token has most of its hour; no time of grace is as long.
    ensure!(end > first_end + 50 * 60_000, "{end} is not much later than {first_end}");
    ending.are_told(CloseReason::Expired)?;
    nobody_is_let_in(server, &token)?;
    ensure!(prolonged.device.goodbye()?.reason == CloseReason::Expired.name());
    // The connection that was prolonged goes on.
    prolonged.socket.say(&json!({"ping": {"data": "YQ=="}}))?;
    prolonged.socket.expect("pong")?;
    Ok(())
}

/// Figures: `cargo test -p weir-tests --test devices_hostile -- --ignored --nocapture time`.
#[test]
#[ignore = "measures for a minute, and means something on a quiet machine only"]
fn the_time_to_refuse_an_unknown_serial_and_a_wrong_key() -> Result<()> {
    const PAIRS: usize = 20_000;
    // Each request goes by itself at once: what is left is the work.
    let server = Server::start_with_datagrams(
        "[store]\npath = \"devices.db\"\nbatch_wait = \"0ms\"\n[activation]\nfailures_per_source_per_minute = 0\n\
         [udp]\ndatagrams_per_source_per_second = 0\n",
    )?;
    // Known ones are even, so that each unknown one stands between two of them.
    let rows: String =
        (0..10_000).map(|number| format!("dev-{:05},0123456789abcdef\n", 2 * number)).collect();
    server.import(&rows)?;
    let client = Datagrams::new(server.udp_addr()?)?;
    let mut times = [Vec::with_capacity(PAIRS), Vec::with_capacity(PAIRS)];
    for number in 0..2 * PAIRS {
        let place = number / 2 * 7_919 % 10_000;
        // Which is first changes, by a bit of a hash.
        let kind = (number ^ (number / 2).wrapping_mul(0x9e37_79b9) >> 16) & 1;
        let serial = format!("dev-{:05}", 2 * place + kind);
        let asked = json!({"devSn": serial, "devKey": "0123456789abcdeX", "id": number});
        let asked = asked.to_string();
        let begun = now();
        client.send(&asked)?;
        let answer = client.hear()?;
        times[kind].push(begun.elapsed().as_nanos() as f64 / 1000.0);
        ensure!(answer.starts_with(b"{\"error\":\"unauthorized\""), "{answer:?}");
    }
    for (name, times) in ["wrong key", "unknown serial"].iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| times[times.len() * percent / 100];
        println!(
            "{name}: p25 {:.1}, median {:.1}, p75 {:.1}, p99 {:.1} us",
            at(25),
            at(50),
            at(75),
            at(99)
        );
    }
    let [wrong, unknown] = &times;
    // The two cut off at their 95th percentile, so that pauses of the machine do not decide.
    let (a, b) = (trimmed(wrong), trimmed(unknown));
    println!(
        "KS {:.4} (5 %: {:.4}), Welch's t {:.2}",
        ks(wrong, unknown),
        1.36 * (2.0 / PAIRS as f64).sqrt(),
        (a.0 - b.0) / (a.1 / a.2 + b.1 / b.2).sqrt()
    );
    Ok(())
}

/// Mean, variance and count of the faster 95 %.
fn trimmed(sorted: &[f64]) -> (f64, f64, f64) {
    let kept = &sorted[..sorted.len() * 95 / 100];
    let count = kept.len() as f64;
    let mean = kept.iter().sum::<f64>() / count;
    (mean, kept.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0), count)
}

/// The largest distance of two distributions.
fn ks(a: &[f64], b: &[f64]) -> f64 {
    let below = |all: &[f64], limit: f64| {
        all.partition_point(|time| *time <= limit) as f64 / all.len() as f64
    };
    a.iter().chain(b).map(|time| (below(a, *time) - below(b, *time)).abs()).fold(0.0, f64::max)
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
