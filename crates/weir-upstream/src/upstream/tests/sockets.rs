//! With hyper's servers behind sockets on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use super::*;
use crate::settings::Protocol;

/// Answers with as many bytes as the path says. Counts connections.
async fn serve(protocol: Protocol) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let io = TokioIo::new(stream);
            let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
                let length = request.uri().path()[1..].parse().unwrap();
                request.into_body().collect().await?;
                Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(vec![7; length]))))
            });
            match protocol {
                Protocol::Http1 => {
                    let server = hyper::server::conn::http1::Builder::new();
                    tokio::spawn(server.serve_connection(io, service));
                }
                Protocol::Http2 => {
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    tokio::spawn(server.serve_connection(io, service));
                }
            }
        }
    });
    (addr, connections)
}

async fn check(protocol: Protocol, connections_most: usize) {
    let (addr, connections) = serve(protocol).await;
    let mut settings = Settings::new("service", &[&addr.to_string()]);
    settings.protocol = protocol;
    settings.pool.connections_max = connections_most;
    let upstream = Upstream::new(settings).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let upstream = upstream.clone();
        tasks.spawn(async move {
            for length in [0, 1, 1_000, 64 * 1024, 3_000_000] {
                let body = Outgoing::Whole(Bytes::from(vec![9; length / (task + 1)]));
                let request = Request::post(format!("/{length}")).body(body).unwrap();
                let answer = upstream.head(request).await;
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(body.len(), length);
            }
            // A body that nobody reads to its end.
            let mut body = upstream.head(Request::get("/3000000").body(empty()).unwrap()).await;
            body.body_mut().frame().await.unwrap().unwrap();
        });
    }
    tasks.join_all().await;
    let answer = upstream.head(Request::get("/5").body(empty()).unwrap()).await;
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), 5);
    let status = upstream.status().endpoints.remove(0);
    assert_eq!((status.failures, status.in_flight), (0, 0));
    let closed_with_bodies = if protocol == Protocol::Http1 { 8 } else { 0 };
    let made = connections.load(Ordering::SeqCst);
    assert!(made <= connections_most + closed_with_bodies + 1, "{made}");
}

fn empty() -> Outgoing {
    Outgoing::Whole(Bytes::new())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http1_over_sockets() {
    check(Protocol::Http1, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_over_sockets() {
    check(Protocol::Http2, 1).await;
}
