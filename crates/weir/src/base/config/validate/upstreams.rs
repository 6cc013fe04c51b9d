//! Rules of upstreams.

use std::collections::HashMap;

use super::auth::quoted;
use super::error;
use crate::base::config::keys::ConfigError;
use crate::base::config::{Config, UPSTREAM_NAME_CHARS_MAX, UpstreamConfig};

impl Config {
    pub(super) fn check_upstreams(&self) -> Result<(), ConfigError> {
        let mut names = HashMap::new();
        for (index, upstream) in self.upstreams.iter().enumerate() {
            let path = format!("upstreams[{index}]");
            check_name("upstreams", (index, &upstream.name), &mut names)?;
            check_orphans(&path, upstream)?;
            upstream.settings().check().map_err(|wrong| ConfigError {
                key: format!("{path}.{}", wrong.key),
                value: wrong.value,
                allowed: wrong.allowed,
                depends_on: &[],
            })?;
        }
        Ok(())
    }

    /// Checks that an upstream exists, which the key at `path` names.
    pub(super) fn check_upstream_name(&self, path: &str, name: &str) -> Result<(), ConfigError> {
        if self.upstreams.iter().any(|upstream| upstream.name == name) {
            return Ok(());
        }
        let names: Vec<&str> = self.upstreams.iter().map(|upstream| &*upstream.name).collect();
        let allowed = match names.is_empty() {
            true => "the name of one of [[upstreams]]; there is none".to_owned(),
            false => format!("the name of one of [[upstreams]]: {}", names.join(", ")),
        };
        Err(error(path, quoted(name), allowed))
    }
}

/// Checks the name of a table of `list`, which is a label of metrics. `names` has the earlier ones.
pub(super) fn check_name<'a>(
    list: &str,
    (index, name): (usize, &'a str),
    names: &mut HashMap<&'a str, usize>,
) -> Result<(), ConfigError> {
    let key = format!("{list}[{index}].name");
    let is_char = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
    if name.is_empty() || name.len() > UPSTREAM_NAME_CHARS_MAX || !name.chars().all(is_char) {
        let allowed = format!("1 to {UPSTREAM_NAME_CHARS_MAX} of a-z, A-Z, 0-9, - and _");
        return Err(error(&key, quoted(name), allowed));
    }
    if let Some(earlier) = names.insert(name, index) {
        let allowed = format!("a name of its own: {list}[{earlier}] has this one");
        return Err(error(&key, quoted(name), allowed));
    }
    Ok(())
}

/// Checks that no key is set that has no effect without another one.
fn check_orphans(path: &str, upstream: &UpstreamConfig) -> Result<(), ConfigError> {
    let is_set = |path: &std::path::Path| !path.as_os_str().is_empty();
    let tls = [
        ("tls_ca", is_set(&upstream.tls_ca)),
        ("tls_certificate", is_set(&upstream.tls_certificate)),
        ("tls_key", is_set(&upstream.tls_key)),
        ("tls_server_name", !upstream.tls_server_name.is_empty()),
    ];
    let proxy = [
        ("proxy_user", !upstream.proxy_user.is_empty()),
        ("proxy_password", !upstream.proxy_password.is_empty()),
        ("proxy_password_file", is_set(&upstream.proxy_password_file)),
        ("proxy_resolves", upstream.proxy_resolves),
    ];
    let orphan = |keys: &[(&'static str, bool)]| keys.iter().find(|(_, is)| *is).map(|key| key.0);
    let (orphan, allowed) = match (orphan(&tls), orphan(&proxy)) {
        (Some(key), _) if !upstream.tls => (key, "nothing without tls = true"),
        (_, Some(key)) if upstream.proxy.is_empty() => (key, "nothing without proxy"),
        _ => return Ok(()),
    };
    // It may be a secret.
    Err(error(&format!("{path}.{orphan}"), "(set)", allowed))
}
