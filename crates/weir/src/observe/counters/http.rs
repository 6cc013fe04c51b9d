//! What is counted of HTTP, so that a request pays some nanoseconds for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::{StatusCode, Version};

/// Counts of requests and connections.
///
/// Cost: a request is one relaxed addition in a cache line that other threads seldom write to.
#[derive(Debug, Default)]
pub(crate) struct HttpCounts {
    stripes: [Stripe; STRIPES],
    /// Connections by version, and those whose version is not known yet.
    connections: [AtomicUsize; Dialect::ALL.len()],
    ended: [AtomicU64; End::ALL.len()],
    discarded: [AtomicU64; Discarded::ALL.len()],
}

/// The requests that some of the threads have answered, in cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([[AtomicU64; CLASSES]; Dialect::ALL.len()]);

weir_wire::named_enum! {
    /// A version of HTTP that is spoken on a connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Dialect {
        /// HTTP/1.0 or HTTP/1.1.
        Http1 = "1.1",
        /// HTTP/2.
        Http2 = "2",
    }
}

weir_wire::named_enum! {
    /// How a connection ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum End {
        /// The peer ended it, between requests or within one.
        Peer = "peer",
        /// The answer was the last one, as the request or the answer said.
        Finished = "finished",
        /// A head was not whole within `http.head_timeout`.
        HeadTimeout = "head_timeout",
        /// No request came for `http.idle_timeout`.
        IdleTimeout = "idle_timeout",
        /// Nothing came of a body for `http.body_timeout`.
        BodyTimeout = "body_timeout",
        /// It took nothing of an answer for `connection.stall_timeout`.
        Stalled = "stalled",
        /// It was silent, and another one needed its place.
        Crowded = "crowded",
        /// It held more of HTTP's share of the byte budget than others, which needed room.
        Memory = "memory",
        /// It made as many requests as one may.
        RequestsMax = "requests_max",
        /// What it said is no HTTP, or none that is understood.
        Malformed = "malformed",
        /// It began with HTTP/2, which is not spoken there.
        Version = "version",
        /// A head was over `http.head_bytes_max` or `http.headers_max`.
        HeadTooLarge = "head_too_large",
        /// It broke the rules of HTTP/2, or used them for a flood.
        Protocol = "protocol",
        /// The socket, or TLS on it, failed.
        Broken = "broken",
        /// It went to a shard.
        Moved = "moved",
        /// The gateway shuts down.
        Draining = "draining",
    }
}

weir_wire::named_enum! {
    /// How it ended that what a peer sent without being wanted was thrown away.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Discarded {
        /// By the peer.
        Ended = "ended",
        /// The peer said nothing more.
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

    /// Requests answered, by version and class of the status.
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

    /// Connections that are open.
    pub(crate) fn connections(&self, dialect: Dialect) -> usize {
        self.connections[dialect as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_discarded(&self, discarded: Discarded) {
        self.discarded[discarded as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Bodies, and rests of connections, that were thrown away so.
    pub(crate) fn discarded(&self, discarded: Discarded) -> u64 {
        self.discarded[discarded as usize].load(Ordering::Relaxed)
    }

    /// Connections that ended so.
    pub(crate) fn ended(&self, end: End) -> u64 {
        self.ended[end as usize].load(Ordering::Relaxed)
    }
}

impl Dialect {
    pub(crate) fn of(version: Version) -> Dialect {
        if version == Version::HTTP_2 { Dialect::Http2 } else { Dialect::Http1 }
    }
}

/// The calling thread's.
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
/// More threads than this seldom answer requests, and then two share one.
const STRIPES: usize = 16;
const CLASSES: usize = 5;
const CLASS_NAMES: [&str; CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

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
