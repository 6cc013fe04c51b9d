//! What comes before `Hello`: the PROXY header and the TLS handshake.

use std::time::Duration;

use tokio::time::sleep;
use weir_wire::CloseReason;

use super::{NotGreeted, read_more};
use crate::base::deadline::Deadline;
use crate::base::model::Spoken;
use crate::base::proxy::{self, NoHeader};
use crate::base::read_buffer::ReadBuffer;
use crate::core::state::SharedState;
use crate::limits::admission::Unsettled;
use crate::observe::counters::ConnectRefuseCause;
use crate::tls::Secured;
use crate::tls::stream::Stream;

/// Reads the PROXY header and makes the TLS handshake, where the listener has them. Returns the
/// bytes that followed, and the result of the handshake.
///
/// Before the end of a handshake a peer can be told nothing. So it is made even while the gateway
/// drains, if that does not take long.
pub(crate) async fn arrive(
    shared: &SharedState,
    stream: &mut Stream,
    unsettled: &mut Unsettled,
    is_proxied: bool,
    spoken: Spoken,
    deadline: &mut Deadline,
) -> Result<(ReadBuffer, Option<Secured>), NotGreeted> {
    let patience = if stream.is_unsecured() { FIRST_PATIENCE } else { Duration::ZERO };
    let first = hear_first(shared, stream, unsettled, is_proxied, deadline);
    let first = unless_draining(shared, patience, first).await?;
    let Some(tls) = shared.tls.as_ref().filter(|_| stream.is_unsecured()) else {
        return Ok((first, None));
    };
    let secured = async { Ok(tls.secure(stream, spoken, first, deadline).await?) };
    let secured = unless_draining(shared, HANDSHAKE_PATIENCE, secured).await?;
    Ok((ReadBuffer::new(shared.engine().budget()), Some(secured)))
}

/// The outcome, or the end if the gateway drains, and has waited so long since.
pub(crate) async fn unless_draining<T>(
    shared: &SharedState,
    patience: Duration,
    heard: impl Future<Output = Result<T, NotGreeted>>,
) -> Result<T, NotGreeted> {
    let mut draining = shared.draining.subscribe();
    let drained = async {
        // The shared state holds the sender, so this ends only by draining.
        let _ = draining.wait_for(|is_draining| *is_draining).await;
        if !patience.is_zero() {
            sleep(patience).await;
        }
    };
    tokio::select! {
        heard = heard => heard,
        () = drained => Err(CloseReason::Draining.into()),
    }
}

/// Reads the PROXY header, or the first bytes.
async fn hear_first(
    shared: &SharedState,
    stream: &mut Stream,
    unsettled: &mut Unsettled,
    is_proxied: bool,
    deadline: &Deadline,
) -> Result<ReadBuffer, NotGreeted> {
    let mut read_buffer = ReadBuffer::new(shared.engine().budget());
    if is_proxied {
        hear_proxy(stream, unsettled, &mut read_buffer, deadline).await?;
        if stream.is_unsecured() && read_buffer.bytes.is_empty() {
            read_more(&mut read_buffer, stream, deadline).await?;
        }
    } else {
        read_more(&mut read_buffer, stream, deadline).await?;
    }
    if !is_proxied && proxy::is_signed(&read_buffer.bytes) {
        return Err(NotGreeted::TurnedAway(ConnectRefuseCause::ProxyHeader));
    }
    Ok(read_buffer)
}

/// Reads the PROXY header, which names the source.
async fn hear_proxy(
    stream: &mut Stream,
    unsettled: &mut Unsettled,
    read_buffer: &mut ReadBuffer,
    deadline: &Deadline,
) -> Result<(), NotGreeted> {
    let announced = loop {
        match proxy::decode(&read_buffer.bytes) {
            Ok(Some(announced)) => break announced,
            Ok(None) => read_more(read_buffer, stream, deadline).await?,
            // An operator may list a network that is no proxy by mistake. Its devices must be able
            // to come back, so the reason is not `malformed`.
            Err(NoHeader) => {
                return Err(NotGreeted::TurnedAway(ConnectRefuseCause::ProxyHeader));
            }
        }
    };
    read_buffer.consume(announced.bytes);
    match announced.source.or(unsettled.addr()) {
        Some(source) => unsettled.count_source(source).map_err(NotGreeted::TurnedAway),
        None => Ok(()),
    }
}

/// A client of TLS speaks first, and at once. What it has said is read within this time even by a
/// gateway that is busy.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
/// As long as a packet that is lost twice, on a busy machine. A shutdown waits 4 s at least.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(3);
