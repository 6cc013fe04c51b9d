//! Connections whose credentials end: the time of the end, and the grant.

mod handover;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use weir_engine::{ConnId, Footprint, rounded_table};
use weir_store::Millis;

use crate::auth::{GrantRef, Term};

/// The terms of one shard's connections. A numbered grant without an end has no entry and costs
/// nothing.
///
/// Shape: 40 bytes for the entry of a connection, and 16 in the order of the next looks. With the
/// tables' slack that is some 90 bytes a connection.
/// Limits: at most one entry for each settled connection.
/// Cost: O(log n) when an entry begins, is prolonged, is told, or ends; nothing in between.
pub(super) struct Terms {
    by_conn: HashMap<ConnId, Entry, foldhash::fast::RandomState>,
    /// The second of the next look, since 1970.
    due: BTreeSet<(u32, ConnId)>,
    notice: Duration,
}

struct Entry {
    ends: Millis,
    grant: GrantRef,
    /// Its place in `due`; `NEVER`: it has none.
    due: u32,
    /// The second of its last `Refresh`.
    refreshed: u32,
    stage: Stage,
    is_refreshing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Quiet,
    Told,
    Over,
}

/// A connection whose next look is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Tell the connection that its credentials end at this time.
    Tell(ConnId, Millis),
    /// The credentials have ended.
    End(ConnId),
}

/// The reason why a `Refresh` is not checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoRefresh {
    /// The credentials do not end.
    Needless,
    /// An earlier check is not finished.
    Busy,
    /// An earlier check began within this second.
    TooSoon,
}

impl Terms {
    pub(super) fn new(notice: Duration) -> Self {
        Self { by_conn: HashMap::default(), due: BTreeSet::new(), notice }
    }

    /// The terms, with the order of their looks.
    pub(super) fn footprint(&self) -> Footprint {
        let table = rounded_table(self.by_conn.capacity(), size_of::<(ConnId, Entry)>());
        // The nodes of the tree are taken as two thirds full.
        let tree = self.due.len() * (size_of::<(u32, ConnId)>() + 1) * 3 / 2;
        Footprint::new(self.by_conn.len(), table + tree)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    pub(super) fn enter(&mut self, conn: ConnId, term: Term, now: Millis) {
        let Term { ends, grant } = term;
        let due = self.first_look(ends, now);
        let (stage, is_refreshing) = (Stage::Quiet, false);
        let entry = Entry { ends, grant, due, refreshed: 0, stage, is_refreshing };
        let before = self.by_conn.insert(conn, entry);
        debug_assert!(before.is_none(), "a connection is entered once");
        self.due.insert((due, conn));
    }

    pub(super) fn remove(&mut self, conn: ConnId) {
        let Some(entry) = self.by_conn.remove(&conn) else { return };
        self.due.remove(&(entry.due, conn));
        // Returns the table's memory after many connections have gone.
        if self.by_conn.capacity() > KEPT && self.by_conn.len() < self.by_conn.capacity() / 8 {
            self.by_conn.shrink_to(self.by_conn.len() * 2);
        }
    }

    /// The grant of a connection's credentials.
    pub(super) fn grant(&self, conn: ConnId) -> Option<&GrantRef> {
        self.by_conn.get(&conn).map(|entry| &entry.grant)
    }

    /// The next connection that is due at this time.
    pub(super) fn take_due(&mut self, now: Millis) -> Option<Due> {
        let (at, conn) = *self.due.first()?;
        if u64::from(at) * 1000 > now {
            return None;
        }
        self.due.pop_first();
        let entry = self.by_conn.get_mut(&conn)?;
        if entry.ends <= now {
            (entry.stage, entry.due) = (Stage::Over, NEVER);
            return Some(Due::End(conn));
        }
        entry.due = second_after(entry.ends);
        entry.stage = Stage::Told;
        self.due.insert((entry.due, conn));
        Some(Due::Tell(conn, entry.ends))
    }

    /// Begins the check of a `Refresh`. Until [`Terms::end_refresh`] another one is refused.
    pub(super) fn begin_refresh(&mut self, conn: ConnId, now: Millis) -> Result<(), NoRefresh> {
        let second = second_of(now);
        let entry = self.by_conn.get_mut(&conn).filter(|entry| entry.stage != Stage::Over);
        let entry = entry.ok_or(NoRefresh::Needless)?;
        if entry.is_refreshing {
            return Err(NoRefresh::Busy);
        }
        if entry.refreshed == second {
            return Err(NoRefresh::TooSoon);
        }
        (entry.is_refreshing, entry.refreshed) = (true, second);
        Ok(())
    }

    /// Ends the check; `term` is the new term after a success. False if the connection has gone or
    /// its credentials have ended.
    pub(super) fn end_refresh(&mut self, conn: ConnId, term: Option<Term>, now: Millis) -> bool {
        let at = term.as_ref().map(|term| self.first_look(term.ends, now));
        let entry = self.by_conn.get_mut(&conn).filter(|entry| entry.stage != Stage::Over);
        let Some(entry) = entry else { return false };
        entry.is_refreshing = false;
        if let (Some(Term { ends, grant }), Some(at)) = (term, at) {
            self.due.remove(&(entry.due, conn));
            self.due.insert((at, conn));
            (entry.ends, entry.grant, entry.due, entry.stage) = (ends, grant, at, Stage::Quiet);
        }
        true
    }

    /// The second in which to tell a connection: before the end by the configured notice, or by
    /// half of the rest if that is shorter.
    fn first_look(&self, ends: Millis, now: Millis) -> u32 {
        let notice = u64::try_from(self.notice.as_millis()).unwrap_or(u64::MAX);
        let left = ends.saturating_sub(now);
        // Rather a second early than not at all.
        second_of(ends - notice.min(left / 2))
    }
}

fn second_of(at: Millis) -> u32 {
    u32::try_from(at / 1000).unwrap_or(NEVER - 1)
}

/// The first second that has begun at this time.
fn second_after(at: Millis) -> u32 {
    u32::try_from(at.div_ceil(1000)).map_or(NEVER - 1, |second| second.min(NEVER - 1))
}

/// The year 2106, which no clock reaches.
const NEVER: u32 = u32::MAX;
/// Unused entries that the table may keep.
const KEPT: usize = 1024;
const _: () = assert!(size_of::<(ConnId, Entry)>() <= 48);

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Millis = 60_000;
    const NOW: Millis = 1_000_000_000;

    fn conn(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    fn term(ends: Millis) -> Term {
        Term { ends, grant: GrantRef::Numbered(0) }
    }

    fn terms() -> Terms {
        Terms::new(Duration::from_secs(60))
    }

    /// The connections due until a time, with the seconds since `NOW`.
    fn look(terms: &mut Terms, until: Millis) -> Vec<(u64, Due)> {
        let mut found = Vec::new();
        for second in 0..=(until - NOW) / 1000 {
            while let Some(due) = terms.take_due(NOW + second * 1000) {
                found.push((second, due));
            }
        }
        found
    }

    #[test]
    fn a_connection_is_told_a_minute_before_or_half_way_and_ended() {
        for (ends, told) in [(NOW + 10 * MINUTE, 540), (NOW + MINUTE, 30), (NOW + 4_500, 2)] {
            let mut terms = terms();
            terms.enter(conn(1), term(ends), NOW);
            let expected = [
                (told, Due::Tell(conn(1), ends)),
                ((ends - NOW).div_ceil(1000), Due::End(conn(1))),
            ];
            assert_eq!(look(&mut terms, ends + MINUTE), expected);
            assert!(terms.is_empty());
        }
    }

    #[test]
    fn who_is_prolonged_is_told_anew() {
        let mut terms = terms();
        terms.enter(conn(1), term(NOW + 2 * MINUTE), NOW);
        assert_eq!(look(&mut terms, NOW + MINUTE).len(), 1);
        let now = NOW + MINUTE;
        assert_eq!(terms.begin_refresh(conn(1), now), Ok(()));
        assert_eq!(terms.begin_refresh(conn(1), now + 5_000), Err(NoRefresh::Busy));
        assert!(terms.end_refresh(conn(1), Some(term(NOW + 10 * MINUTE)), now));
        assert_eq!(terms.begin_refresh(conn(1), now), Err(NoRefresh::TooSoon));
        assert_eq!(
            look(&mut terms, NOW + 11 * MINUTE),
            [(540, Due::Tell(conn(1), NOW + 10 * MINUTE)), (600, Due::End(conn(1)))]
        );
        assert_eq!(terms.begin_refresh(conn(1), NOW + 12 * MINUTE), Err(NoRefresh::Needless));
        assert!(!terms.end_refresh(conn(1), Some(term(Millis::MAX)), NOW));
    }

    #[test]
    fn a_refresh_that_fails_changes_nothing_and_a_shorter_one_counts() {
        let mut terms = terms();
        terms.enter(conn(1), term(NOW + 10 * MINUTE), NOW);
        assert_eq!(terms.begin_refresh(conn(1), NOW), Ok(()));
        assert!(terms.end_refresh(conn(1), None, NOW));
        assert_eq!(terms.begin_refresh(conn(1), NOW + 1000), Ok(()));
        assert!(terms.end_refresh(conn(1), Some(term(NOW + 4 * MINUTE)), NOW + 1000));
        assert_eq!(terms.due.len(), 1);
        assert_eq!(look(&mut terms, NOW + 20 * MINUTE).len(), 2);
    }

    #[test]
    fn nothing_is_left_of_those_who_go() {
        let mut terms = terms();
        for number in 0..100_000 {
            terms.enter(conn(number), term(NOW + number * 100), NOW);
        }
        // The longest possible term is a time like any other.
        terms.enter(conn(200_000), term(Millis::MAX), NOW);
        look(&mut terms, NOW + 100 * MINUTE);
        for number in (0..100_000).chain([200_000, 300_000]) {
            terms.remove(conn(number));
        }
        assert!(terms.is_empty() && terms.by_conn.is_empty());
        assert!(terms.by_conn.capacity() <= KEPT);
    }
}
