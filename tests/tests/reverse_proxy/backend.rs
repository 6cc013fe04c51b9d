//! A service behind the gateway: it reads requests by the letter of RFC 9112 and keeps what it sees.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::Result;

/// A running service; when dropped it accepts nothing more.
pub(crate) struct Backend {
    pub(crate) addr: SocketAddr,
    pub(crate) seen: Arc<Seen>,
}

/// What a service has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) requests: Mutex<Vec<Request>>,
    /// Breaches of the standard.
    pub(crate) breaches: Mutex<Vec<String>>,
    /// Requests that broke off before their end.
    pub(crate) broken_off: AtomicUsize,
    is_gone: AtomicBool,
}

/// A whole request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) line: String,
    /// With names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// Answers a request: `false` ends the connection.
pub(crate) type Answerer = fn(&Request, &mut TcpStream) -> io::Result<bool>;

impl Backend {
    pub(crate) fn start(answer: Answerer) -> Result<Backend> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let addr = listener.local_addr()?;
        let seen = Arc::<Seen>::default();
        let of_thread = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, Ok(stream)) = (Arc::clone(&of_thread), stream) else { return };
                if seen.is_gone.load(Ordering::Relaxed) {
                    return;
                }
                thread::spawn(move || serve(stream, &seen, answer));
            }
        });
        Ok(Backend { addr, seen })
    }

    /// The configuration of a gateway with this service behind a route.
    pub(crate) fn upstream(&self, more: &str) -> String {
        format!("[[upstreams]]\nname = \"api\"\naddresses = [\"{}\"]\n{more}\n", self.addr)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.seen.requests.lock().expect("no holder panics").clone()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.seen.is_gone.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.addr);
    }
}

impl Request {
    pub(crate) fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// The value of a header that came once.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.headers.iter().filter(|(known, _)| known == name);
        match (fields.next(), fields.next()) {
            (Some((_, value)), None) => Some(value),
            (Some(_), Some(_)) => panic!("{name} comes twice: {self:?}"),
            (None, _) => None,
        }
    }
}

/// Answers 200 with the request line as body.
pub(crate) fn echo(request: &Request, stream: &mut TcpStream) -> io::Result<bool> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.line.len());
    stream.write_all(&[head.as_bytes(), request.line.as_bytes()].concat())?;
    Ok(true)
}

fn serve(mut stream: TcpStream, seen: &Seen, answer: Answerer) {
    let mut bytes = Vec::new();
    loop {
        match read_request(&mut stream, &mut bytes) {
            Ok(Some(request)) => {
                seen.requests.lock().expect("no holder panics").push(request.clone());
                if !answer(&request, &mut stream).unwrap_or(false) {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                seen.breaches.lock().expect("no holder panics").push(error.to_string());
                return;
            }
            Err(_) => {
                seen.broken_off.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }
}

fn breach(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The next request; `None` at an end between two.
fn read_request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let end = loop {
        if let Some(end) = find(bytes, b"\r\n\r\n") {
            break end;
        }
        if !more(stream, bytes)? {
            return if bytes.is_empty() {
                Ok(None)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.drain(..end + 4);
    let mut request = Request::default();
    for (index, line) in head.split("\r\n").enumerate() {
        if line.contains(['\r', '\n', '\0']) {
            return Err(breach(format!("a bare CR, LF or NUL in {line:?}")));
        }
        if index == 0 {
            let parts: Vec<_> = line.split(' ').collect();
            if parts.len() != 3 || !parts[1].starts_with('/') || parts[2] != "HTTP/1.1" {
                return Err(breach(format!("the request line {line:?}")));
            }
            line.clone_into(&mut request.line);
            continue;
        }
        let Some((name, value)) = line.split_once(':') else {
            return Err(breach(format!("no header: {line:?}")));
        };
        let is_token =
            |char: char| char.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(char);
        if name.is_empty() || !name.chars().all(is_token) {
            return Err(breach(format!("the name of {line:?}")));
        }
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let count = |name: &str| request.headers.iter().filter(|(known, _)| known == name).count();
    if count("host") != 1 || count("content-length") + count("transfer-encoding") > 1 {
        return Err(breach(format!("an ambiguous head: {head:?}")));
    }
    request.body = match (request.header("content-length"), request.header("transfer-encoding")) {
        (Some(length), _) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            take(stream, bytes, length.parse().map_err(|_| breach(head.clone()))?)?
        }
        (None, None) => Vec::new(),
        (None, Some("chunked")) => read_chunks(stream, bytes)?,
        _ => return Err(breach(format!("the framing of {head:?}"))),
    };
    Ok(Some(request))
}

fn read_chunks(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = loop {
            match find(bytes, b"\r\n") {
                Some(end) => break end,
                None if more(stream, bytes)? => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        let size = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes.drain(..end + 2);
        if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(breach(format!("the chunk size {size:?}")));
        }
        let size = usize::from_str_radix(&size, 16).map_err(|_| breach(size))?;
        body.extend(take(stream, bytes, size)?);
        if take(stream, bytes, 2)? != b"\r\n" {
            return Err(breach("a chunk without an end".to_owned()));
        }
        if size == 0 {
            return Ok(body);
        }
    }
}

fn take(stream: &mut TcpStream, bytes: &mut Vec<u8>, count: usize) -> io::Result<Vec<u8>> {
    while bytes.len() < count {
        if !more(stream, bytes)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(bytes.drain(..count).collect())
}

fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<bool> {
    let mut space = [0; 65_536];
    let count = stream.read(&mut space)?;
    bytes.extend_from_slice(&space[..count]);
    Ok(count > 0)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
