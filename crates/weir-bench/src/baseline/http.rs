//! The baseline of HTTP/1.1: finds the end of each request head and sends a fixed answer.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::crypto::aws_lc_rs;
use rustls::{ServerConfig, ServerConnection};

use super::{EVENTS_MAX, Ear, LISTENER, PATIENCE, READ_BYTES};
use crate::peer::Peer;
use crate::process::{Cpus, Pin};
use crate::protocol::{BaselineAnswer, from_hex};
use crate::tls::chain_and_key;

/// The options of a bare HTTP server.
#[derive(Debug, Args)]
pub(crate) struct HttpBaselineArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// CPUs to bind to: a list such as 0,2-3, or "none".
    #[arg(long, value_name = "CPUS", default_value = "none")]
    pub(crate) pin: Pin,
    /// Use TLS with this certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// The certificate's key, in PEM.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
}

/// A handle of a bare HTTP server's process.
pub(crate) struct HttpServer {
    peer: Peer,
    /// The address of the listener.
    pub(crate) addr: SocketAddr,
}

/// The responder itself.
struct Responder {
    ear: Ear,
    tls: Option<Arc<ServerConfig>>,
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    /// Several answers, one after the other.
    answers: Vec<u8>,
    answer_bytes: usize,
    buf: Vec<u8>,
}

struct Conn {
    fd: OwnedFd,
    tls: Option<Box<ServerConnection>>,
    /// Bytes of a head's end that have come.
    matched: usize,
    /// Bytes that the socket has not taken.
    pending: Vec<u8>,
}

/// The end of a head.
const END: &[u8; 4] = b"\r\n\r\n";
/// Bytes of answers sent at once, unless a single answer is longer.
const BURST_BYTES: usize = 256 << 10;
/// The default answer.
const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 11\r\n\
    date: Sat, 21 Nov 2026 20:00:00 GMT\r\n\r\nHello World";

impl HttpServer {
    /// Starts `baseline NAME ARGUMENTS`.
    pub(crate) fn start(name: &str, arguments: &[&str], cpus: Option<&Cpus>) -> Result<HttpServer> {
        let mut peer = Peer::start("baseline", &[&[name], arguments].concat(), cpus)?;
        match peer.hear(PATIENCE)? {
            BaselineAnswer::Listening(addr) => Ok(HttpServer { peer, addr }),
            other @ (BaselineAnswer::Sent { .. } | BaselineAnswer::Holds(_)) => {
                bail!("the baseline said {other:?}")
            }
        }
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.peer.pid()
    }
}

/// Binds the process to CPUs, and makes the TLS configuration if there is a certificate.
pub(super) fn prepare(args: &HttpBaselineArgs, alpn: &str) -> Result<Option<Arc<ServerConfig>>> {
    match &args.pin {
        Pin::Cpus(cpus) => cpus.bind_thread()?,
        Pin::Auto | Pin::None => {}
    }
    let (Some(certificate), Some(key)) = (&args.certificate, &args.key) else { return Ok(None) };
    let (chain, key) = chain_and_key(&(read(certificate)? + &read(key)?))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    Ok(Some(Arc::new(config)))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Runs the responder until the process is killed. It sends `answer`, in hexadecimal, or an answer with
/// this much content.
pub(crate) fn run(
    args: &HttpBaselineArgs,
    answer: Option<&str>,
    content_bytes: Option<usize>,
) -> Result<()> {
    let tls = prepare(args, "http/1.1")?;
    let answer = match (answer, content_bytes) {
        (Some(digits), _) => from_hex(digits).context("an answer that is not hexadecimal")?,
        (None, Some(bytes)) => answer_of(bytes),
        (None, None) => HELLO.to_vec(),
    };
    let (ear, addr) = Ear::listen(args.listen)?;
    super::answer(&mut io::stdout(), &BaselineAnswer::Listening(addr))?;
    let mut responder = Responder {
        ear,
        tls,
        conns: Vec::new(),
        free: Vec::new(),
        answers: answer.repeat((BURST_BYTES / answer.len()).max(1)),
        answer_bytes: answer.len(),
        buf: vec![0; READ_BYTES],
    };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
    loop {
        responder.ear.wait(&mut events)?;
        for event in &events {
            let data = event.data;
            match data.u64() {
                LISTENER => responder.accept()?,
                index => responder.handle(usize::try_from(index).context("an index is a usize")?),
            }
        }
    }
}

/// An answer with so much content, of all letters in turn.
fn answer_of(bytes: usize) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {bytes}\r\n\
         date: Sat, 21 Nov 2026 20:00:00 GMT\r\n\r\n"
    )
    .into_bytes();
    answer.extend((b'a'..=b'z').cycle().take(bytes));
    answer
}

impl Responder {
    fn accept(&mut self) -> Result<()> {
        while let Some(fd) = self.ear.accept()? {
            let index = self.free.pop().unwrap_or_else(|| {
                self.conns.push(None);
                self.conns.len() - 1
            });
            self.ear.watch(&fd, index, EventFlags::IN)?;
            let tls = self.tls.clone().map(ServerConnection::new).transpose()?.map(Box::new);
            self.conns[index] = Some(Conn { fd, tls, matched: 0, pending: Vec::new() });
        }
        Ok(())
    }

    fn handle(&mut self, index: usize) {
        let Some(Some(conn)) = self.conns.get_mut(index) else { return };
        let waited = conn.waits();
        let result = match &mut conn.tls {
            _ if waited => conn.flush(),
            None => conn.respond(&mut self.buf, &self.answers, self.answer_bytes),
            Some(_) => conn.respond_sealed(&mut self.buf, &self.answers, self.answer_bytes),
        };
        let waits = conn.waits();
        if result.is_err() {
            self.conns[index] = None;
            self.free.push(index);
        } else if waits != waited {
            let interest = if waits { EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(index as u64);
            // If this fails, the connection gets no further events.
            let _ = epoll::modify(&self.ear.epoll, &conn.fd, data, interest);
        }
    }
}

impl Conn {
    /// Whether bytes wait for the socket.
    fn waits(&self) -> bool {
        !self.pending.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// One read, one send.
    fn respond(&mut self, buf: &mut [u8], answers: &[u8], answer_bytes: usize) -> io::Result<()> {
        let got = receive(&self.fd, buf)?;
        let mut left = heads(&buf[..got], &mut self.matched) * answer_bytes;
        while left > 0 {
            let answers = &answers[..left.min(answers.len())];
            left -= answers.len();
            let room = self.pending.is_empty();
            let sent = if room { send_now(&self.fd, answers)? } else { 0 };
            self.pending.extend_from_slice(&answers[sent..]);
        }
        Ok(())
    }

    fn respond_sealed(
        &mut self,
        buf: &mut [u8],
        answers: &[u8],
        answer_bytes: usize,
    ) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let (raw, plain) = buf.split_at_mut(READ_BYTES / 2);
        let got = receive(&self.fd, raw)?;
        let mut raw = &raw[..got];
        while !raw.is_empty() {
            tls.read_tls(&mut raw)?;
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let bytes = state.plaintext_bytes_to_read().min(plain.len());
            tls.reader().read_exact(&mut plain[..bytes])?;
            let mut left = heads(&plain[..bytes], &mut self.matched) * answer_bytes;
            while left > 0 {
                let answers = &answers[..left.min(answers.len())];
                left -= answers.len();
                tls.writer().write_all(answers)?;
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            let sent = send_now(&self.fd, &self.pending)?;
            self.pending.drain(..sent);
        }
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            match tls.write_tls(&mut Socket(&self.fd)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The received bytes; none after a signal, an error at the end.
fn receive(fd: &OwnedFd, buf: &mut [u8]) -> io::Result<usize> {
    match recv(fd, buf, RecvFlags::empty()) {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((got, _)) => Ok(got),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// The bytes that the socket takes now.
fn send_now(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    match send(fd, bytes, SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// The number of heads that end in `bytes`. `matched` keeps the matched bytes of an end between
/// calls.
fn heads(bytes: &[u8], matched: &mut usize) -> usize {
    let mut count = 0;
    for byte in bytes {
        if *byte == END[*matched] {
            *matched += 1;
            if *matched == END.len() {
                *matched = 0;
                count += 1;
            }
        } else {
            *matched = usize::from(*byte == END[0]);
        }
    }
    count
}

/// A socket to write to without waiting.
struct Socket<'a>(&'a OwnedFd);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_as_much_content_as_it_says() {
        let answer = answer_of(1024);
        let text = String::from_utf8(answer).unwrap();
        let (head, content) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("content-length: 1024") && content.len() == 1024, "{head}");
    }

    #[test]
    fn ends_of_heads_are_counted_across_reads() {
        let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3);
        for cut in 0..=requests.len() {
            let mut matched = 0;
            let (first, second) = requests.split_at(cut);
            let count = heads(first, &mut matched) + heads(second, &mut matched);
            assert_eq!((count, matched), (3, 0), "cut at {cut}");
        }
        assert_eq!(heads(b"\r\n\r\r\n\r\n", &mut 0), 1);
    }
}
