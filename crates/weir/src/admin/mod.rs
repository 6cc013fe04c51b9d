//! The admin API over HTTP/1.1: publishing, inspecting and closing, and the metrics page.
//!
//! It runs on the front, and reaches the gateway through a [`Handle`]. It serves connections in the
//! same way as the public edge: [`AcceptTrouble`] meets errors of accepting, [`Follower`] obeys the
//! orders to a connection, and [`say_last`] ends it. Its limits are constants, and it takes nothing
//! from admission or the byte budget. So it also works while these have no room.

mod added_pages;
mod audit;
mod calls;
mod closes;
mod debug;
mod device_list;
mod drain;
mod entrance;
mod events;
mod guard;
mod leased;
mod metrics;
mod notices;
mod openapi;
mod pages;
mod process;
mod profiles;
mod ready;
mod registry;
mod reload;
mod routes;
mod session;
mod stats;
mod views;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::HeaderValue;
use http::header::CONNECTION;
use http_body_util::Either;
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::base::door::Door;
use crate::base::handover::HandingOver;
use crate::base::profiler::Profiler;
use crate::base::reloader::Reloader;
use crate::connection::farewell::say_at_once;
use crate::connection::linger::{Linger, SILENCE, TlsEnd, say_last};
use crate::connection::listener::AcceptTrouble;
use crate::http::orders::Follower;
use crate::http::web::body::is_passed_over;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::publish::PUBLISH_PATH;
use crate::http::web::reply::Reply;
use crate::tls::stream::Stream;
use crate::{AcceptError, ConfigError, Handle};
pub(crate) use added_pages::AddedPages;
pub use added_pages::AdminPage;
use entrance::Ends;
pub(crate) use process::open_fds;
use registry::{Life, Registry, Watched};
use routes::{Route, Routes};

/// What only the program that embeds the gateway can do.
#[derive(Default)]
pub(crate) struct OfProgram {
    pub(crate) profiler: Option<Arc<dyn Profiler>>,
    pub(crate) reloader: Option<Arc<dyn Reloader>>,
}

/// Serves the admin API until `shutdown` is done. Then it lets running requests end, for at most as
/// long as that says.
///
/// Limits: `CONNECTIONS_MAX`. One connection more closes the longest silent one. If all are busy,
/// the new one is answered with 503.
pub(crate) async fn serve(
    listener: TcpListener,
    handle: Handle,
    (of_program, pages): (OfProgram, AddedPages),
    shutdown: impl Future<Output = Duration>,
) {
    let counting = handle.clone();
    let routes = Arc::new(Routes::new(handle, of_program, pages));
    let (mut connections, mut registry) = (JoinSet::new(), Registry::default());
    let mut trouble = AcceptTrouble::of(listener.local_addr());
    let mut shutdown = pin!(shutdown);
    let time = loop {
        counting.counters().set_admin_connections(registry.count());
        tokio::select! {
            time = &mut shutdown => break time,
            Some(ended) = connections.join_next_with_id() => match ended {
                Ok((id, ())) => registry.leave(id),
                Err(error) => registry.leave(error.id()),
            },
            accepted = accept(&listener, &counting.shared().door) => match accepted {
                Ok((stream, _)) => {
                    trouble.end();
                    if registry.count() >= CONNECTIONS_MAX && !registry.close_longest_silent() {
                        refuse(&stream);
                        continue;
                    }
                    let life = registry.life();
                    let conversation = converse(stream, Arc::clone(&routes), Arc::clone(&life));
                    registry.enter(connections.spawn(conversation).id(), life);
                }
                Err(error) => {
                    let kind = AcceptError::of(&error);
                    counting.counters().count_accept_error(kind);
                    // A descriptor that was kept for this case is free now. Admission takes it back
                    // when there is room.
                    if kind == AcceptError::Emfile && counting.admission().lend_descriptor() {
                        continue;
                    }
                    if kind == AcceptError::Emfile {
                        // Silent connections could otherwise hold all descriptors and keep every
                        // caller out.
                        registry.close_longest_silent();
                    }
                    trouble.meet(kind, &error).await;
                }
            },
        }
    };
    drop(listener);
    routes.close();
    registry.drain();
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(time, ended).await;
}

/// Accepts a connection, but none in the pause of an upgrade: that one waits for the process that
/// goes on.
async fn accept(listener: &TcpListener, door: &Door) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        door.serves().await;
        tokio::select! {
            biased;
            () = door.paused() => {}
            accepted = listener.accept() => return accepted,
        }
    }
}

/// Checks the pages of the embedding program.
pub(crate) fn pages(pages: Vec<AdminPage>) -> Result<AddedPages, ConfigError> {
    let taken = Route::ALL.iter().map(|(path, _)| *path).chain(DASHBOARD);
    AddedPages::new(pages, taken)
}

/// Serves one connection to its end.
async fn converse(stream: TcpStream, routes: Arc<Routes>, life: Arc<Life>) {
    let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return };
    let ends = Ends { local: local.ip(), peer: peer.ip().to_canonical() };
    prepare(&stream);
    let (known, answering) = (Arc::clone(&life), Arc::clone(&routes));
    let service = service_fn(move |request| {
        let (routes, life) = (Arc::clone(&answering), Arc::clone(&known));
        Box::pin(async move { Ok::<_, Infallible>(answer(&routes, &life, ends, request).await) })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut follower = Follower::default();
    let ended = poll_fn(|cx| {
        let drain = || Pin::new(&mut connection).graceful_shutdown();
        match follower.follow(life.orders(), cx, drain) {
            Some(_) => Poll::Ready(None),
            None => Pin::new(&mut connection).poll(cx).map(Some),
        }
    });
    let Some(ended) = ended.await else { return };
    if let Err(error) = &ended {
        tracing::debug!(%error, "a connection to the admin API ended early");
        if error.is_parse() {
            entrance::note_malformed(&routes, ends.peer, error.is_parse_too_large());
        }
    }
    let parts = connection.into_parts();
    let is_unread = !life.is_whole() || !parts.read_buf.is_empty() || ended.is_err();
    let mut stream = Stream::plain(parts.io.into_inner());
    // A silent connection gives way to a new one, also while it lingers.
    tokio::select! {
        _ = say_last(&mut stream, b"", is_unread.then_some(&LINGER), TlsEnd::AtOnce) => {}
        () = life.orders().told_to_end() => {}
    }
}

async fn answer(
    routes: &Routes,
    life: &Arc<Life>,
    ends: Ends,
    request: hyper::Request<hyper::body::Incoming>,
) -> Reply {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    // Until the body is whole, it is the peer's turn.
    life.begin(request.is_end_stream());
    let is_passed_over = is_passed_over(request.body());
    let request = request.map(|body| Watched::new(body, Arc::clone(life)));
    let door = &routes.shared().door;
    let opened = match path == PUBLISH_PATH {
        true => door.open_or_moved().await,
        false => door.open().await,
    };
    let mut reply = match opened {
        Ok(()) => entrance::answer(routes, ends, request).await,
        Err(HandingOver) => Problem::handing_over().into_response(),
    };
    if door.has_moved() || !life.is_whole() && !is_passed_over {
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    // While the answer leaves, it is the peer's turn too. A stream stays busy: it ends with its
    // connection, and there are few streams.
    life.hear(matches!(reply.body(), Either::Right(_)));
    tracing::debug!(%method, path, status = reply.status().as_u16(), "admin request");
    reply
}

/// Bounds the time for which a peer may not take its answer. hyper has no timer for that; the
/// kernel has.
fn prepare(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    let set =
        stream.set_nodelay(true).and_then(|()| socket.set_tcp_user_timeout(Some(WRITE_TIMEOUT)));
    if let Err(error) = set {
        tracing::debug!(%error, "cannot set socket options of an admin connection");
    }
}

/// Answers one connection too many with 503, without waiting.
fn refuse(stream: &TcpStream) {
    let detail = format!(
        "{CONNECTIONS_MAX} connections to the admin API are open and busy, which is the limit"
    );
    let problem = Problem::retry(Kind::TooManyRequests, Duration::from_secs(1), detail);
    let Ok(body) = serde_json::to_string(&problem.document()) else { return };
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
         Content-Type: application/problem+json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    say_at_once(stream, answer.as_bytes());
}

/// The paths of the dashboard.
const DASHBOARD: [&str; 2] = ["/", "/ui/{*file}"];
/// Enough for operators, a few publishers and a scraper, and for the calls that may wait. Each
/// connection holds some tens of KiB at most.
const CONNECTIONS_MAX: usize = 256 + calls::CALLS_MAX;
/// It also ends a connection that is kept alive without a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests that run get when the gateway shuts down.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// A refused body may be sixteen times as long as the largest one, and the peer still gets its
/// answer.
const LINGER: Linger =
    Linger { bytes_max: 16 << 20, time: Duration::from_secs(10), silence: SILENCE };
/// It bounds a request's head too.
const BUFFER_BYTES: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

#[cfg(test)]
mod tests;
