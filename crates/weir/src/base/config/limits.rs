//! Section `[limits]`.

use super::RATE_MAX;

crate::config_table! {
    /// Section `[limits]`.
    pub struct LimitsConfig {
        /// Settled and unsettled connections together. At the limit a new one is told to come back
        /// later.
        connections_max: usize = 1_000_000, range(1..=CONNECTIONS_MAX), unit("connections");
        /// Connections without `Hello` so far. This bounds the resources of strangers.
        unsettled_connections_max: usize = 16_384, range(1..=1_000_000), unit("connections");
        /// Connections of one device id. One more closes the oldest with `replaced`.
        // Every push to a device walks its connections one by one.
        connections_per_device_max: usize = 1, range(1..=1_024), unit("connections");
        /// Topics that exist at one time. At most half of them may have no subscribers and only
        /// retain messages. At that limit, no publish begins another such topic, and a topic that
        /// loses its last subscriber retains nothing.
        topics_max: usize = 1_000_000, range(1..=CONNECTIONS_MAX), unit("topics");
        /// Topics of one connection. A connection that leaves a topic walks all of them.
        topics_per_connection_max: usize = 64, range(1..=4_096), unit("topics");
        /// Length of a topic name in bytes. Each message carries it.
        topic_bytes_max: usize = 255, range(1..=1_024), unit("bytes");
        /// Length of a device id in bytes.
        device_id_bytes_max: usize = 128, range(1..=1_024), unit("bytes");
        /// Length of a frame in bytes, from a device or to it. A longer frame from a device closes
        /// its connection.
        frame_bytes_max: usize = 64 * 1024, range(FRAME_BYTES_MIN..=FRAME_BYTES_MAX), unit("bytes");
        /// Length of the frame with `Hello`, or of a WebSocket's first message. A longer one closes
        /// its connection. This bounds the memory of each stranger before its token is known. The
        /// default has room for a token of 8 KiB and 64 topics with names of 100 bytes and
        /// positions. A client with more topics subscribes to the others after `Welcome`.
        hello_bytes_max: usize = 16 * 1024,
            range(FRAME_BYTES_MIN..=FRAME_BYTES_MAX), unit("bytes"),
            allowed(
                "{FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}; \
                 more than limits.frame_bytes_max has no effect"
            );
        /// Connections from one address (IPv6: one /64), settled or not. One more is told to come
        /// back later. 0: no limit. Leave room for networks that share one address.
        connections_per_source_max: usize, range(0..=CONNECTIONS_MAX), unit("connections");
        /// Average number of connects from one address in a second. Faster ones are told to come
        /// back later. 0: no limit.
        connects_per_source_per_second: u32, range(0..=RATE_MAX), unit("connects a second");
        /// Connects from one address at once after a silence.
        // Without a burst, not even the first connect would succeed.
        connects_per_source_burst: u32 = 256, range(1..=RATE_MAX), unit("connects");
        /// Average number of messages that one connection of a device may publish in a second.
        /// Further ones are answered with `rate_limited`, and a device that goes on is closed. 0:
        /// no limit.
        publishes_per_second: u32 = 100, range(0..=RATE_MAX), unit("messages a second");
        /// Messages that it may publish at once after a silence. As many again over the rate close
        /// the connection.
        publish_burst: u32 = 200, range(1..=RATE_MAX), unit("messages");
        /// Average number of other frames that one connection of a device may send in a second.
        /// WebSocket pings and pongs, changes of TLS keys and refused publishes count too. Beyond
        /// the limit the server reads more slowly. A busy client sends some ten. 0: no limit.
        frames_per_second: u32 = 100, range(0..=RATE_MAX), unit("frames a second");
        /// Such frames that it may send at once after a silence, or twice
        /// `limits.topics_per_connection_max` if that is more. Four times as many over the rate
        /// close the connection.
        frame_burst: u32 = 1000, range(1..=RATE_MAX), unit("frames");
        /// Keys of one topic whose newest message each shard keeps, for slow connections (`slow =
        /// "conflate"`). Beyond it the message that has waited longest is dropped.
        // Each key holds a message on a shard. Split a topic that needs more keys.
        conflation_keys_max: usize = 4096, range(1..=1_048_576), unit("keys");
    }
}

impl LimitsConfig {
    /// The effective limit on `Hello`.
    pub(crate) fn hello_bytes_max(&self) -> usize {
        self.hello_bytes_max.min(self.frame_bytes_max)
    }
}

/// The ids of connections within a shard, and of topics in the router, have 24 bits. All
/// connections may be on one shard.
const CONNECTIONS_MAX: u64 = 1 << 24;
/// A shorter frame could not hold a `Hello` with a signed token.
const FRAME_BYTES_MIN: u64 = 1_024;
/// A longer frame is a file, not a message.
const FRAME_BYTES_MAX: u64 = 16 << 20;
