//! What the head of a request says: the host that it is for, the page that it is from, the token that it shows.

use http::uri::Authority;

/// The token of an `Authorization` header of the scheme `Bearer`.
pub(crate) fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(BEARER.len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(BEARER) && !token.is_empty()).then_some(token)
}

/// Whether there is a name and at most a port behind it: no user, no port that is no number.
pub(crate) fn is_host_and_port(authority: &Authority) -> bool {
    match authority.as_str().strip_prefix(authority.host()) {
        Some("") => true,
        Some(_) => authority.port_u16().is_some(),
        None => false,
    }
}

/// An `Origin`, taken apart.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    text: &'a str,
    scheme: &'a str,
    host: Authority,
}

impl<'a> Origin<'a> {
    /// `None`: it is none, or `null`.
    pub(crate) fn parse(text: &'a str) -> Option<Origin<'a>> {
        let (scheme, rest) = text.split_once("://")?;
        let host = rest.parse::<Authority>().ok().filter(is_host_and_port)?;
        let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        is_scheme.then_some(Origin { text, scheme, host })
    }

    /// Whether it is written as browsers do: in lower case, without the port that goes without saying.
    pub(crate) fn is_as_sent(&self) -> bool {
        let is_never = |character: char| character.is_ascii_uppercase() || character == '*';
        !self.text.contains(is_never)
            && (self.host.port_u16().is_none() || self.host.port_u16() != self.own_port())
    }

    /// Whether it names the host that a request is for.
    pub(crate) fn is_of(&self, host: &Authority) -> bool {
        let Some(port) = self.own_port() else { return false };
        name_of(&self.host) == name_of(host)
            && self.host.port_u16().unwrap_or(port) == host.port_u16().unwrap_or(port)
    }

    /// The port that its scheme stands for.
    fn own_port(&self) -> Option<u16> {
        match self.scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        }
    }
}

/// The host's name as it is compared.
pub(crate) fn name_of(authority: &Authority) -> String {
    authority.host().trim_end_matches('.').to_ascii_lowercase()
}

const BEARER: &[u8] = b"bearer ";
