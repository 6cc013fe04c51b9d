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

/// A version of HTTP that is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer ended it, between requests or within one.
    Peer,
    /// The answer was the last one, as the request or the answer said.
    Finished,
    /// A head was not whole within `http.head_timeout`.
    HeadTimeout,
    /// No request came for `http.idle_timeout`.
    IdleTimeout,
    /// Nothing came of a body for `http.body_timeout`.
    BodyTimeout,
    /// It took nothing of an answer for `connection.stall_timeout`.
    Stalled,
    /// It was silent, and another one needed its place.
    Crowded,
    /// It held more of HTTP's share of the byte budget than others, which needed room.
    Memory,
    /// It made as many requests as one may.
    RequestsMax,
    /// What it said is no HTTP, or none that is understood.
    Malformed,
    /// It began with HTTP/2, which is not spoken there.
    Version,
    /// A head was over `http.head_bytes_max` or `http.headers_max`.
    HeadTooLarge,
    /// It broke the rules of HTTP/2, or used them for a flood.
    Protocol,
    /// The socket, or TLS on it, failed.
    Broken,
    /// It went to a shard.
    Moved,
    /// The gateway shuts down.
    Draining,
}

/// How it ended that what a peer sent without being wanted was thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discarded {
    /// By the peer.
    Ended,
    /// The peer said nothing more.
    Silent,
    /// There was more than `http.discard_bytes_max`.
    TooLong,
    /// It took longer than `http.body_timeout`.
    TooLate,
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
    /// Every version.
    pub(crate) const ALL: [Dialect; 2] = [Dialect::Http1, Dialect::Http2];

    /// The version as a metric label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Dialect::Http1 => "1.1",
            Dialect::Http2 => "2",
        }
    }

    pub(crate) fn of(version: Version) -> Dialect {
        if version == Version::HTTP_2 { Dialect::Http2 } else { Dialect::Http1 }
    }
}

impl End {
    /// Every end.
    pub(crate) const ALL: [End; 16] = [
        End::Peer,
        End::Finished,
        End::HeadTimeout,
        End::IdleTimeout,
        End::BodyTimeout,
        End::Stalled,
        End::Crowded,
        End::Memory,
        End::RequestsMax,
        End::Malformed,
        End::Version,
        End::HeadTooLarge,
        End::Protocol,
        End::Broken,
        End::Moved,
        End::Draining,
    ];

    /// The end as a metric label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            End::Peer => "peer",
            End::Finished => "finished",
            End::HeadTimeout => "head_timeout",
            End::IdleTimeout => "idle_timeout",
            End::BodyTimeout => "body_timeout",
            End::Stalled => "stalled",
            End::Crowded => "crowded",
            End::Memory => "memory",
            End::RequestsMax => "requests_max",
            End::Malformed => "malformed",
            End::Version => "version",
            End::HeadTooLarge => "head_too_large",
            End::Protocol => "protocol",
            End::Broken => "broken",
            End::Moved => "moved",
            End::Draining => "draining",
        }
    }
}

impl Discarded {
    /// Every outcome.
    pub(crate) const ALL: [Discarded; 4] =
        [Discarded::Ended, Discarded::Silent, Discarded::TooLong, Discarded::TooLate];

    /// The outcome as a metric label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Discarded::Ended => "ended",
            Discarded::Silent => "silent",
            Discarded::TooLong => "too_long",
            Discarded::TooLate => "too_late",
        }
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
