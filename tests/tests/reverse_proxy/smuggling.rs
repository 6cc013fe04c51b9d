//! Ambiguous and injected requests (RFC 9112, RFC 9113): each is refused or made unambiguous, and the service sees
//! neither a second request nor a header that was hidden in another one.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use weir_tests::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, RST_STREAM, field, frame,
    status,
};
use weir_tests::{PATIENCE, Server};

use crate::backend::{Backend, Request, echo};

const SHORT: &str = "[http]\nhead_timeout = \"1s\"\nbody_timeout = \"1s\"\nidle_timeout = \"1s\"\n";
const ROUTE: &str = "[[http.routes]]\nprefix = \"/\"\nupstream = \"api\"";

/// What has to happen to what a client says.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// An error, and no whole request at the service.
    Refused,
    /// One request at the service, with this body.
    Passed(&'static str),
}
use Fate::{Passed, Refused};

fn post(headers: &str, body: &str) -> String {
    format!("POST /c HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n{body}")
}

fn get(headers: &str) -> String {
    format!("GET /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n\r\n")
}

/// Would be a request of its own if a body ended early.
const HIDDEN: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\nX-Smuggled: 1\r\n\r\n";

fn framing() -> Vec<(String, Fate)> {
    let chunked = "Transfer-Encoding: chunked";
    let mut cases = vec![
        (
            post(&format!("Content-Length: 6\r\n{chunked}"), &format!("0\r\n\r\n{HIDDEN}")),
            Passed(""),
        ),
        (
            post(&format!("{chunked}\r\nContent-Length: 4"), &format!("5c\r\n{HIDDEN}0\r\n\r\n")),
            Refused,
        ),
        (post("Content-Length: 5\r\nContent-Length: 6", "abcdef"), Refused),
        (post("Content-Length: 3\r\nContent-Length: 3\r\nConnection: close", "abc"), Passed("abc")),
        (post("Content-Length: 3\r\nConnection: close, content-length", "abc"), Passed("abc")),
        (
            post(
                &format!("{chunked}\r\nConnection: close, transfer-encoding"),
                "3\r\nabc\r\n0\r\n\r\n",
            ),
            Passed("abc"),
        ),
        (
            post(
                "Content-Length: 3\r\nContent_Length: 9\r\nTransfer_Encoding: chunked\r\nConnection: close",
                "abc",
            ),
            Passed("abc"),
        ),
        (
            post(&format!("{chunked}\r\nConnection: close"), "3;a=b\r\nabc\r\n0\r\n\r\n"),
            Passed("abc"),
        ),
        (post(chunked, &format!("3\r\nabc\r\n0\r\nX-Smuggled: 1\r\n\r\n{HIDDEN}")), Refused),
        (
            post(chunked, &format!("3\r\nabc\r\n0\r\nContent-Length: 9\nX: y\r\n\r\n{HIDDEN}")),
            Refused,
        ),
        (post(chunked, &format!("3;{}\r\nabc\r\n0\r\n\r\n", "a".repeat(20_000))), Refused),
        (
            "POST /c HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            Refused,
        ),
    ];
    for length in
        ["5, 5", "+5", "-1", "0x5", "5 5", "", "five", "5;", "99999999999999999999", "5,6"]
    {
        cases.push((post(&format!("Content-Length: {length}"), "abcde"), Refused));
    }
    for size in SIZES {
        cases.push((post(chunked, &format!("{size}\r\nabc\r\n0\r\n\r\n{HIDDEN}")), Refused));
    }
    for end in
        ["3\r\nabcd\r\n0\r\n\r\n", "3\r\nabc0\r\n\r\n", "3\r\nabc\n0\n\n", "3\r\nabc\r\n0\r\n\n"]
    {
        cases.push((post(chunked, &format!("{end}{HIDDEN}")), Refused));
    }
    for coding in CODINGS {
        cases.push((post(coding, &format!("0\r\n\r\n{HIDDEN}")), Refused));
    }
    cases
}

/// Sizes of chunks that are none.
const SIZES: [&str; 12] =
    ["FFFFFFFFFFFFFFFFF", "0x3", "-3", "+3", "3;a\n", "3\n", "3 x", "", "g", "3\r\r", "3\0", "٣"];

/// Codings that differ from `chunked`, or are written wrongly.
const CODINGS: [&str; 16] = [
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    "Transfer-Encoding:\x0bchunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding\t: chunked",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: chun\0ked",
    "X: y\rTransfer-Encoding: chunked",
    "Transfer-Encoding:\r\n chunked",
    " Transfer-Encoding: chunked",
];

fn heads() -> Vec<(String, Fate)> {
    let line = |line: &str| format!("{line}\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut cases = vec![
        (get("X: a\r\n X-Smuggled: 1"), Refused),
        (get("X: a\r\n\tX-Smuggled: 1"), Refused),
        (get("X: a\rX-Smuggled: 1"), Refused),
        (get("X: a\0b"), Refused),
        (get("X : a"), Refused),
        (get("X\t: a"), Refused),
        (get(": a"), Refused),
        (get("no colon"), Refused),
        (get("X\u{e9}: a"), Refused),
        (get("(X): a"), Refused),
        (get("Host: b"), Refused),
        (get("X-Fine: a"), Passed("")),
        (get("Connection: host, x-forwarded-for"), Passed("")),
        (get("Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"), Passed("")),
        // A single LF may end a line (RFC 9112 section 2.2); the service gets CRLF.
        ("GET /c HTTP/1.1\nHost: a\nConnection: close\n\n".to_owned(), Passed("")),
        (
            format!(
                "GET /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{HIDDEN}",
                HIDDEN.len()
            ),
            Passed(HIDDEN),
        ),
        ("\r\nGET /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), Passed("")),
        ("GET /c HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), Refused),
        ("GET /c HTTP/1.1\r\nHost: a b\r\n\r\n".to_owned(), Refused),
        ("GET /c HTTP/1.1\r\nHost: a/smuggled\r\n\r\n".to_owned(), Refused),
        ("GET /c HTTP/1.1\r\nHost: u@a\r\n\r\n".to_owned(), Refused),
        ("GET /c HTTP/1.1\r\n Host: a\r\n\r\n".to_owned(), Refused),
        (line("GET http://a/c HTTP/1.1"), Passed("")),
        (line("GET /c%0d%0aX-Smuggled:%201 HTTP/1.1"), Passed("")),
        (line("CONNECT a:80 HTTP/1.1"), Refused),
        (line("TRACE /c HTTP/1.1"), Refused),
    ];
    for wrong in [
        "GET /c\rX: y HTTP/1.1",
        "GET /c\0 HTTP/1.1",
        "GET /c /smuggled HTTP/1.1",
        "GET /c HTTP/1.1 HTTP/1.1",
        "GET  /c HTTP/1.1",
        "GET\t/c\tHTTP/1.1",
        "GET /c HTTP/1.2",
        "GET /c http/1.1",
        "GET /c HTTP/9.9",
        "GET /c HTTP/2.0",
        "G\u{e9}T /c HTTP/1.1",
        "GET c HTTP/1.1",
        "GET http://u@a/c HTTP/1.1",
        "GET /a/../c HTTP/1.1",
        "GET /a/%2e%2e/c HTTP/1.1",
        "GET /a/..;/c HTTP/1.1",
    ] {
        cases.push((line(wrong), Refused));
    }
    cases
}

struct Scene {
    backend: Backend,
    http: SocketAddr,
    server: Server,
}

impl Scene {
    fn new() -> Result<Scene> {
        let backend = Backend::start(echo)?;
        let config = format!("{SHORT}{}", backend.upstream(ROUTE));
        let server = Server::start_with_http(&config)?;
        Ok(Scene { http: server.http()?, backend, server })
    }

    /// The requests at the service since the last call. It forgets them.
    fn seen(&self) -> Vec<Request> {
        std::mem::take(&mut *self.backend.seen.requests.lock().expect("no holder panics"))
    }

    fn check(&self, said: &str, fate: Fate, is_answered_well: bool) {
        let seen = self.seen();
        for request in &seen {
            assert!(!request.line.contains("/smuggled "), "{said:?}: {request:?}");
            assert_eq!(request.header("x-smuggled"), None, "{said:?}: {request:?}");
            assert!(request.header("transfer_encoding").is_none(), "{said:?}: {request:?}");
        }
        match fate {
            Refused => {
                assert!(seen.is_empty(), "{said:?}: {seen:?}");
                assert!(!is_answered_well, "{said:?}");
            }
            Passed(body) => {
                assert_eq!(seen.len(), 1, "{said:?}: {seen:?}");
                assert_eq!(String::from_utf8_lossy(&seen[0].body), body, "{said:?}");
                assert_eq!(seen[0].header("host"), Some("a"), "{said:?}");
                assert!(is_answered_well, "{said:?}");
            }
        }
        let breaches =
            std::mem::take(&mut *self.backend.seen.breaches.lock().expect("no holder panics"));
        assert!(breaches.is_empty(), "{said:?}: {breaches:?}");
    }

    fn is_unharmed(&self) -> Result<()> {
        self.server.await_metrics("an empty house", |metrics| {
            metrics.sum("weir_route_requests_in_progress", "") == 0.0
                && metrics.sum("weir_http_connections", "") == 0.0
        })?;
        assert!(!self.server.log().contains("panicked"), "{}", self.server.log());
        Ok(())
    }
}

#[test]
fn ambiguous_requests_over_http1_are_refused_or_made_plain() -> Result<()> {
    let scene = Scene::new()?;
    let mut failed = Vec::new();
    for (said, fate) in framing().into_iter().chain(heads()) {
        let mut stream = TcpStream::connect(scene.http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // What is refused early is not all taken.
        let _ = stream.write_all(said.as_bytes());
        let mut heard = Vec::new();
        match stream.read_to_end(&mut heard) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("{said:?} does not end");
            }
            Ok(_) | Err(_) => {}
        }
        let heard = String::from_utf8_lossy(&heard);
        let statuses: Vec<_> =
            heard.split("HTTP/1.1 ").skip(1).map(|rest| rest.get(..3).unwrap_or("")).collect();
        let first = statuses.iter().find(|status| **status != "100");
        let answers = statuses.iter().filter(|status| status.starts_with('2')).count();
        assert!(answers <= 1, "{said:?}: {heard}");
        let well = first.is_some_and(|status| status.starts_with('2'));
        if catch_unwind(AssertUnwindSafe(|| scene.check(&said, fate, well))).is_err() {
            failed.push(said);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    scene.is_unharmed()
}

/// Two requests in one packet are two requests, each with its own answer, in order.
#[test]
fn pipelined_requests_stay_apart() -> Result<()> {
    let scene = Scene::new()?;
    let mut stream = TcpStream::connect(scene.http)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let first = "POST /one HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    stream.write_all(format!("{first}{}", get("X: y")).as_bytes())?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    let bodies: Vec<_> = heard
        .split("\r\n\r\n")
        .skip(1)
        .map(|rest| rest.split("HTTP/1.1 200").next().unwrap())
        .collect();
    assert_eq!(bodies, ["POST /one HTTP/1.1", "GET /c HTTP/1.1"]);
    let lines: Vec<_> = scene.seen().into_iter().map(|request| request.line).collect();
    assert_eq!(lines, ["POST /one HTTP/1.1", "GET /c HTTP/1.1"]);
    scene.is_unharmed()
}

/// A head of HTTP/2: POST, scheme, path and authority, then these fields.
fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = vec![0x83, 0x86, 0x04, 2];
    head.extend(b"/c\x01\x01a");
    for (name, value) in fields {
        head.extend(field(name, value));
    }
    head
}

/// What is heard of a stream: whether its answer has a status of 2xx.
fn is_answered_well(conn: &mut Http2, stream: u32) -> Result<bool> {
    loop {
        match conn.hear()? {
            Some((HEADERS, on, head)) if on == stream => {
                return Ok(status(&head).context("a status")? / 100 == 2);
            }
            Some((RST_STREAM, on, _)) if on == stream => return Ok(false),
            Some((GOAWAY, _, payload)) if payload.get(4..8) != Some(&[0; 4]) => return Ok(false),
            Some(_) => {}
            None => return Ok(false),
        }
    }
}

/// Field lists, each with the fate of its request.
fn listed_fields() -> Vec<(Vec<u8>, Fate)> {
    vec![
        (head(&[]), Passed("abc")),
        (head(&[("content-length", "3")]), Passed("abc")),
        (head(&[("te", "trailers"), ("x_forwarded_for", "1.2.3.4")]), Passed("abc")),
        (head(&[("content-length", "2")]), Refused),
        (head(&[("content-length", "4")]), Refused),
        (head(&[("content-length", "3"), ("content-length", "4")]), Refused),
        (head(&[("content-length", "+3")]), Refused),
        (head(&[("x", "a\r\nX-Smuggled: 1")]), Refused),
        (head(&[("x", "a\nX-Smuggled: 1")]), Refused),
        (head(&[("x", "a\rb")]), Refused),
        (head(&[("x", "a\0b")]), Refused),
        (head(&[("x: y\r\nx-smuggled", "1")]), Refused),
        (head(&[("x y", "1")]), Refused),
        (head(&[("X-Smuggled", "1")]), Refused),
        (head(&[("", "1")]), Refused),
        (head(&[("connection", "x-smuggled")]), Refused),
        (head(&[("transfer-encoding", "chunked")]), Refused),
        (head(&[("upgrade", "websocket")]), Refused),
        (head(&[("keep-alive", "1")]), Refused),
        (head(&[("proxy-connection", "keep-alive")]), Refused),
        (head(&[("te", "gzip")]), Refused),
        (head(&[("host", "b")]), Refused),
        (head(&[(":path", "/smuggled")]), Refused),
        (head(&[("x", "y"), (":method", "GET")]), Refused),
        (head(&[(":unknown", "y")]), Refused),
        (head(&[(":protocol", "websocket")]), Refused),
    ]
}

/// Heads whose pseudo-header fields are missing or wrong.
fn raw_fields() -> Vec<(Vec<u8>, Fate)> {
    vec![
        (vec![0x83, 0x86, 0x01, 1, b'a'], Refused),
        (
            ([
                &[0x83, 0x86][..],
                &field(":path", "/c HTTP/1.1\r\nX-Smuggled: 1\r\n"),
                &[0x01, 1, b'a'],
            ]
            .concat()),
            Refused,
        ),
        (([&[0x83, 0x86][..], &field(":path", "/c x"), &[0x01, 1, b'a']].concat()), Refused),
        (([&[0x83, 0x86][..], &field(":path", "c"), &[0x01, 1, b'a']].concat()), Refused),
        (
            ([
                &field(":method", "GET /smuggled HTTP/1.1"),
                &[0x86, 0x04, 2, b'/', b'c', 0x01, 1, b'a'][..],
            ]
            .concat()),
            Refused,
        ),
        (
            ([&field(":method", "GE\r\nT"), &[0x86, 0x04, 2, b'/', b'c', 0x01, 1, b'a'][..]]
                .concat()),
            Refused,
        ),
        (
            ([&[0x83, 0x86, 0x04, 2, b'/', b'c'][..], &field(":authority", "a\r\nX-Smuggled: 1")]
                .concat()),
            Refused,
        ),
        (([&[0x83, 0x86, 0x04, 2, b'/', b'c'][..], &field(":authority", "u@a")].concat()), Refused),
        (
            ([
                &[0x83, 0x04, 2, b'/', b'c'][..],
                &field(":scheme", "http://a/smuggled?"),
                &[0x01, 1, b'a'],
            ]
            .concat()),
            Refused,
        ),
    ]
}

#[test]
fn ambiguous_requests_over_http2_are_refused_or_made_plain() -> Result<()> {
    let scene = Scene::new()?;
    for (head, fate) in listed_fields().into_iter().chain(raw_fields()) {
        let mut conn = Http2::connect(scene.http, &[])?;
        // What is refused early is not all taken.
        let said = [
            frame(HEADERS, 0, 1, &head[..head.len() / 2]),
            frame(CONTINUATION, END_HEADERS, 1, &head[head.len() / 2..]),
            frame(DATA, END_STREAM, 1, b"abc"),
        ];
        let _ = conn.stream.write_all(&said.concat());
        let well = is_answered_well(&mut conn, 1)?;
        scene.check(&String::from_utf8_lossy(&head), fate, well);
    }
    let broken_off = scene.backend.seen.broken_off.load(Ordering::Relaxed);
    assert!(broken_off <= 8, "{broken_off} requests began and broke off");
    scene.is_unharmed()
}
