//! What RFC 9110, RFC 9112 and RFC 9113 have a server refuse, or answer in time, over real sockets.

mod pages;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use weir_tests::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, POST, RST_STREAM, WINDOW_UPDATE, field,
    frame, status,
};
use weir_tests::{Answer, PATIENCE, Server};

/// Whoever comes may publish, and what was published can be looked at.
const OPEN: &str = "[[topic_classes]]\npattern = \"*\"\npublish = [\"devices\"]\nhistory = true\n\
                    retention_messages = 10\n";

struct Scene {
    server: Server,
    http: SocketAddr,
}

impl Scene {
    fn new(extra: &str) -> Result<Scene> {
        let server = Server::start_with_http(&format!("{extra}{OPEN}"))?;
        let http = server.http.context("it speaks HTTP")?;
        Ok(Scene { server, http })
    }

    /// Says something, and hears all that is answered until the connection ends.
    fn talk(&self, said: &str) -> Result<String> {
        talk(self.http, said, true)
    }

    /// How many messages a topic keeps.
    fn kept(&self, topic: &str) -> Result<usize> {
        let answer = Answer::get(self.http, &format!("/v1/topics/{topic}/history"))?;
        let history: Value = serde_json::from_str(&answer.body)?;
        Ok(history["messages"].as_array().context("a list")?.len())
    }
}

/// `ends`: the peer ends its side behind what it says.
fn talk(addr: SocketAddr, said: &str, ends: bool) -> Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // Where it is refused early, not all of it is taken.
    let _ = stream.write_all(said.as_bytes());
    if ends {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            bail!("it does not end; so far: {:?}", String::from_utf8_lossy(&heard))
        }
        Ok(_) | Err(_) => Ok(String::from_utf8_lossy(&heard).into_owned()),
    }
}

/// The statuses in what was heard, in their order.
fn statuses(heard: &str) -> Vec<u16> {
    let heads = heard.split("HTTP/1.").skip(1);
    heads.filter_map(|head| head.get(2..5)?.parse().ok()).collect()
}

/// The status that comes on the first stream, or 0 if the stream or the connection is reset instead.
fn answered(peer: &mut Http2) -> Result<u16> {
    loop {
        match peer.hear()? {
            Some((HEADERS, 1, head)) => return status(&head).context("a status"),
            Some((RST_STREAM, 1, _) | (GOAWAY, ..)) | None => return Ok(0),
            Some(_) => {}
        }
    }
}

/// Header lists that say for which host a request is, or do not, and what becomes of them.
#[test]
fn a_request_of_http2_names_one_host() -> Result<()> {
    let scene = Scene::new("")?;
    let authority = |host: &str| field(":authority", host);
    for (what, fields, expected) in [
        ("a host in the target", authority("localhost:1"), 200),
        ("a host in the header", field("host", "localhost:1"), 200),
        ("twice the same", [authority("localhost"), field("host", "LOCALHOST:80")].concat(), 200),
        ("no host", vec![], 400),
        ("two hosts", [authority("localhost"), field("host", "elsewhere")].concat(), 400),
        ("two ports", [authority("localhost:1"), field("host", "localhost:2")].concat(), 400),
        ("two headers", [field("host", "localhost"), field("host", "localhost")].concat(), 400),
        ("an empty host", authority(""), 400),
        ("a user", authority("user@localhost"), 400),
        ("a port that is none", authority("localhost:port"), 400),
        ("a header that is none", field("host", "a:1:2"), 400),
    ] {
        let mut peer = Http2::connect(scene.http, &[])?;
        let head = [&[0x82, 0x86, 0x84][..], &fields].concat();
        peer.stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head))?;
        let heard = answered(&mut peer)?;
        // What the library calls malformed it may reset.
        assert!(heard == expected || expected == 400 && heard == 0, "{what}: {heard}");
    }
    Ok(())
}

/// RFC 9113 section 8.1: a message with such trailers is malformed, so nothing of it is carried out.
#[test]
fn what_comes_behind_a_body_over_http2_is_refused() -> Result<()> {
    let scene = Scene::new("")?;
    let head = [
        POST,
        &field(":path", "/v1/publish"),
        &field(":authority", "localhost"),
        &field("content-type", "application/json"),
    ]
    .concat();
    for (what, trailers) in [
        ("a pseudo-header by its index", vec![0x84]),
        ("a pseudo-header in full", field(":path", "/")),
        ("a pseudo-header of answers", field(":status", "200")),
        ("a field and a pseudo-header", [field("x", "y"), field(":path", "/")].concat()),
        ("a field", field("x", "y")),
        ("nothing", vec![]),
    ] {
        let topic = format!("topic-{}", what.replace(' ', "-"));
        let body = json!({"topic": topic, "text": "x"}).to_string();
        let mut peer = Http2::connect(scene.http, &[])?;
        let said = [
            frame(HEADERS, END_HEADERS, 1, &head),
            frame(DATA, 0, 1, body.as_bytes()),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailers),
        ];
        peer.stream.write_all(&said.concat())?;
        let heard = answered(&mut peer)?;
        assert!(matches!(heard, 0 | 400), "{what}: {heard}");
        assert_eq!(scene.kept(&topic)?, 0, "{what} was published");
    }
    Ok(())
}

/// A stream that is reset without an error is not one that has come to its end.
#[test]
fn a_body_that_is_cut_off_is_not_carried_out() -> Result<()> {
    let scene = Scene::new("")?;
    let body = json!({"topic": "cut", "text": "x"}).to_string();
    let head = [
        POST,
        &field(":path", "/v1/publish"),
        &field(":authority", "localhost"),
        &field("content-type", "application/json"),
    ]
    .concat();
    let mut peer = Http2::connect(scene.http, &[])?;
    let mut stream = 1;
    for length in [vec![], field("content-length", "100"), field("content-length", "26")] {
        for code in [[0; 4], [0, 0, 0, 8]] {
            let said = [
                frame(HEADERS, END_HEADERS, stream, &[&head[..], &length].concat()),
                frame(DATA, 0, stream, body.as_bytes()),
                frame(RST_STREAM, 0, stream, &code),
            ];
            peer.stream.write_all(&said.concat())?;
            stream += 2;
        }
    }
    // Behind them all.
    peer.get(stream, "/nothing")?;
    peer.body(stream)?;
    assert_eq!(scene.kept("cut")?, 0);
    Ok(())
}

/// RFC 9110 section 10.1.1: whoever waits for `100 Continue` hears it, once and before the answer, on each of its streams
/// and on no other.
#[test]
fn who_expects_to_go_on_is_told_so_over_http2() -> Result<()> {
    let scene = Scene::new("")?;
    let mut peer = Http2::connect(scene.http, &[])?;
    let head = |path: &str, expects: bool| {
        let host = field(":authority", "localhost");
        let json = field("content-type", "application/json");
        let expect = if expects { field("expect", "100-Continue") } else { vec![] };
        [POST, &field(":path", path), &host, &json, &expect].concat()
    };
    let open = |stream, head: &[u8]| frame(HEADERS, END_HEADERS, stream, head);
    // Requests that are no such ones stand between, also some that the library itself refuses.
    let malformed = frame(HEADERS, END_HEADERS | END_STREAM, 9, &field(":status", "200"));
    let get =
        [0x82, 0x86, 0x84].iter().copied().chain(field(":authority", "a")).collect::<Vec<_>>();
    let said = [
        open(1, &head("/v1/publish", true)),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &get),
        open(5, &head("/v1/publish", false)),
        open(7, &head("/v1/publish", true)),
        malformed,
    ];
    peer.stream.write_all(&said.concat())?;
    let mut told = Vec::new();
    while told.len() < 2 {
        match peer.hear()?.context("it goes on")? {
            (HEADERS, stream, head) if head == b"\x08\x03100" => told.push(stream),
            (HEADERS, stream, _) => assert_eq!(stream, 3, "an answer before there is a body"),
            _ => {}
        }
    }
    told.sort_unstable();
    assert_eq!(told, [1, 7]);
    // One more, alone, and one whose answer is known without a body.
    peer.stream.write_all(&open(11, &head("/v1/publish", true)))?;
    peer.stream.write_all(&open(13, &head("/nothing", true)))?;
    let mut heard = Vec::new();
    while heard.len() < 2 {
        match peer.hear()?.context("it goes on")? {
            (HEADERS, 3, _) => {}
            (HEADERS, stream, head) => heard.push((stream, head == b"\x08\x03100")),
            _ => {}
        }
    }
    heard.sort_unstable();
    assert_eq!(heard, [(11, true), (13, false)]);
    for stream in [1, 5, 7, 11] {
        let body = json!({"topic": format!("expected-{stream}"), "text": "x"}).to_string();
        peer.stream.write_all(&frame(DATA, END_STREAM, stream, body.as_bytes()))?;
        let answer = String::from_utf8(peer.body(stream)?)?;
        assert!(answer.contains("offset"), "stream {stream}: {answer}");
        assert_eq!(scene.kept(&format!("expected-{stream}"))?, 1);
    }
    Ok(())
}

#[test]
fn a_host_that_is_none_is_refused() -> Result<()> {
    let scene = Scene::new("")?;
    for host in [
        "[::1", "::1", "[::1]]", "[]", "[zz]", "[::1]x", "[::1]:x", "a:1:2", "a:port", "a:65536",
        "a:+1", "a:123456", ":80", "a]", "a/b", "a?b", "a#b", "user@a", "a b", "a\\b", "a%zz",
        "a%20b", "\"a\"", "a,b c",
    ] {
        let said = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let heard = scene.talk(&said)?;
        assert_eq!(statuses(&heard), [400], "{host:?}: {heard}");
        assert!(heard.contains("\"field\":\"Host\""), "{host:?}: {heard}");
        let said = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(
            statuses(&talk(scene.server.admin, &said, false)?),
            [400],
            "{host:?} of the admin"
        );
    }
    for host in ["a", "a:", "a:80", "a.b-c_d~1:65535", "[::1]", "[::ffff:1.2.3.4]:8080", ""] {
        let said = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(statuses(&scene.talk(&said)?), [200], "{host:?}");
    }
    Ok(())
}

/// RFC 9112 section 6.1: what is not understood is not read as if it were plain.
#[test]
fn a_transfer_coding_that_is_not_known_is_refused() -> Result<()> {
    let scene = Scene::new("")?;
    for coding in
        ["gzip, chunked", "GZIP,chunked", "deflate, chunked", "chunked, chunked", "x, chunked"]
    {
        let body = json!({"topic": "coded", "text": "x"}).to_string();
        for path in ["/v1/publish", "/v1/devices/activate", "/", "/nothing"] {
            let said = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Transfer-Encoding: {coding}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n{NEXT}",
                body.len()
            );
            let heard = scene.talk(&said)?;
            assert!(matches!(statuses(&heard)[..], [400 | 501]), "{coding} {path}: {heard}");
            let heard = talk(scene.server.admin, &said, false)?;
            assert!(matches!(statuses(&heard)[..], [400 | 501]), "{coding} {path}: {heard}");
        }
    }
    assert_eq!(scene.kept("coded")?, 0);
    Ok(())
}

/// A line of a trailer that ends in LF alone hides the next request from the library: so nothing that has a trailer is
/// carried out, and nothing behind it is passed over in silence.
#[test]
fn no_request_is_swallowed_by_a_trailer() -> Result<()> {
    let scene = Scene::new("")?;
    let body = json!({"topic": "trailed", "text": "x"}).to_string();
    for trailer in ["X: y\n\r\n", "X: y\n\n", "\n\r\n", "X: y\r\n\r\n"] {
        for path in ["/v1/publish", "/v1/devices/token/refresh", "/", "/nothing"] {
            let said = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n{trailer}{NEXT}",
                body.len()
            );
            for addr in [scene.http, scene.server.admin] {
                let heard = talk(addr, &said, false)?;
                let lower = heard.to_lowercase();
                // One answer, which says that there is no other one.
                assert_eq!(statuses(&heard).len(), 1, "{trailer:?} {path} {addr}: {heard}");
                assert!(lower.contains("connection: close"), "{trailer:?} {path} {addr}: {heard}");
                assert!(!heard.contains(" 200 OK"), "{trailer:?} {path} {addr}: {heard}");
            }
        }
    }
    assert_eq!(scene.kept("trailed")?, 0);
    Ok(())
}

/// RFC 9110 section 15.5.16: a coding is named, and not read as broken JSON.
#[test]
fn a_coded_body_is_of_another_type() -> Result<()> {
    let scene = Scene::new("")?;
    // `{}` by gzip.
    let body = "\u{1f}\u{8}";
    for path in ["/v1/publish", "/v1/devices/activate"] {
        let ask = |addr, coding: &str| {
            let said = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Encoding: {coding}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            Answer::ask(addr, &said)
        };
        for coding in ["gzip", "br", "identity, gzip", "x"] {
            let answer = ask(scene.http, coding)?;
            assert_eq!(answer.status, 415, "{coding}: {answer:?}");
            assert!(answer.body.contains("\"field\":\"Content-Encoding\""), "{answer:?}");
            let head = answer.head.to_lowercase();
            assert!(head.contains("accept-encoding: identity"), "{answer:?}");
        }
        let answer = ask(scene.http, "identity")?;
        assert!(matches!(answer.status, 400 | 404), "it is no JSON, and nothing is activated");
    }
    let said = format!(
        "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Encoding: gzip\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(Answer::ask(scene.server.admin, &said)?.status, 415);
    Ok(())
}

/// What is taken of a body that nobody wants ends: by bytes, by silence, and where somebody else needs the place.
#[test]
fn what_is_thrown_away_has_an_end() -> Result<()> {
    let limits = "[http]\ndiscard_bytes_max = 100000\nconnections_max = 1\n";
    let scene = Scene::new(limits)?;
    let discarded = |outcome: &str| -> Result<f64> {
        let label = format!("outcome=\"{outcome}\"");
        Ok(scene.server.metrics()?.sum("weir_http_discarded_total", &label))
    };
    let post = format!(
        "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        1_u64 << 40
    );
    let connect = || -> Result<TcpStream> {
        let stream = TcpStream::connect(scene.http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    // One that goes on and on.
    let mut endless = connect()?;
    endless.write_all(post.as_bytes())?;
    let mut sent = 0;
    while endless.write_all(&[b' '; 10_000]).is_ok() {
        sent += 10_000;
        assert!(sent < 100_000_000, "it takes all there is");
    }
    scene.server.await_metrics("the end of one that sends too much", |metrics| {
        metrics.sum("weir_http_discarded_total", "outcome=\"too_long\"") == 1.0
    })?;
    // One that says no more, and does not end its side.
    let mut silent = connect()?;
    silent.write_all(post.as_bytes())?;
    let mut heard = String::new();
    silent.read_to_string(&mut heard)?;
    assert_eq!(statuses(&heard), [404], "{heard}");
    scene.server.await_metrics("the end of one that is silent", |metrics| {
        metrics.sum("weir_http_discarded_total", "outcome=\"silent\"") == 1.0
    })?;
    // One that goes on slowly gives its place to somebody who has something to ask.
    let mut slow = connect()?;
    slow.write_all(post.as_bytes())?;
    let mut answer = [0; 12];
    slow.read_exact(&mut answer)?;
    assert_eq!(&answer, b"HTTP/1.1 404");
    slow.write_all(b" ")?;
    let hello = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert_eq!(statuses(&scene.talk(hello)?), [200]);
    scene.server.await_metrics("an empty house", |metrics| {
        metrics.sum("weir_http_connections", "") == 0.0
    })?;
    assert_eq!(discarded("ended")? + discarded("too_late")?, 0.0);
    // Over HTTP/2 a stream is reset for good then.
    let mut peer = Http2::connect(scene.http, &[])?;
    let head = [POST, &field(":path", "/nothing"), &field(":authority", "localhost")].concat();
    peer.stream.write_all(&frame(HEADERS, END_HEADERS, 1, &head))?;
    assert_eq!(answered(&mut peer)?, 404);
    let data = frame(DATA, 0, 1, &[b' '; 16_000]);
    let (mut window, mut sent) = (65_535_u32, 0);
    let code = loop {
        while window >= 16_000 && sent < 1_000_000 {
            peer.stream.write_all(&data)?;
            (window, sent) = (window - 16_000, sent + 16_000);
        }
        match peer.hear()?.context("the connection goes on")? {
            (WINDOW_UPDATE, 1, more) => {
                window += u32::from_be_bytes(more[..4].try_into()?);
            }
            (RST_STREAM, 1, code) => break code,
            _ => {}
        }
    };
    assert_eq!(code, [0; 4], "NO_ERROR");
    assert!((100_000..200_000).contains(&sent), "{sent} bytes");
    assert_eq!(discarded("too_long")?, 2.0);
    Ok(())
}

const NEXT: &str = "GET /rest/hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
