//! Rules of the receivers of notices.

use std::collections::HashMap;

use super::auth::quoted;
use super::classes::is_pattern;
use super::error;
use super::hooks::check_path;
use super::upstreams::check_name;
use crate::base::config::keys::ConfigError;
use crate::base::config::{
    Config, HOOK_SECRET_BYTES_MAX, HOOK_SECRET_BYTES_MIN, NoticeEvent, ReceiverConfig,
};

impl Config {
    pub(super) fn check_receivers(&self) -> Result<(), ConfigError> {
        let mut names = HashMap::new();
        for (index, receiver) in self.hooks.receivers.iter().enumerate() {
            let path = format!("hooks.receivers[{index}]");
            check_name("hooks.receivers", (index, &receiver.name), &mut names)?;
            self.check_upstream_name(&format!("{path}.upstream"), &receiver.upstream)?;
            check_path(&format!("{path}.path"), &receiver.path)?;
            Self::check_events(&path, receiver)?;
            self.check_patterns(&path, receiver)?;
            let bytes = receiver.secret.len();
            if bytes != 0 && !(HOOK_SECRET_BYTES_MIN..=HOOK_SECRET_BYTES_MAX).contains(&bytes) {
                let allowed = format!(
                    "{HOOK_SECRET_BYTES_MIN} to {HOOK_SECRET_BYTES_MAX} bytes (openssl rand -hex 32), or an empty text for hooks.secret"
                );
                let value = format_args!("({bytes} bytes)");
                return Err(error(&format!("{path}.secret"), value, allowed));
            }
        }
        Ok(())
    }

    fn check_events(path: &str, receiver: &ReceiverConfig) -> Result<(), ConfigError> {
        let events = &receiver.events;
        let key = format!("{path}.events");
        if events.is_empty() {
            let names: Vec<_> = NoticeEvent::ALL.iter().map(|event| event.name()).collect();
            return Err(error(&key, "[]", format_args!("at least one of {}", names.join(", "))));
        }
        let twice = events.iter().enumerate().find(|(at, event)| events[..*at].contains(event));
        if let Some((_, event)) = twice {
            return Err(error(&key, quoted(event.name()), "each event once"));
        }
        Ok(())
    }

    fn check_patterns(&self, path: &str, receiver: &ReceiverConfig) -> Result<(), ConfigError> {
        let bytes_max = self.limits.topic_bytes_max;
        for (at, pattern) in receiver.topics.iter().enumerate() {
            if !is_pattern(pattern, bytes_max) {
                let allowed = format!(
                    "a pattern of 1 to {bytes_max} bytes, such as room/*, without +, # and control characters"
                );
                return Err(error(&format!("{path}.topics[{at}]"), quoted(pattern), allowed));
            }
        }
        Ok(())
    }
}
