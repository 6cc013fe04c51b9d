//! Section `[telemetry]`.

use std::time::Duration;

use super::keys::{HOUR, MINUTE};

crate::config_table! {
    /// Section `[telemetry]`: traces for an OpenTelemetry collector; see docs/telemetry.md.
    pub struct TelemetryConfig {
        /// The upstream that takes traces (OTLP over HTTP, protobuf). Empty: no traces. Needs a
        /// program that was built with the feature `otlp`.
        upstream: String, allowed("empty, or the name of one of [[upstreams]]"), reload();
        /// Path at the collector.
        path: String = "/v1/traces".to_owned(),
            allowed("a path that begins with /, of {PATH_BYTES_MAX} bytes at most"), reload();
        /// Name of this service in its traces (`service.name`).
        service_name: String = "weir".to_owned(), allowed("1 to {NAME_BYTES_MAX} bytes"), reload();
        /// Of so many traces that begin here, one is recorded, at random. 0: none.
        sample_one_in: u32 = 100, unit("traces"), reload();
        /// Whether the sender of a request decides, if its `traceparent` names a trace: with the
        /// flag `sampled` it is recorded, else not. If false, chance decides.
        follow_parents: bool = true, reload();
        /// Spans that wait for their export. Further ones are dropped, and counted.
        // Some 500 bytes each.
        queue_max: usize = 8_192, range(64..=262_144), unit("spans");
        /// How long a span waits for others to leave with it.
        flush_interval: Duration = Duration::from_secs(1), range(10..=MINUTE), reload();
        /// How long an export may take, with all its tries. Then its spans are lost, and counted.
        timeout: Duration = Duration::from_secs(10), range(100..=HOUR), reload();
    }
}

pub(super) const PATH_BYTES_MAX: usize = 1_024;
pub(super) const NAME_BYTES_MAX: usize = 256;
