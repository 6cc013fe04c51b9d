//! The HTTP edge: it serves HTTP/1.1 and HTTP/2 on threads of the front, to browsers, backends, and
//! devices that do not speak our protocol.
//!
//! ```text
//!  accepted ─PROXY, TLS─▶ version known ─▶ h1 or h2: requests ─▶ service ─▶ hello, public API
//!                                          │
//!                                          └─ upgrade request ─▶ upgrade
//! ```
//!
//! `registry` knows all HTTP connections and ends those that are silent for too long. `connection`
//! is the state of one connection, and `orders` tells its task to end. `io_wrapper` watches the
//! bytes of a connection. `leaving` watches the progress of answers over HTTP/2, and `piece` is one
//! piece of an answer. `table` counts the bytes that header tables keep. `traced` begins spans.
//! `threads` chooses the threads of the edge. `api` answers the requests of the public API, and
//! `proxy` passes those of `[[http.routes]]` on. `limits::http_ledger` accounts for the bytes of
//! requests and answers.

mod api;
mod arrival;
mod body;
mod checks;
mod closing;
mod connection;
mod h1;
mod h2;
mod interim;
mod io_wrapper;
mod leaving;
pub(crate) mod orders;
mod piece;
mod proxy;
mod record;
mod registry;
mod service;
mod table;
mod threads;
mod traced;
mod upgrade;
pub(crate) mod web;

use std::sync::Arc;

use hyper::server::conn::http1;
use weir_wire::CloseReason;

use crate::limits::http_ledger::Ledger;
use crate::observe::counters::http::{Dialect, End};
use api::Api;
use arrival::Arrival;
pub(crate) use connection::Caller;
use connection::HttpConnection;
use h1::{Admitted, ConversationEnd};
use proxy::Proxy;
use registry::Registry;
pub(crate) use threads::Threads;
use threads::Turns;

use crate::Handle;
use crate::base::config::HttpConfig;
use crate::connection::farewell::{Farewell, UNAVAILABLE, turn_away};
use crate::connection::linger::SHORT;
use crate::connection::opening::NotGreeted;
use crate::core::state::SharedState;
use crate::limits::admission::Unsettled;
use crate::observe::counters::Counters;
use crate::tls::stream::Stream;

/// The values that all HTTP connections share.
pub(crate) struct Edge {
    shared: Arc<SharedState>,
    api: Api,
    proxy: Proxy,
    registry: Registry,
    counters: Arc<Counters>,
    h1: http1::Builder,
    h2: HttpConfig,
    /// The number of requests that one connection may make; 0: no limit.
    requests_max: u32,
    turns: Turns,
}

impl Edge {
    /// Starts the registry's clock. There are no connections yet.
    pub(crate) fn start(handle: &Handle, threads: &Threads) -> Arc<Edge> {
        let edge = Arc::new(Edge::new(handle, threads));
        let watching = Arc::clone(&edge);
        edge.turns
            .next()
            .spawn(async move { watching.registry.watch(&watching.shared.drains).await });
        edge
    }

    fn new(handle: &Handle, threads: &Threads) -> Edge {
        let shared = handle.shared();
        let config = shared.config();
        let share = &shared.http_share;
        Edge {
            shared: Arc::clone(shared),
            api: Api::new(handle.clone(), &config),
            proxy: Proxy::new(&config, shared.counters()),
            registry: Registry::new(&config, share),
            counters: Arc::clone(shared.counters()),
            h1: h1::builder(&config.http),
            h2: config.http.clone(),
            requests_max: config.http.requests_per_connection_max,
            turns: threads.turns(),
        }
    }

    /// The default interval of signs of life to readers of events. It is half the heartbeat of
    /// other connections, because proxies give up on a silent answer after a minute.
    fn heartbeat_of_events_ms(&self) -> u32 {
        let config = self.shared.config();
        let connection = &config.connection;
        let heartbeat = (connection.heartbeat / 2).max(connection.heartbeat_min);
        u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX)
    }

    /// Tells all connections to end when they have no request in progress.
    pub(crate) fn drain(&self) {
        self.registry.drain();
    }

    /// The ledger of a new connection.
    fn ledger(&self) -> Arc<Ledger> {
        Ledger::new(&self.shared.http_share, self.h2.answer_bytes_max)
    }

    /// The number of open HTTP connections.
    pub(crate) fn connection_count(&self) -> usize {
        self.registry.count()
    }
}

/// Serves a connection from its accept to its end.
///
/// `is_proxied`: the connection begins with a PROXY header, which names the client's address.
/// Cost: a silent connection keeps this future and no buffer.
pub(crate) async fn run(
    shared: Arc<SharedState>,
    edge: Arc<Edge>,
    mut stream: Stream,
    mut unsettled: Unsettled,
    is_proxied: bool,
) {
    let since = edge.registry.now();
    let arrived = arrival::hear(&shared, &edge, &mut stream, &mut unsettled, is_proxied).await;
    match arrived {
        Ok(arrival) if stream.is_plain() => serve(edge, stream, unsettled, arrival, since).await,
        Ok(arrival) => {
            if let Err(reason) = stream.charge_http() {
                return shared.counters().count_closed(reason);
            }
            // The handshake is done: leave the handshake threads to connections that still need
            // one.
            let runtime = edge.turns.next().clone();
            match stream.rebind(&runtime) {
                Ok(stream) => {
                    runtime.spawn(serve(edge, stream, unsettled, arrival, since));
                }
                Err(_) => shared.counters().count_closed(CloseReason::SocketError),
            }
        }
        Err(NotGreeted::TurnedAway(cause)) => {
            let farewell = if stream.is_plain() { Farewell::Unavailable } else { Farewell::Reset };
            turn_away(&shared, stream.socket(), unsettled.addr(), cause, farewell);
        }
        Err(NotGreeted::Closed(reason)) => {
            shared.counters().count_closed(reason);
            let last = if reason == CloseReason::Draining && stream.is_plain() {
                UNAVAILABLE
            } else {
                b""
            };
            if !stream.is_unsecured() {
                let linger = (!last.is_empty()).then_some(SHORT);
                closing::close(stream, last, linger, shared.counters()).await;
            }
        }
    }
}

/// Serves HTTP on a connection whose version is known.
async fn serve(
    edge: Arc<Edge>,
    stream: Stream,
    unsettled: Unsettled,
    arrival: Arrival,
    since: u32,
) {
    let Arrival { ahead, is_h2, identity } = arrival;
    let dialect = if is_h2 { Dialect::Http2 } else { Dialect::Http1 };
    let peer = unsettled.addr();
    let Ok(local) = stream.socket().local_addr() else { return };
    let ledger = edge.ledger();
    let caller = Caller { peer, local, is_tls: !stream.is_plain(), identity, ledger };
    let connection = HttpConnection::new(&edge, caller, dialect, (unsettled.order(), since));
    let Some(member) = edge.registry.enter(&connection) else {
        let reason = unsettled.refuse(edge.registry.refusal());
        edge.counters.count_closed(reason);
        let last = if is_h2 { b"" } else { UNAVAILABLE };
        closing::close(stream, last, Some(SHORT), &edge.counters).await;
        return;
    };
    edge.counters.http.enter(dialect);
    let outcome = match dialect {
        Dialect::Http1 => {
            h1::converse(&connection, stream, ahead, Admitted::Unsettled(unsettled)).await
        }
        Dialect::Http2 => {
            let _permit = unsettled.permit();
            ConversationEnd::Over(h2::converse(&connection, stream, ahead).await)
        }
    };
    let outcome = match outcome {
        ConversationEnd::Tunnel(tunnel, stream, ahead) => {
            let now = || connection.now();
            let end = Box::pin(tunnel.run(stream, ahead, &connection.orders, now)).await;
            ConversationEnd::Over(end)
        }
        outcome @ (ConversationEnd::Over(_) | ConversationEnd::Taken(_)) => outcome,
    };
    drop(member);
    match outcome {
        ConversationEnd::Tunnel(..) => {}
        ConversationEnd::Over(end) => edge.counters.http.leave(dialect, end),
        ConversationEnd::Taken(taken) => {
            edge.counters.http.leave(dialect, End::Moved);
            Box::pin(upgrade::go_on(*taken)).await;
        }
    }
}

#[cfg(test)]
mod tests;
