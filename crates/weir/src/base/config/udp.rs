//! Section `[udp]`.

use std::time::Duration;

use super::keys::{HOUR, MINUTE};

crate::config_table! {
    /// Section `[udp]`: what holds for `listen.udp`.
    pub struct UdpConfig {
        /// Whether `listen.udp` may have addresses that are not on loopback. Datagrams are not
        /// encrypted: whoever is on the way reads keys and tokens and can use them. Only for
        /// networks that you trust all of.
        cleartext: bool;
        /// Threads for each address of `listen.udp`, each with a socket of its own. 0: one for each
        /// processor allowed.
        threads: usize, range(0..=256), unit("threads");
        /// Length of a datagram. What is longer than the default is cut into fragments on most
        /// ways, and lost with any of them.
        // Room for a token, a serial and a key; what machines of one house send each other
        // unfragmented.
        datagram_bytes_max: usize = 1_200, range(256..=8_192), unit("bytes");
        /// `SO_RCVBUF` of each socket: what may wait while its thread is busy. The kernel caps it
        /// with `net.core.rmem_max`; what it granted is printed at the start.
        recv_buffer_bytes: usize = 2 * 1024 * 1024, range(64 << 10..=1 << 30), unit("bytes");
        /// `SO_SNDBUF` of each socket, capped with `net.core.wmem_max`.
        send_buffer_bytes: usize = 2 * 1024 * 1024, range(64 << 10..=1 << 30), unit("bytes");
        /// Datagrams that one address (of IPv6: one /64) may send in a second. More are dropped
        /// without an answer, since addresses can be forged, and counted in
        /// `weir_udp_refused_total`. 0: as many as it likes.
        datagrams_per_source_per_second: u32 = 10_000, range(0..=100_000_000),
            unit("datagrams a second");
        /// Datagrams that it may send at once after a silence: room for many devices behind one
        /// address.
        datagrams_per_source_burst: u32 = 20_000, range(1..=100_000_000), unit("datagrams");
        /// Requests of one thread that may wait: activations, publishes, and calls whose token is
        /// being looked up. More are refused with `busy`.
        // Each is a task of the front.
        queue_max: usize = 4_096, range(1..=65_536), unit("requests");
        /// How long a token that was found valid is taken for valid in calls: so long may one that
        /// was revoked still be answered.
        token_cache_ttl: Duration = Duration::from_secs(5), range(10..=MINUTE);
        /// Valid tokens that one thread remembers; each takes some 100 bytes. Of an eighth as many
        /// that are not valid a hash is remembered.
        // Some hundred megabytes of a thread at the worst; likewise below.
        token_cache_max: usize = 16_384, range(2..=1_000_000), unit("tokens");
        /// How long the answer to an activation or a publish is remembered: who asks the same again
        /// gets it again, and nothing is done twice. Longer than a device goes on asking.
        duplicate_window: Duration = Duration::from_secs(10), range(10..=HOUR);
        /// Answers that one thread remembers; the oldest goes first. Each takes some 150 bytes, at
        /// the worst `udp.datagram_bytes_max`. The default is 10 s of 6,500 a second; one forgotten
        /// before its time shows in `weir_udp_forgotten_total`, and who asks for it again may
        /// activate or publish twice.
        duplicates_max: usize = 65_536, range(1..=1_000_000), unit("answers");
    }
}
