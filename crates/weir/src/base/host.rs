//! Host names in requests: reading them, comparing them, and knowing this server's own names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{HOST, HeaderMap};
use http::uri::Uri;

/// The host of a request or of a page's origin: a name or an address, and the port if there is one.
///
/// Shape: the part of a URI without user and password (RFC 3986 section 3.2.2). An IPv6 address has
/// its brackets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host<'a> {
    name: &'a str,
    port: Option<u16>,
}

/// A server's names in addition to `localhost`, loopback addresses and the address of the
/// connection.
pub(crate) struct Hosts {
    rules: Vec<Rule>,
}

/// One name, at one port or at any.
struct Rule {
    name: Box<str>,
    port: Option<u16>,
}

/// The reason why a host counts as the server's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// The host is `localhost` or an address, so no stranger can redirect it to this server.
    Fixed,
    /// The operator has listed it.
    Listed,
}

impl<'a> Host<'a> {
    /// Reads a host and its port; `None` if it is malformed or empty.
    ///
    /// Cost: one pass, no allocation.
    pub(crate) fn parse(text: &'a str) -> Option<Host<'a>> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let end = rest.find(']')?;
                rest[..end].parse::<Ipv6Addr>().ok()?;
                text.split_at(end + 2)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                let is_name = !name.is_empty() && name.bytes().all(is_of_name);
                is_name.then_some((name, port))?
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            // A colon without a port is allowed.
            Some("") => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            Some(_) | None => return None,
        };
        Some(Host { name, port })
    }

    /// The host of a request: from its target if that has one, otherwise from the header.
    ///
    /// Over HTTP/2 the target has it. Over HTTP/1.1 the target also counts first (RFC 9112 section
    /// 3.2.2).
    pub(crate) fn of_request(headers: &'a HeaderMap, uri: &'a Uri) -> Option<Host<'a>> {
        match uri.authority() {
            Some(authority) => Host::parse(authority.as_str()),
            None => Host::parse(headers.get(HOST)?.to_str().ok()?),
        }
    }

    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether both have the same name, ignoring case and a dot at the end.
    pub(crate) fn has_name_of(&self, other: &Host<'_>) -> bool {
        bare(self.name).eq_ignore_ascii_case(bare(other.name))
    }

    /// Whether the host is `localhost` or an address, so that no stranger can redirect it.
    pub(crate) fn is_fixed(&self) -> bool {
        self.is_localhost() || self.ip().is_some()
    }

    fn is_localhost(&self) -> bool {
        bare(self.name).eq_ignore_ascii_case("localhost")
    }

    fn ip(&self) -> Option<IpAddr> {
        match self.name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(literal) => literal.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            None => self.name.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        }
    }
}

impl std::fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Hosts {
    /// [`is_host`] must have accepted all `hosts`.
    pub(crate) fn new(hosts: &[String]) -> Hosts {
        let parsed = hosts.iter().filter_map(|host| Host::parse(host));
        let rules = parsed.map(|host| Rule { name: bare(host.name).into(), port: host.port });
        Hosts { rules: rules.collect() }
    }

    /// Whether and why a host is this server's own. `local` is the address at which the connection
    /// arrived.
    pub(crate) fn find(&self, host: &Host<'_>, local: IpAddr) -> Option<Known> {
        let is_at = |rule: &Rule| rule.port.is_none() || rule.port == host.port;
        let is_named = |rule: &Rule| rule.name.eq_ignore_ascii_case(bare(host.name));
        if self.rules.iter().any(|rule| is_named(rule) && is_at(rule)) {
            return Some(Known::Listed);
        }
        let is_here = |ip: IpAddr| ip.is_loopback() || ip == local.to_canonical();
        let is_fixed =
            host.is_localhost() || host.ip().is_some_and(|ip| is_here(ip.to_canonical()));
        is_fixed.then_some(Known::Fixed)
    }
}

/// Whether a request could have this host: a name or an address, with or without a port.
pub(crate) fn is_host(text: &str) -> bool {
    Host::parse(text).is_some()
}

/// The bytes of a name: unreserved ones and delimiters. Percent-encoded bytes are excluded, because
/// no DNS name has them.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

fn bare(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: Option<(&str, Option<u16>)>) {
        let host = Host::parse(text);
        assert_eq!(host.map(|host| (host.name, host.port)), expected, "{text:?}");
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        for name in ["a", "gate.example.", "127.0.0.1", "[::1]", "[::ffff:10.0.0.1]", "a_b~c"] {
            check(name, Some((name, None)));
            check(&format!("{name}:"), Some((name, None)));
            check(&format!("{name}:0"), Some((name, Some(0))));
            check(&format!("{name}:65535"), Some((name, Some(65535))));
            for port in [":65536", ":x", ":+1", ":1:2", "::1", "]", " ", ":-1", "/", "@b", "%41"] {
                check(&format!("{name}{port}"), None);
            }
        }
        for wrong in ["", ":", ":80", "[", "[]", "[::1", "::1", "[zz]", "[1.2.3.4]", "a b", "ä"] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_server_knows_its_own_names() {
        let hosts = Hosts::new(&["gate.example".to_owned(), "Api.Example.:8443".to_owned()]);
        let find = |host: &str, local: &str| {
            hosts.find(&Host::parse(host).unwrap(), local.parse().unwrap())
        };
        for host in ["localhost", "LocalHost:7090", "localhost.:1", "127.0.0.2:7090", "[::1]:7090"]
        {
            assert_eq!(find(host, "10.1.2.3"), Some(Known::Fixed), "{host}");
        }
        for host in ["10.1.2.3:7090", "[::ffff:10.1.2.3]"] {
            assert_eq!(find(host, "::ffff:10.1.2.3"), Some(Known::Fixed), "{host}");
        }
        for host in ["gate.example", "GATE.example.:81", "api.example:8443"] {
            assert_eq!(find(host, "10.1.2.3"), Some(Known::Listed), "{host}");
        }
        for host in ["evil.example", "api.example", "10.1.2.4", "localhost.evil.example", "127.1"] {
            assert_eq!(find(host, "10.1.2.3"), None, "{host}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in "[a-z0-9.:\\[\\]-]{0,12}") {
            if let Some(host) = Host::parse(&text) {
                let again = Host::parse(&host.to_string()).map(|again| (again.name.len(), again.port));
                prop_assert_eq!(again, Some((host.name.len(), host.port)));
            }
        }
    }
}
