//! Sends a request to the admin API.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_client::{ClientError, TlsOptions};

use crate::addresses;
use crate::config::load;
use crate::options::AdminArgs;

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
        let (status, answer) = self.try_ask(method, path, json).await?;
        if !status.is_success() {
            return Err(refusal(status, &answer, self.token.is_some()));
        }
        Ok(answer)
    }

    /// The same, with any answer and its status.
    pub(crate) async fn try_ask(
        &self,
        method: Method,
        path: &str,
        json: Option<Vec<u8>>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let body = json.map(|bytes| Body { kind: "application/json", bytes });
        request(self.admin(), method, path, body).await
    }

    /// Sends a request without a body, and returns the body of the answer as it comes.
    ///
    /// Errors: a refusal too.
    pub(crate) async fn open(&self, method: Method, path: &str) -> anyhow::Result<Incoming> {
        let addr = &self.addr;
        let head = head(self.admin(), method, path, None)?;
        let opening = async {
            let mut sender = connect(self.admin()).await?;
            anyhow::Ok(sender.send_request(head).await?)
        };
        let Ok(response) = timeout(REQUEST_TIMEOUT, opening).await else {
            bail!("no answer from {addr} within {REQUEST_TIMEOUT:?}");
        };
        let response = response?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        let answer = timeout(REQUEST_TIMEOUT, body).await.ok().and_then(Result::ok);
        let answer = answer.map(|answer| answer.to_bytes()).unwrap_or_default();
        Err(refusal(status, &answer, self.token.is_some()))
    }

    /// Its address.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    fn admin(&self) -> Admin<'_> {
        Admin { addr: &self.addr, tls: self.tls.as_ref(), token: self.token.as_deref() }
    }
}

/// The error for a refusal. It says what to do next.
pub(crate) fn refusal(status: StatusCode, answer: &[u8], has_token: bool) -> anyhow::Error {
    let next = match (status, has_token) {
        (StatusCode::UNAUTHORIZED, false) => {
            "; no token was sent: set WEIR_ADMIN_TOKEN, or name the gateway's configuration with \
             --config"
        }
        (StatusCode::UNAUTHORIZED, true) => {
            "; the gateway does not know this token: compare it with admin.token in the gateway's \
             configuration"
        }
        (StatusCode::FORBIDDEN, _) => {
            "; this token may not do that: set WEIR_ADMIN_TOKEN to one that may"
        }
        (StatusCode::MISDIRECTED_REQUEST, _) => {
            "; name an address that the gateway knows as its own with --admin"
        }
        (StatusCode::NOT_FOUND, _) if is_no_path(answer) => {
            "; the gateway and this command are of different versions"
        }
        _ => "",
    };
    anyhow!("refused with {status}{}{next}", reason(answer))
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

/// Whether a gateway has answered that it does not know the path.
fn is_no_path(answer: &[u8]) -> bool {
    serde_json::from_slice::<Problem>(answer)
        .is_ok_and(|problem| problem.detail.is_some_and(|it| it.starts_with("there is nothing at")))
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
    let request = head(to, method, path, body)?;
    match timeout(REQUEST_TIMEOUT, exchange(to, request)).await {
        Ok(answer) => answer,
        Err(_elapsed) => bail!("no answer from {addr} within {REQUEST_TIMEOUT:?}"),
    }
}

fn head(
    to: Admin<'_>,
    method: Method,
    path: &str,
    body: Option<Body>,
) -> anyhow::Result<Request<Full<Bytes>>> {
    let mut request = Request::builder().method(method).uri(path).header(HOST, to.addr);
    if let Some(token) = to.token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    if let Some(body) = &body {
        request = request.header(CONTENT_TYPE, body.kind);
    }
    let bytes = body.map(|body| body.bytes).unwrap_or_default();
    request.body(Full::new(Bytes::from(bytes))).context("not a valid request")
}

async fn exchange(
    to: Admin<'_>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let mut sender = connect(to).await?;
    let response = sender.send_request(request).await;
    let response = response.with_context(|| format!("the connection to {} broke", to.addr))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow!("cannot read the answer: {error}"))?;
    Ok((status, body.to_bytes()))
}

/// Opens a connection. A task of its own carries it.
async fn connect(to: Admin<'_>) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let addr = to.addr;
    let stream = TcpStream::connect(addr).await;
    let stream = stream.map_err(|error| {
        anyhow!(
            "cannot connect to the admin API at {addr}: {error}; is the gateway running? `weir \
             serve` starts it, and --admin names another address (its listen.admin)"
        )
    })?;
    let Some(tls) = to.tls else { return begin(stream).await };
    let secured = Box::pin(tls.connect(stream)).await.map_err(ClientError::from);
    let secured =
        secured.with_context(|| format!("cannot connect to the admin API at {addr} with TLS"))?;
    Box::pin(begin(secured)).await
}

async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The server may end the connection after its answer, even with an error. A whole answer counts
    // all the same, and an answer that is cut shows in its body.
    tokio::spawn(connection);
    Ok(sender)
}

/// Percent-encodes every byte that is not a letter, a digit, `-` or `_`, so that the text fits any
/// part of a URI.
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The error for an answer that is no answer of the admin API.
pub(crate) const NO_GATEWAY: &str = "the answer does not come from a gateway's admin API";

/// The server answers from memory. It needs longer only on an overloaded machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Enough for a page of devices with the most labels that are allowed.
const ANSWER_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do_next() {
        let problem = br#"{"title":"Forbidden","detail":"the right read"}"#;
        for (status, has_token, says) in [
            (StatusCode::UNAUTHORIZED, false, "no token was sent"),
            (StatusCode::UNAUTHORIZED, true, "does not know this token"),
            (StatusCode::FORBIDDEN, true, "Forbidden: the right read; this token may not"),
            (StatusCode::NOT_FOUND, true, "404 Not Found: Forbidden: the right read"),
            (StatusCode::BAD_REQUEST, true, "400 Bad Request: Forbidden: the right read"),
        ] {
            let error = refusal(status, problem, has_token).to_string();
            assert!(error.contains(says), "{error}");
        }
        let nowhere = br#"{"title":"Not found","detail":"there is nothing at \"/v2\""}"#;
        let error = refusal(StatusCode::NOT_FOUND, nowhere, true).to_string();
        assert!(error.ends_with("are of different versions"), "{error}");
    }

    #[test]
    fn names_are_encoded_for_any_place() {
        assert_eq!(percent_encoded("a/b c.é"), "a%2Fb%20c%2E%C3%A9");
    }
}
