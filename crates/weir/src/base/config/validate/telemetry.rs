//! Rules of `[telemetry]`.

use super::auth::{is_word, quoted};
use super::{error, is_request_path};
use crate::base::config::Config;
use crate::base::config::keys::ConfigError;
use crate::base::config::telemetry::{NAME_BYTES_MAX, PATH_BYTES_MAX};

impl Config {
    pub(super) fn check_telemetry(&self) -> Result<(), ConfigError> {
        let telemetry = &self.telemetry;
        if !is_request_path(&telemetry.path, PATH_BYTES_MAX) {
            let allowed =
                format!("a path that begins with /, of {PATH_BYTES_MAX} bytes at most, without #");
            return Err(error("telemetry.path", quoted(&telemetry.path), allowed));
        }
        if !is_word(&telemetry.service_name, NAME_BYTES_MAX) {
            let allowed = format!("1 to {NAME_BYTES_MAX} bytes without control characters");
            return Err(error("telemetry.service_name", quoted(&telemetry.service_name), allowed));
        }
        if telemetry.upstream.is_empty() {
            return Ok(());
        }
        check_built(cfg!(feature = "otlp"), &telemetry.upstream)?;
        self.check_upstream_name("telemetry.upstream", &telemetry.upstream)
    }
}

fn check_built(is_built: bool, upstream: &str) -> Result<(), ConfigError> {
    if is_built {
        return Ok(());
    }
    let allowed = "empty: this program was built without the feature otlp \
                   (cargo build -p weir-server --features otlp)";
    Err(error("telemetry.upstream", quoted(upstream), allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_the_feature_refuses_a_collector() {
        assert_eq!(check_built(true, "collector"), Ok(()));
        let refused = check_built(false, "collector").unwrap_err().to_string();
        assert!(refused.starts_with("telemetry.upstream = \"collector\": allowed is empty: this program was built without the feature otlp"), "{refused}");
    }
}
