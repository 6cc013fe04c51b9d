//! Clients of the self-test: they open connections and throw away what arrives.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::epoll;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use weir_client::TlsOptions;
use weir_wire::v1::{self, client_message, server_message};
use weir_wire::{ProstMessage as _, frame};

/// Connections that have subscribed to the topic. What arrives on them is thrown away, with TLS
/// unopened.
pub(super) struct Clients {
    sockets: Arc<Vec<TcpStream>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Clients {
    /// Opens at most `count` connections, until the deadline.
    ///
    /// Errors: the gateway refuses a connection, or says something else.
    pub(super) async fn open(
        addr: SocketAddr,
        tls: Option<&TlsOptions>,
        count: usize,
        deadline: Instant,
    ) -> Result<Clients> {
        let next = Arc::new(AtomicUsize::new(0));
        let mut openers = JoinSet::new();
        for _ in 0..OPENERS.min(count) {
            let (next, tls) = (Arc::clone(&next), tls.cloned());
            openers.spawn(async move {
                let mut sockets = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || Instant::now() > deadline {
                        return Ok(sockets);
                    }
                    let opened = Box::pin(open(addr, tls.as_ref(), number));
                    let patience = deadline + PATIENCE;
                    let socket =
                        timeout_at(patience, opened).await.context("no Welcome in time")?;
                    sockets.push(socket?);
                }
            });
        }
        let mut sockets = Vec::with_capacity(count);
        while let Some(opened) = openers.join_next().await {
            let opened: Result<Vec<TcpStream>> = opened.context("a client panicked")?;
            sockets.extend(opened?);
        }
        let (sockets, stop) = (Arc::new(sockets), Arc::new(AtomicBool::new(false)));
        Ok(Clients { sockets, stop, thread: None })
    }

    pub(super) fn count(&self) -> usize {
        self.sockets.len()
    }

    /// Begins to read.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, socket) in self.sockets.iter().enumerate() {
            epoll::add(
                &epoll,
                socket,
                epoll::EventData::new_u64(index as u64),
                epoll::EventFlags::IN,
            )?;
        }
        let (sockets, stop) = (Arc::clone(&self.sockets), Arc::clone(&self.stop));
        let run = move || throw_away(&epoll, &sockets, &stop);
        self.thread = Some(thread::Builder::new().name("doctor-clients".to_owned()).spawn(run)?);
        Ok(())
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

async fn open(addr: SocketAddr, tls: Option<&TlsOptions>, number: usize) -> Result<TcpStream> {
    let socket = tokio::net::TcpStream::connect(addr).await.context("cannot connect")?;
    // Otherwise the port stays in use for a minute.
    socket.set_zero_linger()?;
    let socket = match tls {
        None => {
            let mut socket = socket;
            greet(&mut socket, number).await?;
            socket
        }
        Some(tls) => {
            let mut stream = tls.connect(socket).await.context("no TLS handshake")?;
            greet(&mut stream, number).await?;
            stream.into_inner().0
        }
    };
    Ok(socket.into_std()?)
}

/// Says `Hello` with the topic, and waits for `Welcome` and `Subscribed`.
async fn greet(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), number: usize) -> Result<()> {
    let topic = v1::Subscribe { topic: super::TOPIC.to_owned(), position: None, presence: false };
    let hello = v1::Hello {
        device_id: format!("weir-doctor-{number:012}"),
        topics: vec![topic],
        ..v1::Hello::default()
    };
    let mut out = Vec::new();
    let kind = Some(client_message::Kind::Hello(hello));
    frame::encode(&v1::ClientMessage { kind }, &mut out);
    stream.write_all(&out).await?;
    stream.flush().await?;
    let mut received = Vec::new();
    loop {
        while let Some((body, used)) = frame::decode(&received, FRAME_BYTES_MAX)? {
            match v1::ServerMessage::decode(body)?.kind {
                Some(server_message::Kind::Welcome(_)) => {}
                Some(server_message::Kind::Subscribed(_)) => return Ok(()),
                other => bail!("the gateway answered {other:?}"),
            }
            received.drain(..used);
        }
        if stream.read_buf(&mut received).await? == 0 {
            bail!("the gateway closed a connection");
        }
    }
}

fn throw_away(epoll: &OwnedFd, sockets: &[TcpStream], stop: &AtomicBool) {
    use std::io::Read as _;
    let (mut buf, mut events) = (vec![0; 64 << 10], Vec::with_capacity(1024));
    let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let space = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(epoll, space, Some(&wait)).is_err() {
            continue;
        }
        for event in events.drain(..) {
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let Some(mut socket) = sockets.get(index) else { continue };
            // What is left is told again.
            if !matches!(socket.read(&mut buf), Ok(1..)) {
                let _ = epoll::delete(epoll, socket);
            }
        }
    }
}

/// Connections that open at the same time.
const OPENERS: usize = 32;
/// For those that have begun.
const PATIENCE: Duration = Duration::from_secs(10);
const FRAME_BYTES_MAX: usize = 1 << 16;
