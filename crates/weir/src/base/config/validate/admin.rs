//! Rules of the admin API and its tokens.

use std::collections::HashMap;

use super::auth::{ONCE, quoted};
use super::{TOKEN_BYTES_MAX, check_hosts, error};
use crate::base::config::keys::ConfigError;
use crate::base::config::{ADMIN_NAME_CHARS_MAX, ADMIN_NAMES_TAKEN, AdminTokenConfig, Config};
use crate::base::token_hash::{Digest, digest_of, parse};

impl Config {
    pub(super) fn check_admin(&self) -> Result<(), ConfigError> {
        if self.admin.token.len() > TOKEN_BYTES_MAX {
            let value = format!("({} bytes)", self.admin.token.len());
            return Err(error("admin.token", value, format!("at most {TOKEN_BYTES_MAX} bytes")));
        }
        // Requests lose the spaces around a token, and no client sends other bytes, so such a token
        // would never match.
        if !self.admin.token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let allowed = "printable ASCII without spaces, because it is sent in a header";
            return Err(error("admin.token", "(hidden)", allowed));
        }
        self.check_admin_tokens()?;
        check_hosts("admin.hosts", &self.admin.hosts)?;
        match self.listen.admin {
            Some(addr) if !addr.ip().is_loopback() && !self.admin.needs_token() => {
                let allowed = format!(
                    "a token, here or in [[admin.tokens]], since listen.admin = {addr} is not on loopback: anyone \
                     who reaches it could publish"
                );
                let depends_on = &["listen.admin"];
                Err(ConfigError { depends_on, ..error("admin.token", "\"\"", allowed) })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_admin_tokens(&self) -> Result<(), ConfigError> {
        if self.admin.tokens.is_empty() {
            return Ok(());
        }
        let mut hashes = self.hashes();
        let mut names: HashMap<&str, String> = HashMap::new();
        let services = self.auth.services.iter().enumerate();
        names.extend(
            services.map(|(at, service)| (service.name.as_str(), format!("auth.services[{at}]"))),
        );
        for (index, token) in self.admin.tokens.iter().enumerate() {
            let path = format!("admin.tokens[{index}]");
            check_name(&path, &token.name)?;
            if let Some(earlier) = names.insert(&token.name, path.clone()) {
                let allowed = format!("a name of its own: {earlier} has this one");
                return Err(error(&format!("{path}.name"), quoted(&token.name), allowed));
            }
            check_hash(&path, token, &mut hashes)?;
            check_scopes(&path, token)?;
        }
        Ok(())
    }

    /// The hashes of all tokens that are configured as they are.
    fn hashes(&self) -> HashMap<Digest, String> {
        let tokens = self.auth.tokens.iter().map(|token| &token.token).enumerate();
        let services = self.auth.services.iter().map(|service| &service.token).enumerate();
        let named = tokens
            .map(|(index, token)| (token, format!("auth.tokens[{index}].token")))
            .chain(services.map(|(index, token)| (token, format!("auth.services[{index}].token"))))
            .chain([(&self.admin.token, "admin.token".to_owned())]);
        named.map(|(token, key)| (digest_of(token), key)).collect()
    }
}

fn check_name(path: &str, name: &str) -> Result<(), ConfigError> {
    let key = format!("{path}.name");
    let is_visible = name.bytes().all(|byte| byte.is_ascii_graphic());
    if !(1..=ADMIN_NAME_CHARS_MAX).contains(&name.len()) || !is_visible {
        let allowed =
            format!("1 to {ADMIN_NAME_CHARS_MAX} visible ASCII characters, without spaces");
        return Err(error(&key, quoted(name), allowed));
    }
    if ADMIN_NAMES_TAKEN.contains(&name) {
        let allowed = "a name that the audit log does not give to others, as it does to admin, anyone \
                       and nobody";
        return Err(error(&key, quoted(name), allowed));
    }
    Ok(())
}

fn check_hash(
    path: &str,
    token: &AdminTokenConfig,
    hashes: &mut HashMap<Digest, String>,
) -> Result<(), ConfigError> {
    let key = format!("{path}.hash");
    let Some(hash) = parse(&token.hash) else {
        let allowed = "sha256: and the 64 hexadecimal digits of the token's SHA-256, as `weir token` \
                       prints it";
        return Err(error(&key, "(hidden)", allowed));
    };
    if hash == digest_of("") {
        return Err(error(&key, "(hidden)", "the hash of a token, not of an empty text"));
    }
    if let Some(earlier) = hashes.insert(hash, key.clone()) {
        let allowed = format!("the hash of a token of its own: {earlier} is the same token");
        return Err(error(&key, "(hidden)", allowed));
    }
    Ok(())
}

fn check_scopes(path: &str, token: &AdminTokenConfig) -> Result<(), ConfigError> {
    if token.may.is_empty() {
        let allowed = "at least one of read, publish, operate and devices";
        return Err(error(&format!("{path}.may"), "[]", allowed));
    }
    for (index, scope) in token.may.iter().enumerate() {
        if token.may[..index].contains(scope) {
            return Err(error(&format!("{path}.may[{index}]"), quoted(scope.name()), ONCE));
        }
    }
    Ok(())
}
