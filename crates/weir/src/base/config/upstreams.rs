//! Tables `[[upstreams]]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::keys::{DAY, HOUR, MINUTE, SECOND};

crate::config_table! {
    /// One of `[[upstreams]]`: a named service that the gateway calls.
    pub struct UpstreamConfig in "tables [[upstreams]], each with a name and addresses" {
        /// The upstream's name in routes, hooks, metrics and logs.
        name: String, needed(), example("\"api\""),
            allowed("1 to {UPSTREAM_NAME_CHARS_MAX} of a-z, A-Z, 0-9, - and _, no two alike");
        /// The service's addresses: `host:port`, `srv:_service._proto.name`, or `unix:/path`. Names
        /// are looked up as docs/upstreams.md says.
        addresses: Vec<String>, needed(), range(1..=ADDRESSES_MAX), unit("addresses"),
            example("[\"127.0.0.1:8080\"]"), reason(": enough for a service with fixed addresses");
        /// The `Host` of requests without one. Empty: name or address of the endpoint, with its
        /// port.
        host: String, allowed("a host name, with or without a port");
        /// The version of HTTP that the service speaks.
        protocol: UpstreamProtocol;
        /// Whether connections use TLS.
        tls: bool;
        /// PEM file of the authorities that sign the service's certificate. Empty: the public ones
        /// that browsers trust. This file and the next two are read again when they change.
        tls_ca: PathBuf, allowed("or \"\"; only with tls = true");
        /// PEM file of the certificate that the gateway shows to the service, with its chain. Empty:
        /// none.
        tls_certificate: PathBuf, allowed("or \"\"; together with tls_key");
        /// PEM file of that certificate's private key, without a passphrase.
        tls_key: PathBuf, allowed("or \"\"; together with tls_certificate");
        /// The name that the service's certificate must have. Empty: `host`, and if that is empty,
        /// name or address of the endpoint.
        tls_server_name: String, allowed("a DNS name or an IP address, or \"\"");
        /// The proxy to connect through: `http://host:port` (CONNECT) or `socks5://host:port`.
        /// Empty: none.
        proxy: String, allowed("http://host:port or socks5://host:port, or \"\"");
        /// The user at the proxy. Empty: none.
        proxy_user: String, allowed("at most 255 bytes");
        /// The user's password.
        proxy_password: String, secret(), allowed("at most 255 bytes");
        /// A file that holds the password instead. It is read for each connection.
        proxy_password_file: PathBuf, allowed("or \"\"; not with proxy_password");
        /// Whether the proxy looks up the names in `addresses`. SRV records are always looked up
        /// here.
        proxy_resolves: bool;
        /// DNS servers: addresses with or without a port. Empty: those of `/etc/resolv.conf`, with
        /// its search list.
        dns_servers: Vec<String>, range(0..=DNS_SERVERS_MAX), unit("servers"),
            reason(": more than the system's resolver would ask");
        /// The kinds of addresses that are looked up.
        dns_families: DnsFamilies;
        /// How long one look-up may take.
        dns_timeout: Duration = Duration::from_secs(2), range(10..=MINUTE);
        /// The least time for which an answer counts, whatever its TTL.
        dns_ttl_min: Duration = Duration::from_secs(1), range(SECOND..=HOUR),
            allowed("at most dns_ttl_max");
        /// The longest time for which an answer counts, whatever its TTL.
        dns_ttl_max: Duration = Duration::from_secs(300), range(SECOND..=DAY);
        /// How long an answer is used after its time while no server answers.
        dns_stale_max: Duration = Duration::from_secs(86_400), range(0..=30 * DAY);
        /// Endpoints that are used at most, if the names have more addresses.
        // Each has figures of its own, and connections when it is used.
        endpoints_max: usize = 128, range(1..=ENDPOINTS_MAX), unit("endpoints");
        /// How long connecting may take, with name, proxy and handshake.
        connect_timeout: Duration = Duration::from_secs(2), range(10..=MINUTE);
        /// How long one try may wait for the head of its answer. Then another endpoint is tried, if
        /// the request permits it. Each progress of an upload begins the time again; an upload that
        /// makes none for so long is ended.
        try_timeout: Duration = Duration::from_secs(10), range(10..=10 * MINUTE);
        /// How long a request may take with all its tries, until the head of its answer. The time
        /// in which an upload makes progress does not count.
        deadline: Duration = Duration::from_secs(30), range(10..=HOUR);
        /// Connections to one endpoint at the same time, with those that were upgraded. Further
        /// requests wait for a place.
        // A connection takes a descriptor, and up to 128 KiB of an answer that nobody reads; with
        // HTTP/2 up to 4 MiB.
        connections_max: usize = 256, range(1..=65_536), unit("connections");
        /// Connections to each endpoint that are opened ahead and kept without requests.
        connections_min: usize, range(0..=65_536), unit("connections"),
            allowed("at most connections_max");
        /// Requests at the same time on one connection for HTTP/2. The service may permit fewer.
        streams_max: usize = 100, range(1..=10_000), unit("requests");
        /// Requests that wait for a place on a connection. The next one fails at once.
        // Each holds a task of its caller: some KiB.
        waiting_max: usize = 4_096, range(0..=1_000_000), unit("requests");
        /// A connection without requests is closed after this time.
        idle_timeout: Duration = Duration::from_secs(60), range(SECOND..=HOUR);
        /// A connection of this age gets no further request; up to a quarter earlier, by chance. So
        /// load moves to new endpoints behind the same name.
        connection_age_max: Duration = Duration::from_secs(3_600), range(SECOND..=DAY);
        /// Tries of one request, with the first one. 1: nothing is tried again.
        tries_max: usize = 3, range(1..=10), unit("tries");
        /// Tries after the first one, in percent of the requests of the last ten seconds.
        retry_percent_max: u32 = 20, range(0..=100), unit("percent");
        /// Tries a second after the first one that are permitted besides.
        retries_per_second: u32 = 10, range(0..=1_000_000), unit("tries a second");
        /// An endpoint that fails so often in a row is set aside, and one that fails half of its
        /// tries. 0: never.
        ejection_failures: u32 = 5, range(0..=1_000), unit("failures");
        /// How long an endpoint is set aside. Each time in a row it is twice as long.
        ejection_time: Duration = Duration::from_secs(1), range(10..=HOUR);
        /// The longest time for which an endpoint is set aside.
        ejection_time_max: Duration = Duration::from_secs(60), range(10..=HOUR);
        /// Endpoints that may be set aside at the same time.
        ejection_percent_max: usize = 50, range(0..=100), unit("percent");
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
            dns: weir_upstream::DnsSettings {
                servers: self.dns_servers.clone(),
                families: self.dns_families.into(),
                timeout: self.dns_timeout,
                ttl_min: self.dns_ttl_min,
                ttl_max: self.dns_ttl_max,
                stale_max: self.dns_stale_max,
                endpoints_max: self.endpoints_max,
            },
            tls: self.tls.then(|| weir_upstream::TlsSettings {
                ca: path(&self.tls_ca),
                certificate: path(&self.tls_certificate),
                key: path(&self.tls_key),
                server_name: self.tls_server_name.clone(),
            }),
            proxy: (!self.proxy.is_empty()).then(|| weir_upstream::ProxySettings {
                url: self.proxy.clone(),
                user: self.proxy_user.clone(),
                password: self.proxy_password.clone().into(),
                password_file: path(&self.proxy_password_file),
                resolves: self.proxy_resolves,
            }),
            connect_timeout: self.connect_timeout,
            try_timeout: self.try_timeout,
            deadline: self.deadline,
            pool: weir_upstream::PoolSettings {
                connections_max: self.connections_max,
                connections_min: self.connections_min,
                streams_max: self.streams_max,
                waiting_max: self.waiting_max,
                idle_timeout: self.idle_timeout,
                age_max: self.connection_age_max,
            },
            retry: weir_upstream::RetrySettings {
                tries_max: self.tries_max,
                percent_max: self.retry_percent_max,
                per_second: self.retries_per_second,
            },
            ejection: weir_upstream::EjectionSettings {
                failures: self.ejection_failures,
                time: self.ejection_time,
                time_max: self.ejection_time_max,
                percent_max: self.ejection_percent_max,
            },
        }
    }
}

/// `None` for an empty one.
fn path(path: &Path) -> Option<PathBuf> {
    (!path.as_os_str().is_empty()).then(|| path.to_owned())
}

impl From<DnsFamilies> for weir_upstream::IpFamilies {
    fn from(families: DnsFamilies) -> Self {
        match families {
            DnsFamilies::Both => weir_upstream::IpFamilies::Both,
            DnsFamilies::Ipv4 => weir_upstream::IpFamilies::Ipv4,
            DnsFamilies::Ipv6 => weir_upstream::IpFamilies::Ipv6,
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

weir_wire::named_enum! {
    /// The kinds of addresses that are looked up.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum DnsFamilies {
        /// A and AAAA records.
        #[default]
        Both = "both",
        /// A records.
        Ipv4 = "ipv4",
        /// AAAA records.
        Ipv6 = "ipv6",
    }
}

crate::config_words!(DnsFamilies, UpstreamProtocol);

/// Each has its own connections and figures.
pub(crate) const UPSTREAMS_MAX: u64 = 256;
const ADDRESSES_MAX: u64 = 64;
const DNS_SERVERS_MAX: u64 = 8;
const ENDPOINTS_MAX: u64 = 1_024;
/// It is a label of metrics.
pub(crate) const UPSTREAM_NAME_CHARS_MAX: usize = 64;
