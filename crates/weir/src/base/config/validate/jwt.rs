//! Rules of `[auth.jwt]`.

use super::auth::{is_word, quoted};
use super::error;
use crate::base::config::jwt::{CLAIM_BYTES_MAX, WORD_BYTES_MAX};
use crate::base::config::keys::ConfigError;
use crate::base::config::{Config, JwtConfig};

impl Config {
    pub(super) fn check_jwt(&self) -> Result<(), ConfigError> {
        let jwt = &self.auth.jwt;
        check_keys(jwt)?;
        for (key, text) in [("issuer", &jwt.issuer), ("audience", &jwt.audience)] {
            if !text.is_empty() && !is_word(text, WORD_BYTES_MAX) {
                let allowed =
                    format!("empty, or at most {WORD_BYTES_MAX} bytes without control characters");
                return Err(error(&format!("auth.jwt.{key}"), quoted(text), allowed));
            }
        }
        let claims = [
            ("device_claim", &jwt.device_claim),
            ("topics_claim", &jwt.topics_claim),
            ("labels_claim", &jwt.labels_claim),
            ("priority_claim", &jwt.priority_claim),
        ];
        for (index, (key, claim)) in claims.iter().enumerate() {
            let key = format!("auth.jwt.{key}");
            if !is_word(claim, CLAIM_BYTES_MAX) {
                let allowed = format!("1 to {CLAIM_BYTES_MAX} bytes without control characters");
                return Err(error(&key, quoted(claim), allowed));
            }
            if let Some((other, _)) = claims[..index].iter().find(|(_, other)| other == claim) {
                let allowed = format!("a claim of its own, and auth.jwt.{other} has this one");
                return Err(error(&key, quoted(claim), allowed));
            }
        }
        Ok(())
    }
}

fn check_keys(jwt: &JwtConfig) -> Result<(), ConfigError> {
    for (index, key) in jwt.keys.iter().enumerate() {
        let path = format!("auth.jwt.keys[{index}]");
        if key.file.as_os_str().is_empty() {
            let allowed = "the path of a file with the key";
            return Err(error(&format!("{path}.file"), "\"\"", allowed));
        }
        let Some(kid) = &key.kid else { continue };
        if !is_word(kid, WORD_BYTES_MAX) {
            let allowed =
                format!("1 to {WORD_BYTES_MAX} bytes without control characters, or absent");
            return Err(error(&format!("{path}.kid"), quoted(kid), allowed));
        }
        let earlier = jwt.keys[..index].iter().position(|other| other.kid.as_ref() == Some(kid));
        if let Some(earlier) = earlier {
            let allowed = format!("a name of its own: auth.jwt.keys[{earlier}] has this one");
            return Err(error(&format!("{path}.kid"), quoted(kid), allowed));
        }
    }
    Ok(())
}
