//! Tables `[[upstreams]]`.

use std::time::Duration;

use super::keys::{HOUR, MINUTE};

crate::config_table! {
    /// One of `[[upstreams]]`: a named service that the gateway calls.
    pub struct UpstreamConfig in "tables [[upstreams]], each with a name and addresses" {
        /// The upstream's name in routes, hooks, metrics and logs.
        name: String, needed(), example("\"api\""),
            allowed("1 to {UPSTREAM_NAME_CHARS_MAX} of a-z, A-Z, 0-9, - and _, no two alike");
        /// The service's addresses: `host:port`, `srv:_service._proto.name`, or `unix:/path`.
        addresses: Vec<String>, needed(), range(1..=ADDRESSES_MAX), unit("addresses"),
            example("[\"127.0.0.1:8080\"]"), reason(": enough for a service with fixed addresses");
        /// The `Host` of requests without one. Empty: the address of the endpoint.
        host: String, allowed("a host name, with or without a port");
        /// The version of HTTP that the service speaks.
        protocol: UpstreamProtocol;
        /// How long connecting may take, with name, proxy and handshake.
        connect_timeout: Duration = Duration::from_secs(2), range(10..=MINUTE);
        /// How long one try may wait for the head of its answer. Then another endpoint is tried, if
        /// the request permits it.
        try_timeout: Duration = Duration::from_secs(10), range(10..=10 * MINUTE);
        /// How long a request may take with all its tries, until the head of its answer.
        deadline: Duration = Duration::from_secs(30), range(10..=HOUR);
    }
}

impl UpstreamConfig {
    /// The settings for weir-upstream.
    pub(crate) fn settings(&self) -> weir_upstream::Settings {
        weir_upstream::Settings {
            name: self.name.clone(),
            addresses: self.addresses.clone(),
            host: self.host.clone(),
            protocol: self.protocol.into(),
            connect_timeout: self.connect_timeout,
            try_timeout: self.try_timeout,
            deadline: self.deadline,
        }
    }
}

impl From<UpstreamProtocol> for weir_upstream::Protocol {
    fn from(protocol: UpstreamProtocol) -> Self {
        match protocol {
            UpstreamProtocol::Http1 => weir_upstream::Protocol::Http1,
            UpstreamProtocol::Http2 => weir_upstream::Protocol::Http2,
        }
    }
}

weir_wire::named_enum! {
    /// The version of HTTP that an upstream speaks.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum UpstreamProtocol {
        /// HTTP/1.1.
        #[default]
        Http1 = "http1",
        /// HTTP/2, from the first byte or by ALPN.
        Http2 = "http2",
    }
}

crate::config_words!(UpstreamProtocol);

/// Each has its own connections and figures.
pub(crate) const UPSTREAMS_MAX: u64 = 256;
const ADDRESSES_MAX: u64 = 64;
/// It is a label of metrics.
pub(crate) const UPSTREAM_NAME_CHARS_MAX: usize = 64;
