//! Everything that the broker in memory keeps, under one lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::Instant;

use super::agenda::{Lane, Step};
use super::devices::Devices;
use super::faults::{Break, Counts, Method, chosen};
use super::link::Link;
use super::nodes::Nodes;
use super::occupancies::Occupancies;
use super::presence::Presence;
use super::revocations::RevocationLog;
use super::sessions::Sessions;
use super::topics::{NewEpoch, Topics};
use super::{LinkId, MemoryOptions, NodeOptions};
use crate::contract::{Error, Event, EventHandler, Published};
use crate::records::{
    Batch, Claim, Entry, Name, Node, NodeNumber, Revocation, RevocationId, Scope,
};

/// A request on its way.
pub(super) struct Request {
    method: Method,
    run: Run,
    /// Whether the answer arrives.
    is_answered: bool,
}

/// Carries a request out, and gives what sends its answer.
pub(super) type Run = Box<dyn FnOnce(&mut State, LinkId, Instant) -> Reply + Send>;
pub(super) type Reply = Box<dyn FnOnce() + Send>;

/// See the file.
pub(super) struct State {
    started: Instant,
    pub(super) dice: StdRng,
    pub(super) topics: Topics,
    pub(super) devices: Devices,
    pub(super) presence: Presence,
    pub(super) occupancies: Occupancies,
    pub(super) nodes: Nodes,
    pub(super) revocations: RevocationLog,
    pub(super) sessions: Sessions,
    /// Messages to devices and to all that had an idempotency key: how many nodes each has reached, and until when that
    /// is remembered.
    sent: BTreeMap<SentKey, (u32, Instant)>,
    pub(super) links: BTreeMap<LinkId, Link<Request>>,
    links_opened: u64,
    is_reachable: bool,
    /// Why publishes are refused, if they are.
    pub(super) refusal: Option<String>,
    /// Of nodes that have ended, by name.
    past: BTreeMap<String, Counts>,
}

/// An idempotency key, and the device that its message went to; `None`: to all.
pub(super) type SentKey = (Option<Name>, Name);

/// What a link's task does next.
pub(super) enum Next {
    Answer(Reply),
    Handle(Arc<dyn EventHandler>, Event),
    Wait(Option<Instant>),
    End,
}

/// The wall clock of the broker shows this at its start, in milliseconds.
const STARTED_MILLIS: u64 = 1_790_000_000_000;

impl State {
    pub(super) fn new(options: &MemoryOptions, now: Instant) -> State {
        State {
            started: now,
            dice: StdRng::seed_from_u64(options.seed),
            topics: Topics::new(options.topics_kept, options.keeps_journal),
            devices: Devices::default(),
            presence: Presence::new(options, now),
            occupancies: Occupancies::default(),
            nodes: Nodes::new(options.lease),
            revocations: RevocationLog::new(),
            sessions: Sessions::default(),
            sent: BTreeMap::new(),
            links: BTreeMap::new(),
            links_opened: 0,
            is_reachable: true,
            refusal: None,
            past: BTreeMap::new(),
        }
    }

    /// Connects a node.
    pub(super) fn open(
        &mut self,
        name: &str,
        options: NodeOptions,
        handler: Arc<dyn EventHandler>,
        now: Instant,
    ) -> LinkId {
        self.links_opened += 1;
        let id = LinkId(self.links_opened);
        let number = self.nodes.lease(id, now).expect("a test has fewer than 1,023 nodes");
        self.nodes.begin(id, now + options.node_ttl);
        let mut link = Link::new(name, number, options, handler);
        if !self.is_reachable {
            link.go_down(UNREACHABLE, now, false);
        }
        self.links.insert(id, link);
        id
    }

    /// Takes a request on its way. Gives it back with a delay if its connection breaks and it arrives late.
    pub(super) fn send(
        &mut self,
        id: LinkId,
        method: Method,
        lane: Lane,
        run: Run,
        now: Instant,
    ) -> Result<Option<(Duration, Request)>, Error> {
        let link = self.links.get_mut(&id).ok_or_else(closed)?;
        if link.is_closing {
            return Err(closed());
        }
        *link.counts.calls.entry(method).or_default() += 1;
        if !link.is_up() {
            return Err(Error::Unavailable("the link is down".to_owned()));
        }
        let waiting = link.agenda.requests();
        if waiting >= link.options.waiting_max {
            return Err(Error::Overloaded { waiting });
        }
        let mut request = Request { method, run, is_answered: true };
        if let Some(place) = link.faults.broken(method, &mut self.dice) {
            link.counts.broken += 1;
            match place {
                Break::Late(late) if may_be_late(method) => return Ok(Some((late, request))),
                Break::Late(_) | Break::BeforeExecution => return Ok(None),
                Break::BeforeAnswer => request.is_answered = false,
            }
        }
        let mut due = now + chosen(&link.faults.delays.request, &mut self.dice);
        if method == Method::Close {
            link.is_closing = true;
            due = link.agenda.last_request().map_or(due, |last| due.max(last));
        }
        link.agenda.add(Some(lane), due, Step::Request(request));
        link.wake.notify_one();
        Ok(None)
    }

    /// Carries a request out. Its answer goes on its way if the link still stands.
    pub(super) fn execute(&mut self, id: LinkId, request: Request, now: Instant) {
        let reply = (request.run)(self, id, now);
        let Some(link) = self.links.get_mut(&id).filter(|link| link.is_up()) else {
            return;
        };
        if !request.is_answered {
            return;
        }
        let mut due = now + chosen(&link.faults.delays.answer, &mut self.dice);
        if request.method == Method::Close {
            due = link.agenda.last_answer().map_or(due, |last| due.max(last));
        }
        link.agenda.add(None, due, Step::Answer(reply));
        link.wake.notify_one();
    }

    /// Carries out a request whose connection has broken.
    pub(super) fn execute_late(&mut self, id: LinkId, request: Request, now: Instant) {
        self.execute(id, Request { is_answered: false, ..request }, now);
    }

    /// What a link's task does next. Requests that are due are carried out on the way.
    pub(super) fn next(&mut self, id: LinkId, now: Instant) -> Next {
        let reaches = |link: &Link<Request>| link.is_up() && link.paused.is_none();
        if !self.links.get(&id).is_some_and(reaches) {
            return self.next_step(id, now);
        }
        self.look(id, now);
        let next = self.next_step(id, now);
        let Next::Wait(due) = next else { return next };
        // What was carried out on the way may have changed when to look.
        Next::Wait(due.into_iter().chain(self.presence.due(&self.nodes)).min())
    }

    fn next_step(&mut self, id: LinkId, now: Instant) -> Next {
        loop {
            let Some(link) = self.links.get_mut(&id) else {
                return Next::End;
            };
            if let Some(since) = link.paused {
                let lost_at = since + link.options.timeout;
                if link.is_up() && lost_at <= now {
                    link.go_down("it does not answer", now, true);
                }
                return match link.notices.pop_front() {
                    Some(notice) => Next::Handle(Arc::clone(&link.handler), notice),
                    None => Next::Wait(link.is_up().then_some(lost_at)),
                };
            }
            if let Some(notice) = link.notices.pop_front() {
                return Next::Handle(Arc::clone(&link.handler), notice);
            }
            match link.agenda.take(now) {
                Some(Step::Request(request)) => self.execute(id, request, now),
                Some(Step::Answer(reply)) => return Next::Answer(reply),
                Some(Step::Event(event)) => return Next::Handle(Arc::clone(&link.handler), event),
                None => return Next::Wait(link.agenda.due()),
            }
        }
    }

    /// Ends a link. What the node has announced and claimed stays until its time is over. The link is to be dropped when
    /// the lock is free, because its handler may own a node.
    pub(super) fn end(&mut self, id: LinkId) -> Option<Link<Request>> {
        let link = self.links.remove(&id)?;
        self.past.entry(link.name.clone()).or_default().add(&link.counts);
        link.wake.notify_one();
        Some(link)
    }

    /// Whether there is anything on its way that closing has to wait for.
    pub(super) fn is_open(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.is_up() && !link.is_closing)
    }

    /// Disconnects links, or reconnects them; `None` means all.
    pub(super) fn set_disconnected(
        &mut self,
        name: Option<&str>,
        is_disconnected: bool,
        now: Instant,
    ) {
        if name.is_none() {
            self.is_reachable = !is_disconnected;
        }
        for link in self.links.values_mut().filter(|link| is_named(link, name)) {
            if name.is_some() {
                link.is_disconnected = is_disconnected;
            }
            if is_disconnected {
                link.go_down(UNREACHABLE, now, false);
            }
        }
        self.come_back(now);
    }

    /// Stops all that is on its way, or lets it go on; `None` means all links.
    pub(super) fn set_paused(&mut self, name: Option<&str>, is_paused: bool, now: Instant) {
        for link in self.links.values_mut().filter(|link| is_named(link, name)) {
            link.paused = is_paused.then(|| link.paused.unwrap_or(now));
            link.wake.notify_one();
        }
        self.come_back(now);
    }

    /// Every link breaks and is set up again, with topics as a replica has them.
    pub(super) fn fail_over(&mut self, lost: u64, epochs: NewEpoch, now: Instant) {
        for link in self.links.values_mut() {
            link.go_down("the primary has failed", now, false);
        }
        self.topics.fail_over(lost, epochs, &mut self.dice);
        self.come_back(now);
    }

    /// Sets up the links that can be set up again.
    fn come_back(&mut self, now: Instant) {
        let can =
            |link: &Link<Request>| !link.is_up() && !link.is_disconnected && link.paused.is_none();
        let links = self.links.iter().filter(|(_, link)| can(link) && self.is_reachable);
        let ids: Vec<LinkId> = links.map(|(id, _)| *id).collect();
        for id in ids {
            // Those that waited in a pause are carried out now. Nobody waits for them any more. Joins and leaves have ended
            // with their connection: what the node has asked since counts.
            let waited = self.links.get_mut(&id).map(|link| link.agenda.take_requests());
            for request in waited.unwrap_or_default() {
                if !matches!(request.method, Method::Join | Method::Leave) {
                    self.execute(id, request, now);
                }
            }
            let Some(link) = self.links.get_mut(&id) else { continue };
            let Some(since) = link.down.take() else { continue };
            link.notices.push_back(Event::Gap(Scope::All));
            renumber(link, self.nodes.lease(id, now));
            link.notices.push_back(Event::Back { after: now - since });
            link.wake.notify_one();
        }
    }

    pub(super) fn publish(
        &mut self,
        id: LinkId,
        batch: Batch,
        now: Instant,
    ) -> Result<Published, Error> {
        if let Some(text) = &self.refusal {
            return Err(Error::Refused(text.clone()));
        }
        if batch.entries.is_empty() {
            return Err(Error::Refused("a batch without messages".to_owned()));
        }
        let topic = Name::clone(&batch.topic);
        let mut accepted = self.topics.publish(id.0, batch, now, &mut self.dice)?;
        if accepted.is_repeated {
            return Ok(accepted.published);
        }
        let subscribers =
            self.links.values_mut().filter(|link| link.is_up() && link.topics.contains(&topic));
        let epoch = accepted.published.epoch;
        let mut nodes = 0;
        for link in subscribers {
            nodes += 1;
            if !accepted.messages.is_empty() {
                let (topic, messages) = (Name::clone(&topic), accepted.messages.clone());
                link.tell(Event::Messages { topic, epoch, messages }, now, &mut self.dice);
            }
        }
        accepted.published.nodes = nodes;
        self.topics.note_nodes(id.0, &topic, nodes);
        Ok(accepted.published)
    }

    pub(super) fn claim(&mut self, id: LinkId, claim: &Claim, now: Instant) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let interest = link.devices.entry(Name::clone(&claim.device)).or_default();
        interest.insert(claim.connection);
        if !claim.is_counted {
            return;
        }
        let connections_max = link.options.connections_per_device_max;
        let nanos = i128::try_from((now - self.started).as_nanos()).unwrap_or(i128::MAX);
        let lives = |link| self.nodes.lives(link, now);
        let evicted = self.devices.claim(id, claim, nanos, connections_max, lives);
        for (connection, owner) in evicted {
            if let Some(link) = self.links.get_mut(&owner) {
                let device = Name::clone(&claim.device);
                link.tell(Event::Evicted { device, connection }, now, &mut self.dice);
            }
        }
    }

    pub(super) fn release(&mut self, id: LinkId, claim: &Claim) {
        self.devices.release(id, claim);
        let Some(link) = self.links.get_mut(&id) else { return };
        if let Some(connections) = link.devices.get_mut(&claim.device) {
            connections.remove(&claim.connection);
            if connections.is_empty() {
                link.devices.remove(&claim.device);
            }
        }
    }

    /// Sends to the links of which this is true; how many those are.
    pub(super) fn tell(
        &mut self,
        event: &Event,
        now: Instant,
        is_meant: impl Fn(&Link<Request>) -> bool,
    ) -> u32 {
        let meant = self.links.values_mut().filter(|link| link.is_up() && is_meant(link));
        let mut told = 0;
        for link in meant {
            told += 1;
            link.tell(event.clone(), now, &mut self.dice);
        }
        told
    }

    /// The same, unless a message with this idempotency key was sent before; how many that one has reached.
    pub(super) fn tell_once(
        &mut self,
        key: Option<SentKey>,
        event: &Event,
        now: Instant,
        is_meant: impl Fn(&Link<Request>) -> bool,
    ) -> u32 {
        self.sent.retain(|_, (_, until)| *until > now);
        if let Some((reached, _)) = key.as_ref().and_then(|key| self.sent.get(key)) {
            return *reached;
        }
        let reached = self.tell(event, now, is_meant);
        if let Some(key) = key.filter(|_| reached > 0) {
            self.sent.insert(key, (reached, now + Entry::KEY_KEPT));
        }
        reached
    }

    /// The wall clock of the broker, in microseconds.
    pub(super) fn micros(&self, now: Instant) -> u64 {
        let since = u64::try_from((now - self.started).as_micros()).unwrap_or(u64::MAX);
        (STARTED_MILLIS * 1000).saturating_add(since)
    }

    pub(super) fn revoke(&mut self, device: Name, now: Instant) -> RevocationId {
        let millis = self.micros(now) / 1000;
        let revocation: Revocation = self.revocations.add(device, millis, now);
        self.tell(&Event::Revoked(revocation.clone()), now, |_| true);
        revocation.id
    }

    pub(super) fn announce(&mut self, id: LinkId, node: Node, now: Instant) -> Result<(), Error> {
        let link = self.links.get_mut(&id).ok_or_else(closed)?;
        renumber(link, self.nodes.lease(id, now));
        if node.number != link.number {
            let (announced, own) = (node.number.0, link.number.0);
            let text = format!("the node with number {own} announces itself as {announced}");
            return Err(Error::Refused(text));
        }
        let until = now + link.options.node_ttl;
        if self.nodes.announce(id, node, until, now) {
            self.devices.remove(id);
        }
        if self.presence.came_back(id) {
            link.notices.push_back(Event::Gap(Scope::All));
            link.wake.notify_one();
        }
        Ok(())
    }

    pub(super) fn retire(&mut self, id: LinkId, call: u64, now: Instant) {
        self.nodes.retire(id);
        self.devices.remove(id);
        self.exit_by_call(id, call, now);
        self.end_attendance(id, id);
    }

    /// What has happened so far at nodes of this name; `None`: at all.
    pub(super) fn counts(&self, name: Option<&str>) -> Counts {
        let mut counts = Counts::default();
        let past = self.past.iter().filter(|(past, _)| name.is_none_or(|name| name == *past));
        past.for_each(|(_, past)| counts.add(past));
        let links = self.links.values().filter(|link| is_named(link, name));
        links.for_each(|link| counts.add(&link.counts));
        counts
    }
}

const UNREACHABLE: &str = "the broker is unreachable";

/// Whether a request whose connection has broken may still be carried out. The others belong to the connection, or would
/// undo what was asked since.
fn may_be_late(method: Method) -> bool {
    matches!(
        method,
        Method::Publish
            | Method::ToDevice
            | Method::ToAll
            | Method::ToNode
            | Method::Revoke
            | Method::Enter
            | Method::Exit
            | Method::Attend
    )
}

/// Tells a node its new number, if its lease has lapsed.
fn renumber(link: &mut Link<Request>, number: Option<NodeNumber>) {
    if let Some(number) = number.filter(|number| *number != link.number) {
        link.number = number;
        link.notices.push_back(Event::Renumbered(number));
        link.wake.notify_one();
    }
}

fn is_named(link: &Link<Request>, name: Option<&str>) -> bool {
    name.is_none_or(|name| link.name == name)
}

fn closed() -> Error {
    Error::Refused("the broker is closed".to_owned())
}
