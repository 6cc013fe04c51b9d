//! Section `[listen]`.

use std::net::{Ipv4Addr, SocketAddr};

use ipnet::IpNet;

crate::config_table! {
    /// Section `[listen]`.
    pub struct ListenConfig {
        /// Where devices connect over TCP. `[::]` takes IPv4 too; port 0 takes a free one, which is
        /// printed at the start.
        tcp: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7070))],
            allowed("at least one, here or in listen.tls, listen.http or listen.https");
        /// Where devices connect over TLS, likewise; see `[tls]`. By default nowhere; 7443 is the
        /// usual port.
        tls: Vec<SocketAddr>;
        /// Where HTTP is spoken, version 1.1 and 2 (h2c with prior knowledge); see `[http]`. `[]`:
        /// nowhere.
        http: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))];
        /// Where HTTP is spoken over TLS, likewise, with the certificates of `[tls]`; ALPN says
        /// which version. By default nowhere; 8443 is the usual port.
        https: Vec<SocketAddr>;
        /// Where datagrams are answered, likewise; `[]`: nowhere. What is not on loopback needs
        /// `udp.cleartext`.
        udp: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7070))];
        /// Where the admin API listens. Keep it where only backends and operators reach it; beyond
        /// loopback it needs `admin.token`.
        admin: Option<SocketAddr> = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7090))),
            allowed("or \"\" for none");
        /// Networks of the proxies in front. A connection from there has to begin with a PROXY
        /// header, version 1 or 2, and counts as coming from the address that it names; from
        /// elsewhere none is read.
        proxy_networks: Vec<IpNet>, range(0..=NETWORKS_MAX), unit("networks"),
            reason(": every accept looks through them"),
            allowed("not the whole world, at most {NETWORKS_MAX}");
        /// Connections that the kernel holds ready to be accepted; `net.core.somaxconn` caps it.
        /// Too few, and a crowd that reconnects at once waits for retransmissions.
        // The kernel keeps it in 32 bits; above 16 bits old kernels wrap.
        accept_backlog: u32 = 4096, range(1..=65_535), unit("connections");
    }
}

impl ListenConfig {
    /// Whether anything listens with TLS.
    pub(crate) fn has_tls(&self) -> bool {
        !self.tls.is_empty() || !self.https.is_empty()
    }

    /// What strangers may connect to, with the keys, in the order of the file.
    pub(crate) fn doors(&self) -> [(&'static str, &[SocketAddr]); 4] {
        [
            ("listen.tcp", &self.tcp),
            ("listen.tls", &self.tls),
            ("listen.http", &self.http),
            ("listen.https", &self.https),
        ]
    }

    /// The first address that is reached from elsewhere, and the key that it stands under.
    pub(crate) fn exposed(&self) -> Option<(&'static str, SocketAddr)> {
        self.doors().into_iter().find_map(|(key, addrs)| {
            addrs.iter().find(|addr| !addr.ip().is_loopback()).map(|addr| (key, *addr))
        })
    }
}

/// Every accept looks through them.
const NETWORKS_MAX: u64 = 256;
