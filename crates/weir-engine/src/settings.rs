//! The settings of a shard. They never change while it runs.

use std::time::Duration;

/// Limits and time-outs of a shard. The gateway checks the values; see docs/configuration.md for their reasons.
#[derive(Debug, Clone)]
pub struct ShardSettings {
    /// Connections that this shard holds at the most.
    pub connections_max: usize,
    /// Topics that one connection may be in.
    pub topics_per_connection_max: usize,
    /// Longest frame from a device.
    pub frame_bytes_max: usize,
    /// At or below this a stalled connection has recovered.
    pub low_watermark_bytes: usize,
    /// Above this a connection is stalled.
    pub high_watermark_bytes: usize,
    /// Keys of one topic that a shard keeps the newest message of, for slow connections.
    pub conflation_keys_max: usize,
    /// Messages that a connection may publish in a second; 0: as many as it likes.
    pub publishes_per_second: u32,
    /// Messages that it may publish at once after a silence.
    pub publish_burst: u32,
    /// Other frames that it may send in a second, or what costs as much; 0: as many as it likes.
    pub frames_per_second: u32,
    /// Such frames that it may send at once after a silence; at least twice `topics_per_connection_max` count.
    pub frame_burst: u32,
    /// Returns the bytes that the calling thread has allocated so far, if the allocator counts them.
    pub allocated_bytes: Option<fn() -> u64>,
    /// A connection that stays stalled is closed after this long.
    pub stall_timeout: Duration,
    /// A frame that has begun must be complete within this.
    pub frame_timeout: Duration,
    /// How long a closed connection may take to flush `Goodbye` and to close its side.
    pub linger_timeout: Duration,
    /// `retry_after_ms` in a `Goodbye` that asks to come back later, smallest and largest.
    pub retry_after_ms: (u32, u32),
    /// Messages that the queue holds.
    pub message_capacity: usize,
    /// Other commands that it holds besides: a few turns' worth, so that a storm of connections does not wait.
    pub control_capacity: usize,
    /// Requests that the reserved queue holds.
    pub reserved_capacity: usize,
}

impl Default for ShardSettings {
    fn default() -> Self {
        Self {
            connections_max: 1 << 20,
            topics_per_connection_max: 64,
            frame_bytes_max: 64 * 1024,
            low_watermark_bytes: 32 * 1024,
            high_watermark_bytes: 128 * 1024,
            conflation_keys_max: 4096,
            publishes_per_second: 0,
            publish_burst: 0,
            frames_per_second: 0,
            frame_burst: 0,
            allocated_bytes: None,
            stall_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(1),
            retry_after_ms: (1_000, 10_000),
            message_capacity: 3072,
            control_capacity: 1024,
            reserved_capacity: 1024,
        }
    }
}
