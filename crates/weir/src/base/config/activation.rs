//! Section `[activation]`.

use std::time::Duration;

use serde::Deserialize;

use super::duration;

/// Section `[activation]`: how devices get their tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationConfig {
    /// Whether devices may activate here. Tokens are good without, too.
    pub enabled: bool,
    /// How long a token is valid.
    #[serde(with = "duration")]
    pub token_ttl: Duration,
    /// How long a token is still valid once there is a newer one.
    #[serde(with = "duration")]
    pub grace: Duration,
    /// Where devices are told to connect.
    pub gateways: Vec<String>,
    /// Attempts that may fail from one address (of IPv6: from one /64) in a minute; 0: as many as do.
    pub failures_per_source_per_minute: u32,
    /// Attempts that may fail from there at once after a silence.
    pub failures_per_source_burst: u32,
}

impl Default for ActivationConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            token_ttl: Duration::from_secs(30 * 24 * 3_600),
            grace: Duration::from_secs(60),
            gateways: Vec::new(),
            failures_per_source_per_minute: 10,
            failures_per_source_burst: 20,
        }
    }
}
