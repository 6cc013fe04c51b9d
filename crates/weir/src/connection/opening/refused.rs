//! A connection that is refused before it settles: who it said it was, and why it ended.

use std::sync::Arc;

use weir_wire::CloseReason;
use weir_wire::format::Format;
use weir_wire::v1::Hello;

use crate::auth::Admission;
use crate::base::clock::unix_time;
use crate::core::clients::{Client, NAME_BYTES_MAX, readable};
use crate::core::ends::End;
use crate::core::state::SharedState;
use crate::limits::admission::Unsettled;
use crate::limits::sources::Source;
use crate::tls::stream::Stream;

/// A connection that was refused, its place, the reason, and the names that it gave.
pub(super) struct RefusedOpening {
    pub(super) stream: Stream,
    pub(super) unsettled: Unsettled,
    pub(super) reason: CloseReason,
    pub(super) named: Named,
}

/// The device and the client program of a refused connection, as far as they are known.
#[derive(Default)]
pub(super) struct Named {
    device: Option<Box<str>>,
    client: Option<Arc<str>>,
}

impl Named {
    /// The names in `Hello`, which nothing has proven yet. They take no place in tables.
    pub(super) fn claimed(shared: &SharedState, hello: &Hello) -> Named {
        let device = readable(&hello.device_id, shared.config().limits.device_id_bytes_max);
        let client = readable(&hello.client, NAME_BYTES_MAX);
        Named {
            device: (!device.is_empty()).then(|| device.into()),
            client: (!client.is_empty()).then(|| client.into()),
        }
    }

    /// The names of a device that was admitted.
    pub(super) fn admitted(admission: &Admission, client: &Client) -> Named {
        Named { device: Some((&*admission.device).into()), client: client.name() }
    }
}

impl RefusedOpening {
    /// Counts, keeps and logs the end.
    pub(super) fn note(&self, shared: &SharedState, protocol: Format) {
        let RefusedOpening { stream, unsettled, reason, named } = self;
        shared.counters().count_closed(*reason);
        shared.ends.note(End {
            at: unix_time(),
            conn: None,
            device: named.device.clone(),
            peer: stream.socket().peer_addr().ok(),
            source: unsettled.addr().map(Source::of),
            client: named.client.clone(),
            protocol,
            transport: unsettled.transport(),
            reason: *reason,
            age: shared.admission.age(unsettled.order()),
        });
    }
}
