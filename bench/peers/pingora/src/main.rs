//! A reverse proxy of pingora that `weir-bench proxy` and `weir-bench balance` measure beside Weir's.
//!
//! `pingora-peer LISTEN BACKEND[,BACKEND…]` serves HTTP/1.1 and HTTP/2 without TLS and asks the
//! backends over HTTP/1.1, on connections that it keeps. Several backends have their turns, and one
//! that refuses connections has none: pingora's health check looks every second.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::HttpServerOptions;
use pingora::http::RequestHeader;
use pingora::lb::LoadBalancer;
use pingora::lb::health_check::TcpHealthCheck;
use pingora::lb::selection::RoundRobin;
use pingora::prelude::{Error, ErrorType, HttpPeer, Result};
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::services::background::background_service;

/// Where requests go.
enum Backends {
    One(HttpPeer),
    Several(Arc<LoadBalancer<RoundRobin>>),
}

/// Tries of a request that met no connection.
#[derive(Default)]
struct Tries(u32);

/// As nginx tries each of three endpoints.
const TRIES_MAX: u32 = 3;
/// More than the load generator has in flight.
const KEPT: usize = 1024;
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[async_trait]
impl ProxyHttp for Backends {
    type CTX = Tries;

    fn new_ctx(&self) -> Tries {
        Tries::default()
    }

    async fn upstream_peer(&self, _: &mut Session, _: &mut Tries) -> Result<Box<HttpPeer>> {
        match self {
            Backends::One(peer) => Ok(Box::new(peer.clone())),
            Backends::Several(all) => {
                let backend = all.select(b"", 256);
                let backend = backend.ok_or_else(|| Error::new(ErrorType::ConnectNoRoute))?;
                Ok(Box::new(HttpPeer::new(backend, false, String::new())))
            }
        }
    }

    fn fail_to_connect(
        &self,
        _: &mut Session,
        _: &HttpPeer,
        tries: &mut Tries,
        mut error: Box<Error>,
    ) -> Box<Error> {
        tries.0 += 1;
        error.set_retry(tries.0 < TRIES_MAX);
        error
    }

    /// The same that nginx and Weir tell the backend.
    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        _: &mut Tries,
    ) -> Result<()> {
        if let Some(client) = session.client_addr().and_then(|addr| addr.as_inet()) {
            request.insert_header("x-forwarded-for", client.ip().to_string())?;
        }
        if let Some(host) = session.req_header().headers.get("host") {
            request.insert_header("x-forwarded-host", host.clone())?;
        }
        request.insert_header("x-forwarded-proto", "http")
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, backends] = arguments.as_slice() else {
        panic!("pingora-peer LISTEN BACKEND[,BACKEND…]");
    };
    let conf =
        ServerConf { threads: 1, upstream_keepalive_pool_size: KEPT, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let backends: Vec<&str> = backends.split(',').collect();
    let site = match backends.as_slice() {
        [one] => Backends::One(HttpPeer::new(*one, false, String::new())),
        several => {
            let mut all = LoadBalancer::try_from_iter(several).expect("addresses");
            all.set_health_check(TcpHealthCheck::new());
            all.health_check_frequency = Some(LOOK_EVERY);
            let looks = background_service("health check", all);
            let site = Backends::Several(looks.task());
            server.add_service(looks);
            site
        }
    };
    let mut proxy = http_proxy_service(&server.configuration, site);
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    if let Some(logic) = proxy.app_logic_mut() {
        logic.server_options = Some(options);
    }
    proxy.add_tcp(listen);
    server.add_service(proxy);
    server.run_forever();
}
