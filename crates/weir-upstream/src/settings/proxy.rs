//! The proxy before an upstream.

use std::path::PathBuf;

use super::{Secret, SettingsError};
use crate::address::Address;

/// The proxy before an upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxySettings {
    /// `http://host:port` (CONNECT) or `socks5://host:port`.
    pub url: String,
    /// The user. Empty: the proxy asks for none.
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// A file that holds the password instead. It is read for each connection.
    pub password_file: Option<PathBuf>,
    /// Whether the proxy looks up the names of the upstream.
    pub resolves: bool,
}

/// How a proxy is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    /// `CONNECT` of HTTP/1.1 (RFC 9110 section 9.3.6).
    Http,
    /// SOCKS5 (RFC 1928), with users and passwords by RFC 1929.
    Socks5,
}

impl ProxySettings {
    /// Kind and address of the proxy.
    pub(crate) fn place(&self) -> Result<(ProxyKind, Address), SettingsError> {
        let schemes = [("http://", ProxyKind::Http), ("socks5://", ProxyKind::Socks5)];
        let is = |(scheme, kind)| Some((kind, self.url.strip_prefix(scheme)?));
        let place =
            schemes.into_iter().find_map(is).and_then(|(kind, rest)| {
                match Address::parse(rest.strip_suffix('/').unwrap_or(rest)).ok()? {
                    address @ (Address::Socket(_) | Address::Name { .. }) => Some((kind, address)),
                    Address::Srv(_) | Address::Unix(_) => None,
                }
            });
        place.ok_or_else(|| SettingsError {
            key: "proxy",
            // A URL of another form may have a password in it.
            value: match self.url.contains('@') {
                true => "(hidden)".to_owned(),
                false => format!("{:?}", self.url),
            },
            allowed:
                "http://host:port or socks5://host:port, without user and password, which are \
                      in proxy_user and proxy_password"
                    .to_owned(),
        })
    }

    pub(super) fn check(&self, addresses: &[Address]) -> Result<(), SettingsError> {
        let (kind, _) = self.place()?;
        let error =
            |key, value: String, allowed: String| Err(SettingsError { key, value, allowed });
        if let Some(Address::Unix(path)) =
            addresses.iter().find(|address| matches!(address, Address::Unix(_)))
        {
            let allowed = format!("\"\", since no proxy reaches unix:{}", path.display());
            return error("proxy", format!("{:?}", self.url), allowed);
        }
        let password = self.password.reveal();
        if !password.is_empty() && self.password_file.is_some() {
            let allowed = "a path, or proxy_password, but not both".to_owned();
            let value = format!("{:?}", self.password_file.as_deref().unwrap_or("".as_ref()));
            return error("proxy_password_file", value, allowed);
        }
        if self.user.is_empty() && (!password.is_empty() || self.password_file.is_some()) {
            let allowed = "the user to whom the password belongs".to_owned();
            return error("proxy_user", "\"\"".to_owned(), allowed);
        }
        let is_word = |text: &str| text.len() <= WORD_BYTES_MAX && !text.contains(char::is_control);
        if !is_word(&self.user) || (kind == ProxyKind::Http && self.user.contains(':')) {
            let allowed = format!(
                "at most {WORD_BYTES_MAX} bytes without control characters, and without a colon for \
                 http://"
            );
            return error("proxy_user", format!("{:?}", self.user), allowed);
        }
        if !is_word(password) {
            let allowed = format!("at most {WORD_BYTES_MAX} bytes without control characters");
            return error("proxy_password", "(hidden)".to_owned(), allowed);
        }
        Ok(())
    }
}

/// RFC 1929 has one byte for the length.
pub(crate) const WORD_BYTES_MAX: usize = 255;
