//! Section `[udp]`.

use std::time::Duration;

use super::keys::{HOUR, MINUTE};

crate::config_table! {
    /// Section `[udp]`: settings of `listen.udp`.
    pub struct UdpConfig {
        /// Whether `listen.udp` may have addresses outside loopback. Datagrams are not encrypted:
        /// anyone on the path can read keys and tokens and use them. Only for networks that you
        /// trust entirely.
        cleartext: bool;
        /// Threads for each address of `listen.udp`, each with its own socket. 0: one for each
        /// allowed processor.
        threads: usize, range(0..=256), unit("threads");
        /// Length of a datagram. Most networks cut longer datagrams than the default into
        /// fragments. The loss of one fragment loses the datagram.
        // The least has room for a token, a serial number and a key; the greatest is what machines
        // in one building send each other without fragments.
        datagram_bytes_max: usize = 1_200, range(256..=8_192), unit("bytes");
        /// `SO_RCVBUF` of each socket: bytes that wait while its thread is busy. The kernel caps it
        /// with `net.core.rmem_max`; the granted size is printed at the start.
        recv_buffer_bytes: usize = 2 * 1024 * 1024, range(64 << 10..=1 << 30), unit("bytes");
        /// `SO_SNDBUF` of each socket, capped with `net.core.wmem_max`.
        send_buffer_bytes: usize = 2 * 1024 * 1024, range(64 << 10..=1 << 30), unit("bytes");
        /// Datagrams that one address (IPv6: one /64) may send in a second. Further ones are
        /// dropped without an answer, since addresses can be forged, and counted in
        /// `weir_udp_refused_total`. 0: no limit.
        datagrams_per_source_per_second: u32 = 10_000, range(0..=100_000_000),
            unit("datagrams a second");
        /// Datagrams that one address may send at once after a silence. The default has room for
        /// many devices behind one address.
        datagrams_per_source_burst: u32 = 20_000, range(1..=100_000_000), unit("datagrams");
        /// Requests of one thread that may wait: activations, publishes, and calls whose token is
        /// being looked up. Further ones are refused with `busy`.
        // Each is an async task of the front.
        queue_max: usize = 4_096, range(1..=65_536), unit("requests");
        /// The time for which a token, once found valid, counts as valid in calls. A revoked token
        /// may still be answered for so long.
        token_cache_ttl: Duration = Duration::from_secs(5), range(10..=MINUTE);
        /// Valid tokens that one thread remembers; each takes some 100 bytes. The thread also
        /// remembers a hash of each invalid token, for an eighth of this number.
        // At worst some hundred megabytes for each thread; also for the answers below.
        token_cache_max: usize = 16_384, range(2..=1_000_000), unit("tokens");
        /// The time for which the answer to an activation or a publish is remembered. A device that
        /// repeats its request gets the same answer, and nothing happens twice. Make it longer than
        /// a device repeats its requests.
        duplicate_window: Duration = Duration::from_secs(10), range(10..=HOUR);
        /// Answers that one thread remembers; the oldest is removed first. Each takes some 150
        /// bytes, at worst `udp.datagram_bytes_max`. The default holds 10 s of 6,500 requests a
        /// second. An answer removed too early counts in `weir_udp_forgotten_total`; a repeated
        /// request may then activate or publish twice.
        duplicates_max: usize = 65_536, range(1..=1_000_000), unit("answers");
    }
}
