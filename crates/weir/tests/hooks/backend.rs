//! A backend that a script plays: it answers questions, and remembers them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use aws_lc_rs::hmac;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use weir::{Config, UpstreamConfig};

/// The secret of the signatures.
pub(crate) const SECRET: &str = "a secret of at least thirty-two bytes";

/// What the backend does with a question.
pub(crate) enum Reply {
    /// Answers with this JSON.
    Json(Value),
    /// Answers with this status and text.
    Text(u16, String),
    /// Answers when the gate opens.
    Held(watch::Receiver<bool>, Value),
    /// Never answers.
    Never,
}

/// A question as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) body: Value,
    /// Whether the signature is right.
    pub(crate) is_signed: bool,
}

/// A running backend.
pub(crate) struct Backend {
    addr: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Backend {
    pub(crate) async fn start(script: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (script, heard) = (Arc::new(script), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, heard) = (Arc::clone(&script), Arc::clone(&heard));
                tokio::spawn(async move {
                    let service = service_fn(|request| answer(request, &*script, &heard));
                    let io = TokioIo::new(stream);
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(io, service)
                        .await;
                });
            }
        });
        Backend { addr, asked }
    }

    /// Adds the upstream `api` to a configuration, and the secret.
    pub(crate) fn serves(&self, config: &mut Config) {
        config.upstreams = vec![UpstreamConfig {
            name: "api".to_owned(),
            addresses: vec![self.addr.to_string()],
            ..UpstreamConfig::default()
        }];
        config.hooks.secret = SECRET.to_owned();
    }

    /// The questions so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The number of questions of a hook.
    pub(crate) fn count(&self, hook: &str) -> usize {
        self.asked().iter().filter(|asked| asked.body["hook"] == hook).count()
    }
}

async fn answer(
    request: Request<Incoming>,
    script: &(impl Fn(&Value) -> Reply + ?Sized),
    heard: &Mutex<Vec<Asked>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    assert_eq!(head.method, "POST");
    assert_eq!(head.headers["content-type"], "application/json");
    let signature = head.headers.get("weir-signature").map(|value| value.to_str().unwrap());
    let body: Value = serde_json::from_slice(&bytes).unwrap();
    heard.lock().unwrap().push(Asked {
        path: head.uri.path().to_owned(),
        body: body.clone(),
        is_signed: signature.is_some_and(|signature| is_right(signature, &bytes)),
    });
    let (status, text) = match script(&body) {
        Reply::Json(answer) => (200, answer.to_string()),
        Reply::Text(status, text) => (status, text),
        Reply::Held(mut gate, answer) => {
            gate.wait_for(|is_open| *is_open).await.unwrap();
            (200, answer.to_string())
        }
        Reply::Never => std::future::pending().await,
    };
    Ok(Response::builder().status(status).body(Full::new(text.into())).unwrap())
}

fn is_right(signature: &str, body: &[u8]) -> bool {
    let Some((seconds, hex)) =
        signature.strip_prefix("t=").and_then(|rest| rest.split_once(",v1="))
    else {
        return false;
    };
    let tag: Vec<u8> = (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let signed = [format!("{seconds}.").as_bytes(), body].concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hmac::verify(&key, &signed, &tag).is_ok()
}
