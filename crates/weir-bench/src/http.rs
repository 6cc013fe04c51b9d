//! A small blocking HTTP/1.1 client for the admin address: one connection, kept alive.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// A connection to the admin address, opened when first needed and again after a failure.
pub(crate) struct Http {
    addr: SocketAddr,
    token: Option<String>,
    stream: Option<BufReader<TcpStream>>,
    request: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    /// Status code.
    pub(crate) status: u16,
    /// Content.
    pub(crate) body: String,
}

/// Longest answer that is read, in bytes.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Longest line of a head, and most lines.
const LINE_BYTES_MAX: u64 = 16 << 10;
const LINES_MAX: usize = 100;
/// Longest wait for the server at each step.
const PATIENCE: Duration = Duration::from_secs(20);

impl Http {
    /// A client of `addr`; does not connect yet.
    pub(crate) fn new(addr: SocketAddr, token: Option<String>) -> Http {
        Http { addr, token, stream: None, request: Vec::new() }
    }

    /// Requests a resource.
    pub(crate) fn get(&mut self, path: &str) -> Result<Response> {
        self.exchange("GET", path, None, None)
    }

    /// Posts a JSON document under an idempotency key.
    pub(crate) fn post_once(&mut self, path: &str, json: &str, key: &str) -> Result<Response> {
        self.exchange("POST", path, Some(json), Some(key))
    }

    /// Posts a JSON document.
    pub(crate) fn post(&mut self, path: &str, json: &str) -> Result<Response> {
        self.exchange("POST", path, Some(json), None)
    }

    fn exchange(
        &mut self,
        method: &str,
        path: &str,
        json: Option<&str>,
        key: Option<&str>,
    ) -> Result<Response> {
        let result = self.try_exchange(method, path, json, key);
        if result.is_err() {
            self.stream = None;
        }
        result.with_context(|| format!("{method} http://{}{path}", self.addr))
    }

    fn try_exchange(
        &mut self,
        method: &str,
        path: &str,
        json: Option<&str>,
        key: Option<&str>,
    ) -> Result<Response> {
        self.request.clear();
        write!(self.request, "{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.addr)?;
        if let Some(token) = &self.token {
            write!(self.request, "Authorization: Bearer {token}\r\n")?;
        }
        if let Some(key) = key {
            write!(self.request, "Idempotency-Key: {key}\r\n")?;
        }
        if let Some(json) = json {
            write!(
                self.request,
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                json.len()
            )?;
        }
        write!(self.request, "\r\n{}", json.unwrap_or_default())?;
        // The server may have closed a connection that was long unused. Then nothing was lost, and
        // a new one serves.
        let stream = match self.stream.as_mut().filter(|stream| is_quiet(stream.get_ref())) {
            Some(stream) => stream,
            None => self.stream.insert(BufReader::new(connect(self.addr)?)),
        };
        stream.get_mut().write_all(&self.request)?;
        let (response, keep) = read_response(stream)?;
        if !keep {
            self.stream = None;
        }
        Ok(response)
    }
}

fn connect(addr: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Whether the connection has neither ended nor any unread bytes before the next request.
fn is_quiet(stream: &TcpStream) -> bool {
    let mut byte = [0];
    recv(stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) == Err(Errno::AGAIN)
}

/// Reads an answer; also returns whether the connection stays usable.
fn read_response(input: &mut impl BufRead) -> Result<(Response, bool)> {
    let status_line = line(input)?;
    let mut words = status_line.split(' ');
    let version = words.next().unwrap_or_default();
    let status: u16 = words.next().unwrap_or_default().parse().context("malformed status line")?;
    if !version.starts_with("HTTP/1.") {
        bail!("not HTTP/1.1: {status_line:?}");
    }
    let mut length = None;
    let mut chunked = false;
    let mut keep = true;
    for count in 0.. {
        let header = line(input)?;
        if header.is_empty() {
            break;
        }
        if count >= LINES_MAX {
            bail!("more than {LINES_MAX} header lines");
        }
        let (name, value) = header.split_once(':').context("malformed header line")?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>().context("malformed content-length")?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.eq_ignore_ascii_case("chunked");
        } else if name.eq_ignore_ascii_case("connection") {
            keep = !value.eq_ignore_ascii_case("close");
        }
    }
    let mut body = Vec::new();
    if chunked {
        read_chunks(input, &mut body)?;
    } else if status != 204 {
        let length = length.context("an answer without content-length")?;
        read_bytes(input, length, &mut body)?;
    }
    Ok((Response { status, body: String::from_utf8(body)? }, keep))
}

fn read_chunks(input: &mut impl BufRead, body: &mut Vec<u8>) -> Result<()> {
    loop {
        let head = line(input)?;
        let digits = head.split(';').next().unwrap_or_default().trim();
        let bytes = usize::from_str_radix(digits, 16).context("malformed chunk length")?;
        if bytes == 0 {
            while !line(input)?.is_empty() {}
            return Ok(());
        }
        read_bytes(input, bytes, body)?;
        if !line(input)?.is_empty() {
            bail!("a chunk is longer than it says");
        }
    }
}

fn read_bytes(input: &mut impl BufRead, bytes: usize, body: &mut Vec<u8>) -> Result<()> {
    let start = body.len();
    if bytes > BODY_BYTES_MAX - start.min(BODY_BYTES_MAX) {
        bail!("an answer longer than {BODY_BYTES_MAX} bytes");
    }
    body.resize(start + bytes, 0);
    Ok(input.read_exact(&mut body[start..])?)
}

fn line(input: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    input.take(LINE_BYTES_MAX).read_line(&mut line)?;
    let Some(line) = line.strip_suffix('\n') else { bail!("the connection ended within a line") };
    Ok(line.trim_end_matches('\r').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_to_their_end_and_no_further() {
        let mut input: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhelloHTTP/1.1 503 no\r\n\
            transfer-encoding: chunked\r\nConnection: close\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n\
            HTTP/1.1 204 none\r\n\r\n";
        let (first, keep) = read_response(&mut input).unwrap();
        assert_eq!((first.status, first.body.as_str(), keep), (200, "hello", true));
        let (second, keep) = read_response(&mut input).unwrap();
        assert_eq!((second.status, second.body.as_str(), keep), (503, "abc0123456789", false));
        let (third, _) = read_response(&mut input).unwrap();
        assert_eq!((third.status, third.body.as_str()), (204, ""));
        assert!(input.is_empty());
    }

    #[test]
    fn a_connection_that_the_server_closed_is_opened_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            // Two answers on each connection, then it is closed.
            for _ in 0..2 {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                for _ in 0..2 {
                    while !line(&mut stream).unwrap().is_empty() {}
                    stream
                        .get_mut()
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                        .unwrap();
                }
            }
        });
        let mut http = Http::new(addr, None);
        for _ in 0..2 {
            assert_eq!(http.get("/a").unwrap().body, "ok");
            assert_eq!(http.get("/b").unwrap().body, "ok");
            while http.stream.as_ref().is_some_and(|stream| is_quiet(stream.get_ref())) {
                std::thread::yield_now();
            }
        }
        server.join().unwrap();
    }

    #[test]
    fn malformed_answers_are_refused() {
        for text in [
            "",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        ] {
            assert!(read_response(&mut text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
