//! Rules of `[auth.jwt]`.

use std::time::Duration;

use super::auth::{is_word, quoted};
use super::{ConfigError, error, within, within_time};
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
        within_time("auth.jwt.leeway", jwt.leeway, Duration::ZERO, LEEWAY_MAX, " (5 minutes)")?;
        let (shortest, longest) = (Duration::from_secs(1), Duration::from_secs(86_400));
        within_time("auth.jwt.reload_interval", jwt.reload_interval, shortest, longest, "")?;
        within("auth.jwt.token_bytes_max", jwt.token_bytes_max, TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX)?;
        let notice = self.auth.expiring_notice;
        within_time("auth.expiring_notice", notice, Duration::ZERO, NOTICE_MAX, " (a day)")
    }
}

fn check_keys(jwt: &JwtConfig) -> Result<(), ConfigError> {
    let count = jwt.keys.len();
    if count > KEYS_MAX {
        let allowed = format!("at most {KEYS_MAX}: a token without a kid may have all tried");
        return Err(error("auth.jwt.keys", format_args!("({count} keys)"), allowed));
    }
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

/// As in any of these, and in what it is compared with.
const WORD_BYTES_MAX: usize = 1024;
const CLAIM_BYTES_MAX: usize = 128;
/// Old and new keys of a few issuers; each costs up to a verification.
const KEYS_MAX: usize = 16;
/// Shorter ones could not hold an RSA signature.
const TOKEN_BYTES_MIN: usize = 512;
/// A default frame.
const TOKEN_BYTES_MAX: usize = 65_536;
/// Clocks that are further apart are to be mended.
const LEEWAY_MAX: Duration = Duration::from_secs(300);
const NOTICE_MAX: Duration = Duration::from_secs(86_400);
