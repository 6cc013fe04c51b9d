//! Section `[activation]`.

use std::time::Duration;

use super::RATE_MAX;
use super::keys::{DAY, MINUTE};

crate::config_table! {
    /// Section `[activation]`: how devices get tokens.
    pub struct ActivationConfig {
        /// Whether devices may activate here. Tokens of activated devices are valid either way.
        enabled: bool = true;
        /// How long a token is valid. Before that, the device exchanges it for a new one, or
        /// activates again.
        // At most ten years: a device's life.
        token_ttl: Duration = Duration::from_secs(30 * 24 * 3_600), range(MINUTE..=3650 * DAY);
        /// How long a replaced token stays valid. So a device is not locked out if the answer with
        /// its new token is lost.
        grace: Duration = Duration::from_secs(60), range(0..=DAY);
        /// Addresses to which devices connect, in any form that they understand. Each answer with a
        /// token contains them.
        gateways: Vec<String>, range(0..=GATEWAYS_MAX), unit("of them"),
            reason(": each answer names them all"), allowed(
                "at most {GATEWAYS_MAX}, each of 1 to {GATEWAY_BYTES_MAX} bytes of printable ASCII"
            );
        /// Failed attempts per minute from one source (an IPv4 address, or a /64 of IPv6). Beyond
        /// them, all requests from there get 429 for a while. So a mistyped key can be tried a few
        /// times, and guessing does not succeed. Successful attempts do not count. 0: no limit.
        failures_per_source_per_minute: u32 = 10, range(0..=RATE_MAX), unit("failures a minute"),
            reload();
        /// Failed attempts at once after a silence. Raise it if many devices share one address and
        /// some always fail.
        failures_per_source_burst: u32 = 20, range(1..=RATE_MAX), unit("failures"), reload();
    }
}

const GATEWAYS_MAX: u64 = 16;
pub(super) const GATEWAY_BYTES_MAX: usize = 255;
