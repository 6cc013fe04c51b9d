//! Rules of `[udp]`.

use std::time::Duration;

use super::{ConfigError, HOUR, error, within, within_time};
use crate::base::config::Config;

impl Config {
    pub(super) fn check_udp(&self) -> Result<(), ConfigError> {
        let udp = &self.udp;
        let exposed = self.listen.udp.iter().find(|addr| !addr.ip().is_loopback());
        if let Some(addr) = exposed.filter(|_| !udp.cleartext) {
            let allowed = format!(
                "true, since {addr} of listen.udp is not on loopback, and keys and tokens travel there in the clear: \
                 whoever is on the way can read them. Or listen on 127.0.0.1 or [::1]"
            );
            let depends_on = &["listen.udp"];
            return Err(ConfigError { depends_on, ..error("udp.cleartext", "false", allowed) });
        }
        within("udp.threads", udp.threads, 0..=THREADS_MAX)?;
        let bytes = DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX;
        within("udp.datagram_bytes_max", udp.datagram_bytes_max, bytes)?;
        let buffers = BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX;
        within("udp.recv_buffer_bytes", udp.recv_buffer_bytes, buffers.clone())?;
        within("udp.send_buffer_bytes", udp.send_buffer_bytes, buffers)?;
        let (per_second, burst) =
            (udp.datagrams_per_source_per_second, udp.datagrams_per_source_burst);
        within("udp.datagrams_per_source_per_second", per_second, 0..=RATE_MAX)?;
        within("udp.datagrams_per_source_burst", burst, 1..=RATE_MAX)?;
        within("udp.queue_max", udp.queue_max, 1..=QUEUE_MAX)?;
        within_time(
            "udp.token_cache_ttl",
            udp.token_cache_ttl,
            SHORT,
            Duration::from_secs(60),
            "",
        )?;
        within("udp.token_cache_max", udp.token_cache_max, 2..=REMEMBERED_MAX)?;
        within_time("udp.duplicate_window", udp.duplicate_window, SHORT, HOUR, "")?;
        within("udp.duplicates_max", udp.duplicates_max, 1..=REMEMBERED_MAX)
    }
}

const THREADS_MAX: usize = 256;
/// Room for a token, a serial and a key.
const DATAGRAM_BYTES_MIN: usize = 256;
/// What machines of one house send each other unfragmented.
const DATAGRAM_BYTES_MAX: usize = 8_192;
const BUFFER_BYTES_MIN: usize = 64 * 1024;
const BUFFER_BYTES_MAX: usize = 1024 * 1024 * 1024;
const RATE_MAX: u32 = 100_000_000;
/// Each is a task of the front.
const QUEUE_MAX: usize = 65_536;
/// Some hundred megabytes of a thread at the worst.
const REMEMBERED_MAX: usize = 1_000_000;
const SHORT: Duration = Duration::from_millis(10);
