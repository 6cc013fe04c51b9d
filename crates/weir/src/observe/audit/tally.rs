//! What the audit log only counts: further publishes of a caller, and refused attempts beyond a
//! rate.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{Act, ActOutcome, Entry, Record};
use crate::base::clock::unix_millis;

/// What to do with an act.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Enter,
    /// Enter what was counted until now first.
    EnterBefore(Entry),
    Count,
}

/// The callers that have published, or called devices, lately.
///
/// Limits: [`TALLIES_MAX`] of them, by name, address, act and outcome. One more ends the oldest tally.
#[derive(Default)]
pub(super) struct Tallies(Vec<Tally>);

struct Tally {
    who: Box<str>,
    from: IpAddr,
    act: Act,
    outcome: ActOutcome,
    began: Duration,
    count: u64,
}

impl Tallies {
    /// The first publish of a caller is an entry; further ones count until its interval is over.
    pub(super) fn take(&mut self, record: &Record<'_>, now: Duration) -> Verdict {
        let Record { who, from, act, outcome } = *record;
        let is_it = |tally: &&mut Tally| {
            (tally.from, tally.act, tally.outcome) == (from, act, outcome) && *tally.who == *who
        };
        if let Some(tally) = self.0.iter_mut().find(is_it) {
            tally.count += 1;
            return Verdict::Count;
        }
        let mut verdict = Verdict::Enter;
        if self.0.len() >= TALLIES_MAX {
            // They stand in the order in which they began.
            let oldest = self.0.remove(0);
            if let Some(entry) = oldest.entry(now) {
                verdict = Verdict::EnterBefore(entry);
            }
        }
        self.0.push(Tally { who: who.into(), from, act, outcome, began: now, count: 0 });
        verdict
    }

    /// The entries of intervals that are over. A caller that has published meanwhile begins another
    /// interval; one that has not is forgotten.
    pub(super) fn due(&mut self, now: Duration) -> Vec<Entry> {
        let is_over = |tally: &Tally| now.saturating_sub(tally.began) >= INTERVAL;
        let over: Vec<Tally> = self.0.extract_if(.., |tally| is_over(tally)).collect();
        let mut entries = Vec::new();
        for tally in over {
            if let Some(entry) = tally.entry(now) {
                entries.push(entry);
                self.0.push(Tally { began: now, count: 0, ..tally });
            }
        }
        entries
    }
}

impl Tally {
    fn entry(&self, now: Duration) -> Option<Entry> {
        let Tally { who, from, act, outcome, began, count } = self;
        let seconds = now.saturating_sub(*began).as_secs();
        (*count > 0).then(|| Entry {
            at_ms: unix_millis(),
            who: who.clone(),
            from: *from,
            act: *act,
            what: format!("{count} more requests in {seconds} s").into(),
            outcome: *outcome,
        })
    }
}

/// The rates of refused attempts, each outcome by itself: a flood of one hides no other.
#[derive(Default)]
pub(super) struct Refusals([Window; ActOutcome::ALL.len()]);

#[derive(Default)]
struct Window {
    second: u64,
    entered: u32,
    /// Attempts that were left out since the last entry about them.
    left_out: u64,
    /// The time of that entry.
    told: Duration,
    /// The address of the last one.
    from: Option<IpAddr>,
}

impl Refusals {
    pub(super) fn take(&mut self, record: &Record<'_>, now: Duration) -> Verdict {
        let window = &mut self.0[record.outcome as usize];
        if window.second != now.as_secs() {
            (window.second, window.entered) = (now.as_secs(), 0);
        }
        if window.entered < REFUSALS_PER_SECOND {
            window.entered += 1;
            return Verdict::Enter;
        }
        window.left_out += 1;
        window.from = Some(record.from);
        Verdict::Count
    }

    /// For each outcome the number of attempts that were left out, at most once in [`TELL_AFTER`].
    pub(super) fn due(&mut self, now: Duration) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (outcome, window) in ActOutcome::ALL.into_iter().zip(&mut self.0) {
            let is_due = window.told.is_zero() || now.saturating_sub(window.told) >= TELL_AFTER;
            if window.left_out == 0 || !is_due {
                continue;
            }
            entries.push(Entry {
                at_ms: unix_millis(),
                who: NOBODY.into(),
                from: window.from.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                act: Act::Other,
                what: format!(
                    "{} more attempts were left out, the last one from here",
                    window.left_out
                )
                .into(),
                outcome,
            });
            (window.left_out, window.told) = (0, now);
        }
        entries
    }
}

/// The name of callers without a valid token.
const NOBODY: &str = "nobody";
/// Publishers at one time, of which few have more.
const TALLIES_MAX: usize = 256;
/// Two hundred entries then reach back for more than an hour with three busy publishers.
const INTERVAL: Duration = Duration::from_secs(60);
const REFUSALS_PER_SECOND: u32 = 5;
const TELL_AFTER: Duration = Duration::from_secs(10);
