//! Section `[connection]`.

use std::time::Duration;

use super::keys::{DAY, HOUR, time};
use super::{TICK, WATERMARK_BYTES_MAX};

crate::config_table! {
    /// Section `[connection]`.
    pub struct ConnectionConfig {
        /// Time from accepting a connection to its whole `Hello`.
        hello_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR), reload();
        /// Time from the first byte of a frame to its last. A connection that needs longer is
        /// closed.
        frame_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR), reload();
        /// How long a connection may stay above the high watermark. Then it is closed with
        /// `stalled`.
        stall_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR), reload();
        /// Time over which a shutdown spreads its goodbyes. Each device is told to come back after
        /// 1 to 10 s, drawn at random. That delay does not depend on this key, because other
        /// servers are there at once.
        drain_timeout: Duration = Duration::from_secs(10), range(0..=HOUR), reload();
        /// Heartbeat interval of devices that do not ask for one. After two missed heartbeats the
        /// connection is closed.
        heartbeat: Duration = Duration::from_secs(60), allowed("heartbeat_min to heartbeat_max"),
            reload();
        /// Shortest heartbeat that a device may ask for. Radios sleep between heartbeats.
        heartbeat_min: Duration = Duration::from_secs(15), range(2 * TICK..=HOUR), reload();
        /// Longest heartbeat that a device may ask for. A dead connection is noticed after two
        /// heartbeats.
        heartbeat_max: Duration = Duration::from_secs(15 * 60),
            allowed("heartbeat_min to {}", time(DAY)), reload();
        /// A stalled connection has recovered when at most this many bytes wait for it.
        low_watermark_bytes: usize = 32 * 1024, range(1_024..=WATERMARK_BYTES_MAX as u64),
            unit("bytes"), reload();
        /// A connection is stalled when more bytes than this wait for it. The distance to the low
        /// watermark is at least one frame, so that no single message stalls a healthy device.
        high_watermark_bytes: usize = 128 * 1024,
            allowed("at least low_watermark_bytes + limits.frame_bytes_max"), unit("bytes"),
            reload();
    }
}
