//! The simulated world: clients of the gateway that do what such clients do all day.
//!
//! They run on a thread of their own, and use sockets like every other client. Only the backend is
//! inside: it publishes through the gateway's handle.
//!
//! | part | holds |
//! |---|---|
//! | `players` | players of the game room, which walk and chat, over TCP |
//! | `phones` | phones that sleep and return, over TLS |
//! | `meters` | meters that send readings by UDP, and the service that collects them |
//! | `readers` | readers of the live page, as server-sent events |
//! | `backend` | publishes to phones and to the live page |

mod backend;
mod meters;
mod phones;
mod players;
mod readers;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio::time::sleep;
use weir::{Gateway, Handle};
use weir_client::{ClientError, TlsOptions};

/// Players of the game room. Each tick goes to all of them: 30 players and 10 ticks a second are 300
/// deliveries a second, some 1 % of a processor at each end.
pub(super) const PLAYERS: usize = 30;
/// Meters. Their topics fit into one connection of the service (`limits.topics_per_connection_max`).
pub(super) const METERS: usize = 20;
/// Readers of the live page. With more, only the number would change.
pub(super) const READERS: usize = 20;
/// The name of the service that collects readings.
pub(super) const SERVICE: &str = "utility";

/// Where the clients connect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    tcp: SocketAddr,
    tls: SocketAddr,
    http: SocketAddr,
    udp: SocketAddr,
}

/// What the clients show, and whom they trust.
#[derive(Debug, Clone, Copy)]
pub(super) struct Credentials<'a> {
    /// The certificate of the TLS listener.
    pub(super) certificate: &'a str,
    /// The token of the service that collects readings.
    pub(super) service_token: &'a str,
    /// Serial numbers and keys of the meters.
    pub(super) meters: &'a [(String, String)],
}

/// The running world.
pub(super) struct World {
    runtime: Runtime,
}

impl Places {
    pub(super) fn of(gateway: &Gateway) -> Result<Places> {
        let first = |addrs: &[SocketAddr]| addrs.first().copied().context("a listener is missing");
        Ok(Places {
            tcp: first(gateway.tcp_addrs())?,
            tls: first(gateway.tls_addrs())?,
            http: first(gateway.http_addrs())?,
            udp: first(gateway.udp_addrs())?,
        })
    }
}

impl World {
    /// Starts all clients. They connect one after another.
    pub(super) fn start(
        places: Places,
        credentials: Credentials<'_>,
        phones: usize,
        handle: Handle,
    ) -> Result<World> {
        let Credentials { certificate, service_token, meters } = credentials;
        // One thread: the world must leave the processors to the gateway.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("weir-demo")
            .enable_all()
            .build()
            .context("cannot start the thread of the demo's world")?;
        for number in 0..PLAYERS {
            runtime.spawn(players::play(places.tcp, number));
        }
        for number in 0..phones {
            // Each has options of its own, and so its own sessions to resume.
            let tls = TlsOptions::new("localhost", certificate.as_bytes());
            let tls = tls.context("the demo's certificate")?;
            runtime.spawn(phones::live(places.tls, tls, (number, phones)));
        }
        for (number, meter) in meters.iter().enumerate() {
            runtime.spawn(meters::measure(places.udp, meter.clone(), number));
        }
        runtime.spawn(meters::collect(places.tcp, service_token.to_owned()));
        for number in 0..READERS {
            runtime.spawn(readers::read(places.http, number));
        }
        runtime.spawn(backend::push(handle.clone(), phones));
        runtime.spawn(backend::score(handle));
        Ok(World { runtime })
    }

    /// Ends all clients.
    pub(super) fn end(self) {
        self.runtime.shutdown_background();
    }
}

/// Waits before the client of this number connects for the first time. So they do not all come at
/// once, and all have come after some seconds.
async fn begin(number: usize) {
    let count = u32::try_from(number).unwrap_or(u32::MAX);
    sleep(CONNECT_INTERVAL.saturating_mul(count)).await;
}

/// A random time between half of this time and one and a half.
fn about(time: Duration) -> Duration {
    time.mul_f64(rand::random_range(0.5..1.5))
}

/// Logs why a client could not go on. It connects again.
fn note(who: &str, error: &ClientError) {
    tracing::debug!(who, %error, "a client of the demo connects again");
}

/// 60 phones have come after 1.2 s; each full handshake costs both ends some 2 ms.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);
