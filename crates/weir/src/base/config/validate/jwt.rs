//! Rules of `[auth.jwt]`.

use super::auth::{is_word, quoted};
use super::{error, is_request_path};
use crate::base::config::jwt::{CLAIM_BYTES_MAX, KEYS_PATH_BYTES_MAX, WORD_BYTES_MAX};
use crate::base::config::keys::ConfigError;
use crate::base::config::{Config, JwtConfig};

impl Config {
    pub(super) fn check_jwt(&self) -> Result<(), ConfigError> {
        let jwt = &self.auth.jwt;
        check_keys(jwt)?;
        self.check_issuers()?;
        check_optional_word("auth.jwt.issuer", &jwt.issuer)?;
        check_optional_word("auth.jwt.audience", &jwt.audience)?;
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

    fn check_issuers(&self) -> Result<(), ConfigError> {
        let JwtConfig { issuer: of_files, issuers, .. } = &self.auth.jwt;
        for (index, config) in issuers.iter().enumerate() {
            let path = at(index);
            let (key, issuer) = (format!("{path}.issuer"), &config.issuer);
            if !is_word(issuer, WORD_BYTES_MAX) {
                let allowed = format!("1 to {WORD_BYTES_MAX} bytes without control characters");
                return Err(error(&key, quoted(issuer), allowed));
            }
            let earlier = issuers[..index].iter().position(|other| other.issuer == *issuer);
            if let Some(earlier) = earlier {
                let allowed = format!("an issuer of its own: {} has this one", at(earlier));
                return Err(error(&key, quoted(issuer), allowed));
            }
            if issuer == of_files {
                let allowed = "an issuer of its own: auth.jwt.issuer has this one";
                return Err(error(&key, quoted(issuer), allowed));
            }
            self.check_upstream_name(&format!("{path}.upstream"), &config.upstream)?;
            if !is_request_path(&config.path, KEYS_PATH_BYTES_MAX) {
                let allowed = format!(
                    "a path that begins with /, of {KEYS_PATH_BYTES_MAX} bytes at most, without #"
                );
                return Err(error(&format!("{path}.path"), quoted(&config.path), allowed));
            }
            check_optional_word(&format!("{path}.audience"), &config.audience)?;
        }
        Ok(())
    }
}

fn at(index: usize) -> String {
    format!("auth.jwt.issuers[{index}]")
}

fn check_optional_word(key: &str, text: &str) -> Result<(), ConfigError> {
    if text.is_empty() || is_word(text, WORD_BYTES_MAX) {
        return Ok(());
    }
    let allowed = format!("empty, or at most {WORD_BYTES_MAX} bytes without control characters");
    Err(error(key, quoted(text), allowed))
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
