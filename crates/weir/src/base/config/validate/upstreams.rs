//! Rules of upstreams.

use std::collections::HashMap;

use super::auth::quoted;
use super::error;
use crate::base::config::keys::ConfigError;
use crate::base::config::{Config, UPSTREAM_NAME_CHARS_MAX};

impl Config {
    pub(super) fn check_upstreams(&self) -> Result<(), ConfigError> {
        let mut names = HashMap::new();
        for (index, upstream) in self.upstreams.iter().enumerate() {
            let (path, name) = (format!("upstreams[{index}]"), &upstream.name);
            let is_char = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
            if name.is_empty() || name.len() > UPSTREAM_NAME_CHARS_MAX || !name.chars().all(is_char)
            {
                let allowed = format!("1 to {UPSTREAM_NAME_CHARS_MAX} of a-z, A-Z, 0-9, - and _");
                return Err(error(&format!("{path}.name"), quoted(name), allowed));
            }
            if let Some(earlier) = names.insert(name, index) {
                let allowed = format!("a name of its own: upstreams[{earlier}] has this one");
                return Err(error(&format!("{path}.name"), quoted(name), allowed));
            }
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
