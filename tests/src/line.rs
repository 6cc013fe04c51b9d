//! A client of HTTP/1.1 that keeps its connection, and makes another one when that has broken.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::admin::Answer;
use crate::wait::PATIENCE;

/// A connection that is made when it is needed.
pub struct Line {
    addr: SocketAddr,
    stream: Option<TcpStream>,
}

impl Line {
    /// None is there yet.
    pub fn new(addr: SocketAddr) -> Line {
        Line { addr, stream: None }
    }

    /// `POST path` with a JSON body; with a token, if there is one. Where it fails the next one connects anew.
    pub fn post(&mut self, path: &str, token: Option<&str>, body: &str) -> io::Result<Answer> {
        let token = token.map(|token| ("Authorization", format!("Bearer {token}")));
        self.post_with(path, token, body)
    }

    /// The same with one more field of the head, if there is one.
    pub fn post_with(
        &mut self,
        path: &str,
        field: Option<(&str, String)>,
        body: &str,
    ) -> io::Result<Answer> {
        let field = field.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
        let (addr, length) = (self.addr, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {addr}\r\n{field}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(addr)?,
        };
        stream.write_all(request.as_bytes())?;
        let (answer, is_kept) = read(&mut stream)?;
        self.stream = Some(stream).filter(|_| is_kept);
        Ok(answer)
    }
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    // While nobody listens there, a connection may be given its own goal as its port.
    if stream.local_addr()? == addr {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// One answer, and whether another one may follow it.
fn read(stream: &mut TcpStream) -> io::Result<(Answer, bool)> {
    let wrong = || io::Error::from(ErrorKind::InvalidData);
    let mut heard = Vec::new();
    let mut buf = [0; 4096];
    loop {
        if let Some(end) = heard.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&heard[..end]).into_owned();
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
            let field = |name: &str| {
                let mut fields = head.lines().filter_map(|line| line.split_once(": "));
                fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
            };
            let length: usize =
                field("content-length").unwrap_or("0").parse().map_err(|_| wrong())?;
            if let Some(body) = heard.get(end + 4..end + 4 + length) {
                let body = String::from_utf8_lossy(body).into_owned();
                let is_kept = field("connection") != Some("close");
                return Ok((Answer { status: status.ok_or_else(wrong)?, head, body }, is_kept));
            }
        }
        match stream.read(&mut buf)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            bytes => heard.extend_from_slice(&buf[..bytes]),
        }
    }
}
