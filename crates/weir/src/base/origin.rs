//! Origins of web pages.

use super::host::Host;

/// An `Origin` header, parsed.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    text: &'a str,
    scheme: &'a str,
    host: Host<'a>,
}

impl<'a> Origin<'a> {
    /// `None` if it is malformed, or `null`.
    pub(crate) fn parse(text: &'a str) -> Option<Origin<'a>> {
        let (scheme, rest) = text.split_once("://")?;
        let host = Host::parse(rest)?;
        let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        is_scheme.then_some(Origin { text, scheme, host })
    }

    /// Whether it has the form that browsers send: lower case, without the scheme's default port.
    pub(crate) fn is_as_sent(&self) -> bool {
        let is_never = |character: char| character.is_ascii_uppercase() || character == '*';
        !self.text.contains(is_never)
            && !self.text.ends_with(':')
            && (self.host.port().is_none() || self.host.port() != default_port(self.scheme))
    }

    /// Whether it is the origin of a server: scheme, host and port must be equal (RFC 6454 section
    /// 5).
    ///
    /// `schemes` are the schemes at which clients may reach the server.
    pub(crate) fn is_of(&self, schemes: &[&str], host: &Host<'_>) -> bool {
        let port = default_port(self.scheme);
        schemes.contains(&self.scheme)
            && self.host.has_name_of(host)
            && self.host.port().or(port) == host.port().or(port)
    }
}

/// The default port of a scheme.
pub(crate) fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}
