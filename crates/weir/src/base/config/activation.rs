//! Section `[activation]`.

use std::time::Duration;

use super::RATE_MAX;
use super::keys::{DAY, MINUTE};

crate::config_table! {
    /// Section `[activation]`: how devices get their tokens.
    pub struct ActivationConfig {
        /// Whether devices may activate here. Their tokens are good without, too.
        enabled: bool = true;
        /// How long a token is valid. A device exchanges it before it ends, or activates again.
        // The most is ten years: a device's life.
        token_ttl: Duration = Duration::from_secs(30 * 24 * 3_600), range(MINUTE..=3650 * DAY);
        /// How long a token is still valid once there is a newer one: an answer that was lost on
        /// its way locks nobody out.
        grace: Duration = Duration::from_secs(60), range(0..=DAY);
        /// Where devices connect, told with each token; in whatever form they understand.
        gateways: Vec<String>, range(0..=GATEWAYS_MAX), unit("of them"),
            reason(": each answer names them all"), allowed(
                "at most {GATEWAYS_MAX}, each of 1 to {GATEWAY_BYTES_MAX} bytes of printable ASCII"
            );
        /// Attempts that may fail from one address (of IPv6, from one /64) in a minute; beyond that
        /// all from there are answered with 429 for a while. A mistyped key is tried a few times, a
        /// guesser gets nowhere. Right ones are not counted. 0: as many as fail.
        failures_per_source_per_minute: u32 = 10, range(0..=RATE_MAX), unit("failures a minute");
        /// Attempts that may fail from there at once after a silence. More where many devices share
        /// one address and some are always wrong.
        failures_per_source_burst: u32 = 20, range(1..=RATE_MAX), unit("failures");
    }
}

const GATEWAYS_MAX: u64 = 16;
pub(super) const GATEWAY_BYTES_MAX: usize = 255;
