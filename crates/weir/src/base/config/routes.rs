//! Tables `[[http.routes]]`.

use std::time::Duration;

use super::RATE_MAX;
use super::keys::{DAY, SECOND};

crate::config_table! {
    /// One of `[[http.routes]]`: requests that go on to an upstream.
    pub struct RouteConfig in "tables [[http.routes]], each with a prefix and an upstream" {
        /// The host name of the route's requests, with or without a port. Empty: any host. Routes
        /// with the request's host come before routes without a host.
        host: String, allowed("a host name, with or without a port"), example("\"api.example\"");
        /// The beginning of the route's paths. It ends where a segment ends: `/shop` covers
        /// `/shop` and `/shop/cart`, and not `/shopping`. Of several that fit, the longest counts.
        prefix: String, needed(), example("\"/shop\""), allowed(
                "a path of 1 to {PREFIX_BYTES_MAX} bytes that begins with /, not one of Weir's own \
                 paths, no two alike for a host"
            );
        /// The name of the upstream that gets the requests.
        upstream: String, needed(), allowed("the name of one of [[upstreams]]"),
            example("\"api\"");
        /// Whether a request needs a token of Weir's. `token`: the service learns in
        /// `weir-device` or `weir-service` who sends the request, and does not see the token.
        auth: RouteAuth;
        /// Whether the service gets the request's own `Host`. Otherwise it gets `host` of the
        /// upstream, or the endpoint's address. `X-Forwarded-Host` has the request's own.
        pass_host: bool = true;
        /// Length of a request's body. 0: no limit. A body is never kept as a whole.
        body_bytes_max: usize = 64 << 20, range(0..=BODY_BYTES_MAX), unit("bytes");
        /// How long the service may be silent within an answer, and how long both sides of a
        /// WebSocket. Then the answer or the WebSocket ends.
        idle_timeout: Duration = Duration::from_secs(60), range(SECOND..=DAY);
        /// Requests per second from one source (an IPv4 address, or a /64 of IPv6), on average.
        /// Faster ones get 429. 0: no limit.
        requests_per_source_per_second: u32, range(0..=RATE_MAX), unit("requests a second");
        /// Requests from one source at once after a silence.
        // Without a burst, even the first request would be refused.
        requests_per_source_burst: u32 = 100, range(1..=RATE_MAX), unit("requests");
        /// Requests per second of one device or service, on average; only with `auth = "token"`.
        /// Faster ones get 429. 0: no limit.
        requests_per_identity_per_second: u32, range(0..=RATE_MAX), unit("requests a second");
        /// Requests of one device or service at once after a silence.
        requests_per_identity_burst: u32 = 100, range(1..=RATE_MAX), unit("requests");
    }
}

weir_wire::named_enum! {
    /// Who may use a route.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum RouteAuth {
        /// Anyone. The service decides by itself.
        #[default]
        None = "none",
        /// Devices and services with a token of Weir's, or with a client certificate.
        Token = "token",
    }
}

crate::config_words!(RouteAuth);

/// A request is compared with all of them.
pub(crate) const ROUTES_MAX: u64 = 256;
/// It is a label of metrics.
pub(crate) const PREFIX_BYTES_MAX: usize = 128;
/// Ten terabytes: the length of a number on 32 bits does not matter here.
const BODY_BYTES_MAX: u64 = 10 << 40;

/// Paths that the gateway answers itself, whatever the routes say.
pub(crate) const OWN_PATHS: [&str; 9] = [
    "/v1/connect",
    "/v1/sse",
    "/v1/publish",
    "/v1/topics/{topic}/history",
    "/v1/topics/{topic}/presence",
    "/auth/gw/active",
    "/v1/devices/activate",
    "/v1/devices/token/refresh",
    "/openapi.json",
];
