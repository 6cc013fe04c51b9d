//! Responses, and the few headers that all of them have.

use std::io;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Either, Full};
use serde::Serialize;

/// A body that is made while it is read.
pub(crate) type Stream = UnsyncBoxBody<Bytes, io::Error>;

/// The answer of every route.
pub(crate) type Reply = Response<Either<Full<Bytes>, Stream>>;

/// A JSON document.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    match written(value) {
        Ok(body) => bytes(status, "application/json", body),
        Err(error) => {
            tracing::error!(%error, "cannot write an answer as JSON");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// Writes `value` as a JSON document.
///
/// Cost: a short document takes one block of exactly its length. A longer block would need a second
/// one, which holds the length.
fn written(value: &impl Serialize) -> serde_json::Result<Bytes> {
    let mut short = [0; SHORT_BYTES];
    let mut rest = &mut short[..];
    if serde_json::to_writer(&mut rest, value).is_err() {
        return serde_json::to_vec(value).map(Bytes::from);
    }
    let length = SHORT_BYTES - rest.len();
    Ok(Bytes::copy_from_slice(&short[..length]))
}

/// Text or bytes of a media type.
pub(crate) fn bytes(status: StatusCode, content_type: &'static str, body: Bytes) -> Reply {
    let mut response = empty(status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    *response.body_mut() = Either::Left(Full::new(body));
    response
}

/// A status without a body.
pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut response = Response::new(Either::Left(Full::new(Bytes::new())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Most documents are shorter; a longer one is begun again.
const SHORT_BYTES: usize = 512;
