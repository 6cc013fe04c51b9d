//! Sends a request to the admin API.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_client::{ClientError, TlsOptions};

use crate::addresses;
use crate::cli::AdminArgs;
use crate::config::load;

/// Address and credentials of an admin API.
#[derive(Clone, Copy)]
pub(crate) struct Admin<'a> {
    pub(crate) addr: &'a str,
    /// Set for an admin API behind a proxy that speaks TLS.
    pub(crate) tls: Option<&'a TlsOptions>,
    pub(crate) token: Option<&'a str>,
}

/// An admin API that the command line or the configuration names.
pub(crate) struct Api {
    addr: String,
    tls: Option<TlsOptions>,
    token: Option<String>,
}

impl Api {
    /// Reads the configuration in `file` if the options name no address.
    pub(crate) fn find(args: AdminArgs, file: Option<PathBuf>) -> anyhow::Result<Api> {
        let mut token = args.token.or_else(|| std::env::var("WEIR_ADMIN_TOKEN").ok());
        let addr = match args.admin {
            Some(addr) => addr,
            None => {
                let settings = load(file)?;
                let configured = settings.gateway.admin.token.clone();
                token = token.or(Some(configured).filter(|token| !token.is_empty()));
                addresses::of_admin(&settings)?
            }
        };
        let tls = crate::tls::options(&args.tls, &addr)?;
        Ok(Api { addr, tls, token })
    }

    /// Sends a request, with JSON as its body, and reads the answer.
    ///
    /// Errors: a refusal too.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        json: Option<Vec<u8>>,
    ) -> anyhow::Result<Bytes> {
        let Api { addr, tls, token } = self;
        let to = Admin { addr, tls: tls.as_ref(), token: token.as_deref() };
        let body = json.map(|bytes| Body { kind: "application/json", bytes });
        let (status, answer) = request(to, method, path, body).await?;
        if !status.is_success() {
            bail!("refused with {status}{}", reason(&answer));
        }
        Ok(answer)
    }
}

/// The shown parts of a problem document (RFC 9457).
#[derive(Debug, Deserialize)]
struct Problem {
    title: String,
    detail: Option<String>,
}

/// The text of a problem document, with a colon in front; empty if the answer is none.
pub(crate) fn reason(answer: &[u8]) -> String {
    match serde_json::from_slice::<Problem>(answer) {
        Ok(Problem { title, detail: None }) => format!(": {title}"),
        Ok(Problem { title, detail: Some(detail) }) => format!(": {title}: {detail}"),
        Err(_) => String::new(),
    }
}

/// The body of a request.
pub(crate) struct Body {
    /// Its media type.
    pub(crate) kind: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// Sends a request and reads the answer, all within [`REQUEST_TIMEOUT`].
pub(crate) async fn request(
    to: Admin<'_>,
    method: Method,
    path: &str,
    body: Option<Body>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let addr = to.addr;
    let mut request = Request::builder().method(method).uri(path).header(HOST, addr);
    if let Some(token) = to.token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    if let Some(body) = &body {
        request = request.header(CONTENT_TYPE, body.kind);
    }
    let bytes = body.map(|body| body.bytes).unwrap_or_default();
    let request = request.body(Full::new(Bytes::from(bytes))).context("not a valid request")?;
    match timeout(REQUEST_TIMEOUT, exchange(to, request)).await {
        Ok(answer) => answer,
        Err(_elapsed) => bail!("no answer from {addr} within {REQUEST_TIMEOUT:?}"),
    }
}

async fn exchange(
    to: Admin<'_>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let addr = to.addr;
    let cannot = || format!("cannot connect to the admin API at {addr}");
    let stream = TcpStream::connect(addr).await.with_context(cannot)?;
    match to.tls {
        None => exchange_over(addr, stream, request).await,
        Some(tls) => {
            let stream = Box::pin(tls.connect(stream)).await.map_err(ClientError::from);
            Box::pin(exchange_over(addr, stream.with_context(cannot)?, request)).await
        }
    }
}

async fn exchange_over(
    addr: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("cannot read the answer: {error}"))?;
        anyhow::Ok((status, body.to_bytes()))
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The server may end the connection after its answer, even with an error. A whole answer
        // counts all the same.
        result = connection => match (exchange.await, result) {
            (Ok(answer), _) => Ok(answer),
            (Err(_), Err(broken)) => Err(broken).with_context(|| format!("the connection to {addr} broke")),
            (Err(error), Ok(())) => Err(error),
        }
    }
}

/// The server answers from memory. It needs longer only on an overloaded machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Enough for a page of devices with the most labels that are allowed.
const ANSWER_BYTES_MAX: usize = 16 << 20;
