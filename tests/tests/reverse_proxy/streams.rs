//! Long bodies and long answers: nothing is kept on the way, and an end on one side is an end on the other.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use weir_tests::http2::{DATA, Http2, WINDOW_UPDATE, frame};
use weir_tests::{PATIENCE, Server, now, rest};

use crate::backend::{Backend, Request, echo};

const ROUTE: &str = "[[http.routes]]\nprefix = \"/\"\nupstream = \"api\"\nbody_bytes_max = 0\nidle_timeout = \"300s\"\n";
const PATIENT: &str = "[http]\nbody_timeout = \"300s\"\n[connection]\nstall_timeout = \"300s\"\n[tcp]\nuser_timeout = \"400s\"\n";
const LONG_BYTES: usize = 64 << 20;
/// Far less than the bodies, and more than a debug build needs for anything else.
const GROWTH_KIB_MAX: u64 = 24 * 1024;

fn answer(request: &Request, stream: &mut TcpStream) -> io::Result<bool> {
    match request.path() {
        "/long" => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {LONG_BYTES}\r\n\r\n")?;
            let piece = [b'x'; 65_536];
            for _ in 0..LONG_BYTES / piece.len() {
                stream.write_all(&piece)?;
            }
            Ok(true)
        }
        // One event, then it waits for the client's end.
        "/events" => {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(format!("{head}9\r\ndata: 1\n\n\r\n").as_bytes())?;
            // The end of the request at this side is the end of the connection.
            let ended = stream.read(&mut [0; 1])?;
            assert_eq!(ended, 0, "nothing else comes");
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        "/wait" => {
            assert_eq!(stream.read(&mut [0; 1])?, 0, "nothing else comes");
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        _ => echo(request, stream),
    }
}

fn rss_kib(server: &Server) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn scene() -> Result<(Backend, Server)> {
    let backend = Backend::start(answer)?;
    let server = Server::start_with_http(&format!("{PATIENT}{}", backend.upstream(ROUTE)))?;
    Ok((backend, server))
}

fn await_idle(server: &Server) -> Result<()> {
    server.await_metrics("the end of all requests", |metrics| {
        metrics.sum("weir_route_requests_in_progress", "") == 0.0
    })?;
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

/// Waits until memory has not grown for a while: then nothing more is taken from the service.
fn settled_rss_kib(server: &Server) -> Result<u64> {
    let (mut highest, mut quiet) = (0, 0);
    while quiet < 20 {
        let rss = rss_kib(server)?;
        quiet = if rss > highest { 0 } else { quiet + 1 };
        highest = highest.max(rss);
        rest();
    }
    Ok(highest)
}

#[test]
fn a_slow_reader_holds_the_service_and_not_the_memory() -> Result<()> {
    let (_backend, server) = scene()?;
    let http = server.http()?;
    let before = rss_kib(&server)?;
    let mut readers = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /long HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        readers.push(stream);
    }
    let mut conn = Http2::connect(http, &[])?;
    conn.get(1, "/long")?;
    conn.get(3, "/long")?;
    let grown = settled_rss_kib(&server)?.saturating_sub(before);
    ensure!(grown < GROWTH_KIB_MAX, "{grown} KiB more while nobody reads");
    let mut space = vec![0; 65_536];
    for mut stream in readers {
        let mut count = 0;
        loop {
            match stream.read(&mut space)? {
                0 => break,
                read => count += read,
            }
        }
        ensure!((LONG_BYTES..LONG_BYTES + 1_000).contains(&count), "{count} bytes");
    }
    let mut left = LONG_BYTES;
    while left > 0 {
        if let Some((DATA, stream, data)) = conn.hear()? {
            let read = u32::try_from(data.len())?.to_be_bytes();
            // The other stream stays closed, and does not hold this one up.
            for opened in [0, stream] {
                if stream == 1 || opened == 0 {
                    conn.stream.write_all(&frame(WINDOW_UPDATE, 0, opened, &read))?;
                }
            }
            left -= if stream == 1 { data.len() } else { 0 };
        }
    }
    let grown = rss_kib(&server)?.saturating_sub(before);
    ensure!(grown < GROWTH_KIB_MAX, "{grown} KiB more after all");
    drop(conn);
    await_idle(&server)
}

#[test]
fn a_long_body_passes_as_it_comes() -> Result<()> {
    let (backend, server) = scene()?;
    let http = server.http()?;
    let before = rss_kib(&server)?;
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = 32 << 20;
    write!(
        stream,
        "POST /up HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )?;
    for _ in 0..length / 65_536 {
        stream.write_all(&[b'y'; 65_536])?;
    }
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
    let bodies: Vec<_> = backend.requests().into_iter().map(|request| request.body.len()).collect();
    assert_eq!(bodies, [length]);
    let grown = rss_kib(&server)?.saturating_sub(before);
    ensure!(grown < GROWTH_KIB_MAX, "{grown} KiB more");
    await_idle(&server)
}

#[test]
fn events_arrive_one_by_one_and_a_client_that_goes_ends_its_request() -> Result<()> {
    let (backend, server) = scene()?;
    let http = server.http()?;
    let ended = |count: usize| -> Result<()> {
        let deadline = now() + PATIENCE;
        while backend.seen.requests.lock().unwrap().len() < count {
            ensure!(now() < deadline, "the service sees {count} requests");
            rest();
        }
        await_idle(&server)
    };
    for path in ["/events", "/wait"] {
        let mut stream = TcpStream::connect(http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")?;
        let mut heard = String::new();
        while path == "/events" && !heard.contains("data: 1\n\n") {
            let mut space = [0; 1_024];
            let count = stream.read(&mut space)?;
            ensure!(count > 0, "it ends: {heard}");
            heard.push_str(&String::from_utf8_lossy(&space[..count]));
        }
        if path == "/wait" {
            // The gateway waits for the service now.
            server.await_metrics("a request", |metrics| {
                metrics.sum("weir_route_requests_in_progress", "") == 1.0
            })?;
            stream.shutdown(Shutdown::Both)?;
        }
        drop(stream);
        ended(if path == "/events" { 1 } else { 2 })?;
        let mut conn = Http2::connect(http, &[])?;
        conn.get(1, path)?;
        if path == "/events" {
            while !matches!(conn.hear()?, Some((DATA, 1, data)) if data == b"data: 1\n\n") {}
        } else {
            server.await_metrics("a request", |metrics| {
                metrics.sum("weir_route_requests_in_progress", "") == 1.0
            })?;
        }
        // CANCEL.
        conn.stream.write_all(&frame(3, 0, 1, &[0, 0, 0, 8]))?;
        await_idle(&server)?;
    }
    assert_eq!(backend.seen.broken_off.load(Ordering::Relaxed), 0);
    Ok(())
}

/// A body that breaks off is never a whole one for the service.
#[test]
fn a_cut_body_is_not_taken_for_a_whole_one() -> Result<()> {
    let (backend, server) = scene()?;
    let http = server.http()?;
    let mut stream = TcpStream::connect(http)?;
    stream.write_all(
        b"POST /cut HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    )?;
    let begun = |count: f64| {
        server.await_metrics("requests", |metrics| {
            metrics.sum("weir_route_requests_in_progress", "") == count
        })
    };
    begun(1.0)?;
    drop(stream);
    begun(0.0)?;
    let mut conn = Http2::connect(http, &[])?;
    let head = [&[0x83, 0x86, 0x04, 4][..], b"/cut", b"\x01\x01a"].concat();
    conn.stream.write_all(&frame(1, 4, 1, &head))?;
    conn.stream.write_all(&frame(DATA, 0, 1, b"abc"))?;
    begun(1.0)?;
    for code in [8, 0] {
        // CANCEL, and then NO_ERROR on another stream.
        conn.stream.write_all(&frame(3, 0, if code == 8 { 1 } else { 3 }, &[0, 0, 0, code]))?;
        begun(0.0)?;
        if code == 8 {
            conn.stream.write_all(&frame(1, 4, 3, &head))?;
            conn.stream.write_all(&frame(DATA, 0, 3, b"abc"))?;
            begun(1.0)?;
        }
    }
    assert!(backend.requests().is_empty(), "{:?}", backend.requests());
    Ok(())
}
