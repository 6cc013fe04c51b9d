//! Section `[http]`.

use std::time::Duration;

use super::keys::{HOUR, SECOND};
use super::{HOSTS_MAX, HOSTS_REASON, TICK};

crate::config_table! {
    /// Section `[http]`: what holds for `listen.http` and `listen.https`.
    pub struct HttpConfig {
        /// Connections that HTTP is spoken on at one time; each takes some ten kilobytes on the
        /// front. One more takes the place of one that has been silent for long, and is answered
        /// with 503 if all are busy.
        // Each has some ten kilobytes: the most is a gigabyte on the front.
        connections_max: usize = 10_000, range(1..=100_000), unit("connections");
        /// From accept to the first request's head, and from a later head's first byte to its last:
        /// who sends heads slowly holds a buffer each. Long enough for a lost packet or two.
        head_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// How long a connection may be without a request before it is closed. Longer saves
        /// handshakes, shorter saves buffers.
        idle_timeout: Duration = Duration::from_secs(60), range(TICK..=HOUR);
        /// From a request's head to the last byte of a body that is wanted; one that is not is not
        /// waited for. Long enough for the largest, at 1 Mbit/s.
        body_timeout: Duration = Duration::from_secs(10), range(TICK..=HOUR);
        /// Length of a request's head, over HTTP/2 with what each header costs in memory. It also
        /// is the buffer that a connection reads into; cookies and tokens of other services fit.
        // The least is the smallest buffer that heads are read into.
        head_bytes_max: usize = 16 * 1024, range(8 << 10..=64 << 10), unit("bytes");
        /// Headers of a request. A browser sends some twenty.
        // The most is as many as are parsed without an allocation.
        headers_max: usize = 64, range(16..=100), unit("headers");
        /// Length of a request's body: a message and what JSON adds to it, with room for many of
        /// them.
        body_bytes_max: usize = 1024 * 1024, range(1_024..=64 << 20), unit("bytes");
        /// Bytes of a refused body that are taken and thrown away, so that its sender hears of the
        /// refusal: many clients send all of a body before they read, and a socket or a stream that
        /// ends before that is all they see. The time for it is http.body_timeout; a sender that is
        /// silent for a second ends it too. It takes no memory.
        // What is thrown away takes no memory; it is to end at some time.
        discard_bytes_max: usize = 16 * 1024 * 1024, range(0..=1 << 30), unit("bytes");
        /// Bytes of long answers, those over 1 KiB, that may wait for one connection; a request
        /// beyond gets 503. It has room for a few parts of histories at one time; a lone answer may
        /// be longer. All connections together may use HTTP's share of `memory.budget_bytes`, about
        /// a sixth.
        // The longest is a part of a history, of 1 MiB or of one message.
        answer_bytes_max: usize = 4 * 1024 * 1024, range(2 << 20..=1 << 30), unit("bytes");
        /// Requests that one connection may make; then it is closed, and its client connects anew,
        /// perhaps to another node. 0: as many as it likes.
        requests_per_connection_max: u32 = 1_000_000, range(0..=1_000_000_000), unit("requests");
        /// Whether HTTP/2 is spoken. Without it every connection with server-sent events moves to a
        /// shard, as it does over HTTP/1.1, and none stays on the front.
        h2: bool = true;
        /// Requests that one connection may have in progress over HTTP/2. Browsers ask for a
        /// hundred at the most.
        h2_streams_max: u32 = 100, range(1..=1_000), unit("streams");
        /// Bytes of bodies that a client may send ahead of their being read, over HTTP/2: on a
        /// stream, and on a connection. Requests are small, so the smallest is enough.
        // What a client may send before it has heard of another size (RFC 9113 section 6.9.2).
        h2_window_bytes: u32 = 65_535, range(65_535..=16 << 20), unit("bytes");
        /// How often a connection with HTTP/2 is asked for a sign of life; without one for ten
        /// seconds it is closed.
        h2_ping_interval: Duration = Duration::from_secs(20), range(SECOND..=HOUR);
        /// Whether every answer names its request by `X-Request-Id`, and not only those whose
        /// request has brought one.
        request_ids: bool;
        /// Whether `/v1/connect` and `/v1/sse` take a token as the parameter `access_token`, for an
        /// `EventSource`, which can send no header. What stands there may end in the logs of
        /// whatever is on the way.
        query_token: bool;
        /// Origins whose pages may use the public API, such as `https://app.example`, and
        /// `http://localhost:3000` while one is written. `*`: those of all. Pages of other origins
        /// are refused with 403; programs that are no pages send no origin and are not asked.
        cors_origins: Vec<String>,
            range(0..=ORIGINS_MAX), unit("origins"),
            reason(": every request with an origin looks through them"),
            allowed("at most {ORIGINS_MAX} origins as browsers send them, or \"*\" alone");
        /// Names that a request without a token may carry as `Host`, beside `localhost`, loopback
        /// addresses and the address that it came in on. It matters where anonymous devices are
        /// admitted: any other name is refused with 421 there, since a stranger's name can be made
        /// to point here while a page of that name is open. Behind a proxy that passes its own name
        /// on, list that name. Requests with a token, and pages of `http.cors_origins`, are not
        /// asked.
        hosts: Vec<String>, range(0..=HOSTS_MAX), unit("names"), reason(HOSTS_REASON),
            allowed("at most {HOSTS_MAX} host names, each with or without a port");
    }
}

const ORIGINS_MAX: u64 = 256;
