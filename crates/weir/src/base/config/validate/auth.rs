//! Rules of tokens and services.

use std::collections::{HashMap, HashSet};

use super::{TOKEN_BYTES_MAX, error};
use crate::base::config::auth::LABEL_BYTES_MAX;
use crate::base::config::keys::ConfigError;
use crate::base::config::keys::Value as _;
use crate::base::config::{ClientIdentity, Config, ServiceConfig, TokenConfig};
use crate::base::model::AuthKind;

/// Known secrets, each with its key.
type Secrets<'a> = HashMap<&'a str, String>;

impl Config {
    pub(super) fn check_auth(&self) -> Result<(), ConfigError> {
        self.check_anonymous()?;
        if self.auth.unchecked_ids.contains(&AuthKind::Device) {
            let words = self.auth.unchecked_ids.iter().map(|kind| kind.name());
            let value = format!("{:?}", words.collect::<Vec<_>>());
            return Err(error("auth.unchecked_ids", value, self.auth.unchecked_ids.kind()));
        }
        self.check_placeholders()?;
        let mut secrets = Secrets::new();
        if !self.admin.token.is_empty() {
            secrets.insert(&self.admin.token, "admin.token".to_owned());
        }
        let count = self.auth.tokens.len() + self.auth.services.len();
        if count > TOKENS_MAX {
            let allowed = format!(
                "at most {TOKENS_MAX} of [[auth.tokens]] and [[auth.services]] together, as they are numbered in 16 bits"
            );
            return Err(error("auth.tokens", format_args!("({count} tokens)"), allowed));
        }
        for (index, token) in self.auth.tokens.iter().enumerate() {
            self.check_token(&format!("auth.tokens[{index}]"), token, &mut secrets)?;
        }
        let mut names = HashMap::new();
        for (index, service) in self.auth.services.iter().enumerate() {
            let path = format!("auth.services[{index}]");
            self.check_service(&path, service, &mut secrets)?;
            if let Some(earlier) = names.insert(service.name.as_str(), path.clone()) {
                let allowed = format!("a name of its own: {earlier} has this one");
                return Err(error(&format!("{path}.name"), quoted(&service.name), allowed));
            }
        }
        self.check_devices_of_services(&names)
    }

    fn check_anonymous(&self) -> Result<(), ConfigError> {
        let exposed = self.listen.exposed();
        if let (Some(true), Some((key, addr))) = (self.auth.anonymous, exposed) {
            let allowed = format!(
                "true only while every address of {key} is on loopback, and {addr} is not: \
                 set auth.tokens and leave auth.anonymous out, or listen on 127.0.0.1 or [::1]"
            );
            return Err(error("auth.anonymous", "true", allowed));
        }
        let admits_anonymous = self.admits_anonymous();
        if self.auth.anonymous.is_none()
            && admits_anonymous
            && !self.listen.proxy_networks.is_empty()
        {
            let allowed = "true or false, and not absent while listen.proxy_networks is set: absent means \
                           true on loopback, but connections through a proxy come from elsewhere";
            let depends_on = &["listen.proxy_networks"];
            return Err(ConfigError { depends_on, ..error("auth.anonymous", "(absent)", allowed) });
        }
        Ok(())
    }

    /// Checks that some device or service may connect. Call it if there is no store of devices.
    ///
    /// Errors: the wrong key.
    pub fn check_admits(&self) -> Result<(), ConfigError> {
        let exposed = self.listen.exposed();
        let admits_anonymous = self.admits_anonymous();
        let nobody = self.auth.tokens.is_empty()
            && self.auth.services.is_empty()
            && !self.auth.jwt.has_keys()
            && self.hooks.connect.upstream.is_empty();
        // Certificates admit devices too, but only over TLS.
        let by_certificate = self.tls.client_identity != ClientIdentity::None
            && self.listen.has_tls()
            && self.listen.tcp.iter().chain(&self.listen.http).all(|addr| addr.ip().is_loopback());
        if nobody && !by_certificate && !admits_anonymous {
            let allowed = match exposed {
                Some((key, addr)) => format!(
                    "at least one token, since {addr} of {key} is not on loopback; set [[auth.tokens]]"
                ),
                None => "at least one token while auth.anonymous is false".to_owned(),
            };
            let depends_on: &[_] = match exposed {
                Some(_) => &["listen.tcp", "listen.tls", "listen.http", "listen.https"],
                None => &["auth.anonymous"],
            };
            return Err(ConfigError { depends_on, ..error("auth.tokens", "[]", allowed) });
        }
        Ok(())
    }

    /// The tokens of Weir's example configuration are publicly known.
    fn check_placeholders(&self) -> Result<(), ConfigError> {
        let admin = self.listen.admin.filter(|addr| !addr.ip().is_loopback());
        let Some(addr) = self.listen.exposed().map(|(_, addr)| addr).or(admin) else {
            return Ok(());
        };
        let tokens = self.auth.tokens.iter().map(|token| &token.token).enumerate();
        let services = self.auth.services.iter().map(|service| &service.token).enumerate();
        let named = tokens
            .map(|(index, token)| (format!("auth.tokens[{index}].token"), token))
            .chain(services.map(|(index, token)| (format!("auth.services[{index}].token"), token)))
            .chain([
                ("admin.token".to_owned(), &self.admin.token),
                ("tls.ticket_secret".to_owned(), &self.tls.ticket_secret),
                ("hooks.secret".to_owned(), &self.hooks.secret),
            ]);
        for (key, token) in named {
            if token.starts_with(PLACEHOLDER) {
                let allowed = format!(
                    "a secret of your own (openssl rand -hex 32), since {addr} is not on loopback: a text \
                     that begins with {PLACEHOLDER} comes from a public example"
                );
                let depends_on =
                    &["listen.tcp", "listen.tls", "listen.http", "listen.https", "listen.admin"];
                return Err(ConfigError { depends_on, ..error(&key, "(hidden)", allowed) });
            }
        }
        Ok(())
    }

    fn check_token<'a>(
        &'a self,
        path: &str,
        token: &'a TokenConfig,
        secrets: &mut Secrets<'a>,
    ) -> Result<(), ConfigError> {
        check_secret(path, &token.token, secrets)?;
        let limit = self.limits.device_id_bytes_max;
        match &token.device {
            Some(device) if !is_word(device, limit) => {
                let allowed = format!(
                    "1 to {limit} bytes (limits.device_id_bytes_max) without control characters, or absent"
                );
                return Err(error(&format!("{path}.device"), quoted(device), allowed));
            }
            Some(_) | None => {}
        }
        check_labels(path, &token.labels)
    }

    fn check_service<'a>(
        &'a self,
        path: &str,
        service: &'a ServiceConfig,
        secrets: &mut Secrets<'a>,
    ) -> Result<(), ConfigError> {
        check_secret(path, &service.token, secrets)?;
        // It is also a bearer token; see the rule of `admin.token`.
        if !service.token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let allowed = "printable ASCII without spaces, because it is sent in a header";
            return Err(error(&format!("{path}.token"), "(hidden)", allowed));
        }
        let limit = self.limits.device_id_bytes_max;
        if !is_word(&service.name, limit) || service.name.contains('/') {
            let allowed = format!(
                "1 to {limit} bytes (limits.device_id_bytes_max) without control characters and without \"/\", \
                 which separates the name from the part that a connection adds"
            );
            return Err(error(&format!("{path}.name"), quoted(&service.name), allowed));
        }
        if service.may.is_empty() {
            let allowed = "at least one of subscribe, publish and events";
            return Err(error(&format!("{path}.may"), "[]", allowed));
        }
        for (index, right) in service.may.iter().enumerate() {
            if service.may[..index].contains(right) {
                let key = format!("{path}.may[{index}]");
                return Err(error(&key, quoted(right.name()), ONCE));
            }
        }
        Ok(())
    }

    /// A token must not make its device look like a service.
    fn check_devices_of_services(
        &self,
        services: &HashMap<&str, String>,
    ) -> Result<(), ConfigError> {
        for (index, token) in self.auth.tokens.iter().enumerate() {
            let Some(device) = &token.device else { continue };
            let owner = device.split('/').next().unwrap_or_default();
            if let Some(service) = services.get(owner) {
                let allowed = format!(
                    "an id that no service uses: {service} has {owner:?} and all ids that begin with \"{owner}/\""
                );
                return Err(error(
                    &format!("auth.tokens[{index}].device"),
                    quoted(device),
                    allowed,
                ));
            }
        }
        Ok(())
    }

    /// The labels of all tokens.
    pub(super) fn labels(&self) -> HashSet<&str> {
        self.auth.tokens.iter().flat_map(|token| &token.labels).map(String::as_str).collect()
    }
}

fn check_secret<'a>(
    path: &str,
    token: &'a str,
    secrets: &mut Secrets<'a>,
) -> Result<(), ConfigError> {
    let key = format!("{path}.token");
    let bytes = token.len();
    if bytes == 0 || bytes > TOKEN_BYTES_MAX {
        let allowed = format!("1 to {TOKEN_BYTES_MAX} bytes");
        return Err(error(&key, format_args!("({bytes} bytes)"), allowed));
    }
    if let Some(earlier) = secrets.insert(token, key.clone()) {
        let allowed = format!("a token of its own: {earlier} has the same one");
        return Err(error(&key, "(hidden)", allowed));
    }
    Ok(())
}

fn check_labels(path: &str, labels: &[String]) -> Result<(), ConfigError> {
    for (index, label) in labels.iter().enumerate() {
        let key = format!("{path}.labels[{index}]");
        if !is_word(label, LABEL_BYTES_MAX) {
            let allowed = format!("1 to {LABEL_BYTES_MAX} bytes without control characters");
            return Err(error(&key, quoted(label), allowed));
        }
        if labels[..index].contains(label) {
            return Err(error(&key, quoted(label), ONCE));
        }
    }
    Ok(())
}

pub(super) fn is_word(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && !text.contains(char::is_control)
}

pub(super) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// The error of a repeated word in a list.
pub(super) const ONCE: &str = "each word once, and this one is repeated";
/// The start of the tokens in `weir.toml`.
const PLACEHOLDER: &str = "REPLACE-";
/// A token's number has 16 bits. Of the other three, one is for anonymous devices, one for devices
/// that their certificates name, and one for credentials that come at run time.
pub(crate) const TOKENS_MAX: usize = 65_533;
