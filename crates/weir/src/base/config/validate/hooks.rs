//! Rules of hooks.

use super::auth::quoted;
use super::error;
use crate::base::config::keys::ConfigError;
use crate::base::config::{
    Config, HOOK_SECRET_BYTES_MAX, HOOK_SECRET_BYTES_MIN, PATH_BYTES_MAX, TopicClass,
};

impl Config {
    pub(super) fn check_hooks(&self) -> Result<(), ConfigError> {
        let hooks = &self.hooks;
        let bytes = hooks.secret.len();
        if bytes != 0 && !(HOOK_SECRET_BYTES_MIN..=HOOK_SECRET_BYTES_MAX).contains(&bytes) {
            let allowed = format!(
                "{HOOK_SECRET_BYTES_MIN} to {HOOK_SECRET_BYTES_MAX} bytes (openssl rand -hex 32), or an empty text for requests without a signature"
            );
            return Err(error("hooks.secret", format_args!("({bytes} bytes)"), allowed));
        }
        for (section, upstream, path) in [
            ("hooks.connect", &hooks.connect.upstream, &hooks.connect.path),
            ("hooks.refresh", &hooks.refresh.upstream, &hooks.refresh.path),
            ("hooks.subscribe", &hooks.subscribe.upstream, &hooks.subscribe.path),
            ("hooks.publish", &hooks.publish.upstream, &hooks.publish.path),
        ] {
            if !upstream.is_empty() {
                self.check_upstream_name(&format!("{section}.upstream"), upstream)?;
            }
            check_path(&format!("{section}.path"), path)?;
        }
        Ok(())
    }

    /// `path`: that of the class.
    pub(super) fn check_class_hooks(
        &self,
        path: &str,
        class: &TopicClass,
    ) -> Result<(), ConfigError> {
        for (key, hook) in
            [("publish_hook", &class.publish_hook), ("subscribe_hook", &class.subscribe_hook)]
        {
            if let Some(name) = hook.as_ref().filter(|name| !name.is_empty()) {
                self.check_upstream_name(&format!("{path}.{key}"), name)?;
            }
        }
        Ok(())
    }
}

/// A path is part of a request's first line.
pub(super) fn check_path(key: &str, path: &str) -> Result<(), ConfigError> {
    let is_path = path.starts_with('/')
        && path.len() <= PATH_BYTES_MAX
        && path.parse::<http::uri::PathAndQuery>().is_ok_and(|parsed| parsed.as_str() == path);
    match is_path {
        true => Ok(()),
        false => {
            let allowed = format!(
                "a path that begins with /, of at most {PATH_BYTES_MAX} bytes: it may have a query, but no spaces and no fragment"
            );
            Err(error(key, quoted(path), allowed))
        }
    }
}
