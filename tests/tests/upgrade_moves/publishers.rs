//! Publishers over kept-alive connections: what is accepted is delivered once, whichever process has accepted it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, spawn};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_tests::http2::{self, Http2};
use weir_tests::{Device, PATIENCE, Server, now, rest, upgrade};
use weir_wire::v1::push;

/// How a number ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// 2xx.
    Accepted,
    /// 503 with Retry-After.
    Refused,
    /// The connection ended without an answer.
    Unknown,
}

/// A connection over which one message after the other is published.
trait Publish: Sized {
    fn connect(addr: SocketAddr) -> Result<Self>;
    /// Publishes a number; and whether the connection may be used again.
    fn publish(&mut self, text: &str) -> Result<(End, bool)>;
}

/// Publishes numbers until it is told to stop; returns how each ended.
struct Publisher {
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
    failure: Arc<OnceLock<String>>,
    thread: JoinHandle<Result<HashMap<String, End>>>,
}

impl Publisher {
    fn start<P: Publish>(name: &'static str, addr: SocketAddr) -> Publisher {
        let (stop, accepted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let failure = Arc::<OnceLock<String>>::default();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&accepted));
        let told = Arc::clone(&failure);
        let thread = spawn(move || {
            let (mut ends, mut connection) = (HashMap::new(), None);
            while !stopped.load(Ordering::Relaxed) {
                let connected = match connection.take() {
                    Some(connected) => Ok(connected),
                    None => P::connect(addr),
                };
                let mut connected = connected.with_context(|| format!("{name} is refused"))?;
                let text = format!("{name}-{}", ends.len());
                let published = connected.publish(&text);
                let (end, is_kept) = published.inspect_err(|why| {
                    let _ = told.set(format!("{text}: {why:?}"));
                })?;
                ends.insert(text, end);
                counted.fetch_add(u64::from(end == End::Accepted), Ordering::Relaxed);
                connection = is_kept.then_some(connected);
            }
            Ok(ends)
        });
        Publisher { stop, accepted, failure, thread }
    }

    fn await_more(&self, count: u64) -> Result<()> {
        let (until, deadline) = (self.accepted.load(Ordering::Relaxed) + count, now() + PATIENCE);
        while self.accepted.load(Ordering::Relaxed) < until {
            ensure!(now() < deadline, "nothing is accepted any more");
            ensure!(!self.thread.is_finished(), "a publisher has failed: {:?}", self.failure);
            rest();
        }
        Ok(())
    }
}

fn body(text: &str) -> String {
    json!({"messages": [{"topic": "feed/a", "text": text}]}).to_string()
}

/// HTTP/1.1.
struct Http1(TcpStream);

impl Publish for Http1 {
    fn connect(addr: SocketAddr) -> Result<Http1> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Http1(stream))
    }

    fn publish(&mut self, text: &str) -> Result<(End, bool)> {
        let body = body(text);
        let request = format!(
            "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer service\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if self.0.write_all(request.as_bytes()).is_err() {
            return Ok((End::Unknown, false));
        }
        let mut answer = Vec::new();
        loop {
            if let Some((head, body)) = split(&answer)
                && body.len() >= length(&head)?
            {
                return Ok((end(&head, body)?, !head.contains("connection: close")));
            }
            let mut bytes = [0; 4096];
            match self.0.read(&mut bytes) {
                Ok(0) | Err(_) => {
                    ensure!(answer.is_empty(), "half an answer: {answer:?}");
                    return Ok((End::Unknown, false));
                }
                Ok(count) => answer.extend_from_slice(&bytes[..count]),
            }
        }
    }
}

fn split(answer: &[u8]) -> Option<(String, &[u8])> {
    let place = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..place]).to_lowercase();
    Some((head, &answer[place + 4..]))
}

fn length(head: &str) -> Result<usize> {
    let (_, rest) = head.split_once("content-length: ").context("an answer has a length")?;
    Ok(rest.lines().next().unwrap_or_default().trim().parse()?)
}

fn end(head: &str, body: &[u8]) -> Result<End> {
    // A list is answered with 200, and with a problem for each message that is refused.
    let is_answered = head.starts_with("http/1.1 200 ");
    let is_refused = head.starts_with("http/1.1 503 ") && head.contains("retry-after: ");
    ensure!(is_answered || is_refused, "{head}");
    end_of(&String::from_utf8_lossy(body))
}

/// HTTP/2.
struct OverHttp2 {
    connection: Http2,
    stream: u32,
}

impl OverHttp2 {
    /// Opens the window of the connection for as many bytes as have come; some day the server would
    /// send nothing else.
    fn take(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(0).to_be_bytes();
        if bytes != [0; 4] {
            // The end of the connection shows with the next frame.
            let update = http2::frame(http2::WINDOW_UPDATE, 0, 0, &bytes);
            let _ = self.connection.stream.write_all(&update);
        }
    }
}

impl Publish for OverHttp2 {
    fn connect(addr: SocketAddr) -> Result<OverHttp2> {
        Ok(OverHttp2 { connection: Http2::connect(addr, &[])?, stream: 1 })
    }

    fn publish(&mut self, text: &str) -> Result<(End, bool)> {
        let stream = self.stream;
        self.stream += 2;
        let head = [
            http2::POST,
            &http2::field(":path", "/v1/publish"),
            &http2::field(":authority", "localhost"),
            &http2::field("authorization", "Bearer service"),
            &http2::field("content-type", "application/json"),
        ];
        let head = http2::frame(http2::HEADERS, http2::END_HEADERS, stream, &head.concat());
        let body = http2::frame(http2::DATA, http2::END_STREAM, stream, body(text).as_bytes());
        if self.connection.stream.write_all(&[head, body].concat()).is_err() {
            return Ok((End::Unknown, false));
        }
        let (mut answer, mut is_kept) = (Vec::new(), true);
        loop {
            let Ok(Some((kind, flags, at, payload))) = self.connection.hear_with_flags() else {
                return Ok((End::Unknown, false));
            };
            is_kept &= kind != http2::GOAWAY;
            if at != stream {
                continue;
            }
            match kind {
                http2::DATA => {
                    self.take(payload.len());
                    answer.extend(payload);
                }
                http2::RST_STREAM => return Ok((End::Unknown, is_kept)),
                _ => {}
            }
            let is_whole = matches!(kind, http2::DATA | http2::HEADERS);
            if is_whole && flags & http2::END_STREAM != 0 {
                return Ok((end_of(&String::from_utf8_lossy(&answer))?, is_kept));
            }
        }
    }
}

/// How a number ended whose answer has this body.
fn end_of(body: &str) -> Result<End> {
    if body.contains("\"results\":[{\"id\":") {
        return Ok(End::Accepted);
    }
    ensure!(body.contains("\"status\":503"), "{body}");
    Ok(End::Refused)
}

/// A service may publish as fast as it can.
const RULES: &str = r#"
[auth]
anonymous = true
[[auth.services]]
token = "service"
name = "feeder"
may = ["publish"]
[limits]
publishes_per_second = 0
[[topic_classes]]
pattern = "feed/*"
publish = ["services"]
"#;

#[test]
fn what_publishers_are_told_is_accepted_arrives_once() -> Result<()> {
    let server = Server::start_with_http(RULES)?;
    let mut device = Device::greet(server.tcp, "reader", &["feed/a"])?;
    let reader = spawn(move || -> Result<Vec<String>> {
        let mut heard = Vec::new();
        loop {
            match device.push()?.payload {
                Some(push::Payload::Text(text)) if text == "last" => return Ok(heard),
                Some(push::Payload::Text(text)) => heard.push(text),
                Some(push::Payload::Data(_)) | None => {}
            }
        }
    });
    let publishers = [
        Publisher::start::<Http1>("admin", server.admin),
        Publisher::start::<Http1>("http1", server.http()?),
        Publisher::start::<OverHttp2>("http2", server.http()?),
    ];
    let mut newest = None;
    for _ in 0..3 {
        for publisher in &publishers {
            publisher.await_more(30)?;
        }
        let (process, _) = upgrade(&server)?;
        drop(newest.replace(process));
    }
    for publisher in &publishers {
        publisher.await_more(30)?;
        publisher.stop.store(true, Ordering::Relaxed);
    }
    let mut ends = HashMap::new();
    for publisher in publishers {
        let told =
            publisher.thread.join().map_err(|_| anyhow::anyhow!("a publisher has failed"))?;
        let told = told?;
        for end in [End::Refused, End::Unknown] {
            let count = told.values().filter(|told| **told == end).count();
            println!("{end:?}: {count} of {}", told.len());
        }
        ends.extend(told);
    }
    let last = Http1::connect(server.admin)?.publish("last")?;
    ensure!(last.0 == End::Accepted);
    let heard = reader.join().map_err(|_| anyhow::anyhow!("the reader has failed"))?;
    for text in heard? {
        let end = ends.remove(&text).with_context(|| format!("{text} comes twice"))?;
        ensure!(end != End::Refused, "{text} was refused, and comes");
    }
    ends.retain(|_, end| *end == End::Accepted);
    ensure!(ends.is_empty(), "accepted, and not delivered: {ends:?}");
    Ok(())
}
