//! The backend that devices call: it answers each request with the body that it gets, over HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

/// Serves until the runtime ends.
pub(super) async fn serve(addr: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(addr).await.context("cannot listen for the gateway")?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let echo = |request: Request<Incoming>| async move {
                Ok::<_, Infallible>(Response::new(request.into_body()))
            };
            let mut server = http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(STREAMS_MAX);
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(echo)));
        }
    });
    Ok(())
}

const STREAMS_MAX: u32 = 1000;
