//! Section `[listen]`.

use std::net::{Ipv4Addr, SocketAddr};

use ipnet::IpNet;

crate::config_table! {
    /// Section `[listen]`.
    pub struct ListenConfig {
        /// Addresses for devices over TCP. `[::]` also accepts IPv4. Port 0 takes a free port,
        /// which is printed at the start.
        tcp: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7070))],
            allowed("at least one, here or in listen.tls, listen.http or listen.https");
        /// Addresses for devices over TLS; see `[tls]`. By default none; 7443 is the usual port.
        tls: Vec<SocketAddr>;
        /// Addresses for HTTP/1.1 and HTTP/2 (h2c with prior knowledge); see `[http]`. `[]`: none.
        http: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))];
        /// Addresses for HTTP over TLS, with the certificates of `[tls]`. ALPN selects the version.
        /// By default none; 8443 is the usual port.
        https: Vec<SocketAddr>;
        /// Addresses for datagrams. `[]`: none. An address beyond loopback needs `udp.cleartext`.
        udp: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7070))];
        /// Address of the admin API. Use one that only backends and operators can reach. Beyond
        /// loopback it needs `admin.token` or `[[admin.tokens]]`.
        admin: Option<SocketAddr> = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7090))),
            allowed("or \"\" for none");
        /// Networks of the proxies in front. A connection from them must begin with a PROXY header,
        /// version 1 or 2, and counts as coming from the address in the header. On other
        /// connections the header is not read.
        proxy_networks: Vec<IpNet>, range(0..=NETWORKS_MAX), unit("networks"),
            reason(": every accept compares them all"),
            allowed("not the whole world, at most {NETWORKS_MAX}");
        /// Connections that the kernel holds until they are accepted; `net.core.somaxconn` caps it.
        /// If it is too small, devices that reconnect all at once wait for retransmissions.
        // The kernel stores it in 32 bits; above 16 bits old kernels wrap.
        accept_backlog: u32 = 4096, range(1..=65_535), unit("connections");
    }
}

impl ListenConfig {
    /// Whether any listener uses TLS.
    pub(crate) fn has_tls(&self) -> bool {
        !self.tls.is_empty() || !self.https.is_empty()
    }

    /// The listeners for connections of unknown peers, with their keys, in the order of the file.
    pub(crate) fn doors(&self) -> [(&'static str, &[SocketAddr]); 4] {
        [
            ("listen.tcp", &self.tcp),
            ("listen.tls", &self.tls),
            ("listen.http", &self.http),
            ("listen.https", &self.https),
        ]
    }

    /// The first of these addresses beyond loopback, with its key.
    pub(crate) fn exposed(&self) -> Option<(&'static str, SocketAddr)> {
        self.doors().into_iter().find_map(|(key, addrs)| {
            addrs.iter().find(|addr| !addr.ip().is_loopback()).map(|addr| (key, *addr))
        })
    }
}

/// Every accept looks through all networks.
const NETWORKS_MAX: u64 = 256;
