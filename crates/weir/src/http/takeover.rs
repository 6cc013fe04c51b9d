//! A connection that is taken from HTTP: what a request leaves that asks for something else.

use std::sync::Arc;

use http::Request;

use super::closing::close;
use super::guest::Guest;
use crate::admission::Seat;
use crate::tls::stream::Stream;

/// A connection over HTTP/1.1 whose last request asks for something else than an answer.
///
/// All earlier answers have left, whole; of the last one nothing has been said.
pub(crate) struct Taken {
    pub(crate) stream: Stream,
    /// What has come behind the request.
    pub(crate) read_ahead: Vec<u8>,
    pub(crate) request: Request<()>,
    pub(crate) seat: Seat,
    pub(super) guest: Arc<Guest>,
}

/// Says that it is not served yet.
pub(super) async fn go_on(taken: Taken) {
    let Taken { stream, read_ahead, request, seat, guest } = taken;
    let (path, behind) = (request.uri().path(), read_ahead.len());
    tracing::debug!(path, behind, peer = ?seat.addr(), caller = ?guest.caller, "taken from HTTP");
    let answer = match seat.stand_up() {
        Ok(_unsettled) => NOT_IMPLEMENTED,
        Err(_) => super::UNAVAILABLE,
    };
    close(stream, answer, true).await;
}

const NOT_IMPLEMENTED: &[u8] =
    b"HTTP/1.1 501 Not Implemented\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
