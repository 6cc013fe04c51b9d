//! Peers over streams in memory. They speak HTTP/1.1 byte by byte, as a test says.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::attempt::{Connect, Connecting, Source};
use crate::dial::{ByteStream, DialError, DialStatus};
use crate::names::Endpoint;
use crate::settings::Settings;
use crate::upstream::Upstream;

/// What a peer does with a connection or a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Act {
    /// Answers with this status and the body "done".
    Answer(u16),
    /// The same, after this time.
    After(Duration, u16),
    /// Sends the head and half of the body, and no more.
    Half,
    /// Sends the head and half of the body, and closes.
    Break,
    /// Never answers.
    Silent,
    /// Reads the head of the request and closes.
    Cut,
    /// Answers, and closes the idle connection.
    AnswerAndClose,
    /// Switches protocols, and then sends back what it gets.
    Switch,
    /// Does not let anybody connect.
    Refuse,
    /// Does not even say that nobody may connect.
    Unreachable,
}

/// The endpoints of a test.
#[derive(Clone)]
pub(super) struct Peers {
    peers: Arc<[Peer]>,
    names: watch::Sender<Arc<[Endpoint]>>,
}

/// One endpoint.
pub(super) struct Peer {
    endpoint: Endpoint,
    act: Mutex<Act>,
    pub(super) dials: AtomicUsize,
    pub(super) open: Arc<AtomicUsize>,
    pub(super) heads: Arc<Mutex<Vec<HeaderMap>>>,
    /// Serves a stream in its own way.
    serve: Option<fn(DuplexStream, Act)>,
}

struct Open(Arc<AtomicUsize>);

impl Peers {
    pub(super) fn new<const N: usize>(acts: [Act; N]) -> Peers {
        Peers::serving(acts, None)
    }

    pub(super) fn serving<const N: usize>(
        acts: [Act; N],
        serve: Option<fn(DuplexStream, Act)>,
    ) -> Peers {
        let peers = acts.iter().enumerate().map(|(index, act)| Peer {
            endpoint: endpoint(index),
            act: Mutex::new(*act),
            dials: AtomicUsize::new(0),
            open: Arc::default(),
            heads: Arc::default(),
            serve,
        });
        let peers: Arc<[Peer]> = peers.collect();
        let names = peers.iter().map(|peer| peer.endpoint.clone()).collect();
        Peers { peers, names: watch::Sender::new(names) }
    }

    pub(super) fn upstream(&self, settings: Settings) -> Upstream {
        let source = Source::Script(self.names.subscribe());
        Upstream::with(settings, source, Box::new(self.clone()), Some(1))
    }

    /// From now on only these stand behind the names.
    pub(super) fn rename(&self, indexes: &[usize]) {
        let names = indexes.iter().map(|&index| self.peers[index].endpoint.clone());
        self.names.send_replace(names.collect());
    }

    pub(super) fn peer(&self, index: usize) -> &Peer {
        &self.peers[index]
    }

    /// How many requests each has got since the last call.
    pub(super) fn take_counts(&self) -> Vec<usize> {
        self.peers
            .iter()
            .map(|peer| std::mem::take(&mut *peer.heads.lock().unwrap()).len())
            .collect()
    }
}

impl Peer {
    pub(super) fn set(&self, act: Act) {
        *self.act.lock().unwrap() = act;
    }

    pub(super) fn dials(&self) -> usize {
        self.dials.load(Ordering::SeqCst)
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    pub(super) fn last_head(&self) -> HeaderMap {
        self.heads.lock().unwrap().last().unwrap().clone()
    }
}

impl Connect for Peers {
    fn connect<'a>(&'a self, endpoint: &'a Endpoint) -> Connecting<'a> {
        let peer = self.peers.iter().position(|peer| peer.endpoint == *endpoint).unwrap();
        let (peers, peer) = (self.clone(), &self.peers[peer]);
        Box::pin(async move {
            peer.dials.fetch_add(1, Ordering::SeqCst);
            let act = *peer.act.lock().unwrap();
            // A connection takes a moment.
            sleep(Duration::from_micros(100)).await;
            if act == Act::Refuse {
                return Err(DialError::Connect(io::ErrorKind::ConnectionRefused.into()));
            }
            if act == Act::Unreachable {
                std::future::pending::<()>().await;
            }
            let (ours, theirs) = duplex(64 * 1024);
            match peer.serve {
                Some(serve) => serve(theirs, act),
                None => {
                    let index = peers.peers.iter().position(|it| it.endpoint == peer.endpoint);
                    tokio::spawn(serve_http1(peers.clone(), index.unwrap(), theirs));
                }
            }
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        })
    }

    fn scheme(&self) -> Scheme {
        Scheme::HTTP
    }

    fn status(&self) -> DialStatus {
        DialStatus::default()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve_http1(peers: Peers, index: usize, mut stream: DuplexStream) {
    let peer = &peers.peers[index];
    peer.open.fetch_add(1, Ordering::SeqCst);
    let _open = Open(Arc::clone(&peer.open));
    while let Some(head) = read_request(&mut stream).await {
        peer.heads.lock().unwrap().push(head);
        let act = *peer.act.lock().unwrap();
        let (status, wait) = match act {
            Act::Answer(status) => (status, Duration::ZERO),
            Act::After(wait, status) => (status, wait),
            Act::AnswerAndClose => (200, Duration::ZERO),
            Act::Half => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndo").await.unwrap();
                return wait_for_end(&mut stream).await;
            }
            Act::Break => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndo").await.unwrap();
                return;
            }
            Act::Silent => return wait_for_end(&mut stream).await,
            Act::Cut | Act::Refuse | Act::Unreachable => return,
            Act::Switch => {
                let head = b"HTTP/1.1 101 \r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
                stream.write_all(head).await.unwrap();
                let (mut read, mut write) = tokio::io::split(stream);
                let _ = tokio::io::copy(&mut read, &mut write).await;
                return;
            }
        };
        sleep(wait).await;
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 4\r\n\r\ndone");
        if stream.write_all(head.as_bytes()).await.is_err() || act == Act::AnswerAndClose {
            return;
        }
    }
}

async fn wait_for_end(stream: &mut DuplexStream) {
    while stream.read_u8().await.is_ok() {}
}

/// The head of a request, without its line; the body is read too. `None`: the end.
async fn read_request(stream: &mut DuplexStream) -> Option<HeaderMap> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().skip(1).filter_map(|line| line.split_once(": "));
    let head: HeaderMap = lines
        .map(|(name, value)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        })
        .collect();
    let length = head.get("content-length").map_or("0", |length| length.to_str().unwrap());
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some(head)
}

pub(super) fn endpoint(index: usize) -> Endpoint {
    Endpoint::Tcp { addr: format!("10.0.0.{index}:80").parse().unwrap(), name: None }
}
