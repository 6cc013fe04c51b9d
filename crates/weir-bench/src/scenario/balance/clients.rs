//! Clients that send GET requests at a fixed rate, whatever becomes of the earlier ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::stats::Lags;

/// A load on one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) addr: SocketAddr,
    pub(super) connections: u32,
    /// Requests a second, over all connections.
    pub(super) rate: f64,
    pub(super) seconds: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    /// Answers with status 200.
    pub(super) answered: u64,
    /// The others, by kind.
    pub(super) errors: BTreeMap<String, u64>,
    /// From the moment at which a request was due to the end of its answer, whatever the status.
    pub(super) lags: Lags,
}

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a load. Each connection sends its requests in turn; one that is late does not move the others.
pub(super) async fn run(load: Load) -> Result<Tally> {
    let start = clock::monotonic() + Duration::from_millis(100);
    let mut clients = JoinSet::new();
    for number in 0..load.connections {
        clients.spawn(ask(load, number, start));
    }
    let mut all = Tally::default();
    while let Some(one) = clients.join_next().await {
        let one = one.context("a client panicked")?;
        all.sent += one.sent;
        all.answered += one.answered;
        all.lags.add(&one.lags.counts());
        for (kind, count) in one.errors {
            *all.errors.entry(kind).or_insert(0) += count;
        }
    }
    Ok(all)
}

async fn ask(load: Load, number: u32, start: Duration) -> Tally {
    let every = Duration::from_secs_f64(f64::from(load.connections) / load.rate);
    let mut due = start + Duration::from_secs_f64(f64::from(number) / load.rate);
    let mut tally = Tally::default();
    let mut sender = None;
    while due < start + load.seconds {
        sleep(due.saturating_sub(clock::monotonic())).await;
        tally.sent += 1;
        match timeout(PATIENCE, exchange(&mut sender, load.addr)).await {
            Ok(Ok(200)) => tally.answered += 1,
            Ok(Ok(status)) => tally.note(format!("status_{status}")),
            Ok(Err(kind)) => {
                sender = None;
                tally.note(kind.to_owned());
            }
            Err(_) => {
                sender = None;
                tally.note("timeout".to_owned());
            }
        }
        let lag = clock::monotonic().saturating_sub(due);
        tally.lags.record(u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX));
        due += every;
    }
    tally
}

/// Sends a request and reads the answer to its end; returns its status. Opens a connection if there is
/// none.
async fn exchange(
    sender: &mut Option<SendRequest<Empty<Bytes>>>,
    addr: SocketAddr,
) -> Result<u16, &'static str> {
    let open = sender.take().filter(|sender| !sender.is_closed());
    let sender = sender.insert(match open {
        Some(open) => open,
        None => connect(addr).await?,
    });
    sender.ready().await.map_err(|_| "closed")?;
    let request = Request::get("/content").header(HOST, addr.to_string());
    let request = request.body(Empty::new()).map_err(|_| "request")?;
    let answer = sender.send_request(request).await.map_err(|_| "no_answer")?;
    let status = answer.status().as_u16();
    answer.into_body().collect().await.map_err(|_| "cut_short")?;
    Ok(status)
}

async fn connect(addr: SocketAddr) -> Result<SendRequest<Empty<Bytes>>, &'static str> {
    let socket = TcpStream::connect(addr).await.map_err(|_| "connect")?;
    socket.set_nodelay(true).map_err(|_| "connect")?;
    let (sender, connection) = handshake(TokioIo::new(socket)).await.map_err(|_| "connect")?;
    // What ends it, the next request sees.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

impl Tally {
    fn note(&mut self, kind: String) {
        *self.errors.entry(kind).or_insert(0) += 1;
    }
}
