//! Rules of `[udp]`.

use super::error;
use crate::base::config::Config;
use crate::base::config::keys::ConfigError;

impl Config {
    pub(super) fn check_udp(&self) -> Result<(), ConfigError> {
        let udp = &self.udp;
        let exposed = self.listen.udp.iter().find(|addr| !addr.ip().is_loopback());
        if let Some(addr) = exposed.filter(|_| !udp.cleartext) {
            let allowed = format!(
                "true, since {addr} of listen.udp is not on loopback, and keys and tokens travel there in the clear: \
                 anyone on the path can read them. Or listen on 127.0.0.1 or [::1]"
            );
            let depends_on = &["listen.udp"];
            return Err(ConfigError { depends_on, ..error("udp.cleartext", "false", allowed) });
        }
        Ok(())
    }
}
