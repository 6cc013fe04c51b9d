//! Rules of `[activation]`.

use std::time::Duration;

use super::{ConfigError, DAY, error, within, within_time};
use crate::base::config::Config;

impl Config {
    pub(super) fn check_activation(&self) -> Result<(), ConfigError> {
        let activation = &self.activation;
        within_time("activation.token_ttl", activation.token_ttl, MINUTE, TOKEN_TTL_MAX, "")?;
        within_time("activation.grace", activation.grace, Duration::ZERO, DAY, "")?;
        let (per_minute, burst) =
            (activation.failures_per_source_per_minute, activation.failures_per_source_burst);
        within("activation.failures_per_source_per_minute", per_minute, 0..=FAILURES_MAX)?;
        within("activation.failures_per_source_burst", burst, 1..=FAILURES_MAX)?;
        let gateways = &activation.gateways;
        if gateways.len() > GATEWAYS_MAX {
            let value = format!("({} of them)", gateways.len());
            let allowed = format!("at most {GATEWAYS_MAX}: each answer names them all");
            return Err(error("activation.gateways", value, allowed));
        }
        for (index, gateway) in gateways.iter().enumerate() {
            let is_right = (1..=GATEWAY_BYTES_MAX).contains(&gateway.len())
                && gateway.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_right {
                let key = format!("activation.gateways[{index}]");
                let allowed = format!(
                    "1 to {GATEWAY_BYTES_MAX} bytes of printable ASCII without spaces, such as gate.example:7443"
                );
                return Err(error(&key, format_args!("{gateway:?}"), allowed));
            }
        }
        Ok(())
    }
}

const MINUTE: Duration = Duration::from_secs(60);
/// Ten years: a device's life.
const TOKEN_TTL_MAX: Duration = Duration::from_secs(3_650 * 86_400);
const FAILURES_MAX: u32 = 1_000_000;
const GATEWAYS_MAX: usize = 16;
const GATEWAY_BYTES_MAX: usize = 255;
