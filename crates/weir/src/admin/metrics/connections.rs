//! Metrics of connections and of the sources that they come from.

use std::fmt;

use weir_engine::Transport;
use weir_wire::CloseReason;
use weir_wire::format::Format;

use super::Gateway;
use super::families::Families;

impl Gateway {
    pub(super) fn connections(&self, to: &mut Families<'_>) -> fmt::Result {
        let states = |transport: Transport| {
            let labels = |state| [("transport", transport.name()), ("state", state)];
            self.states(transport).map(|(state, count)| (labels(state), count))
        };
        to.gauges(
            "weir_connections",
            "Connections by transport and state; lingering ones are closed and flush or wait for the peer's end.",
            Transport::ALL.into_iter().flat_map(states),
        )?;
        to.gauges(
            "weir_connections_by_protocol",
            "Open connections by what is spoken on them.",
            Format::ALL.map(|format| ([("protocol", format.name())], self.speaking(format))),
        )?;
        to.counters(
            "weir_encodings",
            "Messages to many that were made in a format other than that of frames, once for all who speak it.",
            Format::ALL.into_iter().skip(1).map(|format| {
                let late = self.sum(|shard| &shard.encoded[format.index()]);
                let count = late + self.handle.counters().encoded(format);
                ([("protocol", format.name())], count)
            }),
        )?;
        to.counter(
            "weir_heartbeats_sent",
            "Pings to silent WebSockets and comments to readers of events.",
            self.sum(|shard| &shard.beats),
        )?;
        to.gauge(
            "weir_connections_max",
            "The most settled connections (limits.connections_max).",
            self.handle.shared().config().limits.connections_max as u64,
        )?;
        to.gauge(
            "weir_connections_stalled",
            "Connections above the high watermark.",
            self.sum(|shard| &shard.stalled),
        )?;
        to.gauge(
            "weir_table_entries",
            "Entries of the connection tables in use, lingering and unreported ones included.",
            self.sum(|shard| &shard.table_entries),
        )?;
        to.counter(
            "weir_connection_slots_retired",
            "Slots of the connection tables that are not used again: connection ids count 16,777,215 uses of each.",
            self.sum(|shard| &shard.slots_retired),
        )?;
        to.gauge(
            "weir_memberships",
            "Subscriptions: pairs of a connection and a topic that it is in.",
            self.sum(|shard| &shard.memberships),
        )?;
        to.counter(
            "weir_connections_adopted",
            "Connections that have settled on a shard.",
            self.sum(|shard| &shard.adopted),
        )?;
        to.counters(
            "weir_connections_closed",
            "Connections that have ended, by reason, settled or not.",
            CloseReason::ALL.map(|reason| ([("reason", reason.name())], self.closed(reason))),
        )
    }

    /// Connections of a transport, by state.
    pub(in crate::admin) fn states(&self, transport: Transport) -> [(&'static str, u64); 3] {
        let unsettled = self.handle.counters().unsettled_of(transport);
        [
            ("settled", self.sum(|shard| shard.connections.of(transport))),
            ("unsettled", unsettled as u64),
            ("lingering", self.sum(|shard| shard.lingering.of(transport))),
        ]
    }

    /// Open connections on which this format is spoken.
    pub(in crate::admin) fn speaking(&self, format: Format) -> u64 {
        self.sum(|shard| &shard.formats[format.index()])
    }

    /// Connections that have ended for this reason, settled or not.
    pub(in crate::admin) fn closed(&self, reason: CloseReason) -> u64 {
        let shards = self.sum(|shard| &shard.closed[reason.index()]);
        shards + self.handle.counters().closed(reason)
    }

    pub(super) fn ends(&self, to: &mut Families<'_>) -> fmt::Result {
        let shared = self.handle.shared();
        to.gauge(
            "weir_closes_kept",
            "Ends of connections that GET /v1/closes can show.",
            shared.ends.count() as u64,
        )?;
        to.gauge(
            "weir_client_names",
            "Names of client programs that connections use.",
            shared.clients.count() as u64,
        )?;
        to.counter(
            "weir_client_names_refused",
            "Connections whose client program is shown as \"other\", since too many names were in use.",
            shared.clients.others(),
        )
    }

    pub(super) fn sources(&self, to: &mut Families<'_>) -> fmt::Result {
        to.gauge(
            "weir_sources",
            "Source addresses that are known; none where neither limits by source nor listen.proxy_networks ask for them.",
            self.handle.gauges().sources as u64,
        )?;
        let shared = self.handle.shared();
        let activator = shared.activator.as_ref();
        let [connections, datagrams] =
            activator.map_or([0; 2], |activator| activator.sources_forgotten());
        to.counters(
            "weir_sources_forgotten",
            "Sources that were forgotten before they might do as before, since too many were known, by what of theirs was \
             counted: connects, or failed activations by connection and by datagram.",
            [
                ([("of", "connects")], shared.admission.sources_forgotten()),
                ([("of", "activations")], connections),
                ([("of", "activations_udp")], datagrams),
            ],
        )
    }
}
