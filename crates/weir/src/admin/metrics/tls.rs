//! The metrics of TLS.

use std::fmt;

use weir_engine::tls::Alert;

use super::Gateway;
use super::families::Families;
use crate::observe::counters::tls::HandshakeFailure;
use crate::tls::Contexts;

impl Gateway {
    pub(super) fn tls(&self, to: &mut Families<'_>) -> fmt::Result {
        let counts = &self.handle.counters().tls;
        to.counters(
            "weir_tls_handshakes",
            "TLS handshakes done, by version, suite and what they were made with; those that never happened are left out.",
            counts.handshakes().filter(|(.., count)| *count > 0).map(
                |(version, suite, kind, count)| {
                    ([("version", version), ("suite", suite), ("kind", kind)], count)
                },
            ),
        )?;
        to.counters(
            "weir_tls_handshakes_failed",
            "TLS handshakes that failed, by cause.",
            HandshakeFailure::ALL.map(|cause| ([("cause", cause.name())], counts.failed(cause))),
        )?;
        to.counter(
            "weir_tls_handshakes_refused",
            "TLS handshakes refused because tls.handshake_queue_max of them waited, or they waited for connection.hello_timeout.",
            counts.refused(),
        )?;
        to.gauge(
            "weir_tls_handshake_queue",
            "TLS handshakes that wait for their first step.",
            counts.waiting() as u64,
        )?;
        to.counters(
            "weir_tls_alerts_sent",
            "TLS alerts sent, by name; other: a rare one, or one that is not known because it ended a handshake encrypted.",
            counts.alerts_sent().map(|(code, name, front)| {
                let known = Alert::ALL.iter().position(|alert| Some(*alert as u8) == code);
                let shards = known.map(|alert| self.sum(|shard| &shard.tls_alerts_sent[alert]));
                ([("alert", name)], front + shards.unwrap_or(0))
            }),
        )?;
        to.counter(
            "weir_tls_alerts_received",
            "Fatal TLS alerts received.",
            counts.alerts_received() + self.sum(|shard| &shard.tls_alerts_received),
        )?;
        to.counter(
            "weir_tls_records_sealed",
            "TLS records sealed for settled connections; what TLS itself says in front of data is not counted apart.",
            self.sum(|shard| &shard.tls_records_sealed),
        )?;
        to.counter(
            "weir_tls_key_updates",
            "Changes of TLS keys on settled connections, in either direction.",
            self.sum(|shard| &shard.tls_key_changes),
        )?;
        let expiries = self.handle.tls().map(Contexts::expiries).unwrap_or_default();
        to.gauges(
            "weir_tls_certificate_expiry_seconds",
            "When each file of certificates or revocation lists ends, in seconds since 1970.",
            expiries.iter().map(|expiry| {
                let labels = [("kind", expiry.kind.label()), ("file", expiry.file.as_str())];
                (labels, expiry.not_after)
            }),
        )?;
        to.counter(
            "weir_tls_not_moved",
            "Connections closed because they could not be moved to a shard.",
            counts.not_moved(),
        )
    }
}
