//! Section `[limits]`.

use super::RATE_MAX;

crate::config_table! {
    /// Section `[limits]`.
    pub struct LimitsConfig {
        /// Connections held. One more is told to come back later.
        connections_max: usize = 1_000_000, range(1..=CONNECTIONS_MAX), unit("connections");
        /// Connections that have not said `Hello` yet. Bounds what strangers can occupy.
        unsettled_connections_max: usize = 16_384, range(1..=1_000_000), unit("connections");
        /// Connections of one device id. One more closes the oldest with `replaced`.
        // A device's connections are walked one by one for every push to it.
        connections_per_device_max: usize = 1, range(1..=1_024), unit("connections");
        /// Topics that exist at one time. Half of them may be topics that nobody is in and that
        /// keep messages; no publish begins another one then, and a topic beyond it keeps nothing
        /// when its last subscriber leaves.
        topics_max: usize = 1_000_000, range(1..=CONNECTIONS_MAX), unit("topics");
        /// Topics that one connection may be in; all of them are walked when it leaves one.
        topics_per_connection_max: usize = 64, range(1..=4_096), unit("topics");
        /// Length of a topic name in bytes; it travels in every message.
        topic_bytes_max: usize = 255, range(1..=1_024), unit("bytes");
        /// Length of a device id in bytes.
        device_id_bytes_max: usize = 128, range(1..=1_024), unit("bytes");
        /// Length of a frame in bytes, from a device or to it. A longer one from a device closes
        /// its connection.
        frame_bytes_max: usize = 64 * 1024, range(FRAME_BYTES_MIN..=FRAME_BYTES_MAX), unit("bytes");
        /// Length of the frame, or of the first message of a WebSocket, that holds `Hello`. A
        /// longer one closes its connection. Bounds what each stranger can have kept before its
        /// token is known. The default has room for a token of 8 KiB and for 64 topics with names
        /// of 100 bytes and positions; a client with more subscribes to the others behind
        /// `Welcome`.
        hello_bytes_max: usize = 16 * 1024,
            range(FRAME_BYTES_MIN..=FRAME_BYTES_MAX), unit("bytes"),
            allowed(
                "{FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}; \
                 more than limits.frame_bytes_max has no effect"
            );
        /// Connections from one address (of IPv6, from one /64), settled or not. One more is told
        /// to come back later. 0: as many as come. Leave room for networks that share one address.
        connections_per_source_max: usize, range(0..=CONNECTIONS_MAX), unit("connections");
        /// Connects that one address may make in a second, on average. What comes faster is told to
        /// come back later. 0: as many as come.
        connects_per_source_per_second: u32, range(0..=RATE_MAX), unit("connects a second");
        /// Connects that one address may make at once after a silence.
        // Without a burst not even the first would get in.
        connects_per_source_burst: u32 = 256, range(1..=RATE_MAX), unit("connects");
        /// Messages that one connection of a device may publish in a second, on average. One more
        /// is answered with `rate_limited`, and who goes on is closed. 0: as many as it likes.
        publishes_per_second: u32 = 100, range(0..=RATE_MAX), unit("messages a second");
        /// Messages that it may publish at once after a silence; as many again over the rate close
        /// it.
        publish_burst: u32 = 200, range(1..=RATE_MAX), unit("messages");
        /// Frames of all other kinds that one connection of a device may send in a second, on
        /// average; pings and pongs of WebSocket, changes of TLS keys and refused publishes count
        /// too. Beyond it the server reads more slowly. A busy client sends some ten. 0: as many as
        /// it likes.
        frames_per_second: u32 = 100, range(0..=RATE_MAX), unit("frames a second");
        /// Such frames that it may send at once after a silence; twice
        /// limits.topics_per_connection_max, if that is more. Four times as many beyond it close
        /// the connection.
        frame_burst: u32 = 1000, range(1..=RATE_MAX), unit("frames");
        /// Keys of one topic that each shard keeps the newest message of, for slow connections
        /// (`slow = "conflate"`). Beyond it the message that has waited longest is dropped.
        // Each key that a shard keeps holds a message; a topic with more of them wants to be
        // several.
        conflation_keys_max: usize = 4096, range(1..=1_048_576), unit("keys");
    }
}

impl LimitsConfig {
    /// The limit on `Hello` that is in force.
    pub(crate) fn hello_bytes_max(&self) -> usize {
        self.hello_bytes_max.min(self.frame_bytes_max)
    }
}

/// A shard numbers its connections, and the router its topics, in 24 bits; all of them may meet on
/// one.
const CONNECTIONS_MAX: u64 = 1 << 24;
/// No shorter frame holds a `Hello` with a signed token.
const FRAME_BYTES_MIN: u64 = 1_024;
/// Above this a frame is a file, not a message.
const FRAME_BYTES_MAX: u64 = 16 << 20;
