//! The keys of `[http]`.

use super::{At, Key, Settings};

pub(super) static KEYS: &[Key] = &[
    key!(
        http.connections_max,
        "1 to 100000",
        "Connections that HTTP is spoken on at one time; each takes some ten kilobytes on the front. One more takes the \
         place of one that has been silent for long, and is answered with 503 if all are busy."
    ),
    key!(
        http.head_timeout,
        "100ms to 1h",
        "From accept to the first request's head, and from a later head's first byte to its last: who sends heads slowly \
         holds a buffer each. Long enough for a lost packet or two."
    ),
    key!(
        http.idle_timeout,
        "100ms to 1h",
        "How long a connection may be without a request before it is closed. Longer saves handshakes, shorter saves \
         buffers."
    ),
    key!(
        http.body_timeout,
        "100ms to 1h",
        "From a request's head to the last byte of a body that is wanted; one that is not is not waited for. Long enough \
         for the largest, at 1 Mbit/s."
    ),
    key!(
        http.head_bytes_max,
        "8192 to 65536",
        "Length of a request's head, over HTTP/2 with what each header costs in memory. It also is the buffer that a \
         connection reads into; cookies and tokens of other services fit."
    ),
    key!(http.headers_max, "16 to 100", "Headers of a request. A browser sends some twenty."),
    key!(
        http.body_bytes_max,
        "1024 to 67108864",
        "Length of a request's body: a message and what JSON adds to it, with room for many of them."
    ),
    key!(
        http.discard_bytes_max,
        "0 to 1073741824",
        "Bytes of a refused body that are taken and thrown away, so that its sender hears of the refusal: many clients send \
         all of a body before they read, and a socket or a stream that ends before that is all they see. The time for it \
         is http.body_timeout; a sender that is silent for a second ends it too. It takes no memory."
    ),
    key!(
        http.answer_bytes_max,
        "2097152 to 1073741824",
        "Bytes of long answers, those over 1 KiB, that may wait for one connection; a request beyond gets 503. It has room \
         for a few parts of histories at one time; a lone answer may be longer. All connections together may use HTTP's share of `memory.budget_bytes`, about a sixth."
    ),
    key!(
        http.requests_per_connection_max,
        "0 to 1000000000",
        "Requests that one connection may make; then it is closed, and its client connects anew, perhaps to another \
         node. 0: as many as it likes."
    ),
    key!(
        http.h2,
        "",
        "Whether HTTP/2 is spoken. Without it every connection with server-sent events moves to a shard, as it does over \
         HTTP/1.1, and none stays on the front."
    ),
    key!(
        http.h2_streams_max,
        "1 to 1000",
        "Requests that one connection may have in progress over HTTP/2. Browsers ask for a hundred at the most."
    ),
    key!(
        http.h2_window_bytes,
        "65535 to 16777216",
        "Bytes of bodies that a client may send ahead of their being read, over HTTP/2: on a stream, and on a connection. \
         Requests are small, so the smallest is enough."
    ),
    key!(
        http.h2_ping_interval,
        "1s to 1h",
        "How often a connection with HTTP/2 is asked for a sign of life; without one for ten seconds it is closed."
    ),
    key!(
        http.request_ids,
        "",
        "Whether every answer names its request by `X-Request-Id`, and not only those whose request has brought one."
    ),
    key!(
        http.query_token,
        "",
        "Whether `/v1/connect` and `/v1/sse` take a token as the parameter `access_token`, for an `EventSource`, which \
         can send no header. What stands there may end in the logs of whatever is on the way."
    ),
    key!(
        http.cors_origins,
        "at most 256 origins as browsers send them, or \"*\" alone",
        "Origins whose pages may use the public API, such as `https://app.example`, and `http://localhost:3000` while one \
         is written. `*`: those of all. Pages of other origins are refused with 403; programs that are no pages send no \
         origin and are not asked."
    ),
    key!(
        http.hosts,
        "at most 256 host names, each with or without a port",
        "Names that a request without a token may carry as `Host`, beside `localhost`, loopback addresses and the \
         address that it came in on. It matters where anonymous devices are admitted: any other name is refused with 421 \
         there, since a stranger's name can be made to point here while a page of that name is open. Behind a proxy that \
         passes its own name on, list that name. Requests with a token, and pages of `http.cors_origins`, are not asked."
    ),
];
