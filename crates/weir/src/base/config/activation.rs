//! Section `[activation]`.

use std::time::Duration;

use super::RATE_MAX;
use super::keys::{DAY, MINUTE};

crate::config_table! {
    /// Section `[activation]`: the way devices get their tokens.
    pub struct ActivationConfig {
        /// Whether devices may activate here. Tokens of activated devices are valid in either case.
        enabled: bool = true;
        /// The time for which a token is valid. Before it ends, a device refreshes it or activates
        /// again.
        // At most ten years, the life of a device.
        token_ttl: Duration = Duration::from_secs(30 * 24 * 3_600), range(MINUTE..=3650 * DAY);
        /// The time for which a replaced token stays valid. A device whose answer was lost can then
        /// still connect.
        grace: Duration = Duration::from_secs(60), range(0..=DAY);
        /// Addresses to which devices connect, in any form that they understand. Each answer with a
        /// token lists them.
        gateways: Vec<String>, range(0..=GATEWAYS_MAX), unit("gateways"),
            reason(": each answer names them all"), allowed(
                "at most {GATEWAYS_MAX}, each of 1 to {GATEWAY_BYTES_MAX} bytes of printable ASCII"
            );
        /// Failed attempts from one address (IPv6: one /64) in a minute. After that, all requests
        /// from there are answered with 429 for a while. A mistyped key can be tried a few times,
        /// but guessing is hopeless. Successful attempts do not count. 0: no limit.
        failures_per_source_per_minute: u32 = 10, range(0..=RATE_MAX), unit("failures a minute");
        /// Failed attempts from one address at once after a silence. Raise it if many devices share
        /// one address and some always fail.
        failures_per_source_burst: u32 = 20, range(1..=RATE_MAX), unit("failures");
    }
}

const GATEWAYS_MAX: u64 = 16;
pub(super) const GATEWAY_BYTES_MAX: usize = 255;
