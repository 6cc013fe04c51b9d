//! Section `[udp]`.

use std::time::Duration;

use serde::Deserialize;

use super::duration;

/// Section `[udp]`: what holds for `listen.udp`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UdpConfig {
    /// Whether addresses that are not on loopback may be listened on: keys and tokens travel there in the clear.
    pub cleartext: bool,
    /// Threads for each address, each with a socket of its own; 0: one for each processor allowed.
    pub threads: usize,
    /// Length of a datagram.
    pub datagram_bytes_max: usize,
    /// `SO_RCVBUF` of each socket; the kernel doubles it.
    pub recv_buffer_bytes: usize,
    /// `SO_SNDBUF` of each socket; the kernel doubles it.
    pub send_buffer_bytes: usize,
    /// Datagrams that one address (of IPv6: one /64) may send in a second; 0: as many as it likes.
    pub datagrams_per_source_per_second: u32,
    /// Datagrams that it may send at once after a silence.
    pub datagrams_per_source_burst: u32,
    /// Requests of one thread that may wait for the front: activations, publishes, and tokens that are to be checked.
    pub queue_max: usize,
    /// How long a token that was found valid is taken for valid without being looked up.
    #[serde(with = "duration")]
    pub token_cache_ttl: Duration,
    /// Tokens that one thread remembers.
    pub token_cache_max: usize,
    /// How long the answer to an activation or a publish is remembered for those that ask the same again.
    #[serde(with = "duration")]
    pub duplicate_window: Duration,
    /// Answers that one thread remembers.
    pub duplicates_max: usize,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            cleartext: false,
            threads: 0,
            datagram_bytes_max: 1_200,
            recv_buffer_bytes: 2 * 1024 * 1024,
            send_buffer_bytes: 2 * 1024 * 1024,
            datagrams_per_source_per_second: 10_000,
            datagrams_per_source_burst: 20_000,
            queue_max: 4_096,
            token_cache_ttl: Duration::from_secs(5),
            token_cache_max: 16_384,
            duplicate_window: Duration::from_secs(10),
            duplicates_max: 65_536,
        }
    }
}
