//! The beginning of a connection: PROXY header, handshake, and the version of HTTP.

use std::time::Duration;

use super::Edge;
use crate::base::deadline::Deadline;
use crate::base::model::Spoken;
use crate::base::read_buffer::ReadBuffer;
use crate::connection::opening::{self, NotGreeted};
use crate::core::state::SharedState;
use crate::limits::admission::Unsettled;
use crate::tls::stream::Stream;

/// A connection on which HTTP begins.
pub(super) struct Arrival {
    /// The bytes that have come so far.
    pub(super) ahead: Vec<u8>,
    pub(super) is_h2: bool,
    /// The device that the client certificate names.
    pub(super) identity: Option<String>,
}

/// Reads the PROXY header and makes the handshake, where there are any. Without a handshake, the
/// first bytes give the version of HTTP.
pub(super) async fn hear(
    shared: &SharedState,
    edge: &Edge,
    stream: &mut Stream,
    unsettled: &mut Unsettled,
    is_proxied: bool,
) -> Result<Arrival, NotGreeted> {
    let mut deadline = Deadline::of(shared.config().http.head_timeout);
    let (mut read_buffer, secured) =
        opening::arrive(shared, stream, unsettled, is_proxied, Spoken::Http, &mut deadline).await?;
    let (is_h2, identity) = match secured {
        Some(secured) => (secured.is_h2, secured.identity),
        None => {
            let is_preface = is_preface(edge, stream, &mut read_buffer, &deadline);
            (opening::unless_draining(shared, Duration::ZERO, is_preface).await?, None)
        }
    };
    let ahead = std::mem::take(&mut read_buffer.bytes);
    Ok(Arrival { ahead, is_h2, identity })
}

/// Whether a connection begins with the preface of HTTP/2. Waits for more bytes while that is still
/// possible.
async fn is_preface(
    edge: &Edge,
    stream: &mut Stream,
    read_buffer: &mut ReadBuffer,
    deadline: &Deadline,
) -> Result<bool, NotGreeted> {
    if !edge.h2.h2 {
        return Ok(false);
    }
    loop {
        let known = read_buffer.bytes.len().min(PREFACE.len());
        if read_buffer.bytes[..known] != PREFACE[..known] {
            return Ok(false);
        }
        if known == PREFACE.len() {
            return Ok(true);
        }
        opening::read_more(read_buffer, stream, deadline).await?;
    }
}

/// The connection preface (RFC 9113 section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
