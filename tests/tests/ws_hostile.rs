//! Hostile and broken WebSockets: each ends with the right code or is taken exactly as RFC 6455 allows, within bounded
//! time and memory, and others are undisturbed.

use std::io::Read;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_tests::{Answer, Device, Server, Socket, Upgrade, close, masked, raise_open_files};

const SHORT: &str = "[http]\nhead_timeout = \"1s\"\n\
                     [connection]\nhello_timeout = \"2s\"\nframe_timeout = \"2s\"\nstall_timeout = \"2s\"\n\
                     [limits]\nframes_per_second = 0\n[memory]\nbudget_bytes = 8388608\n";

/// A server, and two who must not notice anything.
struct Scene {
    server: Server,
    http: SocketAddr,
    device: Device,
    socket: Socket,
}

impl Scene {
    fn new() -> Result<Scene> {
        let server = Server::start_with_http(SHORT)?;
        let http = server.http.context("it speaks HTTP")?;
        let device = Device::greet(server.tcp, "witness-1", &["news"])?;
        let socket = Socket::greet(http, "witness-2", &["news"])?;
        Ok(Scene { server, http, device, socket })
    }

    /// The two get what is published.
    fn publish(&mut self, text: &str) -> Result<()> {
        self.server.publish(&json!({"topic": "news", "text": text}))?;
        assert_eq!(self.device.push()?.topic, "news");
        assert_eq!(self.socket.expect("push")?["text"], text);
        Ok(())
    }

    fn closed(&self, reason: &str) -> Result<f64> {
        Ok(self.server.metrics()?.closed(reason))
    }

    /// The two are served, nothing has panicked, memory is bounded, and nobody is left behind.
    fn ends_unharmed(mut self) -> Result<()> {
        self.publish("still here")?;
        drop((self.device, self.socket));
        let metrics = self.server.await_metrics("an empty house", |metrics| {
            metrics.is_empty_house()
                && metrics.sum("weir_connections_by_protocol", "") == 0.0
                && metrics.sum("weir_http_connections", "") == 0.0
        })?;
        let peak = metrics.sum("weir_queued_bytes_peak", "");
        assert!(peak <= 8_388_608.0, "{peak} bytes were queued against a budget of 8 MiB");
        assert!(!self.server.log().contains("panicked"), "{}", self.server.log());
        Ok(())
    }
}

/// Before `hello` it is the front that reads, behind it a shard: both have to see the same.
fn check(attacks: &[(&'static str, Vec<u8>, u16)]) -> Result<()> {
    let scene = Scene::new()?;
    for (what, said, code) in attacks {
        for is_settled in [false, true] {
            let mut socket = Socket::open(scene.http)?;
            if is_settled {
                socket.say_hello("hostile", &[])?;
            }
            socket.send(said).context(*what)?;
            let (closed, reason) = socket.closed().context(*what)?;
            assert_eq!(closed, *code, "{what}, settled: {is_settled}: {reason}");
            assert!((3000..5000).contains(code) || !reason.is_empty(), "{what}: it says why");
        }
    }
    scene.ends_unharmed()
}

/// A head without the rest of its frame.
fn head_of_64_bits(first: u8, length: u64) -> Vec<u8> {
    [&[first, 0xff], &length.to_be_bytes()[..], &[1, 2, 3, 4]].concat()
}

#[test]
fn frames_that_break_the_protocol() -> Result<()> {
    let mut attacks = vec![
        ("no mask", vec![0x81, 2, b'{', b'}'], 1002),
        ("no mask, nothing in it", vec![0x89, 0], 1002),
        ("a length of 7 bits in 16", vec![0x81, 0xfe, 0, 125, 1, 2, 3, 4], 1002),
        ("a length of 16 bits in 64", head_of_64_bits(0x81, 65_535), 1002),
        ("a length of 64 bits", head_of_64_bits(0x81, u64::MAX), 1002),
        ("a long ping", masked(0x89, &[7; 126]), 1002),
        ("a ping in fragments", masked(0x09, b"half"), 1002),
        ("a close in fragments", masked(0x08, &1000_u16.to_be_bytes()), 1002),
        ("a long close", close(1000, &[b'x'; 124]), 1002),
        ("a continuation of nothing", masked(0x80, b"{}"), 1002),
        ("a message within another", [masked(0x01, b"{"), masked(0x81, b"{}")].concat(), 1002),
        ("a binary one within text", [masked(0x01, b"{"), masked(0x82, b"{}")].concat(), 1002),
    ];
    for bit in [0x40, 0x20, 0x10] {
        attacks.push(("a reserved bit", masked(0x81 | bit, b"{}"), 1002));
        attacks.push(("a reserved bit of a ping", masked(0x89 | bit, b""), 1002));
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        attacks.push(("a reserved opcode", masked(0x80 | opcode, b""), 1002));
    }
    check(&attacks)
}

#[test]
fn text_that_is_none() -> Result<()> {
    let split = |first: &[u8], last: &[u8]| [masked(0x01, first), masked(0x80, last)].concat();
    check(&[
        ("a byte that begins nothing", masked(0x81, b"\xff"), 1007),
        ("an overlong form", masked(0x81, b"\xc0\x80"), 1007),
        ("a surrogate", masked(0x81, b"\xed\xa0\x80"), 1007),
        ("beyond the last character", masked(0x81, b"\xf4\x90\x80\x80"), 1007),
        ("a character that is cut off", masked(0x81, b"\xe2\x82"), 1007),
        ("its first half in one fragment, a wrong one in the next", split(b"\xc3", b"\x28"), 1007),
        ("a half in one fragment, no other", split(b"\xf0\x9f", b""), 1007),
        ("a reason that is none", close(1000, b"\xff"), 1007),
        ("binary where text is agreed", masked(0x82, b"{}"), 1003),
    ])
}

#[test]
fn messages_over_the_limit() -> Result<()> {
    let (mib, piece) = (1 << 20, vec![b' '; 30_000]);
    let first = masked(0x01, &piece);
    check(&[
        ("announced by a byte too many", head_of_64_bits(0x81, 65_537), 1009),
        ("announced by far", head_of_64_bits(0x81, 1 << 40), 1009),
        ("announced by far, binary", head_of_64_bits(0x82, 1 << 62), 1009),
        ("all of it sent", masked(0x81, &vec![b' '; 70_000]), 1009),
        ("a megabyte of it sent", masked(0x81, &vec![b' '; mib]), 1009),
        ("in fragments", [&first[..], &masked(0x00, &piece), &masked(0x80, &piece)].concat(), 1009),
        (
            "announced by the last fragment",
            [&first[..], &head_of_64_bits(0x80, 65_536)].concat(),
            1009,
        ),
        ("endless fragments", [masked(0x01, b""), masked(0x00, b"").repeat(10_000)].concat(), 1009),
    ])
}

#[test]
fn what_a_close_frame_says() -> Result<()> {
    let mut attacks = vec![("one byte", masked(0x88, &[3]), 1002)];
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1999, 2000, 2999, 5000, 65_535] {
        attacks.push(("a code that must not be sent", close(code, b""), 1002));
    }
    check(&attacks)?;
    let scene = Scene::new()?;
    for is_settled in [false, true] {
        for code in [1000, 1001, 1002, 1003, 1007, 1011, 1014, 3000, 3999, 4000, 4999] {
            let mut socket = Socket::open(scene.http)?;
            if is_settled {
                socket.say_hello("polite", &[])?;
            }
            socket.send(&close(code, "schön war’s".as_bytes()))?;
            assert_eq!(socket.closed()?.0, code);
        }
        let mut socket = Socket::open(scene.http)?;
        if is_settled {
            socket.say_hello("polite", &[])?;
        }
        socket.send(&masked(0x88, b""))?;
        assert_eq!(socket.hear()?, Some((0x88, vec![])));
        assert_eq!(socket.hear()?, None);
    }
    assert_eq!(scene.closed("peer_closed")?, 24.0);
    scene.ends_unharmed()
}

/// What comes behind a Close frame means nothing, and does not keep the connection.
#[test]
fn bytes_behind_a_close_frame() -> Result<()> {
    let scene = Scene::new()?;
    let subscribe = masked(0x81, json!({"subscribe": {"topic": "news"}}).to_string().as_bytes());
    for behind in [subscribe.repeat(100), vec![0xff; 1 << 20], close(1000, b""), masked(0x89, b"")]
    {
        for is_settled in [false, true] {
            let mut socket = Socket::open(scene.http)?;
            if is_settled {
                socket.say_hello("talkative", &[])?;
            }
            let said = [&close(1000, b"")[..], &behind].concat();
            // It may have been closed before all was said.
            let _ = socket.send(&said);
            assert_eq!(socket.closed()?.0, 1000);
        }
    }
    scene.ends_unharmed()
}

/// What is strange, and right: it is taken.
#[test]
fn what_is_unusual_is_taken() -> Result<()> {
    let mut scene = Scene::new()?;
    let hello = json!({"hello": {"deviceId": "süß", "topics": [{"topic": "grüße"}]}}).to_string();
    let hello = hello.as_bytes();
    for piece in [1, 2, 3, 5] {
        // Every character is cut somewhere, and there is a ping behind every fragment.
        let (first, rest) = hello.split_at(piece);
        let mut said = [masked(0x01, first), masked(0x89, b"1")].concat();
        let parts: Vec<&[u8]> = rest.chunks(piece.max(2)).collect();
        for part in &parts {
            said.extend([masked(0x00, part), masked(0x89, b""), masked(0x8a, b"pong")].concat());
        }
        said.extend(masked(0x80, b""));
        let mut socket = Socket::open(scene.http)?;
        // One byte in each packet, more or less.
        for byte in said {
            socket.send(&[byte])?;
        }
        assert_eq!(socket.hear()?, Some((0x8a, b"1".to_vec())));
        for _ in &parts {
            assert_eq!(socket.hear()?, Some((0x8a, vec![])));
        }
        socket.expect("welcome")?;
        assert_eq!(socket.expect("subscribed")?["topic"], "grüße");
        // The longest message that there may be, and one that is no JSON.
        let long = json!({"ping": {"data": ""}}).to_string();
        let long = format!("{long}{}", " ".repeat(65_536 - long.len()));
        socket.send(&masked(0x81, long.as_bytes()))?;
        socket.expect("pong")?;
        socket.send(&masked(0x81, b"{\"hello"))?;
        assert_eq!(socket.expect("error")?["code"], "invalid_field");
        socket.say(&json!({}))?;
        assert_eq!(socket.expect("error")?["code"], "unknown_kind");
        socket.send(&close(1000, b""))?;
        assert_eq!(socket.closed()?.0, 1000);
        scene.publish("meanwhile")?;
    }
    scene.ends_unharmed()
}

#[test]
fn a_first_message_that_is_not_hello() -> Result<()> {
    let scene = Scene::new()?;
    for said in ["{\"ping\":{}}", "{}", "no JSON", "[]", "", "{\"hello\":{},\"hello\":{}}"] {
        let mut socket = Socket::open(scene.http)?;
        socket.send(&masked(0x81, said.as_bytes()))?;
        assert_eq!(socket.expect("error")?["code"], "invalid_field", "{said}");
        assert_eq!(socket.goodbye()?, (4300, "malformed".to_owned()), "{said}");
    }
    // More of the same is answered, and changes nothing.
    let mut socket = Socket::greet(scene.http, "twice", &[])?;
    socket.say(&json!({"hello": {"deviceId": "other"}}))?;
    assert_eq!(socket.expect("error")?["code"], "already_greeted");
    drop(socket);
    scene.ends_unharmed()
}

#[test]
fn a_hello_that_never_comes() -> Result<()> {
    const COUNT: usize = 500;
    raise_open_files()?;
    let mut scene = Scene::new()?;
    let before = scene.server.rss_anon()?;
    let mut silent = (0..COUNT).map(|_| Socket::open(scene.http)).collect::<Result<Vec<_>>>()?;
    let hello = masked(0x81, b"{\"hello\":{\"deviceId\":\"d\"}}");
    for (index, socket) in silent.iter_mut().enumerate() {
        // Some say a part of it, some say something else without end.
        match index % 4 {
            0 => socket.send(&hello[..10])?,
            1 => socket.send(&masked(0x01, b"{\"hello\""))?,
            2 => socket.send(&masked(0x8a, b""))?,
            _ => {}
        }
    }
    scene.publish("meanwhile")?;
    for socket in &mut silent {
        assert_eq!(socket.goodbye()?, (4104, "hello_timeout".to_owned()));
    }
    drop(silent);
    assert_eq!(scene.closed("hello_timeout")?, COUNT as f64);
    let grown = scene.server.rss_anon()?.saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes are left of {COUNT} WebSockets");
    scene.ends_unharmed()
}

#[test]
fn a_message_that_does_not_end_in_time() -> Result<()> {
    let scene = Scene::new()?;
    let ping = masked(0x81, b"{\"ping\":{}}");
    for said in [&ping[..5], &masked(0x01, b"{\"ping\"")] {
        let mut socket = Socket::greet(scene.http, "slow", &[])?;
        socket.send(said)?;
        assert_eq!(socket.goodbye()?, (4302, "frame_timeout".to_owned()));
    }
    // Fragments and pings that drip in do not make the time longer.
    let mut socket = Socket::greet(scene.http, "dripping", &[])?;
    let mut slow = socket.stream.try_clone()?;
    let dripping = std::thread::spawn(move || {
        use std::io::Write;
        let more = [masked(0x00, b" "), masked(0x8a, b"")].concat();
        let first = masked(0x01, b"{");
        for said in std::iter::once(first).chain(std::iter::repeat_n(more, 100)) {
            if slow.write_all(&said).is_err() {
                return;
            }
            pause(Duration::from_millis(250));
        }
    });
    assert_eq!(socket.goodbye()?, (4302, "frame_timeout".to_owned()));
    drop(socket);
    assert!(dripping.join().is_ok());
    scene.ends_unharmed()
}

/// The server stops reading once it cannot answer: then the flood stops too.
#[test]
fn a_flood_of_pings_that_reads_no_answer() -> Result<()> {
    for (name, one) in [
        ("frames", masked(0x89, &[7; 125])),
        (
            "messages",
            masked(0x81, json!({"ping": {"data": "QUJD".repeat(60)}}).to_string().as_bytes()),
        ),
        ("errors", masked(0x81, b"?")),
    ] {
        let mut scene = Scene::new()?;
        let before = scene.server.rss_anon()?;
        for is_settled in [false, true] {
            if !is_settled && name != "frames" {
                continue;
            }
            let mut socket = Socket::open(scene.http)?;
            if is_settled {
                socket.say_hello("hostile", &[])?;
            }
            socket.stream.set_write_timeout(Some(Duration::from_millis(500)))?;
            let flood = one.repeat(1000);
            let mut sent = 0_usize;
            while socket.send(&flood).is_ok() {
                sent += flood.len();
                ensure!(sent < 1 << 30, "a gigabyte of {name} was taken in");
            }
            scene.publish("meanwhile")?;
            let reason = if is_settled { "stalled" } else { "hello_timeout" };
            scene
                .server
                .await_metrics("the flood's end", |metrics| metrics.closed(reason) == 1.0)?;
        }
        let grown = scene.server.rss_anon()?.saturating_sub(before);
        assert!(grown < 64 << 20, "{name}: {grown} bytes more");
        scene.ends_unharmed()?;
    }
    Ok(())
}

/// Requests that open nothing: what is answered, and that it is said what is wrong.
#[test]
fn upgrades_that_are_none() -> Result<()> {
    let scene = Scene::new()?;
    let whole = Upgrade::default();
    let with = |from: &str, to: &str| whole.headers.replace(from, to);
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let version = "Sec-WebSocket-Version: 13";
    let protocol = "Sec-WebSocket-Protocol: weir.v1.json\r\n";
    let (connection, upgrade) = ("Connection: Upgrade\r\n", "Upgrade: websocket\r\n");
    for (headers, status, word) in [
        (with(key, ""), 400, "Sec-WebSocket-Key"),
        (with(key, "Sec-WebSocket-Key: short\r\n"), 400, "Sec-WebSocket-Key"),
        (with(key, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZSE=\r\n"), 400, "Sec-WebSocket-Key"),
        (with(key, &key.repeat(2)), 400, "Sec-WebSocket-Key"),
        (with(version, "Sec-WebSocket-Version: 12"), 426, "sec-websocket-version: 13\r\n"),
        (with(version, "Sec-WebSocket-Version: 13, 12"), 426, "sec-websocket-version: 13\r\n"),
        (with(version, "X: y"), 426, "sec-websocket-version: 13\r\n"),
        (with(protocol, ""), 400, "weir.v1.protobuf or weir.v1.json"),
        (with("weir.v1.json", "mqtt"), 400, "weir.v1.protobuf or weir.v1.json"),
        (with("weir.v1.json", "weir.v1.jsonx"), 400, "weir.v1.protobuf or weir.v1.json"),
        (with(connection, ""), 426, "upgrade: websocket\r\n"),
        (with(connection, "Connection: keep-alive\r\n"), 426, "upgrade: websocket\r\n"),
        (with(upgrade, ""), 426, "upgrade: websocket\r\n"),
        (with(upgrade, "Upgrade: h2c\r\n"), 426, "upgrade: websocket\r\n"),
        (with("Host: localhost\r\n", "Host: localhost\r\nContent-Length: 5\r\n"), 400, "no body"),
        (
            with("Host: localhost\r\n", "Host: localhost\r\nTransfer-Encoding: chunked\r\n"),
            400,
            "no body",
        ),
        (
            with("Host: localhost\r\n", "Host: localhost\r\nOrigin: https://evil.example\r\n"),
            403,
            "foreign-origin",
        ),
        (with("Host: localhost\r\n", ""), 400, "Host"),
    ] {
        let said = format!("{}{headers}Connection: close\r\n\r\n", whole.line);
        // With "Connection: close" it also is asked for an end, which is no upgrade the less.
        let answer = Answer::ask(scene.http, &said).with_context(|| said.clone())?;
        assert_eq!(answer.status, status, "{said}{answer:?}");
        let text = format!("{}\r\n{}", answer.head, answer.body);
        assert!(text.contains(word), "{said}{text}");
    }
    for (line, status) in [
        ("GET /v1/connect HTTP/1.0\r\n", "426"),
        ("POST /v1/connect HTTP/1.1\r\n", "405"),
        ("GET /v1/connect?token=1 HTTP/1.1\r\n", "400"),
        ("GET /v1/connect?access_token=1 HTTP/1.1\r\n", "400"),
    ] {
        let mut stream = Upgrade { line, ..Upgrade::default() }.say(scene.http)?;
        stream.shutdown(Shutdown::Write)?;
        let mut heard = String::new();
        stream.read_to_string(&mut heard)?;
        assert_eq!(heard.get(9..12), Some(status), "{line}{heard}");
    }
    scene.ends_unharmed()
}

/// The connection goes on: a request that opens nothing is followed by one that does.
#[test]
fn an_upgrade_behind_other_requests() -> Result<()> {
    let scene = Scene::new()?;
    let whole = Upgrade::default();
    let hello = masked(0x81, b"{\"hello\":{\"deviceId\":\"eager\"}}");
    let wrong = whole.headers.replace(": 13", ": 12");
    let line = format!("{}{wrong}\r\n{}", whole.line, whole.line);
    // With what is said behind the request, in one packet.
    let rest = [hello, masked(0x89, b"x"), close(1000, b"")].concat();
    let mut stream = Upgrade { line: &line, rest: &rest, ..Upgrade::default() }.say(scene.http)?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard)?;
    let heard = String::from_utf8_lossy(&heard);
    let at = |what: &str| heard.find(what).with_context(|| format!("no {what:?} in {heard:?}"));
    assert!(at("HTTP/1.1 426 ")? < at("HTTP/1.1 101 ")?);
    assert!(at("HTTP/1.1 101 ")? < at("{\"welcome\"")?);
    // Half a head is told that it is too late.
    let mut stream = std::net::TcpStream::connect(scene.http)?;
    std::io::Write::write_all(&mut stream, &whole.line.as_bytes()[..20])?;
    let mut heard = String::new();
    let _ = stream.read_to_string(&mut heard);
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 408 "), "{heard}");
    scene.ends_unharmed()
}

#[expect(clippy::disallowed_methods, reason = "a slow peer is slow by waiting")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
