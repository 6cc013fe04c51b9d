//! The keys of `[udp]`.

use super::{At, Key, Settings};

pub(super) static KEYS: &[Key] = &[
    key!(
        udp.cleartext,
        "",
        "Whether `listen.udp` may have addresses that are not on loopback. Datagrams are not encrypted: whoever is on the \
         way reads keys and tokens and can use them. Only for networks that you trust all of."
    ),
    key!(
        udp.threads,
        "0 to 256",
        "Threads for each address of `listen.udp`, each with a socket of its own. 0: one for each processor allowed."
    ),
    key!(
        udp.datagram_bytes_max,
        "256 to 8192",
        "Length of a datagram. What is longer than the default is cut into fragments on most ways, and lost with any of \
         them."
    ),
    key!(
        udp.recv_buffer_bytes,
        "65536 to 1073741824",
        "`SO_RCVBUF` of each socket: what may wait while its thread is busy. The kernel caps it with \
         `net.core.rmem_max`; what it granted is printed at the start."
    ),
    key!(
        udp.send_buffer_bytes,
        "65536 to 1073741824",
        "`SO_SNDBUF` of each socket, capped with `net.core.wmem_max`."
    ),
    key!(
        udp.datagrams_per_source_per_second,
        "0 to 100000000",
        "Datagrams that one address (of IPv6: one /64) may send in a second. More are dropped without an answer, since \
         addresses can be forged, and counted in `weir_udp_refused_total`. 0: as many as it likes."
    ),
    key!(
        udp.datagrams_per_source_burst,
        "1 to 100000000",
        "Datagrams that it may send at once after a silence: room for many devices behind one address."
    ),
    key!(
        udp.queue_max,
        "1 to 65536",
        "Requests of one thread that may wait: activations, publishes, and calls whose token is being looked up. More are \
         refused with `busy`."
    ),
    key!(
        udp.token_cache_ttl,
        "10ms to 1m",
        "How long a token that was found valid is taken for valid in calls: so long may one that was revoked still be \
         answered."
    ),
    key!(
        udp.token_cache_max,
        "2 to 1000000",
        "Valid tokens that one thread remembers; each takes some 100 bytes. Of an eighth as many that are not valid a hash is \
         remembered."
    ),
    key!(
        udp.duplicate_window,
        "10ms to 1h",
        "How long the answer to an activation or a publish is remembered: who asks the same again gets it again, and \
         nothing is done twice. Longer than a device goes on asking."
    ),
    key!(
        udp.duplicates_max,
        "1 to 1000000",
        "Answers that one thread remembers; the oldest goes first. Each takes some 150 bytes, at the worst \
         `udp.datagram_bytes_max`. The default is 10 s of 6,500 a second; one forgotten before its time shows in \
         `weir_udp_forgotten_total`, and who asks for it again may activate or publish twice."
    ),
];
