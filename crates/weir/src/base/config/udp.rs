//! Section `[udp]`.

use std::time::Duration;

use super::keys::{HOUR, MINUTE};

crate::config_table! {
    /// Section `[udp]`: rules for `listen.udp`.
    pub struct UdpConfig {
        /// Whether `listen.udp` may have addresses beyond loopback. Datagrams are not encrypted:
        /// anyone on the path can read and use the keys and tokens in them. Set it only if you
        /// trust the whole network.
        cleartext: bool;
        /// Threads for each address of `listen.udp`, each with its own socket. 0: one for each
        /// allowed processor.
        threads: usize, range(0..=256), unit("threads");
        /// Length of a datagram. Most networks cut a datagram longer than the default into
        /// fragments; if one fragment is lost, all are lost.
        // The least has room for a token, a serial number and a key. The most is the length that
        // machines of one data centre can exchange unfragmented.
        datagram_bytes_max: usize = 1_200, range(256..=8_192), unit("bytes");
        /// `SO_RCVBUF` of each socket: room for datagrams while its thread is busy. The kernel caps
        /// it by `net.core.rmem_max`. The granted size is printed at the start.
        recv_buffer_bytes: usize = 2 * 1024 * 1024, range(64 << 10..=1 << 30), unit("bytes");
        /// `SO_SNDBUF` of each socket. The kernel caps it by `net.core.wmem_max`.
        send_buffer_bytes: usize = 2 * 1024 * 1024, range(64 << 10..=1 << 30), unit("bytes");
        /// Datagrams per second from one source (an IPv4 address, or a /64 of IPv6). Further ones
        /// are dropped without an answer, since addresses can be forged, and counted in
        /// `weir_udp_refused_total`. 0: no limit.
        datagrams_per_source_per_second: u32 = 10_000, range(0..=100_000_000),
            unit("datagrams a second"), reload();
        /// Datagrams from one source at once after a silence: room for many devices behind one
        /// address.
        datagrams_per_source_burst: u32 = 20_000, range(1..=100_000_000), unit("datagrams"),
            reload();
        /// Requests of one thread that may wait: activations, publishes, and calls whose token is
        /// being looked up. Further ones are refused with `busy`.
        // Each request is a task of the front.
        queue_max: usize = 4_096, range(1..=65_536), unit("requests");
        /// How long calls accept a token after it was found valid. A revoked token may still be
        /// answered for this long.
        token_cache_ttl: Duration = Duration::from_secs(5), range(10..=MINUTE);
        /// Valid tokens that one thread remembers; each takes some 100 bytes. It also remembers the
        /// hashes of an eighth as many invalid tokens.
        // At worst some hundred megabytes per thread; the same holds below.
        token_cache_max: usize = 16_384, range(2..=1_000_000), unit("tokens");
        /// How long the answer to an activation or a publish is remembered. A repeated request gets
        /// the same answer, and nothing is done twice. Choose a longer time than devices repeat
        /// their requests.
        duplicate_window: Duration = Duration::from_secs(10), range(10..=HOUR);
        /// Answers that one thread remembers; the oldest is removed first. Each takes some 150
        /// bytes, at worst `udp.datagram_bytes_max`. The default is 10 s of 6,500 answers per
        /// second. `weir_udp_forgotten_total` counts answers that were removed too early. If their
        /// requests are repeated, the device may activate or publish twice.
        duplicates_max: usize = 65_536, range(1..=1_000_000), unit("answers");
    }
}
