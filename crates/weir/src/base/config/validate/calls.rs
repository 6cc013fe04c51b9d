//! Rules of calls and their routes.

use std::collections::HashMap;

use super::auth::quoted;
use super::classes::check_actors;
use super::error;
use crate::base::config::keys::ConfigError;
use crate::base::config::{CallProtocol, Config, METHOD_BYTES_MAX, UpstreamProtocol};
use crate::base::method::{is_base_path, is_method_pattern};

impl Config {
    pub(super) fn check_calls(&self) -> Result<(), ConfigError> {
        let calls = &self.calls;
        if calls.payload_bytes_max < 2 * self.limits.frame_bytes_max {
            let allowed = format!(
                "at least {}: the payload of one call and of its answer (limits.frame_bytes_max)",
                2 * self.limits.frame_bytes_max
            );
            let error = error("calls.payload_bytes_max", calls.payload_bytes_max, allowed);
            return Err(ConfigError { depends_on: &["limits.frame_bytes_max"], ..error });
        }
        let labels = self.auth.jwt.keys.is_empty().then(|| self.labels());
        let mut methods = HashMap::new();
        for (index, route) in calls.routes.iter().enumerate() {
            let path = format!("calls.routes[{index}]");
            let method = &route.method;
            if !is_method_pattern(method) {
                let allowed = format!(
                    "1 to {METHOD_BYTES_MAX} bytes: letters, digits, \".\", \"_\" and \"-\", in segments \
                     joined by \"/\"; a \"*\" may stand at the end"
                );
                return Err(error(&format!("{path}.method"), quoted(method), allowed));
            }
            if let Some(earlier) = methods.insert(method, index) {
                let allowed = format!(
                    "a method that no other route has: calls.routes[{earlier}] has this one"
                );
                return Err(error(&format!("{path}.method"), quoted(method), allowed));
            }
            self.check_upstream_name(&format!("{path}.upstream"), &route.upstream)?;
            self.check_grpc(&path, route.protocol, &route.upstream)?;
            if !is_base_path(&route.path) {
                let allowed = "a path that begins with \"/\": letters, digits, \".\", \"_\" and \"-\", in \
                               segments joined by \"/\", none of them \".\" or \"..\"";
                return Err(error(&format!("{path}.path"), quoted(&route.path), allowed));
            }
            check_actors(&format!("{path}.callers"), &route.callers, labels.as_ref())?;
        }
        Ok(())
    }

    fn check_grpc(
        &self,
        path: &str,
        protocol: CallProtocol,
        upstream: &str,
    ) -> Result<(), ConfigError> {
        let named = self.upstreams.iter().find(|known| known.name == upstream);
        let speaks = named.map(|upstream| upstream.protocol);
        if protocol == CallProtocol::Grpc && speaks != Some(UpstreamProtocol::Http2) {
            let allowed = format!(
                "\"http\", or an upstream with protocol = \"http2\": {upstream:?} speaks HTTP/1.1"
            );
            return Err(error(&format!("{path}.protocol"), "\"grpc\"", allowed));
        }
        Ok(())
    }
}
