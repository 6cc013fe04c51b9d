//! The baseline of HTTP with a library: only hyper, on a runtime of one thread.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio_rustls::TlsAcceptor;

use super::http::{HttpBaselineArgs, prepare};
use crate::protocol::BaselineAnswer;

/// Runs the server until the process is killed.
pub(crate) fn run(args: &HttpBaselineArgs, h2: bool) -> Result<()> {
    let tls = prepare(args, if h2 { "h2" } else { "http/1.1" })?;
    let runtime = Builder::new_current_thread().enable_io().build().context("no runtime")?;
    runtime.block_on(serve(args, tls, h2))
}

async fn serve(args: &HttpBaselineArgs, tls: Option<Arc<ServerConfig>>, h2: bool) -> Result<()> {
    let listener = TcpListener::bind(args.listen).await.context("cannot listen")?;
    let addr = listener.local_addr().context("cannot listen")?;
    super::answer(&mut io::stdout(), &BaselineAnswer::Listening(addr))?;
    let acceptor = tls.map(TlsAcceptor::from);
    loop {
        let (socket, _) = listener.accept().await.context("the baseline cannot accept")?;
        tokio::spawn(talk(socket, acceptor.clone(), h2));
    }
}

async fn talk(socket: TcpStream, acceptor: Option<TlsAcceptor>, h2: bool) {
    if socket.set_nodelay(true).is_err() {
        return;
    }
    match acceptor {
        None => answer(TokioIo::new(socket), h2).await,
        Some(acceptor) => {
            // A client whose handshake fails gets no answer.
            if let Ok(stream) = acceptor.accept(socket).await {
                answer(TokioIo::new(stream), h2).await;
            }
        }
    }
}

/// The client judges the end of a connection: it counts missing answers.
async fn answer<I: Read + Write + Unpin + Send + 'static>(io: I, h2: bool) {
    if h2 {
        let builder = http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(io, service_fn(hello)).await;
    } else {
        let _ = http1::Builder::new().serve_connection(io, service_fn(hello)).await;
    }
}

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"Hello World"))))
}
