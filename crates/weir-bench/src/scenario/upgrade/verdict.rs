//! What may not happen: a number lost, a number doubled, a connection closed.

use weir_wire::CloseReason;

use super::crowd::{LISTENERS, Phase};
use crate::report::Report;
use crate::spawn::Upgraded;

/// Fails the run if clients have noticed more than a pause; `what` names the phase.
pub(super) fn check_phase(report: &mut Report, what: &str, phase: &Phase, connections: u32) {
    report.check_messages(what, &phase.totals);
    report.check_messages(&format!("{what}, published by devices"), &phase.heard);
    let tally = &phase.totals.tally;
    let slow = tally.gaps_slow + tally.missing_slow;
    report.check(slow == 0, || format!("{what}: {slow} messages lost by clients that stalled"));
    // Of those that stalled, `closed` does not tell.
    report.check(tally.closed_by.is_empty(), || format!("{what}: closed: {:?}", tally.closed_by));
    let expected = u64::from(connections + LISTENERS);
    report.check(phase.open == expected, || {
        format!("{what}: {} of {expected} connections are open", phase.open)
    });
    report.check(tally.unanswered == 0, || {
        format!("{what}: {} pings without an answer", tally.unanswered)
    });
    report.check(tally.pongs > 0, || format!("{what}: no ping was answered"));
    report.check(phase.unsent == 0, || {
        format!("{what}: {} messages for which a socket had no room", phase.unsent)
    });
    report.check(tally.away == 0, || format!("{what}: {} did not come back", tally.away));
    report.check(tally.unrecovered == 0, || {
        format!("{what}: {} came back and were not recovered", tally.unrecovered)
    });
    for (by, count) in tally.refused.iter().filter(|(by, _)| !is_told(by)) {
        report.fail(format!("{what}: {count} that came back were refused without a word: {by}"));
    }
    let Some(guests) = &phase.guests else { return };
    for (by, count) in guests.tally.refused.iter().filter(|(by, _)| !is_told(by)) {
        report.fail(format!("{what}: {count} new clients were refused without a word: {by}"));
    }
    for (by, count) in &guests.tally.failed {
        report.fail(format!("{what}: {count} new clients were lost: {by}"));
    }
}

/// Fails the run if not all of these connections have moved, or the gateway has closed one.
pub(super) fn check_upgrade(report: &mut Report, what: &str, upgraded: &Upgraded, least: u32) {
    let moved = upgraded.connections();
    report.check(moved >= least.into(), || {
        format!("{what}: {moved} of {least} connections have moved: {:?}", upgraded.moved.moved)
    });
    report.check(upgraded.left.closed == 0, || {
        format!("{what}: the old process has closed {} connections", upgraded.left.closed)
    });
}

/// Whether the client was told why, and so when to come again: by `Goodbye`, or by an answer with
/// `Retry-After`, which is named by its status.
fn is_told(by: &str) -> bool {
    let is_status = |by: &str| by.len() == 3 && by.bytes().all(|byte| byte.is_ascii_digit());
    CloseReason::ALL.into_iter().any(|reason| reason.name() == by)
        || by.strip_prefix("http_").is_some_and(is_status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Tally;
    use crate::spawn::UpgradedCount;
    use crate::workers::{Churned, Totals};

    fn sound() -> Phase {
        let totals = Totals {
            tally: Tally { delivered: 9, pongs: 1, open: 10, ..Tally::default() },
            ..Totals::default()
        };
        Phase { heard: totals.clone(), totals, open: 12, ..Phase::default() }
    }

    fn faults(phase: &Phase) -> Vec<String> {
        let mut report = Report::new("upgrade");
        check_phase(&mut report, "it", phase, 10);
        report.errors().to_vec()
    }

    /// What is said of a phase that is sound but for this.
    fn said(change: impl FnOnce(&mut Phase)) -> String {
        let mut phase = sound();
        change(&mut phase);
        let faults = faults(&phase);
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults[0].clone()
    }

    #[test]
    fn whatever_clients_notice_fails_the_run() {
        assert_eq!(faults(&sound()), Vec::<String>::new());
        type Change = fn(&mut Phase);
        let cases: [(Change, &str); 16] = [
            (|phase| phase.totals.tally.gaps = 1, "1 messages lost"),
            (|phase| phase.totals.tally.missing = 2, "2 messages lost"),
            (|phase| phase.heard.tally.missing = 3, "devices: 3 messages lost"),
            (|phase| phase.totals.tally.missing_slow = 1, "1 messages lost by clients"),
            (|phase| phase.totals.tally.gaps_slow = 1, "1 messages lost by clients"),
            (|phase| phase.totals.tally.duplicates = 1, "1 messages twice"),
            (|phase| phase.heard.tally.duplicates = 1, "devices: 1 messages twice"),
            (|phase| phase.totals.tally.wrong = 1, "1 wrong"),
            (|phase| phase.totals.tally.closed = 1, "1 connections closed"),
            (|phase| phase.heard.tally.closed = 1, "1 connections closed"),
            (|phase| phase.open = 11, "11 of 12 connections are open"),
            (|phase| phase.totals.tally.unanswered = 1, "1 pings without"),
            (|phase| phase.totals.tally.pongs = 0, "no ping was answered"),
            (|phase| phase.unsent = 1, "1 messages for which"),
            (|phase| phase.totals.tally.unrecovered = 1, "1 came back and were not"),
            (|phase| phase.totals.tally.delivered = 0, "no message was delivered"),
        ];
        for (change, expected) in cases {
            let said = said(change);
            assert!(said.contains(expected), "{said:?}, not {expected:?}");
        }
        let stalled = said(|phase| {
            phase.totals.tally.closed_by.insert("slow_consumer".to_owned(), 1);
        });
        assert!(stalled.contains("slow_consumer"), "{stalled}");
    }

    #[test]
    fn new_clients_succeed_or_are_told() {
        let refused = |by: &str| {
            let mut guests = Churned::default();
            guests.tally.refused.insert(by.to_owned(), 2);
            Phase { guests: Some(guests), ..sound() }
        };
        let draining = CloseReason::ALL[CloseReason::COUNT - 1].name();
        assert_eq!(faults(&refused(draining)), Vec::<String>::new());
        assert!(faults(&refused("eof"))[0].contains("2 new clients were refused without a word"));
        let mut guests = Churned::default();
        guests.tally.failed.insert(draining.to_owned(), 1);
        let lost = Phase { guests: Some(guests), ..sound() };
        assert!(faults(&lost)[0].contains("1 new clients were lost"));
        let mut back = sound();
        back.totals.tally.refused.insert("reset".to_owned(), 1);
        assert!(faults(&back)[0].contains("refused without a word: reset"));
        back.totals.tally.refused.clear();
        back.totals.tally.refused.insert("http_503".to_owned(), 7);
        assert_eq!(faults(&back), Vec::<String>::new());
        back.totals.tally.refused.insert("upgrade".to_owned(), 1);
        assert!(faults(&back)[0].contains("1 that came back were refused without a word"));
        back.totals.tally.refused.clear();
        back.totals.tally.away = 1;
        assert!(faults(&back)[0].contains("1 did not come back"));
    }

    #[test]
    fn an_upgrade_moves_all_and_closes_none() {
        let faults = |count, closed| {
            let mut upgraded = Upgraded::default();
            let kinds = [("tcp", 5), ("tls", count)];
            let kinds = kinds.map(|(kind, count)| UpgradedCount { kind: kind.to_owned(), count });
            upgraded.moved.moved = kinds.to_vec();
            upgraded.left.closed = closed;
            let mut report = Report::new("upgrade");
            check_upgrade(&mut report, "it", &upgraded, 12);
            report.errors().len()
        };
        assert_eq!((faults(7, 0), faults(9, 0)), (0, 0));
        assert_eq!((faults(6, 0), faults(7, 1)), (1, 1));
    }
}
