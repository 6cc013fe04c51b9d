//! Hostile and broken HTTP: each shape is refused, or taken exactly as RFC 9112 and RFC 9113 allow, within bounded time
//! and memory, and others are undisturbed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use anyhow::{Context, Result, bail};
use weir_tests::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, GOAWAY, HEADERS, Http2, PING, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, frame,
};
use weir_tests::{Answer, PATIENCE, Server};

const SHORT: &str = "[http]\nhead_timeout = \"1s\"\nbody_timeout = \"1s\"\nidle_timeout = \"2s\"\n\
                     [connection]\nstall_timeout = \"1s\"\nhello_timeout = \"1s\"\n";

/// A server, and a connection of somebody else who must not notice anything.
struct Scene {
    server: Server,
    http: SocketAddr,
}

impl Scene {
    fn new() -> Result<Scene> {
        let server = Server::start_with_http(SHORT)?;
        let http = server.http.context("it speaks HTTP")?;
        Ok(Scene { server, http })
    }

    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Says something, and hears all that is answered until the connection ends.
    fn talk(&self, said: &[u8]) -> Result<String> {
        let mut stream = self.connect()?;
        // Where it is refused early, not all of it is taken.
        let _ = stream.write_all(said).and_then(|()| stream.shutdown(Shutdown::Write));
        Ok(String::from_utf8_lossy(&read_to_end(&mut stream)?).into_owned())
    }

    /// Others are served, nothing has panicked, and nobody is left behind.
    fn is_unharmed(&self) -> Result<()> {
        let answer = Answer::get(self.http, "/rest/hello")?;
        assert_eq!((answer.status, answer.body.as_str()), (200, "Hello World"));
        self.server.await_metrics("an empty house", |metrics| {
            metrics.sum("weir_http_connections", "") == 0.0
        })?;
        assert!(!self.server.log().contains("panicked"), "{}", self.server.log());
        Ok(())
    }

    fn ended(&self, cause: &str) -> Result<f64> {
        let label = format!("cause=\"{cause}\"");
        Ok(self.server.metrics()?.sum("weir_http_connections_ended_total", &label))
    }
}

/// All that comes; a reset is an end like any other.
fn read_to_end(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            bail!("it does not end; so far: {:?}", String::from_utf8_lossy(&heard))
        }
        Ok(_) | Err(_) => Ok(heard),
    }
}

/// The statuses in what was heard, in their order.
fn statuses(heard: &str) -> Vec<u16> {
    let heads = heard.split("HTTP/1.").skip(1);
    heads.filter_map(|head| head.get(2..5)?.parse().ok()).collect()
}

/// What follows is to be a request of its own, and must not be taken for one.
const SMUGGLED: &str = "GET /rest/hello HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn shapes_that_hide_a_second_request() -> Result<()> {
    let scene = Scene::new()?;
    let post = |headers: &str, body: &str| {
        format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n{body}{SMUGGLED}")
    };
    for (said, expected) in [
        // Both lengths: chunks count, and the connection ends (RFC 9112 section 6.1).
        (
            post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            [405].as_slice(),
        ),
        (post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), &[405]),
        // Lengths that differ, or are none (section 6.3).
        (post("Content-Length: 5\r\nContent-Length: 6\r\n", "12345"), &[400]),
        (post("Content-Length: 5, 6\r\n", "12345"), &[400]),
        (post("Content-Length: +5\r\n", "12345"), &[400]),
        (post("Content-Length: -1\r\n", ""), &[400]),
        (post("Content-Length: 0x5\r\n", "12345"), &[400]),
        (post("Content-Length: \r\n", ""), &[400]),
        (post("Content-Length: 99999999999999999999\r\n", ""), &[400]),
        // Encodings whose last one is not chunked.
        (post("Transfer-Encoding: identity\r\n", ""), &[400]),
        (post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"), &[400]),
        (post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), &[400]),
        // A name with a space behind it (section 5.1).
        (post("Content-Length : 5\r\n", "12345"), &[400]),
        (post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), &[400]),
        // A folded line (section 5.2).
        (post("X: a\r\n b\r\n", ""), &[400]),
        (post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"), &[400]),
        // A line that ends in CR alone, and bytes that no header has (section 5.5).
        (post("X: a\rTransfer-Encoding: chunked\r\n", ""), &[400]),
        (post("X: \0\r\n", ""), &[400]),
        (post("X\0: a\r\n", ""), &[400]),
        // Not one host (section 3.2).
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), &[400]),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n".to_owned(), &[400]),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".to_owned(), &[400]),
        ("GET / HTTP/1.1\r\nHost: user@a\r\n\r\n".to_owned(), &[400]),
        // HTTP/1.0 knows no chunks.
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), &[400]),
        // Lines of a request that are none.
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), &[400]),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n".to_owned(), &[400]),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_owned(), &[400]),
        ("GET /\r\n\r\n".to_owned(), &[400]),
        ("G\u{e4}T / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), &[400]),
    ] {
        let heard = scene.talk(said.as_bytes())?;
        let statuses = statuses(&heard);
        // A host is found wrong when the request is known: the connection may go on.
        assert_eq!(statuses, expected, "{said:?}: {heard:?}");
    }
    scene.is_unharmed()
}

#[test]
fn shapes_that_are_allowed() -> Result<()> {
    let scene = Scene::new()?;
    for (said, expected) in [
        // LF alone ends a line (section 2.2), and lines may be empty in front.
        ("GET / HTTP/1.1\nHost: a\n\n", [200].as_slice()),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &[200]),
        // The same length twice is one.
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", &[200]),
        ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", &[200]),
        ("GET / HTTP/1.0\r\n\r\n", &[200]),
        ("GET / HTTP/1.1\r\nHost: \r\n\r\n", &[200]),
        ("GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", &[200]),
        ("get / HTTP/1.1\r\nHost: a\r\n\r\n", &[405]),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", &[404]),
        // A small body that nobody wants is passed over, in chunks too.
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            &[405, 200],
        ),
    ] {
        let heard = scene.talk(said.as_bytes())?;
        assert_eq!(statuses(&heard), expected, "{said:?}: {heard:?}");
    }
    scene.is_unharmed()
}

#[test]
fn chunks_that_are_none_end_the_connection() -> Result<()> {
    let scene = Scene::new()?;
    for chunks in [
        "zz\r\n".to_owned(),
        "-1\r\n".to_owned(),
        "5\r\n1234567890\r\n0\r\n\r\n".to_owned(),
        "5\r\n12345XX0\r\n\r\n".to_owned(),
        "fffffffffffffffff\r\n".to_owned(),
        format!("1;{}\r\n", "x".repeat(100_000)),
        format!("0\r\n{}", "X: y\r\n".repeat(100_000)),
        "5 5\r\n12345\r\n0\r\n\r\n".to_owned(),
    ] {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let heard = scene.talk(format!("{head}{chunks}{SMUGGLED}").as_bytes())?;
        assert!(!heard.contains("Hello"), "{chunks:?}: {heard}");
    }
    scene.is_unharmed()
}

#[test]
fn heads_over_the_limits_are_refused() -> Result<()> {
    let scene = Scene::new()?;
    let with = |headers: String| format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
    for said in [
        with("X: y\r\n".repeat(64)),
        with(format!("X: {}\r\n", "y".repeat(17_000))),
        with("X: y\r\n".repeat(1_000_000)),
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(70_000)),
        "X".repeat(1_000_000),
    ] {
        let heard = scene.talk(said.as_bytes())?;
        let refused = statuses(&heard);
        // One that goes on and on may get a reset that overtakes the answer.
        let is_long = said.len() > 100_000;
        assert!(
            matches!(refused[..], [431 | 414 | 400]) || is_long && refused.is_empty(),
            "{} bytes: {heard}",
            said.len()
        );
    }
    // Another protocol on this port.
    let heard = scene.talk(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")?;
    assert_eq!(statuses(&heard), [400], "{heard:?}");
    scene.is_unharmed()
}

#[test]
fn who_is_slow_ends_in_time() -> Result<()> {
    let scene = Scene::new()?;
    let mut slow = Vec::new();
    for said in [
        "",
        "G",
        "PRI * HTTP/2",
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
    ] {
        for _ in 0..100 {
            let mut stream = scene.connect()?;
            stream.write_all(said.as_bytes())?;
            slow.push(stream);
        }
    }
    let answer = Answer::get(scene.http, "/")?;
    assert_eq!(answer.status, 200, "others are served meanwhile");
    for mut stream in slow {
        let heard = String::from_utf8(read_to_end(&mut stream)?)?;
        assert!(heard.is_empty() || matches!(statuses(&heard)[..], [405 | 408]), "{heard}");
    }
    scene.is_unharmed()?;
    // Those that have said a part of a head; who has said nothing has not begun to speak HTTP.
    assert_eq!(scene.ended("head_timeout")?, 200.0);
    Ok(())
}

/// `PROTOCOL_ERROR`, `FLOW_CONTROL_ERROR`, `FRAME_SIZE_ERROR`, `COMPRESSION_ERROR`, `ENHANCE_YOUR_CALM`.
const REFUSALS: [u32; 5] = [1, 3, 6, 9, 11];

#[test]
fn broken_rules_of_http2_end_the_connection() -> Result<()> {
    let scene = Scene::new()?;
    let open = END_HEADERS;
    for (what, said) in [
        ("data on no stream", frame(DATA, 0, 0, b"x")),
        ("a stream of the server's", frame(HEADERS, open | END_STREAM, 2, GET)),
        ("headers that are none", frame(HEADERS, open | END_STREAM, 1, &[0xff; 64])),
        ("a frame over the limit", frame(DATA, 0, 1, &[0; 20_000])),
        ("a window beyond its end", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255]).repeat(2)),
        ("settings of odd length", frame(SETTINGS, 0, 0, &[0; 5])),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, GET)),
        (
            "another frame within headers",
            [frame(HEADERS, 0, 1, GET), frame(PING, 0, 0, &[0; 8])].concat(),
        ),
        ("data on a stream that never was", frame(DATA, 0, 5, b"x")),
    ] {
        let mut peer = Http2::connect(scene.http, &[])?;
        let _ = peer.stream.write_all(&said);
        let code = peer.end()?;
        assert!(code.is_some_and(|code| REFUSALS.contains(&code)), "{what}: {code:?}");
    }
    scene.is_unharmed()?;
    assert_eq!(scene.ended("protocol")?, 9.0);
    Ok(())
}

#[test]
fn floods_over_http2_are_cut() -> Result<()> {
    let scene = Scene::new()?;
    let before = scene.server.rss_anon()?;
    let resets: Vec<u8> = (0..10_000_u32)
        .flat_map(|index| {
            let stream = 2 * index + 1;
            let cancel = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            [frame(HEADERS, END_HEADERS | END_STREAM, stream, GET), cancel].concat()
        })
        .collect();
    let continuations: Vec<u8> = std::iter::once(frame(HEADERS, 0, 1, GET))
        .chain((0..10_000).map(|_| frame(CONTINUATION, 0, 1, &[])))
        .flatten()
        .collect();
    let empty: Vec<u8> =
        std::iter::once(frame(HEADERS, END_HEADERS, 1, &[&[0x83], &GET[1..]].concat()))
            .chain((0..100_000).map(|_| frame(DATA, 0, 1, &[])))
            .flatten()
            .collect();
    for (what, said) in
        [("resets", resets), ("continuations", continuations), ("empty data", empty)]
    {
        let mut peer = Http2::connect(scene.http, &[])?;
        let _ = peer.stream.write_all(&said);
        let code = peer.end()?;
        // A reset may overtake what it is told.
        assert!(code.is_none_or(|code| code == 11 || code == 0), "{what}: {code:?}");
    }
    // Nothing of these is answered to a peer that reads nothing, beyond what its socket takes.
    for (what, one) in [
        ("pings", frame(PING, 0, 0, &[7; 8])),
        ("settings", frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9])),
    ] {
        let mut peer = Http2::connect(scene.http, &[])?;
        let many = one.repeat(1_000);
        while peer.stream.write_all(&many).is_ok() {}
        let _ = peer.end().context(what)?;
    }
    scene.is_unharmed()?;
    assert!(scene.ended("protocol")? + scene.ended("stalled")? >= 4.0);
    let grown = scene.server.rss_anon()?.saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    Ok(())
}

/// One header of 3,900 bytes, named again and again by one byte each.
#[test]
fn a_header_bomb_does_not_go_off() -> Result<()> {
    let scene = Scene::new()?;
    let before = scene.server.rss_anon()?;
    // Literal with indexing: a name of one byte, a value of 3,900 (127 + 3,773 in seven bits each).
    let mut bomb = GET.to_vec();
    bomb.extend([0x40, 1, b'x', 0x7f, 0xbd, 0x1d]);
    bomb.extend([b'y'; 3_900]);
    bomb.extend([0xbe; 12_000]);
    let mut peer = Http2::connect(scene.http, &[])?;
    for stream in 0..50 {
        let stream = 2 * stream + 1;
        if peer.stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &bomb)).is_err()
        {
            break;
        }
    }
    let _ = peer.stream.shutdown(Shutdown::Write);
    let mut told = 0;
    while let Some((kind, stream, payload)) = peer.hear()? {
        // `:status 200` is 0x88.
        assert!(kind != HEADERS || payload.first() != Some(&0x88), "stream {stream} was served");
        told += usize::from(matches!(kind, HEADERS | RST_STREAM | GOAWAY));
    }
    assert!(told > 0);
    let grown = scene.server.rss_anon()?.saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    scene.is_unharmed()
}
