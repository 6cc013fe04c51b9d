//! Section `[http]`.

use std::time::Duration;

use ipnet::IpNet;

use super::keys::{HOUR, SECOND};
use super::routes::{ROUTES_MAX, RouteConfig};
use super::{HOSTS_MAX, HOSTS_REASON, TICK};

crate::config_table! {
    /// Section `[http]`: rules for `listen.http` and `listen.https`.
    pub struct HttpConfig {
        /// HTTP connections at the same time; each takes some ten kilobytes on the front. The next
        /// one takes the place of a connection that has been silent for long, or gets 503 if all
        /// are busy.
        // The most is a gigabyte on the front.
        connections_max: usize = 10_000, range(1..=100_000), unit("connections");
        /// Time from accept to the first request's head, and from the first byte of a later head to
        /// its last. A slow sender holds a buffer for that time. Long enough for a lost packet or
        /// two.
        head_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// How long a connection may stay without a request. Then it is closed. A longer time saves
        /// handshakes, a shorter one saves buffers.
        idle_timeout: Duration = Duration::from_secs(60), range(TICK..=HOUR);
        /// Time from a request's head to the last byte of its body. The gateway does not wait for a
        /// body that it does not need. Long enough for the largest body at 1 Mbit/s.
        body_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// Length of a request's head; over HTTP/2, with the memory that each header costs. The
        /// read buffer of a connection has this size too. Cookies and tokens of other services fit.
        // The least value is the smallest buffer into which heads are read.
        head_bytes_max: usize = 16 * 1024, range(8 << 10..=64 << 10), unit("bytes");
        /// Headers of a request. A browser sends some twenty.
        // The most is the number that is parsed without an allocation.
        headers_max: usize = 64, range(16..=100), unit("headers");
        /// Length of a request's body: room for many messages and their JSON.
        body_bytes_max: usize = 1024 * 1024, range(1_024..=64 << 20), unit("bytes");
        /// Bytes of a refused body that the gateway reads and throws away, so that its sender gets
        /// the refusal. Many clients send the whole body before they read; if the socket or stream
        /// ends earlier, they see only that. The reading ends after http.body_timeout, or when the
        /// sender is silent for a second. It takes no memory.
        // The reading takes no memory, but it must end at some time.
        discard_bytes_max: usize = 16 * 1024 * 1024, range(0..=1 << 30), unit("bytes");
        /// Bytes of long answers (over 1 KiB) that may wait for one connection. A request beyond
        /// that gets 503. The default has room for a few parts of histories at the same time; a
        /// single answer may be longer. All connections together may use HTTP's share of
        /// `memory.budget_bytes`, about a sixth.
        // The longest answer is a part of a history, of 1 MiB or of one message.
        answer_bytes_max: usize = 4 * 1024 * 1024, range(2 << 20..=1 << 30), unit("bytes");
        /// Requests on one connection. Then it is closed, and its client connects again, perhaps to
        /// another node. 0: no limit.
        requests_per_connection_max: u32 = 1_000_000, range(0..=1_000_000_000), unit("requests");
        /// Whether HTTP/2 is on. Without it, every connection with server-sent events moves to a
        /// shard, as over HTTP/1.1, and none stays on the front.
        h2: bool = true;
        /// Requests in progress on one HTTP/2 connection. Browsers use at most a hundred.
        h2_streams_max: u32 = 100, range(1..=1_000), unit("streams");
        /// Bytes of bodies that an HTTP/2 client may send before the gateway reads them: per
        /// stream, and per connection. Requests are small, so the smallest value suffices.
        // A client may send this much before it learns another size (RFC 9113 section 6.9.2).
        h2_window_bytes: u32 = 65_535, range(65_535..=16 << 20), unit("bytes");
        /// Interval of pings on an HTTP/2 connection. It is closed if no answer comes within ten
        /// seconds.
        h2_ping_interval: Duration = Duration::from_secs(20), range(SECOND..=HOUR);
        /// Whether every answer has an `X-Request-Id`. Otherwise only answers to requests that have
        /// one.
        request_ids: bool, reload();
        /// Whether `/v1/connect` and `/v1/sse` accept a token in the query parameter
        /// `access_token`, for an `EventSource`, which cannot send headers. Such a token may appear
        /// in the logs of proxies on the way.
        query_token: bool, reload();
        /// Origins whose pages may use the public API, such as `https://app.example`, or
        /// `http://localhost:3000` during development. `*`: all origins. Pages of other origins get
        /// 403. Programs other than browsers send no origin, so this key does not concern them.
        cors_origins: Vec<String>,
            range(0..=ORIGINS_MAX), unit("origins"),
            reason(": every request with an origin is compared with them"),
            allowed("at most {ORIGINS_MAX} origins as browsers send them, or \"*\" alone"),
            reload();
        /// Host names that a request without a token may have, beside `localhost`, loopback
        /// addresses and the address at which it arrived. This matters where anonymous devices are
        /// admitted: there, any other name gets 421. Otherwise a stranger could make his own host
        /// name point to this gateway while a page of that name is open. If a proxy passes on its
        /// own name, list that name. Requests with a token, and pages of `http.cors_origins`, are
        /// not checked.
        hosts: Vec<String>, range(0..=HOSTS_MAX), unit("names"), reason(HOSTS_REASON),
            allowed("at most {HOSTS_MAX} host names, each with or without a port"), reload();
        /// Networks of HTTP proxies in front whose `X-Forwarded-For`, `-Proto` and `-Host` services
        /// behind `[[http.routes]]` may believe. From all others these headers are replaced.
        forwarding_networks: Vec<IpNet>, range(0..=NETWORKS_MAX), unit("networks"),
            reason(": a request is compared with all of them"), reload();
        /// Requests that go on to an upstream: see docs/reverse-proxy.md. Only the file can set
        /// them.
        routes: Vec<RouteConfig>, range(0..=ROUTES_MAX), unit("routes"),
            reason(": a request is compared with all of them"),
            allowed("at most {ROUTES_MAX}, each with a host and prefix of its own"), reload();
    }
}

const ORIGINS_MAX: u64 = 256;
const NETWORKS_MAX: u64 = 256;
