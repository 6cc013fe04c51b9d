//! The beginning of a connection: where it comes from, its handshake, and which version of HTTP it speaks.

use super::Edge;
use crate::base::model::Spoken;
use crate::base::partial::Partial;
use crate::base::patience::Patience;
use crate::connection::session::{self, NotGreeted};
use crate::core::hub::Hub;
use crate::limits::admission::Unsettled;
use crate::tls::stream::Stream;

/// What is known when HTTP begins.
pub(super) struct Arrival {
    /// What has come so far.
    pub(super) ahead: Vec<u8>,
    pub(super) is_h2: bool,
    /// The device that its certificate names.
    pub(super) identity: Option<String>,
}

/// Reads the PROXY header, where there is one, makes the handshake, where there is one, and otherwise looks what is
/// spoken.
pub(super) async fn hear(
    hub: &Hub,
    edge: &Edge,
    stream: &mut Stream,
    unsettled: &mut Unsettled,
    is_proxied: bool,
) -> Result<Arrival, NotGreeted> {
    let mut patience = Patience::of(hub.config().http.head_timeout);
    let (mut partial, secured) =
        session::arrive(hub, stream, unsettled, is_proxied, Spoken::Http, &mut patience).await?;
    let (is_h2, identity) = match secured {
        Some(secured) => (secured.is_h2, secured.identity),
        None => (is_preface(edge, stream, &mut partial, &patience).await?, None),
    };
    let ahead = std::mem::take(&mut partial.bytes);
    Ok(Arrival { ahead, is_h2, identity })
}

/// Whether a connection begins with the preface of HTTP/2, which is waited for as long as it can still be that.
async fn is_preface(
    edge: &Edge,
    stream: &mut Stream,
    partial: &mut Partial,
    patience: &Patience,
) -> Result<bool, NotGreeted> {
    if !edge.h2.h2 {
        return Ok(false);
    }
    loop {
        let known = partial.bytes.len().min(PREFACE.len());
        if partial.bytes[..known] != PREFACE[..known] {
            return Ok(false);
        }
        if known == PREFACE.len() {
            return Ok(true);
        }
        session::read_more(partial, stream, patience).await?;
    }
}

/// RFC 9113 section 3.4.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
