//! Rules of `[http]`.

use std::time::Duration;

use super::{ConfigError, HOUR, TICK, check_hosts, within, within_time};
use crate::base::config::Config;

impl Config {
    pub(super) fn check_http(&self) -> Result<(), ConfigError> {
        let http = &self.http;
        within("http.connections_max", http.connections_max, 1..=CONNECTIONS_MAX)?;
        for (key, value) in [
            ("http.head_timeout", http.head_timeout),
            ("http.idle_timeout", http.idle_timeout),
            ("http.body_timeout", http.body_timeout),
        ] {
            within_time(key, value, TICK, HOUR, "")?;
        }
        within("http.head_bytes_max", http.head_bytes_max, HEAD_BYTES_MIN..=HEAD_BYTES_MAX)?;
        within("http.headers_max", http.headers_max, HEADERS_MIN..=HEADERS_MAX)?;
        within("http.body_bytes_max", http.body_bytes_max, 1_024..=BODY_BYTES_MAX)?;
        within("http.discard_bytes_max", http.discard_bytes_max, 0..=DISCARD_BYTES_MAX)?;
        let answers = ANSWER_BYTES_MIN..=ANSWER_BYTES_MAX;
        within("http.answer_bytes_max", http.answer_bytes_max, answers)?;
        let requests = http.requests_per_connection_max;
        within("http.requests_per_connection_max", requests, 0..=REQUESTS_MAX)?;
        within("http.h2_streams_max", http.h2_streams_max, 1..=STREAMS_MAX)?;
        within("http.h2_window_bytes", http.h2_window_bytes, WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX)?;
        within_time("http.h2_ping_interval", http.h2_ping_interval, PING_MIN, HOUR, "")?;
        check_hosts("http.hosts", &http.hosts)
    }
}

/// Each has some ten kilobytes: this is a gigabyte on the front.
const CONNECTIONS_MAX: usize = 100_000;
/// The smallest buffer that heads are read into.
const HEAD_BYTES_MIN: usize = 8 * 1024;
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// A browser sends some twenty.
const HEADERS_MIN: usize = 16;
/// As many as are parsed without an allocation.
const HEADERS_MAX: usize = 100;
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What is thrown away takes no memory; it is to end at some time.
const DISCARD_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// The longest: a part of a history, of 1 MiB or of one message.
const ANSWER_BYTES_MIN: usize = 2 * 1024 * 1024;
const ANSWER_BYTES_MAX: usize = 1024 * 1024 * 1024;
const REQUESTS_MAX: u32 = 1_000_000_000;
const STREAMS_MAX: u32 = 1_000;
/// What a client may send before it has heard of another size (RFC 9113 section 6.9.2).
const WINDOW_BYTES_MIN: u32 = 65_535;
const WINDOW_BYTES_MAX: u32 = 16 * 1024 * 1024;
const PING_MIN: Duration = Duration::from_secs(1);
