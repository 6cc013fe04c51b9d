//! The audit log: who did what through the admin API, when, from where, and how it ended.
//!
//! An act is one line of the log (target `audit`) and one entry in memory, with three exceptions:
//!
//! - Publishing, and calls to devices: the first request of a caller is an entry at once. While it goes on, one entry a
//!   minute says how many more there were. So 10,000 requests a second are two lines a minute.
//! - Refused attempts: a few a second of each outcome are entries. A later entry says how many were
//!   left out, and a metric counts them.
//! - Requests that only read are none, unless they are refused.
//!
//! In memory each class of entries has places of its own. So neither publishers nor strangers push
//! out what others have done.

mod tally;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tracing::{info, warn};
use weir_engine::{Footprint, rounded};

use crate::base::clock::unix_millis;
use tally::{Refusals, Tallies, Verdict};

weir_wire::named_enum! {
    /// Something that a caller of the admin API does, or tries to do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Act {
        SignIn = "sign_in",
        SignOut = "sign_out",
        Publish = "publish",
        Call = "call",
        Close = "close",
        Revoke = "revoke",
        Import = "import",
        Export = "export",
        Drain = "drain",
        CancelDrain = "cancel_drain",
        Reload = "reload",
        Profile = "profile",
        /// Reading anything else. It is an entry only if it is refused.
        Read = "read",
        /// A request that is none of these.
        Other = "other",
    }
}

weir_wire::named_enum! {
    /// How an act ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ActOutcome {
        Done = "done",
        /// The caller may do it, but it could not be done: the target is not there, for example.
        Failed = "failed",
        /// The caller went away before the answer. It may have been done.
        BrokenOff = "broken_off",
        /// The request is malformed, too long, or for nothing that there is.
        Invalid = "invalid",
        /// It came without a token, and without a session.
        NoToken = "no_token",
        /// Its token or its session is not valid.
        WrongToken = "wrong_token",
        /// Its token lacks the scope, or the service the right.
        WrongScope = "wrong_scope",
        /// A page of another origin sent it.
        ForeignOrigin = "foreign_origin",
        /// It is for a host that this server is not.
        UnknownHost = "unknown_host",
        /// Too many attempts to sign in from its address have failed.
        Limited = "limited",
    }
}

/// One act, as the gateway notes it.
pub(crate) struct Record<'a> {
    /// The name of the caller, or `nobody`.
    pub(crate) who: &'a str,
    pub(crate) from: IpAddr,
    pub(crate) act: Act,
    pub(crate) outcome: ActOutcome,
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at_ms: u64,
    pub(crate) who: Box<str>,
    pub(crate) from: IpAddr,
    pub(crate) act: Act,
    /// The target, or the number of further acts of which only this entry tells.
    pub(crate) what: Box<str>,
    pub(crate) outcome: ActOutcome,
}

/// The acts of a gateway's callers.
///
/// Shape: the last entries of each class: [`ACTS_MAX`], [`PUBLISHES_MAX`], [`REFUSALS_MAX`].
/// Limits: `what` and `who` are cut at [`TEXT_BYTES_MAX`]. A refused entry too many pushes out the
/// oldest one of the outcome that has the most.
/// Cost: one lock for a moment. A publish that only counts compares the tallies of the callers that
/// publish at the time, and allocates nothing.
#[derive(Default)]
pub(crate) struct Audit {
    state: Mutex<State>,
    counts: [AtomicU64; ActOutcome::ALL.len()],
    left_out: [AtomicU64; ActOutcome::ALL.len()],
}

#[derive(Default)]
struct State {
    /// By [`Class`]; each entry with its number.
    kept: [VecDeque<(u64, Entry)>; 3],
    entered: u64,
    tallies: Tallies,
    refusals: Refusals,
}

/// Entries that may only push out each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Act,
    Publish,
    Refusal,
}

impl Audit {
    /// Notes an act; `what` is its target. `now` is the time since some start.
    pub(crate) fn note<'w>(
        &self,
        record: &Record<'_>,
        what: impl FnOnce() -> Cow<'w, str>,
        now: Duration,
    ) {
        self.counts[record.outcome as usize].fetch_add(1, Ordering::Relaxed);
        let class = Class::of(record);
        let mut state = self.lock();
        let verdict = match class {
            Class::Act => Verdict::Enter,
            Class::Publish => state.tallies.take(record, now),
            Class::Refusal => state.refusals.take(record, now),
        };
        match verdict {
            Verdict::Enter => {
                let entry = Entry::of(record, &what());
                state.enter(class, entry);
            }
            Verdict::EnterBefore(earlier) => {
                state.enter(class, earlier);
                let entry = Entry::of(record, &what());
                state.enter(class, entry);
            }
            Verdict::Count if class == Class::Refusal => {
                self.left_out[record.outcome as usize].fetch_add(1, Ordering::Relaxed);
            }
            Verdict::Count => {}
        }
    }

    /// Enters the numbers of acts that were only counted, once it is time. Call it each second.
    pub(crate) fn settle(&self, now: Duration) {
        let mut state = self.lock();
        for entry in state.tallies.due(now) {
            state.enter(Class::Publish, entry);
        }
        for entry in state.refusals.due(now) {
            state.enter(Class::Refusal, entry);
        }
    }

    /// The last entries, the newest first.
    pub(crate) fn last(&self, limit: usize) -> Vec<Entry> {
        let state = self.lock();
        let mut all: Vec<&(u64, Entry)> = state.kept.iter().flatten().collect();
        all.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        all.into_iter().take(limit).map(|(_, entry)| entry.clone()).collect()
    }

    /// Acts that ended so.
    pub(crate) fn count(&self, outcome: ActOutcome) -> u64 {
        self.counts[outcome as usize].load(Ordering::Relaxed)
    }

    /// Attempts that were refused so, and are in no entry of their own.
    pub(crate) fn left_out(&self, outcome: ActOutcome) -> u64 {
        self.left_out[outcome as usize].load(Ordering::Relaxed)
    }

    /// The entries.
    pub(crate) fn footprint(&self) -> Footprint {
        let state = self.lock();
        let tables =
            state.kept.iter().map(|kept| rounded(kept.capacity() * size_of::<(u64, Entry)>()));
        let texts = state
            .kept
            .iter()
            .flatten()
            .map(|(_, entry)| rounded(entry.who.len()) + rounded(entry.what.len()));
        let count = state.kept.iter().map(VecDeque::len).sum();
        Footprint::new(count, tables.sum::<usize>() + texts.sum::<usize>())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens under the lock of the audit log")
    }
}

impl State {
    fn enter(&mut self, class: Class, entry: Entry) {
        entry.log();
        let kept = &mut self.kept[class as usize];
        if kept.len() >= class.entries_max() {
            let at = match class {
                Class::Act | Class::Publish => 0,
                Class::Refusal => oldest_of_most(kept),
            };
            kept.remove(at);
        }
        kept.push_back((self.entered, entry));
        self.entered += 1;
    }
}

/// The place of the oldest entry of the outcome that has the most entries.
fn oldest_of_most(kept: &VecDeque<(u64, Entry)>) -> usize {
    let mut counts = [0; ActOutcome::ALL.len()];
    for (_, entry) in kept {
        counts[entry.outcome as usize] += 1;
    }
    let most = counts.iter().max().copied().unwrap_or_default();
    let is_of_most = |(_, entry): &(u64, Entry)| counts[entry.outcome as usize] == most;
    kept.iter().position(is_of_most).unwrap_or_default()
}

impl Class {
    fn of(record: &Record<'_>) -> Class {
        match (record.outcome.is_refusal(), matches!(record.act, Act::Publish | Act::Call)) {
            (true, _) => Class::Refusal,
            (false, true) => Class::Publish,
            (false, false) => Class::Act,
        }
    }

    const fn entries_max(self) -> usize {
        match self {
            Class::Act => ACTS_MAX,
            Class::Publish => PUBLISHES_MAX,
            Class::Refusal => REFUSALS_MAX,
        }
    }
}

impl Entry {
    fn of(record: &Record<'_>, what: &str) -> Entry {
        let Record { who, from, act, outcome } = *record;
        let (who, what) = (clipped(who).into(), clipped(what).into());
        Entry { at_ms: unix_millis(), who, from, act, what, outcome }
    }

    /// Writes its line. Texts are quoted and escaped, so it is one line whatever they hold.
    fn log(&self) {
        let Entry { who, from, act, what, outcome, .. } = self;
        let (who, what, act) = (&**who, &**what, act.name());
        let is_refused = outcome.is_refusal();
        let outcome = outcome.name();
        match is_refused {
            false => {
                info!(target: TARGET, act, who, %from, what, outcome, "administrative act");
            }
            true => warn!(target: TARGET, act, who, %from, what, outcome, "refused attempt"),
        }
    }
}

impl ActOutcome {
    /// Whether the act was not permitted, or was none.
    pub(crate) fn is_refusal(self) -> bool {
        !matches!(self, ActOutcome::Done | ActOutcome::Failed | ActOutcome::BrokenOff)
    }
}

fn clipped(text: &str) -> &str {
    let mut ends = (0..=text.len().min(TEXT_BYTES_MAX)).rev();
    let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    &text[..end]
}

/// The target of the log lines.
pub const TARGET: &str = "audit";

/// Together the last thousand.
const ACTS_MAX: usize = 600;
const PUBLISHES_MAX: usize = 200;
const REFUSALS_MAX: usize = 200;
/// A thousand entries then take less than a megabyte. Device ids and names of topics fit.
const TEXT_BYTES_MAX: usize = 300;

#[cfg(test)]
mod tests;
