//! An address of an upstream, as text has it.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// An address as the settings have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// An IP address and a port.
    Socket(SocketAddr),
    /// A name for A and AAAA records, and a port.
    Name {
        /// The name; with a dot at its end, no search list counts.
        host: Arc<str>,
        /// The port of all its addresses.
        port: u16,
    },
    /// A name for SRV records, which tell names and ports.
    Srv(Arc<str>),
    /// A unix socket.
    Unix(Arc<Path>),
}

/// Text that is no address; it says what is allowed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct AddressError(&'static str);

impl Address {
    /// Errors: text that is no address.
    pub(crate) fn parse(text: &str) -> Result<Address, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') && path.len() <= PATH_BYTES_MAX {
                true => Ok(Address::Unix(Path::new(path).into())),
                false => Err(AddressError("unix: and an absolute path of at most 107 bytes")),
            };
        }
        if let Some(name) = text.strip_prefix("srv:") {
            return match is_name(name) && is_service(name) {
                true => Ok(Address::Srv(name.into())),
                false => Err(AddressError("srv:_service._proto.name")),
            };
        }
        if let Ok(addr) = text.parse::<SocketAddr>() {
            return match addr.port() {
                0 => Err(AddressError("a port of 1 to 65535")),
                _ => Ok(Address::Socket(addr)),
            };
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err(AddressError(FORMS));
        };
        if host.parse::<Ipv6Addr>().is_ok() {
            return Err(AddressError("an IPv6 address in brackets, such as [::1]:80"));
        }
        let port = port.parse().ok().filter(|&port| port != 0);
        let port = port.ok_or(AddressError("host:port, with a port of 1 to 65535"))?;
        match is_name(host) && !is_number(host) {
            true => Ok(Address::Name { host: host.into(), port }),
            false => Err(AddressError(FORMS)),
        }
    }
}

/// Labels of 1 to 63 letters, digits, hyphens and underscores.
fn is_name(name: &str) -> bool {
    let labels = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        let is_char = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        (1..=63).contains(&label.len()) && label.chars().all(is_char)
    };
    labels.len() <= NAME_BYTES_MAX && labels.split('.').all(is_label)
}

/// Whether it is meant as an IP address: no name ends in a number.
fn is_number(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    last.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_service(name: &str) -> bool {
    let mut labels = name.trim_end_matches('.').split('.');
    let mut is_next = |is: fn(&str) -> bool| labels.next().is_some_and(is);
    is_next(|label| label.len() > 1 && label.starts_with('_'))
        && is_next(|label| label.len() > 1 && label.starts_with('_'))
        && is_next(|_| true)
}

const FORMS: &str = "host:port, srv:_service._proto.name or unix:/path";
/// The kernel's `sun_path` has 108 bytes with the zero at its end.
const PATH_BYTES_MAX: usize = 107;
/// RFC 1035 section 2.3.4, as text.
const NAME_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_read() {
        let name = |host: &str, port| Address::Name { host: host.into(), port };
        let check = |text: &str, expected: Address| {
            assert_eq!(Address::parse(text), Ok(expected), "{text}");
        };
        check("10.0.0.1:80", Address::Socket("10.0.0.1:80".parse().unwrap()));
        check("[::1]:443", Address::Socket("[::1]:443".parse().unwrap()));
        check("api.example:80", name("api.example", 80));
        check("api.example.:80", name("api.example.", 80));
        check("localhost:8080", name("localhost", 8080));
        check("a_b-c:1", name("a_b-c", 1));
        check("srv:_http._tcp.api.example", Address::Srv("_http._tcp.api.example".into()));
        check("unix:/run/api.sock", Address::Unix(Path::new("/run/api.sock").into()));
    }

    #[test]
    fn all_else_is_refused() {
        let long = format!("{}:80", ["a"; 128].join("."));
        let path = format!("unix:/{}", "p".repeat(PATH_BYTES_MAX));
        for text in [
            "",
            "api",
            ":80",
            "api:",
            "api:0",
            "api:65536",
            "api:+80 ",
            "10.0.0.1",
            "10.0.0:80",
            "10.0.0.256:80",
            "::1:80",
            "a..b:80",
            ".a:80",
            "a b:80",
            "a/b:80",
            "user@a:80",
            "http://a:80",
            "srv:",
            "srv:_http.api",
            "srv:_http._tcp",
            "srv:http.tcp.api",
            "srv:_http._tcp.api:80",
            "unix:",
            "unix:run",
            "10.0.0.1:0",
            "a\r\nb:80",
            &long,
            &path,
        ] {
            assert!(Address::parse(text).is_err(), "{text:?}");
        }
    }
}
