//! Rules of routes.

use std::collections::HashMap;

use super::auth::quoted;
use super::error;
use crate::base::config::keys::ConfigError;
use crate::base::config::{Config, OWN_PATHS, PREFIX_BYTES_MAX, RouteConfig};
use crate::base::host::is_host;

impl Config {
    pub(super) fn check_routes(&self) -> Result<(), ConfigError> {
        let mut known = HashMap::new();
        for (index, route) in self.http.routes.iter().enumerate() {
            let path = format!("http.routes[{index}]");
            if !route.host.is_empty() && !is_host(&route.host) {
                let allowed = "a host name with or without a port, as in the header Host";
                return Err(error(&format!("{path}.host"), quoted(&route.host), allowed));
            }
            check_prefix(&format!("{path}.prefix"), route)?;
            let place = (route.host.to_ascii_lowercase(), route.prefix.trim_end_matches('/'));
            if let Some(earlier) = known.insert(place, index) {
                let allowed = format!("a prefix of its own: http.routes[{earlier}] has this one");
                return Err(error(&format!("{path}.prefix"), quoted(&route.prefix), allowed));
            }
            self.check_upstream_name(&format!("{path}.upstream"), &route.upstream)?;
        }
        Ok(())
    }
}

fn check_prefix(key: &str, route: &RouteConfig) -> Result<(), ConfigError> {
    let prefix = route.prefix.as_str();
    let wrong = |allowed: &str| Err(error(key, quoted(prefix), allowed));
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"%?#;\\\"{}".contains(&byte);
    if !prefix.starts_with('/') || prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(is_plain)
    {
        return wrong(
            "a path of 1 to 128 bytes that begins with /, without %, ?, #, ;, \\, \" and braces",
        );
    }
    if prefix.contains("//") || prefix.split('/').any(|segment| matches!(segment, "." | "..")) {
        return wrong("a path without empty segments, and without the segments . and ..");
    }
    if OWN_PATHS.contains(&prefix.trim_end_matches('/')) {
        return wrong("a path that is none of Weir's own: this one it answers itself");
    }
    Ok(())
}
