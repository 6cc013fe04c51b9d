//! The gateway's own UDP addresses. A datagram that seems to come from one of them is forged.

use std::net::{IpAddr, SocketAddr};

use weir_engine::datagrams::Peer;

/// The bound addresses of `listen.udp`.
///
/// Cost: one comparison of ports per listener; more only if a port is equal.
pub(super) struct OwnAddrs(Vec<SocketAddr>);

impl OwnAddrs {
    pub(super) fn new(addrs: impl Iterator<Item = SocketAddr>) -> OwnAddrs {
        OwnAddrs(addrs.collect())
    }

    /// Whether a datagram's source is one of these addresses, or has port 0, to which no answer can
    /// go.
    pub(super) fn has_sent(&self, peer: &Peer) -> bool {
        let source = peer.addr();
        source.port() == 0
            || self.0.iter().any(|own| {
                own.port() == source.port() && is_own(own.ip(), source.ip(), peer.local_ip())
            })
    }
}

/// Whether `source` is the address of a listener. A listener on all addresses has at least these:
/// loopback, and the address to which the datagram was sent.
fn is_own(listener: IpAddr, source: IpAddr, sent_to: Option<IpAddr>) -> bool {
    let (source, sent_to) = (source.to_canonical(), sent_to.map(|addr| addr.to_canonical()));
    if !listener.is_unspecified() {
        return listener.to_canonical() == source;
    }
    sent_to == Some(source) || source.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_is_what_listens_and_for_all_addresses_what_was_sent_to() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (listener, source, sent_to, expected) in [
            ("127.0.0.1", "127.0.0.1", None, true),
            ("127.0.0.1", "127.0.0.2", None, false),
            ("192.0.2.1", "127.0.0.1", None, false),
            ("::1", "::1", None, true),
            ("0.0.0.0", "192.0.2.1", Some("192.0.2.1"), true),
            ("0.0.0.0", "192.0.2.7", Some("192.0.2.1"), false),
            ("0.0.0.0", "127.0.0.1", Some("192.0.2.1"), true),
            ("::", "::ffff:192.0.2.1", Some("::ffff:192.0.2.1"), true),
            ("::", "::ffff:127.0.0.1", Some("2001:db8::1"), true),
            ("::", "2001:db8::2", Some("2001:db8::1"), false),
        ] {
            let found = is_own(ip(listener), ip(source), sent_to.map(ip));
            assert_eq!(found, expected, "{listener} {source} {sent_to:?}");
        }
    }
}
