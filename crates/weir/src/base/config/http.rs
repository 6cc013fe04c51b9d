//! Section `[http]`.

use std::time::Duration;

use serde::Deserialize;

use super::duration;

/// Section `[http]`: what holds for `listen.http` and `listen.https`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Connections that HTTP is spoken on at one time; one more takes the place of one that is silent.
    pub connections_max: usize,
    /// From accept to the first request's head, and from a head's first byte to its last.
    #[serde(with = "duration")]
    pub head_timeout: Duration,
    /// How long a connection may be without a request.
    #[serde(with = "duration")]
    pub idle_timeout: Duration,
    /// From a request's head to the last byte of a body that is wanted.
    #[serde(with = "duration")]
    pub body_timeout: Duration,
    /// Length of a request's head.
    pub head_bytes_max: usize,
    /// Headers of a request.
    pub headers_max: usize,
    /// Length of a request's body.
    pub body_bytes_max: usize,
    /// Bytes of a refused body that are taken and thrown away, so that its sender hears of the refusal.
    pub discard_bytes_max: usize,
    /// Bytes of long answers that may wait for one connection.
    pub answer_bytes_max: usize,
    /// Requests that one connection may make; 0: as many as it likes.
    pub requests_per_connection_max: u32,
    /// Whether HTTP/2 is spoken.
    pub h2: bool,
    /// Requests that one connection may have in progress over HTTP/2.
    pub h2_streams_max: u32,
    /// Bytes of bodies that a client may send ahead of their being read, over HTTP/2: on a stream, and on a connection.
    pub h2_window_bytes: u32,
    /// How often a connection with HTTP/2 is asked for a sign of life.
    #[serde(with = "duration")]
    pub h2_ping_interval: Duration,
    /// Whether every answer names its request by `X-Request-Id`, and not only those whose request has brought one.
    pub request_ids: bool,
    /// Whether a token may stand in the query of a WebSocket or of server-sent events, as `access_token`: what stands there
    /// may end in the logs of whatever is on the way.
    pub query_token: bool,
    /// Origins whose pages may use the public API, as browsers send them, such as `https://app.example`; `*`: those of
    /// all.
    pub cors_origins: Vec<String>,
    /// Names that a request without a token may have in `Host`, beside `localhost` and the addresses of this machine that
    /// it comes in on. Where anonymous devices are admitted, any other name is refused.
    pub hosts: Vec<String>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(10),
            head_bytes_max: 16 * 1024,
            headers_max: 64,
            body_bytes_max: 1024 * 1024,
            discard_bytes_max: 16 * 1024 * 1024,
            answer_bytes_max: 4 * 1024 * 1024,
            requests_per_connection_max: 1_000_000,
            h2: true,
            h2_streams_max: 100,
            h2_window_bytes: 65_535,
            h2_ping_interval: Duration::from_secs(20),
            request_ids: false,
            query_token: false,
            cors_origins: Vec::new(),
            hosts: Vec::new(),
        }
    }
}
