//! Connections that drop and reconnect, and continue where they were.

use std::io::Write;
use std::time::Duration;

use super::conn::{Away, Conn, Phase, reset};
use super::{Worker, watch_new};
use crate::protocol::ComeBack;
use crate::stats::is_in_share;

impl<W: Write> Worker<W> {
    /// Resets those connections, all at once, and plans when each comes back.
    pub(super) fn come_back(&mut self, plan: ComeBack, now: Duration) {
        let first = self.plan.as_ref().map_or(0, |plan| plan.first);
        let chosen: Vec<usize> = (first..)
            .zip(0..self.conns.len())
            .filter_map(|(number, index)| is_in_share(number, plan.share).then_some(index))
            .collect();
        for index in &chosen {
            let conn = &mut self.conns[*index];
            if let Some(fd) = conn.fd.take() {
                reset(fd);
            }
            conn.phase = Phase::Ended;
            conn.partial = Vec::new();
            conn.away = Some(Away { since: now, hello_ns: u64::MAX });
        }
        self.destinations = plan.to;
        self.again = plan.again_ms.map(Duration::from_millis);
        let spread = Duration::from_millis(plan.spread_ms);
        let count = u32::try_from(chosen.len()).unwrap_or(u32::MAX).max(1);
        self.returning =
            (1..).zip(chosen).map(|(place, index)| (now + spread * place / count, index)).collect();
        self.returning.reverse();
    }

    /// Whether a connection has dropped and is not settled again.
    pub(super) fn is_coming_back(&self, index: usize) -> bool {
        let conn = &self.conns[index];
        conn.away.is_some() && conn.phase != Phase::Settled
    }

    /// Plans that a connection comes back.
    pub(super) fn plan_return(&mut self, index: usize, due: Duration) {
        let at = self.returning.partition_point(|(other, _)| *other > due);
        self.returning.insert(at, (due, index));
    }

    /// Connects those whose time has come.
    pub(super) fn poll_returning(&mut self, now: Duration) {
        while let Some((_, index)) = self.returning.pop_if(|(due, _)| *due <= now) {
            let Some(plan) = &self.plan else { return };
            let number = plan.first + u32::try_from(index).unwrap_or(u32::MAX);
            let addr = match self.destinations.len() {
                0 => plan.addr,
                count => self.destinations[rand::random_range(0..count)],
            };
            let dialled = Conn::dial_to(addr, plan, self.tls.as_ref(), number)
                .and_then(|conn| watch_new(&self.epoll, conn, index));
            let old = &mut self.conns[index];
            match dialled {
                Ok(conn) => {
                    let Conn { next_seq, place, position, away, .. } = *old;
                    let device = std::mem::take(&mut old.device);
                    *old = Conn { device, next_seq, place, position, away, ..conn };
                }
                Err(error) => self.counter.note(format!("cannot come back: {error:#}")),
            }
        }
    }
}
