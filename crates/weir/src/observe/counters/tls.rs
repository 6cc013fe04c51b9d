//! Counts of TLS on the front.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustls::CipherSuite;
use weir_engine::tls::{Alert, Violation};

/// All counters of TLS on the front. Totals never fall; `waiting` is a level.
#[derive(Debug, Default)]
pub(crate) struct TlsCounts {
    handshakes: [[AtomicU64; Kind::ALL.len()]; SUITES.len()],
    failed: [AtomicU64; HandshakeFailure::ALL.len()],
    alerts_sent: [AtomicU64; ALERTS.len()],
    alerts_received: AtomicU64,
    refused: AtomicU64,
    not_moved: AtomicU64,
    waiting: AtomicUsize,
    session_lookups: [AtomicU64; SessionLookup::ALL.len()],
    sessions_shared: [AtomicU64; SessionSharing::ALL.len()],
}

weir_wire::named_enum! {
    /// The credentials of a handshake.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Kind {
        /// Certificate and signature.
        Full = "full",
        /// A ticket, or in TLS 1.3 a pre-shared key.
        Ticket = "ticket",
        /// A session that this server has stored.
        SessionId = "session_id",
    }
}

weir_wire::named_enum! {
    /// The reason why a handshake failed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum HandshakeFailure {
        /// The bytes are no TLS.
        Malformed = "malformed",
        /// There is no common version, suite, group or signature.
        Incompatible = "incompatible",
        /// The server supports none of the client's protocols.
        NoProtocol = "no_protocol",
        /// The client's certificate is not accepted.
        Certificate = "certificate",
        /// The client showed no certificate, but must.
        NoCertificate = "no_certificate",
        /// The client sent an alert.
        AlertReceived = "alert_received",
        /// The client broke the rules.
        Misbehaved = "misbehaved",
        /// A record could not be opened.
        Decrypt = "decrypt",
        /// The client left.
        Closed = "closed",
        /// The client was too slow.
        TimedOut = "timed_out",
        /// The message has more bytes than allowed.
        TooLong = "too_long",
        /// The keys could not be taken out of rustls.
        NotMovable = "not_movable",
        /// The signer of the certificate's key failed.
        Signer = "signer",
        /// The server is at fault: its configuration, or missing randomness.
        Internal = "internal",
    }
}

weir_wire::named_enum! {
    /// The outcome of a look-up of a stored session at the cluster.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum SessionLookup {
        /// The session was found.
        Hit = "hit",
        /// No node has stored it, or its time is over.
        Miss = "miss",
        /// It was sealed with another secret, too long ago, or under other rules for clients; or it
        /// has been changed.
        Unreadable = "unreadable",
        /// There was no answer in time.
        Failed = "failed",
        /// Too many look-ups were on their way.
        Refused = "refused",
    }
}

weir_wire::named_enum! {
    /// What became of a new session that all nodes shall find.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum SessionSharing {
        /// The cluster keeps it.
        Kept = "kept",
        /// It was not sent: too many waited, or the broker was lost.
        Dropped = "dropped",
        /// The broker did not accept it in time.
        Failed = "failed",
    }
}

impl TlsCounts {
    /// Handshakes by version, suite and kind.
    pub(crate) fn handshakes(
        &self,
    ) -> impl Iterator<Item = (&'static str, &'static str, &'static str, u64)> {
        SUITES.iter().zip(&self.handshakes).flat_map(|((suite, version), kinds)| {
            let suite = suite.as_str().unwrap_or("other");
            Kind::ALL.iter().zip(kinds).map(move |(kind, count)| {
                (*version, suite, kind.name(), count.load(Ordering::Relaxed))
            })
        })
    }

    pub(crate) fn failed(&self, cause: HandshakeFailure) -> u64 {
        self.failed[cause as usize].load(Ordering::Relaxed)
    }

    /// Alerts sent, by code and name.
    pub(crate) fn alerts_sent(&self) -> impl Iterator<Item = (Option<u8>, &'static str, u64)> {
        let counts = self.alerts_sent.iter().map(|count| count.load(Ordering::Relaxed));
        ALERTS.iter().zip(counts).map(|((code, name), count)| (*code, *name, count))
    }

    /// Fatal alerts received.
    pub(crate) fn alerts_received(&self) -> u64 {
        self.alerts_received.load(Ordering::Relaxed)
    }

    /// Handshakes refused because too many waited, or they waited too long.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Connections closed because they could not be moved to a shard.
    pub(crate) fn not_moved(&self) -> u64 {
        self.not_moved.load(Ordering::Relaxed)
    }

    /// Level: handshakes that wait for their first step.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Look-ups of sessions at the cluster.
    pub(crate) fn session_lookups(&self, outcome: SessionLookup) -> u64 {
        self.session_lookups[outcome as usize].load(Ordering::Relaxed)
    }

    /// Sessions that all nodes shall find.
    pub(crate) fn sessions_shared(&self, outcome: SessionSharing) -> u64 {
        self.sessions_shared[outcome as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_session_lookup(&self, outcome: SessionLookup) {
        self.session_lookups[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_sessions_shared(&self, outcome: SessionSharing, count: usize) {
        self.sessions_shared[outcome as usize].fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_handshake(&self, suite: CipherSuite, kind: Kind) {
        let Some(suite) = SUITES.iter().position(|(known, _)| *known == suite) else { return };
        self.handshakes[suite][kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failed(&self, cause: HandshakeFailure) {
        self.failed[cause as usize].fetch_add(1, Ordering::Relaxed);
        match cause {
            HandshakeFailure::AlertReceived => {
                self.alerts_received.fetch_add(1, Ordering::Relaxed);
            }
            HandshakeFailure::NotMovable => self.count_not_moved(),
            HandshakeFailure::Malformed
            | HandshakeFailure::Incompatible
            | HandshakeFailure::NoProtocol
            | HandshakeFailure::Certificate
            | HandshakeFailure::NoCertificate
            | HandshakeFailure::Misbehaved
            | HandshakeFailure::Decrypt
            | HandshakeFailure::Closed
            | HandshakeFailure::TimedOut
            | HandshakeFailure::TooLong
            | HandshakeFailure::Signer
            | HandshakeFailure::Internal => {}
        }
    }

    /// Counts the alert that ends a failed handshake. `output` ends with that alert; `named` is its
    /// code if the record is encrypted.
    pub(crate) fn count_last_alert(&self, output: &[u8], named: Option<u8>) {
        let Some((_, record)) = output.split_last_chunk::<ALERT_RECORD_BYTES>() else { return };
        let code = match record {
            [21, 3, _, 0, 2, _, code] => Some(*code),
            _ => named,
        };
        self.count_alert(code);
    }

    /// Counts a violation of the record layer by the alert in its answer.
    pub(crate) fn count_violation(&self, violation: &Violation) {
        match violation.alert {
            Some(alert) => self.count_alert_sent(alert),
            None => {
                self.alerts_received.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn count_alert_sent(&self, alert: Alert) {
        self.count_alert(Some(alert as u8));
    }

    fn count_alert(&self, code: Option<u8>) {
        let known = ALERTS.iter().position(|(known, _)| *known == code);
        self.alerts_sent[known.unwrap_or(0)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_not_moved(&self) {
        self.not_moved.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_waiting(&self, count: usize) {
        self.waiting.store(count, Ordering::Relaxed);
    }
}

/// Every suite that a handshake can have, with its version.
const SUITES: [(CipherSuite, &str); 9] = [
    (CipherSuite::TLS13_AES_128_GCM_SHA256, "1.3"),
    (CipherSuite::TLS13_AES_256_GCM_SHA384, "1.3"),
    (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, "1.3"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "1.2"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, "1.2"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, "1.2"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "1.2"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, "1.2"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, "1.2"),
];

/// Alerts by their code (RFC 8446 section 6); the first row counts all others.
const ALERTS: [(Option<u8>, &str); 25] = [
    (None, "other"),
    (Some(0), "close_notify"),
    (Some(10), "unexpected_message"),
    (Some(20), "bad_record_mac"),
    (Some(22), "record_overflow"),
    (Some(40), "handshake_failure"),
    (Some(42), "bad_certificate"),
    (Some(43), "unsupported_certificate"),
    (Some(44), "certificate_revoked"),
    (Some(45), "certificate_expired"),
    (Some(46), "certificate_unknown"),
    (Some(47), "illegal_parameter"),
    (Some(48), "unknown_ca"),
    (Some(49), "access_denied"),
    (Some(50), "decode_error"),
    (Some(51), "decrypt_error"),
    (Some(70), "protocol_version"),
    (Some(80), "internal_error"),
    (Some(86), "inappropriate_fallback"),
    (Some(100), "no_renegotiation"),
    (Some(109), "missing_extension"),
    (Some(110), "unsupported_extension"),
    (Some(112), "unrecognized_name"),
    (Some(116), "certificate_required"),
    (Some(120), "no_application_protocol"),
];

const ALERT_RECORD_BYTES: usize = 7;
