//! The settings of a shard. Its limits, rates and times can change while it runs.

use std::time::Duration;

use crate::id::OwnNode;

/// Limits and time-outs of a shard. The gateway checks the values; see docs/configuration.md for their reasons.
#[derive(Debug, Clone)]
pub struct ShardSettings {
    /// The number of this node in its cluster. It changes by itself.
    pub node: OwnNode,
    /// Whether each shard has a descriptor table of its own, and sockets come to it through a
    /// passage. Then the limit on open files counts for each shard alone.
    pub own_descriptors: bool,
    /// Connections that this shard holds at the most, and at most [`ConnId::SLOTS_MAX`].
    ///
    /// [`ConnId::SLOTS_MAX`]: crate::ConnId::SLOTS_MAX
    pub connections_max: usize,
    /// The most topics of one connection.
    pub topics_per_connection_max: usize,
    /// Longest frame from a device.
    pub frame_bytes_max: usize,
    /// A stalled connection has recovered when it waits for at most this many bytes.
    pub low_watermark_bytes: usize,
    /// A connection is stalled when it waits for more bytes than this.
    pub high_watermark_bytes: usize,
    /// The most keys of one topic for which a shard keeps the newest message, for lagging
    /// connections.
    pub conflation_keys_max: usize,
    /// Messages that a connection may publish in a second; 0: no limit.
    pub publishes_per_second: u32,
    /// Messages that it may publish at once after a silence.
    pub publish_burst: u32,
    /// Other frames, or equal work, that it may cause in a second; 0: no limit.
    pub frames_per_second: u32,
    /// Such frames that it may send at once after a silence. The shard uses at least twice
    /// `topics_per_connection_max`.
    pub frame_burst: u32,
    /// Returns the bytes that the calling thread has allocated so far, if the allocator counts them.
    pub allocated_bytes: Option<fn() -> u64>,
    /// A connection that stays stalled for this long is closed.
    pub stall_timeout: Duration,
    /// A begun frame must be complete within this time.
    pub frame_timeout: Duration,
    /// The time in which a closed connection must take `Goodbye` and close its side.
    pub linger_timeout: Duration,
    /// Smallest and largest `retry_after_ms` in a `Goodbye` that asks to come back later.
    pub retry_after_ms: (u32, u32),
    /// Messages that the queue may hold.
    pub message_capacity: usize,
    /// Other commands that the queue may hold besides: a few turns' worth, so that a storm of
    /// connections does not wait.
    pub control_capacity: usize,
    /// Requests that the reserved queue may hold.
    pub reserved_capacity: usize,
}

impl ShardSettings {
    /// The same settings with the limits, rates and times of `other`: those of connections, topics,
    /// watermarks, conflation, publishes, frames, stalls and begun frames.
    pub fn with_limits(self, other: &ShardSettings) -> ShardSettings {
        ShardSettings {
            connections_max: other.connections_max,
            topics_per_connection_max: other.topics_per_connection_max,
            low_watermark_bytes: other.low_watermark_bytes,
            high_watermark_bytes: other.high_watermark_bytes,
            conflation_keys_max: other.conflation_keys_max,
            publishes_per_second: other.publishes_per_second,
            publish_burst: other.publish_burst,
            frames_per_second: other.frames_per_second,
            frame_burst: other.frame_burst,
            stall_timeout: other.stall_timeout,
            frame_timeout: other.frame_timeout,
            ..self
        }
    }
}

impl Default for ShardSettings {
    fn default() -> Self {
        Self {
            node: OwnNode::default(),
            own_descriptors: false,
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
