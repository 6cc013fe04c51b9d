//! One node's link to the broker in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rand::rngs::StdRng;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::NodeOptions;
use super::agenda::{Agenda, Lane, Step};
use super::faults::{Counts, EventKind, Faults, chosen};
use crate::contract::{Event, EventHandler};
use crate::records::{ConnectionNumber, Name, NodeNumber, Scope};

/// What the broker knows of a connected node, and what is on its way between the two. `R` is a request.
pub(super) struct Link<R> {
    pub(super) name: String,
    pub(super) options: NodeOptions,
    pub(super) handler: Arc<dyn EventHandler>,
    pub(super) number: NodeNumber,
    /// Since when the broker cannot be reached.
    pub(super) down: Option<Instant>,
    /// A test has disconnected it, until the test reconnects it.
    pub(super) is_disconnected: bool,
    /// Since when nothing moves.
    pub(super) paused: Option<Instant>,
    /// Nothing is asked any more.
    pub(super) is_closing: bool,
    /// Subscriptions. They survive what happens to the link, since the node subscribes again.
    pub(super) topics: BTreeSet<Name>,
    pub(super) devices: BTreeMap<Name, BTreeSet<ConnectionNumber>>,
    /// Topics of which a batch has no answer yet.
    pub(super) publishing: BTreeSet<Name>,
    pub(super) agenda: Agenda<R>,
    /// Events that are made at the node itself. They go before all that is on its way.
    pub(super) notices: VecDeque<Event>,
    pub(super) faults: Faults,
    pub(super) counts: Counts,
    pub(super) wake: Arc<Notify>,
}

/// Events that may wait for a node: then its subscriptions break, as Redis breaks those of a slow client.
const EVENTS_MAX: usize = 100_000;

impl<R> Link<R> {
    pub(super) fn new(
        name: &str,
        number: NodeNumber,
        options: NodeOptions,
        handler: Arc<dyn EventHandler>,
    ) -> Link<R> {
        Link {
            name: name.to_owned(),
            options,
            handler,
            number,
            down: None,
            is_disconnected: false,
            paused: None,
            is_closing: false,
            topics: BTreeSet::new(),
            devices: BTreeMap::new(),
            publishing: BTreeSet::new(),
            agenda: Agenda::new(),
            notices: VecDeque::new(),
            faults: Faults::default(),
            counts: Counts::default(),
            wake: Arc::new(Notify::new()),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.down.is_none()
    }

    /// Sends an event of the broker to the node, as its faults allow.
    pub(super) fn tell(&mut self, event: Event, now: Instant, dice: &mut StdRng) {
        let Some(kind) = EventKind::of(&event).filter(|_| self.is_up()) else {
            return;
        };
        *self.counts.events.entry(kind).or_default() += 1;
        let arrivals = self.faults.arrivals(kind, dice);
        match arrivals {
            0 => self.counts.dropped += 1,
            1 => {}
            _ => self.counts.doubled += 1,
        }
        let lane = if let Event::Messages { topic, .. } | Event::Presence { topic, .. } = &event {
            Lane::Topic(Name::clone(topic))
        } else {
            Lane::Events
        };
        for _ in 0..arrivals {
            let due = now + chosen(&self.faults.delays.event, dice);
            self.agenda.add(Some(lane.clone()), due, Step::Event(event.clone()));
        }
        if self.agenda.events() > EVENTS_MAX {
            self.lose_subscriptions(Scope::All);
        }
        self.wake.notify_one();
    }

    /// Breaks subscriptions and sets them up again: what was on its way is lost.
    pub(super) fn lose_subscriptions(&mut self, scope: Scope) {
        if !self.is_up() {
            return;
        }
        self.agenda.drop_events(|event| match (event, &scope) {
            (_, Scope::All) => true,
            (
                Event::Messages { topic, .. } | Event::Presence { topic, .. },
                Scope::Topics(topics),
            ) => topics.contains(topic),
            (
                Event::ToDevice { device, .. } | Event::Evicted { device, .. },
                Scope::Devices(devices),
            ) => devices.contains(device),
            (Event::ToAll(_) | Event::ToNode(_) | Event::Revoked(_), Scope::Node) => true,
            (_, Scope::Topics(_) | Scope::Devices(_) | Scope::Node) => false,
        });
        self.notices.push_back(Event::Gap(scope));
        self.wake.notify_one();
    }

    /// The broker cannot be reached any more. Requests on their way are lost too, unless they only wait.
    pub(super) fn go_down(&mut self, reason: &str, now: Instant, keeps_requests: bool) {
        if !keeps_requests {
            self.agenda.take_requests();
        }
        if !self.is_up() {
            return;
        }
        self.agenda.drop_events(|_| true);
        self.agenda.drop_answers();
        self.down = Some(now);
        self.counts.lost += 1;
        self.notices.push_back(Event::Lost(reason.to_owned()));
        self.wake.notify_one();
    }
}
