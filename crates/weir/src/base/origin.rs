//! Origins of web pages.

use super::host::Host;

/// An `Origin`, taken apart.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    text: &'a str,
    scheme: &'a str,
    host: Host<'a>,
}

impl<'a> Origin<'a> {
    /// `None`: it is malformed, or `null`.
    pub(crate) fn parse(text: &'a str) -> Option<Origin<'a>> {
        let (scheme, rest) = text.split_once("://")?;
        let host = Host::parse(rest)?;
        let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        is_scheme.then_some(Origin { text, scheme, host })
    }

    /// Whether it is written as browsers do: in lower case, without the port that goes without saying.
    pub(crate) fn is_as_sent(&self) -> bool {
        let is_never = |character: char| character.is_ascii_uppercase() || character == '*';
        !self.text.contains(is_never)
            && !self.text.ends_with(':')
            && (self.host.port().is_none() || self.host.port() != default_port(self.scheme))
    }

    /// Whether it is the origin of a server: all of scheme, host and port count (RFC 6454 section 5).
    ///
    /// `schemes`: those that the server may be reached by.
    pub(crate) fn is_of(&self, schemes: &[&str], host: &Host<'_>) -> bool {
        let port = default_port(self.scheme);
        schemes.contains(&self.scheme)
            && self.host.has_name_of(host)
            && self.host.port().or(port) == host.port().or(port)
    }
}

/// The port that a scheme stands for.
pub(crate) fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}
