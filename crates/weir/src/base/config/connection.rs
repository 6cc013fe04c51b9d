//! Section `[connection]`.

use std::time::Duration;

use super::keys::{DAY, HOUR, time};
use super::{TICK, WATERMARK_BYTES_MAX};

crate::config_table! {
    /// Section `[connection]`.
    pub struct ConnectionConfig {
        /// From accepting a connection to its whole `Hello`.
        hello_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// From the first byte of a frame to its last: what drips in more slowly is closed.
        frame_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// How long a connection may stay above the high watermark before it is closed with
        /// `stalled`.
        stall_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// How long a shutdown takes to say goodbye to all, one after the other. Each is told to
        /// come back after 1 to 10 s, drawn at random, whatever this is: other servers are there at
        /// once.
        drain_timeout: Duration = Duration::from_secs(10), range(0..=HOUR);
        /// Interval of the signs of life for devices that do not ask for one. After two missed ones
        /// the connection is closed.
        heartbeat: Duration = Duration::from_secs(60), allowed("heartbeat_min to heartbeat_max");
        /// The shortest heartbeat that a device may ask for: radios sleep between them.
        heartbeat_min: Duration = Duration::from_secs(15), range(2 * TICK..=HOUR);
        /// The longest heartbeat that a device may ask for: the dead are noticed after two of them.
        heartbeat_max: Duration = Duration::from_secs(15 * 60),
            allowed("heartbeat_min to {}", time(DAY));
        /// A stalled connection has recovered when no more than this waits for it.
        low_watermark_bytes: usize = 32 * 1024, range(1_024..=WATERMARK_BYTES_MAX as u64),
            unit("bytes");
        /// A connection is stalled when more than this waits for it. The distance to the low
        /// watermark is at least one frame, so that no single message stalls a healthy device.
        high_watermark_bytes: usize = 128 * 1024,
            allowed("at least low_watermark_bytes + limits.frame_bytes_max"), unit("bytes");
    }
}
