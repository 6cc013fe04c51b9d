//! Backends that a gateway calls: HTTP/1.1 servers in a thread of this process, which answer as they are
//! told and count what comes.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use crate::spawn::free_port;

/// The thread in which backends answer. They end when this is dropped.
pub(crate) struct Host(Runtime);

/// A backend.
pub(crate) struct Backend {
    /// Its address.
    pub(crate) addr: SocketAddr,
    requests: Arc<AtomicU64>,
}

/// What a backend does with requests.
#[derive(Clone)]
pub(crate) enum Conduct {
    /// It answers after a time.
    Answers {
        /// This time.
        after: Duration,
        /// The status.
        status: u16,
        /// Makes the content from that of the request.
        content: Answerer,
    },
    /// It resets the connection when the first bytes of a request have come.
    Resets,
    /// It does not listen.
    Refuses,
}

/// Makes the content of an answer, in JSON, from that of the request.
pub(crate) type Answerer = Arc<dyn Fn(&[u8]) -> Bytes + Send + Sync>;

impl Host {
    /// Starts the thread, on the CPUs of the calling one.
    pub(crate) fn start() -> Result<Host> {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).thread_name("backends").enable_all();
        Ok(Host(builder.build().context("cannot start the thread of the backends")?))
    }

    /// Starts a backend.
    pub(crate) fn backend(&self, conduct: Conduct) -> Result<Backend> {
        let requests = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&requests);
        let addr = match conduct {
            Conduct::Refuses => free_port()?,
            conduct @ (Conduct::Answers { .. } | Conduct::Resets) => {
                let anywhere = (Ipv4Addr::LOCALHOST, 0);
                let listener = self.0.block_on(TcpListener::bind(anywhere));
                let listener = listener.context("a backend cannot listen")?;
                let addr = listener.local_addr().context("a backend cannot listen")?;
                self.0.spawn(serve(listener, conduct, counted));
                addr
            }
        };
        Ok(Backend { addr, requests })
    }

    /// Runs a task in the thread until it ends.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.0.block_on(self.0.spawn(task)).context("a task of the bench panicked")?
    }
}

impl Backend {
    /// Requests that have come so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Conduct {
    /// Answers at once, with what this function makes of the request's content.
    pub(crate) fn answers(content: impl Fn(&[u8]) -> Bytes + Send + Sync + 'static) -> Conduct {
        Conduct::Answers { after: Duration::ZERO, status: 200, content: Arc::new(content) }
    }

    /// Answers at once, always the same.
    pub(crate) fn says(text: &'static str) -> Conduct {
        Conduct::answers(|_| Bytes::from_static(text.as_bytes()))
    }

    /// The same after a time.
    pub(crate) fn late(self, late: Duration) -> Conduct {
        match self {
            Conduct::Answers { status, content, .. } => {
                Conduct::Answers { after: late, status, content }
            }
            other @ (Conduct::Resets | Conduct::Refuses) => other,
        }
    }
}

async fn serve(listener: TcpListener, conduct: Conduct, requests: Arc<AtomicU64>) {
    // An accept that fails concerns one connection, whose client sees it.
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        tokio::spawn(talk(socket, conduct.clone(), Arc::clone(&requests)));
    }
}

async fn talk(socket: TcpStream, conduct: Conduct, requests: Arc<AtomicU64>) {
    let (after, status, content) = match conduct {
        Conduct::Answers { after, status, content } => (after, status, content),
        Conduct::Resets => {
            let came = socket.readable().await;
            requests.fetch_add(u64::from(came.is_ok()), Ordering::Relaxed);
            // If this fails, the connection ends in order, and unanswered all the same.
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
            return;
        }
        Conduct::Refuses => return,
    };
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let answer = service_fn(|request: Request<Incoming>| {
        requests.fetch_add(1, Ordering::Relaxed);
        let content = Arc::clone(&content);
        async move {
            // A request that is cut short gets an answer that nobody reads.
            let asked = request.into_body().collect().await;
            let asked = asked.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            if !after.is_zero() {
                sleep(after).await;
            }
            let mut answer = Response::new(Full::new(content(&asked)));
            *answer.status_mut() = status;
            let json = hyper::header::HeaderValue::from_static("application/json");
            answer.headers_mut().insert(CONTENT_TYPE, json);
            Ok::<_, Infallible>(answer)
        }
    });
    // The client judges the end of a connection.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
}
