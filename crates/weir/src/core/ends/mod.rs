//! The last ends of connections, for the operator: which connection, and why it ended.

mod handover;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tracing::info;
use weir_engine::{ConnId, Footprint, Transport, rounded};
use weir_wire::CloseReason;
use weir_wire::format::Format;

use crate::base::clock::millis;
use crate::limits::sources::Source;

/// The end of one connection.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The time at which the front learnt of it, since 1970.
    pub(crate) at: Duration,
    /// `None`: it was refused before it settled.
    pub(crate) conn: Option<ConnId>,
    /// Its device's id. That of a refused connection may be a mere claim.
    pub(crate) device: Option<Box<str>>,
    pub(crate) peer: Option<SocketAddr>,
    /// The source by which limits counted it.
    pub(crate) source: Option<Source>,
    pub(crate) client: Option<Arc<str>>,
    pub(crate) protocol: Format,
    pub(crate) transport: Transport,
    pub(crate) reason: CloseReason,
    /// Time since the adoption; of a refused connection, since its accept.
    pub(crate) age: Duration,
}

/// The last ends.
///
/// Shape: two queues, each in the order of the ends. Each end has a number of its own.
/// Limits: [`ENDS_MAX`] ends; a new one displaces the oldest. Connections that were refused have at
/// most [`REFUSED_MAX`] of these places, so that strangers cannot displace all others.
/// Cost: one short lock for an end, and no allocation. A reader takes the lock for [`SLICE`] ends at
/// a time, so an end never waits for a whole list.
#[derive(Default)]
pub(crate) struct Ends {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    settled: VecDeque<(u64, End)>,
    refused: VecDeque<(u64, End)>,
    /// The number of the next end.
    next: u64,
}

impl Ends {
    /// Keeps an end, and logs it. The program's log limits the rate of these lines.
    pub(crate) fn note(&self, end: End) {
        end.log();
        // The memory of the displaced end is freed without the lock.
        let displaced = self.lock().push(end);
        drop(displaced);
    }

    /// The newest ends that pass the filter, at most `limit`, the newest first.
    pub(crate) fn newest(&self, limit: usize, passes: impl Fn(&End) -> bool) -> Vec<End> {
        let (mut found, mut before) = (Vec::new(), u64::MAX);
        loop {
            let kept = self.lock();
            let mut looked = 0;
            for (number, end) in kept.newest_before(before).take(SLICE) {
                if found.len() == limit {
                    return found;
                }
                if passes(end) {
                    found.push(end.clone());
                }
                (before, looked) = (*number, looked + 1);
            }
            if looked < SLICE {
                return found;
            }
        }
    }

    /// How many ends are kept.
    pub(crate) fn count(&self) -> usize {
        self.lock().count()
    }

    /// The kept ends.
    pub(crate) fn footprint(&self) -> Footprint {
        let kept = self.lock();
        let ends = kept.settled.iter().chain(&kept.refused);
        let ids = ends.filter_map(|(_, end)| end.device.as_ref()).map(|id| rounded(id.len()));
        let table =
            |ends: &VecDeque<(u64, End)>| rounded(ends.capacity() * size_of::<(u64, End)>());
        let bytes = ids.sum::<usize>() + table(&kept.settled) + table(&kept.refused);
        Footprint::new(kept.count(), bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no panic happens under the lock of the ends")
    }
}

impl Kept {
    /// Returns the end that had to make room.
    fn push(&mut self, end: End) -> Option<End> {
        let number = self.next;
        self.next += 1;
        let is_full = self.count() == ENDS_MAX;
        if end.conn.is_some() {
            let displaced = if is_full { self.settled.pop_front() } else { None };
            self.settled.push_back((number, end));
            return displaced.map(|(_, end)| end);
        }
        let displaced = match (self.refused.len() == REFUSED_MAX, is_full) {
            (true, _) => self.refused.pop_front(),
            (false, true) => self.settled.pop_front(),
            (false, false) => None,
        };
        self.refused.push_back((number, end));
        displaced.map(|(_, end)| end)
    }

    /// The ends before that number, the newest first.
    fn newest_before(&self, before: u64) -> impl Iterator<Item = &(u64, End)> {
        let until = |ends: &VecDeque<(u64, End)>| ends.partition_point(|(own, _)| *own < before);
        let mut settled = self.settled.range(..until(&self.settled)).rev().peekable();
        let mut refused = self.refused.range(..until(&self.refused)).rev().peekable();
        std::iter::from_fn(move || match (settled.peek(), refused.peek()) {
            (Some((first, _)), Some((second, _))) if first < second => refused.next(),
            (Some(_), _) => settled.next(),
            (None, _) => refused.next(),
        })
    }

    fn count(&self) -> usize {
        self.settled.len() + self.refused.len()
    }
}

impl End {
    /// Each kind of line has its own place in the code, and thereby its own rate: refusals do not
    /// hide other ends.
    fn log(&self) {
        let End { device, client, reason, .. } = self;
        let (device, client, reason) = (device.as_deref(), client.as_deref(), reason.name());
        let peer = self.peer.map(tracing::field::display);
        let source = self.source.map(tracing::field::display);
        let (protocol, transport) = (self.protocol.name(), self.transport.name());
        let age_ms = millis(self.age);
        match self.conn {
            Some(conn) => info!(
                target: LOG_TARGET,
                %conn, device, peer, source, client, reason, age_ms, protocol, transport,
                "connection ended"
            ),
            None => info!(
                target: LOG_TARGET,
                device, peer, source, client, reason, age_ms, protocol, transport,
                "connection refused"
            ),
        }
    }
}

/// The name under which `log.level` switches these lines off or on.
const LOG_TARGET: &str = "ends";
/// Some 250 KB with the longest names, and minutes of a calm fleet.
const ENDS_MAX: usize = 1000;
/// A quarter. Without such ends, others use the places.
const REFUSED_MAX: usize = ENDS_MAX / 4;
/// Some microseconds.
const SLICE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn end(number: u64, is_settled: bool) -> End {
        End {
            at: Duration::from_secs(number),
            conn: is_settled.then(|| ConnId::from_u64(number)),
            device: Some(format!("d{}", number % 3).into()),
            peer: None,
            source: None,
            client: None,
            protocol: Format::Stream,
            transport: Transport::Tcp,
            reason: CloseReason::PeerClosed,
            age: Duration::ZERO,
        }
    }

    fn seconds(ends: &[End]) -> Vec<u64> {
        ends.iter().map(|end| end.at.as_secs()).collect()
    }

    #[test]
    fn the_last_ends_are_kept_newest_first() {
        let ends = Ends::default();
        assert!(ends.newest(10, |_| true).is_empty());
        let all = ENDS_MAX as u64 + 500;
        (0..all).for_each(|number| ends.note(end(number, true)));
        let expected: Vec<u64> = (500..all).rev().collect();
        assert_eq!(seconds(&ends.newest(usize::MAX, |_| true)), expected);
        assert_eq!(seconds(&ends.newest(3, |_| true)), [all - 1, all - 2, all - 3]);
        let one = ends.newest(2, |end| end.device.as_deref() == Some("d0"));
        assert_eq!(seconds(&one), [1497, 1494]);
        assert_eq!(ends.newest(5, |end| end.at.as_secs() == 500).len(), 1, "the oldest");
        assert_eq!(ends.count(), ENDS_MAX);
    }

    #[test]
    fn refused_connections_displace_no_more_than_their_share() {
        let ends = Ends::default();
        (0..900).for_each(|number| ends.note(end(number, true)));
        (900..5_000).for_each(|number| ends.note(end(number, false)));
        let settled = |ends: &Ends| ends.newest(ENDS_MAX, |end| end.conn.is_some()).len();
        assert_eq!((ends.count(), settled(&ends)), (ENDS_MAX, ENDS_MAX - REFUSED_MAX));
        (5_000..5_400).for_each(|number| ends.note(end(number, number % 2 == 0)));
        assert_eq!((ends.count(), settled(&ends)), (ENDS_MAX, ENDS_MAX - REFUSED_MAX));
        let newest = ends.newest(400, |_| true);
        assert_eq!(seconds(&newest), (5_000..5_400).rev().collect::<Vec<u64>>());
    }

    /// A storm and readers at the same time: each list is in order, without gaps.
    #[test]
    fn readers_see_an_order_without_gaps_while_ends_come() {
        let ends = Ends::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50_000).for_each(|number| ends.note(end(number, true))));
            for _ in 0..200 {
                let seen = seconds(&ends.newest(300, |_| true));
                assert!(seen.windows(2).all(|two| two[0] == two[1] + 1), "{seen:?}");
            }
        });
    }
}
