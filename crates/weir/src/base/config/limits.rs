//! Section `[limits]`.

use super::RATE_MAX;

crate::config_table! {
    /// Section `[limits]`.
    pub struct LimitsConfig {
        /// Connections at the same time. The next one is told to come back later.
        connections_max: usize = 1_000_000, range(1..=CONNECTIONS_MAX), unit("connections"),
            reload();
        /// Unsettled connections at the same time: `Hello` and authentication have not ended. This
        /// bounds the resources of unknown peers.
        unsettled_connections_max: usize = 16_384, range(1..=1_000_000), unit("connections"),
            reload();
        /// Connections of one device id. The next one closes the oldest with `replaced`.
        // Every push to a device walks through its connections.
        connections_per_device_max: usize = 1, range(1..=1_024), unit("connections"), reload();
        /// Topics at the same time. At most half of them may be topics without subscribers that
        /// keep messages. At that limit, no publish begins another such topic, and a topic keeps
        /// nothing when its last subscriber leaves.
        topics_max: usize = 1_000_000, range(1..=CONNECTIONS_MAX), unit("topics"), reload();
        /// Topics of one connection. Leaving a topic walks through all of them.
        topics_per_connection_max: usize = 64, range(1..=4_096), unit("topics"), reload();
        /// Connections in topics with presence (`presence` of a topic class), counted once for each
        /// topic. Connections beyond that are not listed, and cannot ask to hear who enters and
        /// leaves.
        // A member takes some 150 bytes.
        presence_members_max: usize = 262_144, range(1..=MEMBERS_MAX), unit("members"), reload();
        /// Length of a topic name in bytes. Every message carries its name.
        topic_bytes_max: usize = 255, range(1..=1_024), unit("bytes"), reload();
        /// Length of a device id in bytes.
        device_id_bytes_max: usize = 128, range(1..=1_024), unit("bytes"), reload();
        /// Length of a frame in bytes, in either direction. A device that sends a longer one is
        /// closed.
        frame_bytes_max: usize = 64 * 1024, range(FRAME_BYTES_MIN..=FRAME_BYTES_MAX), unit("bytes");
        /// Length of the frame, or of the first WebSocket message, that holds `Hello`. A connection
        /// with a longer one is closed. This bounds the memory that each unknown peer can use
        /// before its token is checked. The default has room for a token of 8 KiB, and for 64
        /// topics with names of 100 bytes and positions. A client with more topics subscribes to
        /// the others after `Welcome`.
        hello_bytes_max: usize = 16 * 1024,
            range(FRAME_BYTES_MIN..=FRAME_BYTES_MAX), unit("bytes"),
            allowed(
                "{FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}; \
                 more than limits.frame_bytes_max has no effect"
            ), reload();
        /// Connections from one source (an IPv4 address, or a /64 of IPv6), settled or not. The
        /// next one is told to come back later. 0: no limit. Leave room for networks that share one
        /// address.
        connections_per_source_max: usize, range(0..=CONNECTIONS_MAX), unit("connections"),
            reload();
        /// Connects per second from one source, on average. Faster ones are told to come back
        /// later. 0: no limit.
        connects_per_source_per_second: u32, range(0..=RATE_MAX), unit("connects a second"),
            reload();
        /// Connects from one source at once after a silence.
        // Without a burst, even the first connect would be refused.
        connects_per_source_burst: u32 = 256, range(1..=RATE_MAX), unit("connects"), reload();
        /// Messages per second that one connection of a device may publish, on average. Beyond
        /// that, a publish gets `rate_limited`, and a device that continues is closed. 0: no limit.
        publishes_per_second: u32 = 100, range(0..=RATE_MAX), unit("messages a second"), reload();
        /// Messages that a connection may publish at once after a silence. A connection that
        /// exceeds the rate by as many again is closed.
        publish_burst: u32 = 200, range(1..=RATE_MAX), unit("messages"), reload();
        /// Idempotency keys of HTTP requests that are remembered for five minutes. Beyond that, the
        /// oldest keys of the caller with the most are forgotten, and a message that is sent again
        /// with such a key is published twice. Each takes 288 bytes of the byte budget, of which
        /// keys may have an eighth of the share of HTTP. In a cluster the broker remembers all keys
        /// but those of messages to topics of one node.
        idempotency_keys_max: usize = 65_536, range(1..=CONNECTIONS_MAX), unit("keys"), reload();
        /// Other frames per second that one connection of a device may send, on average. WebSocket
        /// pings and pongs, TLS key updates and refused publishes count too. Beyond the rate, the
        /// server reads more slowly. A busy client sends some ten. 0: no limit.
        frames_per_second: u32 = 100, range(0..=RATE_MAX), unit("frames a second"), reload();
        /// Other frames that a connection may send at once after a silence; at least twice
        /// limits.topics_per_connection_max. A connection that exceeds the rate by four times as
        /// many is closed.
        frame_burst: u32 = 1000, range(1..=RATE_MAX), unit("frames"), reload();
        /// Keys of one topic of which each shard keeps the newest message for slow connections
        /// (`slow = "conflate"`). Beyond that, the message that has waited longest is dropped.
        // Each kept key holds a message. A topic with more keys should be several topics.
        conflation_keys_max: usize = 4096, range(1..=1_048_576), unit("keys"), reload();
    }
}

impl LimitsConfig {
    /// The effective limit on `Hello`.
    pub(crate) fn hello_bytes_max(&self) -> usize {
        self.hello_bytes_max.min(self.frame_bytes_max)
    }
}

/// The router numbers its topics in 24 bits. A shard numbers its connections in 22 bits, so that many
/// need several shards.
const CONNECTIONS_MAX: u64 = 1 << 24;
/// As many as members of topics take 10 GB.
const MEMBERS_MAX: u64 = 1 << 26;
/// A `Hello` with a signed token needs this much.
const FRAME_BYTES_MIN: u64 = 1_024;
/// A longer frame is a file, not a message.
const FRAME_BYTES_MAX: u64 = 16 << 20;
