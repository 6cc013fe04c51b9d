//! Section `[http]`.

use std::time::Duration;

use super::keys::{HOUR, SECOND};
use super::{HOSTS_MAX, HOSTS_REASON, TICK};

crate::config_table! {
    /// Section `[http]`: settings of `listen.http` and `listen.https`.
    pub struct HttpConfig {
        /// Simultaneous HTTP connections; each takes some ten kilobytes on the front. At the limit,
        /// a new connection replaces one that has long been silent. If all are busy, it is answered
        /// with 503.
        // Each takes some ten kilobytes, so the greatest value is a gigabyte on the front.
        connections_max: usize = 10_000, range(1..=100_000), unit("connections");
        /// Time from accept to the end of the first request's head, and from a later head's first
        /// byte to its last. Slow heads hold one buffer each. The default survives the loss of a
        /// packet or two.
        head_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// Time that a connection may be without a request before it is closed. A long time saves
        /// handshakes, a short one saves buffers.
        idle_timeout: Duration = Duration::from_secs(60), range(TICK..=HOUR);
        /// Time from a request's head to the last byte of a wanted body. The default suits the
        /// largest body at 1 Mbit/s. Weir does not wait for an unwanted body.
        body_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// Length of a request's head; over HTTP/2 with the memory that each header costs. It is
        /// also the size of a connection's read buffer. Cookies and tokens of other services fit.
        // The least value is the smallest buffer for heads.
        head_bytes_max: usize = 16 * 1024, range(8 << 10..=64 << 10), unit("bytes");
        /// Headers of a request. A browser sends some twenty.
        // The greatest number that is parsed without an allocation.
        headers_max: usize = 64, range(16..=100), unit("headers");
        /// Length of a request's body. The default holds many messages with the JSON around them.
        body_bytes_max: usize = 1024 * 1024, range(1_024..=64 << 20), unit("bytes");
        /// Bytes of a refused body that are read and discarded, so that its sender learns of the
        /// refusal. Many clients send the whole body before they read; if the socket or stream ends
        /// earlier, they see only that. The discarding also ends after `http.body_timeout`, or
        /// after one silent second of the sender. It takes no memory.
        // Discarding takes no memory, but must end some time.
        discard_bytes_max: usize = 16 * 1024 * 1024, range(0..=1 << 30), unit("bytes");
        /// Bytes of long answers (over 1 KiB) that may wait for one connection; at the limit a
        /// request gets 503. The default has room for a few parts of histories at one time. A lone
        /// answer may be longer. All connections together may use HTTP's share of
        /// `memory.budget_bytes`, about a sixth.
        // The longest answer is a part of a history: 1 MiB, or one message.
        answer_bytes_max: usize = 4 * 1024 * 1024, range(2 << 20..=1 << 30), unit("bytes");
        /// Requests on one connection. Then Weir closes it, and its client connects again, perhaps
        /// to another node. 0: no limit.
        requests_per_connection_max: u32 = 1_000_000, range(0..=1_000_000_000), unit("requests");
        /// Whether HTTP/2 is offered. Without it every connection with server-sent events moves to
        /// a shard, as over HTTP/1.1, and none stays on the front.
        h2: bool = true;
        /// Simultaneous requests on one HTTP/2 connection. Browsers ask for at most a hundred.
        h2_streams_max: u32 = 100, range(1..=1_000), unit("streams");
        /// Bytes of bodies that an HTTP/2 client may send before Weir has read earlier ones, on a
        /// stream and on a connection. Requests are small, so the smallest value is enough.
        // The initial window, before a client has learnt of another size (RFC 9113 section 6.9.2).
        h2_window_bytes: u32 = 65_535, range(65_535..=16 << 20), unit("bytes");
        /// Interval at which an HTTP/2 connection is asked for a sign of life. Without one for ten
        /// seconds it is closed.
        h2_ping_interval: Duration = Duration::from_secs(20), range(SECOND..=HOUR);
        /// Whether every answer names its request in `X-Request-Id`. Otherwise only answers to
        /// requests with that header do.
        request_ids: bool;
        /// Whether `/v1/connect` and `/v1/sse` accept a token as the parameter `access_token`, for
        /// an `EventSource`, which cannot send headers. Programs between client and Weir may log
        /// such a token.
        query_token: bool;
        /// Origins whose pages may use the public API, such as `https://app.example`, or
        /// `http://localhost:3000` during development. `*`: all origins. Pages of other origins are
        /// refused with 403. Programs other than browsers send no origin, so this does not concern
        /// them.
        cors_origins: Vec<String>,
            range(0..=ORIGINS_MAX), unit("origins"),
            reason(": every request with an origin is compared with them"),
            allowed("at most {ORIGINS_MAX} origins as browsers send them, or \"*\" alone");
        /// Further names that a request without a token may carry as `Host`. `localhost`, loopback
        /// addresses and the address of the connection are always permitted. The check matters if
        /// anonymous devices are admitted: a stranger can point a name at this server while a page
        /// of that name is open. So any other name is refused with 421. Behind a proxy that passes
        /// its own name on, list that name. The check does not concern requests with a token, or
        /// pages of `http.cors_origins`.
        hosts: Vec<String>, range(0..=HOSTS_MAX), unit("names"), reason(HOSTS_REASON),
            allowed("at most {HOSTS_MAX} host names, each with or without a port");
    }
}

const ORIGINS_MAX: u64 = 256;
