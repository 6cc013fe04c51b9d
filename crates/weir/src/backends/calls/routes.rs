//! The rules of calls as they are in use, and the routes by method.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::level::Level;
use crate::base::config::{Actor, CallProtocol, CallRouteConfig, Config};

/// The rules in use. A reload replaces them.
pub(super) struct Rules {
    pub(super) calls_max: usize,
    pub(super) calls_per_connection_max: usize,
    pub(super) payload_bytes_max: usize,
    pub(super) frame_bytes_max: usize,
    pub(super) deadline: Duration,
    pub(super) deadline_max: Duration,
    /// Those with the longest methods first.
    routes: Vec<Arc<CallRoute>>,
}

/// Where calls of some methods go.
pub(crate) struct CallRoute {
    /// As it is configured: the label of metrics.
    pub(crate) method: String,
    pub(super) upstream: String,
    pub(super) protocol: CallProtocol,
    /// The path before the method; it ends with `/`.
    pub(super) base: String,
    pub(super) callers: Vec<Actor>,
    pub(super) idempotent: bool,
    pub(super) calls_max: usize,
    pub(super) payload_bytes_max: usize,
    pub(super) in_flight: Arc<Level>,
    begun: Arc<AtomicU64>,
}

impl Rules {
    /// `before`: the rules so far. A route that stays keeps its figures.
    pub(super) fn new(config: &Config, before: Option<&Rules>) -> Rules {
        let (calls, frame_bytes_max) = (&config.calls, config.limits.frame_bytes_max);
        let known = before.map_or(&[][..], |rules| &rules.routes);
        let mut routes: Vec<Arc<CallRoute>> = calls
            .routes
            .iter()
            .map(|route| {
                let before = known.iter().find(|known| known.method == route.method);
                Arc::new(CallRoute::new(route, frame_bytes_max, before.map(|known| &**known)))
            })
            .collect();
        // Of `orders/*` and `orders/` the exact one counts.
        routes.sort_by_key(|route| {
            let (beginning, is_exact) = route.beginning();
            std::cmp::Reverse((beginning.len(), is_exact))
        });
        Rules {
            calls_max: calls.calls_max,
            calls_per_connection_max: calls.calls_per_connection_max,
            payload_bytes_max: calls.payload_bytes_max,
            frame_bytes_max,
            deadline: calls.deadline,
            deadline_max: calls.deadline_max,
            routes,
        }
    }

    /// The route for a method.
    pub(super) fn route(&self, method: &str) -> Option<&Arc<CallRoute>> {
        self.routes.iter().find(|route| match route.beginning() {
            (beginning, false) => method.starts_with(beginning),
            (exact, true) => method == exact,
        })
    }

    pub(super) fn routes(&self) -> &[Arc<CallRoute>] {
        &self.routes
    }
}

impl CallRoute {
    fn new(
        route: &CallRouteConfig,
        frame_bytes_max: usize,
        before: Option<&CallRoute>,
    ) -> CallRoute {
        let CallRouteConfig { method, upstream, protocol, callers, idempotent, .. } = route.clone();
        let mut base = route.path.clone();
        if !base.ends_with('/') {
            base.push('/');
        }
        let payload_bytes_max = match route.payload_bytes_max {
            0 => frame_bytes_max,
            bytes => bytes.min(frame_bytes_max),
        };
        CallRoute {
            method,
            upstream,
            protocol,
            base,
            callers,
            idempotent,
            calls_max: route.calls_max,
            payload_bytes_max,
            in_flight: before.map(|before| Arc::clone(&before.in_flight)).unwrap_or_default(),
            begun: before.map(|before| Arc::clone(&before.begun)).unwrap_or_default(),
        }
    }

    /// What its methods begin with, and whether that is the whole method.
    fn beginning(&self) -> (&str, bool) {
        match self.method.strip_suffix('*') {
            Some(beginning) => (beginning, false),
            None => (&self.method, true),
        }
    }

    pub(super) fn count_begun(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls that were begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Calls that go on.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_method_counts() {
        let mut config = Config::default();
        for method in ["*", "orders/*", "orders/price", "orders/pri*", "a"] {
            let method = method.to_owned();
            config.calls.routes.push(CallRouteConfig { method, ..CallRouteConfig::default() });
        }
        let rules = Rules::new(&config, None);
        for (method, expected) in [
            ("orders/price", Some("orders/price")),
            ("orders/prices", Some("orders/pri*")),
            ("orders/x", Some("orders/*")),
            ("orders", Some("*")),
            ("a", Some("a")),
            ("ab", Some("*")),
        ] {
            assert_eq!(rules.route(method).map(|route| &*route.method), expected, "{method}");
        }
        rules.route("a").unwrap().count_begun();
        config.calls.routes.retain(|route| route.method != "*");
        let rules = Rules::new(&config, Some(&rules));
        assert!(rules.route("ab").is_none());
        assert_eq!(rules.route("a").unwrap().begun(), 1);
    }
}
