//! Rules of `[activation]`.

use super::error;
use crate::base::config::Config;
use crate::base::config::activation::GATEWAY_BYTES_MAX;
use crate::base::config::keys::ConfigError;

impl Config {
    pub(super) fn check_activation(&self) -> Result<(), ConfigError> {
        for (index, gateway) in self.activation.gateways.iter().enumerate() {
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
