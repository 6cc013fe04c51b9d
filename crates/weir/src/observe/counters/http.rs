//! Counts of HTTP, at a cost of some nanoseconds a request.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::{StatusCode, Version};

/// Counts of requests and connections.
///
/// Cost: one relaxed addition a request, in a cache line that other threads seldom write to.
#[derive(Debug, Default)]
pub(crate) struct HttpCounts {
    stripes: [Stripe; STRIPES],
    /// Open connections by version.
    connections: [AtomicUsize; Dialect::ALL.len()],
    ended: [AtomicU64; End::ALL.len()],
    discarded: [AtomicU64; Discarded::ALL.len()],
}

/// The requests that some of the threads have answered, in their own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([[AtomicU64; CLASSES]; Dialect::ALL.len()]);

weir_wire::named_enum! {
    /// A version of HTTP on a connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Dialect {
        /// HTTP/1.0 or HTTP/1.1.
        Http1 = "1.1",
        /// HTTP/2.
        Http2 = "2",
    }
}

weir_wire::named_enum! {
    /// The way a connection ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum End {
        /// The peer ended it, between requests or within one.
        Peer = "peer",
        /// The request or the answer made this answer the last one.
        Finished = "finished",
        /// A head was not complete within `http.head_timeout`.
        HeadTimeout = "head_timeout",
        /// No request came for `http.idle_timeout`.
        IdleTimeout = "idle_timeout",
        /// No byte of a body came for `http.body_timeout`.
        BodyTimeout = "body_timeout",
        /// The peer took no byte of an answer for `connection.stall_timeout`.
        Stalled = "stalled",
        /// The connection was silent, and another one needed its place.
        Crowded = "crowded",
        /// The connection held more of HTTP's share of the byte budget than others, which needed
        /// room.
        Memory = "memory",
        /// The connection made the allowed number of requests.
        RequestsMax = "requests_max",
        /// The input is no HTTP, or no HTTP that Weir accepts.
        Malformed = "malformed",
        /// The connection began with HTTP/2, which this listener does not offer.
        Version = "version",
        /// A head was over `http.head_bytes_max` or `http.headers_max`.
        HeadTooLarge = "head_too_large",
        /// The peer broke the rules of HTTP/2, or flooded the connection within them.
        Protocol = "protocol",
        /// The socket, or TLS on it, failed.
        Broken = "broken",
        /// The connection moved to a shard.
        Moved = "moved",
        /// The gateway shuts down.
        Draining = "draining",
    }
}

weir_wire::named_enum! {
    /// The end of discarding unwanted input.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Discarded {
        /// The peer ended its side.
        Ended = "ended",
        /// The peer fell silent.
        Silent = "silent",
        /// There was more than `http.discard_bytes_max`.
        TooLong = "too_long",
        /// It took longer than `http.body_timeout`.
        TooLate = "too_late",
    }
}

impl HttpCounts {
    pub(crate) fn count_request(&self, dialect: Dialect, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        self.stripes[stripe()].0[dialect as usize][class].fetch_add(1, Ordering::Relaxed);
    }

    /// Answered requests, by version and class of the status.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        Dialect::ALL.into_iter().flat_map(move |dialect| {
            (0..CLASSES).map(move |class| {
                let of =
                    |stripe: &Stripe| stripe.0[dialect as usize][class].load(Ordering::Relaxed);
                (dialect.name(), CLASS_NAMES[class], self.stripes.iter().map(of).sum())
            })
        })
    }

    pub(crate) fn enter(&self, dialect: Dialect) {
        self.connections[dialect as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, dialect: Dialect, end: End) {
        self.ended[end as usize].fetch_add(1, Ordering::Relaxed);
        self.connections[dialect as usize].fetch_sub(1, Ordering::Relaxed);
    }

    /// Open connections.
    pub(crate) fn connections(&self, dialect: Dialect) -> usize {
        self.connections[dialect as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_discarded(&self, discarded: Discarded) {
        self.discarded[discarded as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Bodies, and rests of connections, whose discarding ended in this way.
    pub(crate) fn discarded(&self, discarded: Discarded) -> u64 {
        self.discarded[discarded as usize].load(Ordering::Relaxed)
    }

    /// Connections that ended in this way.
    pub(crate) fn ended(&self, end: End) -> u64 {
        self.ended[end as usize].load(Ordering::Relaxed)
    }
}

impl Dialect {
    pub(crate) fn of(version: Version) -> Dialect {
        if version == Version::HTTP_2 { Dialect::Http2 } else { Dialect::Http1 }
    }
}

/// The stripe of the calling thread.
fn stripe() -> usize {
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    STRIPE.with(|stripe| {
        if stripe.get() == usize::MAX {
            stripe.set(NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        stripe.get()
    })
}

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);
/// More threads seldom answer requests; if they do, two share a stripe.
const STRIPES: usize = 16;
pub(crate) const CLASSES: usize = 5;
pub(crate) const CLASS_NAMES: [&str; CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_summed_over_threads() {
        let counts = HttpCounts::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| counts.count_request(Dialect::Http2, StatusCode::NOT_FOUND));
            }
        });
        counts.count_request(Dialect::Http1, StatusCode::OK);
        let counted = counts.requests().filter(|(.., count)| *count > 0).collect::<Vec<_>>();
        assert_eq!(counted, [("1.1", "2xx", 1), ("2", "4xx", 20)]);
    }
}
