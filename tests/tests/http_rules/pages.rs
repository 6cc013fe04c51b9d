//! What a web page in somebody's browser can have the browser ask for, and what it gets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;
use weir_tests::http2::{END_HEADERS, END_STREAM, HEADERS, Http2, field, frame};
use weir_tests::{Authority, PATIENCE, Server, Socket};

use super::{OPEN, Scene, answered, statuses};

/// What a browser sends without being asked: the names of the page's requests to a gateway that admits anonymous devices.
const ASKED: [&str; 4] = [
    "GET /v1/sse?device=page&topic=news HTTP/1.1\r\n",
    "GET /v1/topics/news/history HTTP/1.1\r\n",
    "GET /v1/connect HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: weir.v1.json\r\n",
    "POST /v1/publish HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 27\r\n",
];
const TO_NEWS: &str = "{\"topic\":\"news\",\"text\":\"x\"}";

/// The status line and what follows until the connection ends, or until there is a whole head of what does not end.
fn first_answer(addr: SocketAddr, head: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = if head.starts_with("POST") { TO_NEWS } else { "" };
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let (mut heard, mut bytes) = (String::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut bytes)?;
        heard.push_str(&String::from_utf8_lossy(&bytes[..count]));
        let is_head = heard.contains("\r\n\r\n");
        // Problem documents are short, and end so.
        if count == 0 || is_head && (!heard.contains("problem+json") || heard.ends_with('}')) {
            return Ok((statuses(&heard).first().copied().context("a status")?, heard));
        }
    }
}

/// A name of a stranger's that points here all of a sudden: its page is of the same origin as this server to a browser.
#[test]
fn a_page_by_a_name_that_was_rebound_gets_nothing() -> Result<()> {
    let token = "[[auth.tokens]]\ntoken = \"right\"\n";
    let hosts = "[http]\nhosts = [\"gate.example\"]\n[auth]\nanonymous = true\n";
    let scene = Scene::new(&format!("{hosts}{token}"))?;
    let port = scene.http.port();
    for asked in ASKED {
        let ask = |headers: &str| first_answer(scene.http, &format!("{asked}{headers}"));
        for host in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.1", "1.2.3.4"]
        {
            let (status, heard) = ask(&format!("Host: {host}:{port}\r\n"))?;
            assert_eq!(status, 421, "{asked} {host}: {heard}");
            assert!(heard.contains("http.hosts") && heard.contains("unknown-host"), "{heard}");
        }
        for host in [&format!("127.0.0.1:{port}"), "LOCALHOST", "[::1]:1", "gate.example:1"] {
            let (status, heard) = ask(&format!("Host: {host}\r\n"))?;
            assert!(matches!(status, 200 | 101), "{asked} {host}: {heard}");
        }
        // Nobody has a token by whom it was not given.
        let (status, heard) = ask("Host: evil.example\r\nAuthorization: Bearer right\r\n")?;
        assert!(matches!(status, 200 | 101), "{asked}: {heard}");
    }
    for (host, path, expected) in [
        ("evil.example", "/v1/topics/news/history", 421),
        ("evil.example", "/v1/sse?device=page", 421),
        ("localhost", "/v1/topics/news/history", 200),
        ("gate.example", "/v1/sse?device=page", 200),
    ] {
        let mut peer = Http2::connect(scene.http, &[])?;
        let head = [&[0x82, 0x86][..], &field(":path", path), &field(":authority", host)].concat();
        peer.stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head))?;
        assert_eq!(answered(&mut peer)?, expected, "{host} {path} over HTTP/2");
    }
    Ok(())
}

/// Where a token is asked for, a proxy may pass on what name it likes.
#[test]
fn a_name_is_not_asked_for_where_a_token_is() -> Result<()> {
    let token = "[auth]\nanonymous = false\n[[auth.tokens]]\ntoken = \"right\"\n";
    let scene = Scene::new(token)?;
    for asked in ASKED {
        let ask = |headers: &str| first_answer(scene.http, &format!("{asked}{headers}"));
        let (status, heard) = ask("Host: gate.example\r\nAuthorization: Bearer right\r\n")?;
        assert!(matches!(status, 200 | 101), "{asked}: {heard}");
        let (status, heard) = ask("Host: gate.example\r\n")?;
        // A WebSocket may say in its first message who it is.
        assert!(matches!(status, 401 | 101), "{asked}: {heard}");
    }
    Ok(())
}

/// What any page in the world may have a browser ask for, as by `<img src>`.
#[test]
fn a_picture_on_a_page_replaces_no_device() -> Result<()> {
    let scene = Scene::new("")?;
    let device = Socket::greet(scene.http, "lock-1", &["news"])?;
    let port = scene.http.port();
    for site in ["cross-site", "same-site"] {
        for (mode, dest) in [
            ("no-cors", "image"),
            ("navigate", "iframe"),
            ("navigate", "document"),
            ("cors", "empty"),
        ] {
            let fetch = format!(
                "Host: localhost:{port}\r\nSec-Fetch-Site: {site}\r\nSec-Fetch-Mode: {mode}\r\n\
                 Sec-Fetch-Dest: {dest}\r\n"
            );
            for asked in [&ASKED[0].replace("device=page", "device=lock-1"), ASKED[2]] {
                let (status, heard) = first_answer(scene.http, &format!("{asked}{fetch}"))?;
                assert_eq!(status, 403, "{asked}{fetch}: {heard}");
                assert!(heard.contains("\"field\":\"Sec-Fetch-Site\""), "{heard}");
            }
            let (status, _) = first_answer(scene.http, &format!("{}{fetch}", ASKED[1]))?;
            // Somebody who follows a link may look.
            assert_eq!(status, if dest == "document" { 200 } else { 403 }, "history: {fetch}");
            let fields = [
                field(":path", "/v1/sse?device=lock-1"),
                field(":authority", "localhost"),
                field("sec-fetch-site", site),
                field("sec-fetch-mode", mode),
                field("sec-fetch-dest", dest),
            ];
            let mut peer = Http2::connect(scene.http, &[])?;
            let head = [&[0x82, 0x86][..], &fields.concat()].concat();
            peer.stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head))?;
            assert_eq!(answered(&mut peer)?, 403, "over HTTP/2: {fetch}");
            let events = format!("GET /v1/events HTTP/1.1\r\n{fetch}")
                .replace(&format!("localhost:{port}"), &scene.server.admin.to_string());
            let (status, _) = first_answer(scene.server.admin, &events)?;
            assert_eq!(status, if dest == "document" { 200 } else { 403 }, "the admin: {fetch}");
        }
    }
    // What the address bar, or a page of this server's, asks for is let in.
    for site in ["none", "same-origin"] {
        let fetch = format!("Host: localhost:{port}\r\nSec-Fetch-Site: {site}\r\n");
        let (status, heard) = first_answer(scene.http, &format!("{}{fetch}", ASKED[0]))?;
        assert_eq!(status, 200, "{heard}");
    }
    let mut device = device;
    scene.server.publish(&json!({"topic": "news", "text": "still there"}))?;
    let push = device.expect("push")?;
    assert_eq!(push["text"], "still there");
    Ok(())
}

/// `http://localhost` and `https://localhost` are two servers.
#[test]
fn a_page_is_of_this_server_by_its_scheme_too() -> Result<()> {
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    let server = Server::start_with_https(&format!("{OPEN}{certificate}"))?;
    let (http, https) = server.http.zip(server.https).context("it speaks HTTP")?;
    for (addr, listener) in [(http, "http"), (https, "https"), (server.admin, "http")] {
        for scheme in ["http", "https"] {
            let host = format!("localhost:{}", addr.port());
            let path = if addr == server.admin { "/v1/topics" } else { "/v1/topics/news/history" };
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--noproxy", "*", "--ipv4", "-o", "/dev/null"]);
            curl.args(["-w", "%{http_code}", "-H", &format!("Origin: {scheme}://{host}")]);
            curl.arg("--cacert").arg(authority.path("ca.pem"));
            let output = curl.arg(format!("{listener}://{host}{path}")).output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let expected = if scheme == listener { "200" } else { "403" };
            assert_eq!(said, expected, "a page of {scheme} asks {listener}://{host}{path}");
        }
    }
    Ok(())
}
