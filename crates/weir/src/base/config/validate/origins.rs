//! Rules of origins. They are compared byte for byte with the origins that browsers send, so their
//! form must be the same.

use super::error;
use crate::base::config::Config;
use crate::base::config::keys::ConfigError;
use crate::base::origin::Origin;

impl Config {
    pub(super) fn check_origins(&self) -> Result<(), ConfigError> {
        let origins = &self.http.cors_origins;
        for (index, origin) in origins.iter().enumerate() {
            let refuse = |allowed: &str| {
                let key = format!("http.cors_origins[{index}]");
                Err(error(&key, format_args!("{origin:?}"), allowed))
            };
            if origin == "*" {
                if origins.len() > 1 {
                    return refuse("* alone: it stands for all origins");
                }
                continue;
            }
            if !Origin::parse(origin).is_some_and(|parsed| parsed.is_as_sent()) {
                return refuse(
                    "an origin as browsers send it: scheme, host, and the port unless it is the scheme's own, in lower \
                     case, such as https://app.example or http://localhost:3000; or * for all",
                );
            }
            if origins[..index].contains(origin) {
                return refuse("each origin once");
            }
        }
        Ok(())
    }
}
