//! The faults that tests switch on, of one node's link to the broker.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::contract::Event;

/// A method of [`Broker`](crate::Broker).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is named after its method")]
pub enum Method {
    Publish,
    Join,
    Leave,
    Read,
    Tops,
    Claim,
    Release,
    ToDevice,
    ToAll,
    ToNode,
    Revoke,
    Revocations,
    Announce,
    Nodes,
    Retire,
    Enter,
    Exit,
    Members,
    Attend,
    KeepSessions,
    Session,
    Close,
}

/// The kind of an event that comes from another node through the broker. Faults drop and double these alone: the rest
/// is made at the node itself, such as [`Event::Gap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is named after its event")]
pub enum EventKind {
    Messages,
    ToDevice,
    ToAll,
    ToNode,
    Evicted,
    Revoked,
    Presence,
}

/// Where a connection breaks that carries a request. The answer is [`Error::Uncertain`](crate::Error::Uncertain).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// The broker never sees the request.
    BeforeExecution,
    /// The broker carries it out, and the answer is lost.
    BeforeAnswer,
    /// The broker finds the request only after this time, when the caller may have sent it again.
    Late(Duration),
}

/// How long things take on the way between a node and the broker: chosen from these ranges.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delays {
    /// From the call to its execution.
    pub request: Range<Duration>,
    /// From the execution to the answer.
    pub answer: Range<Duration>,
    /// From the execution to an event at this node.
    pub event: Range<Duration>,
}

/// How probable each fault is, from 0 to 1.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chances {
    /// Of an event: it never arrives.
    pub drop: f64,
    /// Of an event: it arrives twice.
    pub double: f64,
    /// Of a request: [`Break::BeforeExecution`].
    pub break_before_execution: f64,
    /// Of a request: [`Break::BeforeAnswer`].
    pub break_before_answer: f64,
    /// Of a request: [`Break::Late`], by up to [`Chances::late_max`].
    pub late: f64,
    /// The longest that such a request is late.
    pub late_max: Duration,
}

/// What has happened so far, of a node or of all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Calls by method, carried out or not. A call to publish counts once for each batch.
    pub calls: BTreeMap<Method, u64>,
    /// Events by kind, before faults.
    pub events: BTreeMap<EventKind, u64>,
    /// Events that faults have dropped.
    pub dropped: u64,
    /// Events that faults have doubled.
    pub doubled: u64,
    /// Requests whose connection faults have broken.
    pub broken: u64,
    /// Times that the link has gone down.
    pub lost: u64,
}

/// The faults of one link.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) delays: Delays,
    pub(super) chances: Chances,
    /// The next calls whose connection breaks; of any method where none is named.
    pub(super) breaks: VecDeque<(Option<Method>, Break)>,
    /// How many of the next events of a kind are dropped, and how many then are doubled.
    pub(super) drops: BTreeMap<EventKind, u64>,
    pub(super) doubles: BTreeMap<EventKind, u64>,
}

impl EventKind {
    /// The kind of an event; `None` for those that faults leave alone.
    pub fn of(event: &Event) -> Option<EventKind> {
        match event {
            Event::Messages { .. } => Some(EventKind::Messages),
            Event::ToDevice { .. } => Some(EventKind::ToDevice),
            Event::ToAll(_) => Some(EventKind::ToAll),
            Event::ToNode(_) => Some(EventKind::ToNode),
            Event::Evicted { .. } => Some(EventKind::Evicted),
            Event::Revoked(_) => Some(EventKind::Revoked),
            Event::Presence { .. } => Some(EventKind::Presence),
            Event::Gap(_)
            | Event::Vacated { .. }
            | Event::Lost(_)
            | Event::Back { .. }
            | Event::Renumbered(_) => None,
        }
    }
}

impl Counts {
    /// Adds those of another node.
    pub fn add(&mut self, other: &Counts) {
        for (method, count) in &other.calls {
            *self.calls.entry(*method).or_default() += count;
        }
        for (kind, count) in &other.events {
            *self.events.entry(*kind).or_default() += count;
        }
        self.dropped += other.dropped;
        self.doubled += other.doubled;
        self.broken += other.broken;
        self.lost += other.lost;
    }
}

impl Faults {
    /// Whether and where the call's connection breaks.
    pub(super) fn broken(&mut self, method: Method, dice: &mut StdRng) -> Option<Break> {
        let planned = self.breaks.iter().position(|(of, _)| of.is_none_or(|of| of == method));
        if let Some((_, place)) = planned.and_then(|place| self.breaks.remove(place)) {
            return Some(place);
        }
        if happens(self.chances.break_before_execution, dice) {
            Some(Break::BeforeExecution)
        } else if happens(self.chances.break_before_answer, dice) {
            Some(Break::BeforeAnswer)
        } else if happens(self.chances.late, dice) {
            Some(Break::Late(chosen(&(Duration::ZERO..self.chances.late_max), dice)))
        } else {
            None
        }
    }

    /// How often an event arrives.
    pub(super) fn arrivals(&mut self, kind: EventKind, dice: &mut StdRng) -> usize {
        if counted(&mut self.drops, kind) || happens(self.chances.drop, dice) {
            0
        } else if counted(&mut self.doubles, kind) || happens(self.chances.double, dice) {
            2
        } else {
            1
        }
    }
}

/// A duration from a range; its start if it is empty.
pub(super) fn chosen(range: &Range<Duration>, dice: &mut StdRng) -> Duration {
    if range.is_empty() { range.start } else { dice.random_range(range.clone()) }
}

/// Takes one off, if there is one.
fn counted(counts: &mut BTreeMap<EventKind, u64>, kind: EventKind) -> bool {
    let count = counts.entry(kind).or_default();
    let is_left = *count > 0;
    *count = count.saturating_sub(1);
    is_left
}

fn happens(chance: f64, dice: &mut StdRng) -> bool {
    // Without a roll, so that a fault that is off changes nothing else.
    chance > 0.0 && dice.random_bool(chance)
}
