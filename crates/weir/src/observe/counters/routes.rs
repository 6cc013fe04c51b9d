//! Counts of requests that go on to upstreams, by route.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use http::StatusCode;

use super::http::{CLASS_NAMES, CLASSES};

/// The counts of the routes in use. A route that goes takes its counts along.
///
/// Limits: the routes of the configuration.
#[derive(Debug, Default)]
pub(crate) struct RouteCounts {
    routes: Mutex<Vec<Arc<RouteCount>>>,
}

/// The counts of one route.
#[derive(Debug, Default)]
pub(crate) struct RouteCount {
    /// Host and prefix.
    name: Box<str>,
    answers: [AtomicU64; CLASSES],
    failures: [AtomicU64; RouteFailure::ALL.len()],
    in_progress: AtomicUsize,
    tunnels: AtomicUsize,
}

weir_wire::named_enum! {
    /// Why a request to an upstream did not come to its end.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum RouteFailure {
        /// The request is ambiguous, or one that no route takes.
        Invalid = "invalid",
        /// It needs a valid token.
        Unauthorized = "unauthorized",
        /// Its source or its sender makes too many.
        RateLimited = "rate_limited",
        /// Its body is over the route's limit.
        TooLarge = "too_large",
        /// HTTP's share of the byte budget has no room.
        NoRoom = "no_room",
        /// Its body stopped coming.
        Client = "client",
        /// No endpoint of the upstream could be reached.
        Unreachable = "unreachable",
        /// The upstream has no room for one more request.
        Full = "full",
        /// The upstream did not answer in time.
        TimedOut = "timed_out",
        /// The connection to the upstream broke before or within the answer.
        Broken = "broken",
        /// The upstream fell silent within the answer.
        Silent = "silent",
    }
}

/// One of a number that goes down again when this is dropped.
#[derive(Debug)]
pub(crate) struct InRoute {
    route: Arc<RouteCount>,
    is_tunnel: bool,
}

impl RouteCounts {
    /// Keeps the counts of these routes, which are named by host and prefix, and forgets others.
    pub(crate) fn keep(&self, names: impl Iterator<Item = String>) -> Vec<Arc<RouteCount>> {
        let mut routes = self.lock();
        let next: Vec<_> = names
            .map(|name| match routes.iter().find(|known| *known.name == *name) {
                Some(known) => Arc::clone(known),
                None => Arc::new(RouteCount { name: name.into(), ..RouteCount::default() }),
            })
            .collect();
        routes.clone_from(&next);
        next
    }

    /// The counts of all routes.
    pub(crate) fn all(&self) -> Vec<Arc<RouteCount>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<RouteCount>>> {
        self.routes.lock().expect("no panic happens under the lock of the routes' counts")
    }
}

impl RouteCount {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn count_answer(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Answers by the class of their status.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CLASS_NAMES.into_iter().zip(self.answers.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    pub(crate) fn count_failure(&self, failure: RouteFailure) {
        self.failures[failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failures(&self, failure: RouteFailure) -> u64 {
        self.failures[failure as usize].load(Ordering::Relaxed)
    }

    /// Requests whose answers have not left, and WebSockets.
    pub(crate) fn in_progress(&self) -> usize {
        self.in_progress.load(Ordering::Relaxed)
    }

    /// Open WebSockets.
    pub(crate) fn tunnels(&self) -> usize {
        self.tunnels.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(self: &Arc<Self>) -> InRoute {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InRoute { route: Arc::clone(self), is_tunnel: false }
    }
}

impl InRoute {
    pub(crate) fn route(&self) -> &RouteCount {
        &self.route
    }

    /// The request has become a tunnel.
    pub(crate) fn become_tunnel(&mut self) {
        if !self.is_tunnel {
            self.is_tunnel = true;
            self.route.tunnels.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for InRoute {
    fn drop(&mut self) {
        self.route.in_progress.fetch_sub(1, Ordering::Relaxed);
        if self.is_tunnel {
            self.route.tunnels.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_keeps_its_counts_over_a_reload() {
        let counts = RouteCounts::default();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let first = counts.keep(names(&["/a", "/b"]).into_iter());
        first[1].count_answer(StatusCode::OK);
        let mut begun = first[1].begin();
        begun.become_tunnel();
        let second = counts.keep(names(&["/b", "/c"]).into_iter());
        assert!(Arc::ptr_eq(&first[1], &second[0]));
        assert_eq!(
            second[0].answers().map(|(_, count)| count).collect::<Vec<_>>(),
            [0, 1, 0, 0, 0]
        );
        assert_eq!((second[0].in_progress(), second[0].tunnels()), (1, 1));
        drop(begun);
        assert_eq!((second[0].in_progress(), second[0].tunnels()), (0, 0));
        let known: Vec<_> = counts.all().iter().map(|route| route.name().to_owned()).collect();
        assert_eq!(known, ["/b", "/c"]);
    }
}
