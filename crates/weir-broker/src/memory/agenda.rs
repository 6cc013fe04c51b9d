//! What is on its way between a node and the broker.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::contract::Event;
use crate::records::Name;

/// Steps in the order of their times. Those of one lane stay in the order in which they were added.
pub(super) struct Agenda<R> {
    steps: BTreeMap<(Instant, u64), Step<R>>,
    added: u64,
    /// Of each lane, when its last step is due.
    lanes: BTreeMap<Lane, Instant>,
    requests: usize,
    events: usize,
}

/// One step.
pub(super) enum Step<R> {
    /// The broker is to carry out a request.
    Request(R),
    /// An answer is to be given.
    Answer(Box<dyn FnOnce() + Send>),
    /// An event is to be handled.
    Event(Event),
}

/// Steps that keep their order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Batches of a topic.
    Batches(Name),
    /// All other requests.
    Requests,
    /// Events of a topic.
    Topic(Name),
    /// All other events.
    Events,
}

/// Lanes that may be empty.
const LANES_SPARE: usize = 64;

impl<R> Agenda<R> {
    pub(super) fn new() -> Agenda<R> {
        let (steps, lanes) = (BTreeMap::new(), BTreeMap::new());
        Agenda { steps, added: 0, lanes, requests: 0, events: 0 }
    }

    /// Adds a step; with a lane, behind those that are in it.
    pub(super) fn add(&mut self, lane: Option<Lane>, due: Instant, step: Step<R>) {
        let due = match lane {
            Some(lane) => {
                let last = self.lanes.entry(lane).or_insert(due);
                *last = due.max(*last);
                *last
            }
            None => due,
        };
        self.added += 1;
        self.count(&step, true);
        self.steps.insert((due, self.added), step);
    }

    /// When the first step is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.steps.first_key_value().map(|((due, _), _)| *due)
    }

    /// When the last request is due.
    pub(super) fn last_request(&self) -> Option<Instant> {
        let mut newest_first = self.steps.iter().rev();
        newest_first.find(|(_, step)| matches!(step, Step::Request(_))).map(|((due, _), _)| *due)
    }

    /// When the last answer is due.
    pub(super) fn last_answer(&self) -> Option<Instant> {
        let mut newest_first = self.steps.iter().rev();
        newest_first.find(|(_, step)| matches!(step, Step::Answer(_))).map(|((due, _), _)| *due)
    }

    /// The first step, if it is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<Step<R>> {
        let first = self.steps.first_entry().filter(|first| first.key().0 <= now)?;
        let step = first.remove();
        self.count(&step, false);
        if self.lanes.len() > 2 * self.steps.len() + LANES_SPARE {
            // What comes later is due later than these.
            self.lanes.retain(|_, last| *last > now);
        }
        Some(step)
    }

    /// Drops the events on their way that are like this.
    pub(super) fn drop_events(&mut self, is_dropped: impl Fn(&Event) -> bool) {
        let is_kept = |step: &Step<R>| !matches!(step, Step::Event(event) if is_dropped(event));
        self.steps.retain(|_, step| is_kept(step));
        self.events = self.steps.values().filter(|step| matches!(step, Step::Event(_))).count();
    }

    /// Drops all answers that are on their way.
    pub(super) fn drop_answers(&mut self) {
        self.steps.retain(|_, step| !matches!(step, Step::Answer(_)));
    }

    /// Takes all requests that are on their way, in order.
    pub(super) fn take_requests(&mut self) -> Vec<R> {
        let (requests, rest) = std::mem::take(&mut self.steps)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, step)| matches!(step, Step::Request(_)));
        self.steps = rest;
        self.requests = 0;
        let request = |step| match step {
            Step::Request(request) => Some(request),
            Step::Answer(_) | Step::Event(_) => None,
        };
        requests.into_values().filter_map(request).collect()
    }

    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    pub(super) fn events(&self) -> usize {
        self.events
    }

    fn count(&mut self, step: &Step<R>, is_new: bool) {
        let count = match step {
            Step::Request(_) => &mut self.requests,
            Step::Event(_) => &mut self.events,
            Step::Answer(_) => return,
        };
        *count = if is_new { *count + 1 } else { *count - 1 };
    }
}
