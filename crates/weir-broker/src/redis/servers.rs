//! The Redis nodes that are used, and what goes to which.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt as _;
use redis::{Cmd, ServerErrorKind, Value};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::discovery::{Layout, discover};
use super::eviction;
use super::keys::{Interest, Slot};
use super::lineage::{adoption, data_sets};
use super::options::Address;
use super::requests::{Fault, Lane, LaneOptions};
use super::subscriber::{Call, Context, Moved, Place, Subscriber};
use crate::contract::Error;

/// The Redis nodes that are used.
pub(super) struct Servers {
    context: Arc<Context>,
    seeds: Vec<Address>,
    lane_options: LaneOptions,
    map: Mutex<Arc<Map>>,
}

/// Which Redis node has which slots, at a moment.
struct Map {
    layout: Layout,
    servers: Vec<Arc<Server>>,
}

/// A primary.
struct Server {
    address: Address,
    /// Its number in the context's `health`.
    number: u64,
    /// A slot that it has.
    slot: Arc<AtomicU16>,
    lane: Arc<Lane>,
    subscriber: Subscriber,
}

/// A request, and where it goes.
pub(super) struct Request {
    pub(super) slot: Slot,
    pub(super) command: Cmd,
}

/// What is left to be done for a request.
struct Open {
    index: usize,
    request: Request,
    /// The Redis node that has the slot, as the one said that was asked.
    redirect: Option<Redirect>,
    /// What goes before it, as its topics have come from another primary.
    adoption: Option<Cmd>,
}

/// Where a request goes instead.
struct Redirect {
    to: Address,
    /// Whether the slot is just being moved there.
    is_moving: bool,
}

impl Map {
    fn owner(&self, slot: Slot) -> Option<&Arc<Server>> {
        match &self.layout.owners {
            None => self.servers.first(),
            Some(owners) => self.servers.get(usize::from(owners[usize::from(slot)]?)),
        }
    }

    fn at(&self, address: &Address) -> Option<&Arc<Server>> {
        self.servers.iter().find(|server| server.address == *address)
    }
}

impl Servers {
    /// Finds them.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: none can be reached.
    pub(super) async fn open(
        context: Arc<Context>,
        seeds: Vec<Address>,
        lane_options: LaneOptions,
    ) -> Result<Servers, Error> {
        let layout = discover(&context.dialer, seeds.clone()).await.map_err(Error::Unavailable)?;
        let nothing = Layout { primaries: Vec::new(), owners: None };
        let map = Mutex::new(Arc::new(Map { layout: nothing, servers: Vec::new() }));
        let servers = Servers { context, seeds, lane_options, map };
        servers.install(layout).await;
        Ok(servers)
    }

    /// Keeps up with what Redis does: runs until it is dropped.
    pub(super) async fn watch(&self) {
        tokio::join!(self.follow(), eviction::watch(&self.context, || self.lanes()));
    }

    /// The primaries in use.
    fn lanes(&self) -> Vec<(Address, Arc<Lane>)> {
        let map = self.map();
        map.servers.iter().map(|server| (server.address.clone(), server.lane.clone())).collect()
    }

    /// Keeps up with failovers and slots.
    async fn follow(&self) {
        let mut backoff = Backoff::default();
        loop {
            let every = LOOK_EVERY.mul_f64(rand::rng().random_range(0.75..1.25));
            let _ = tokio::time::timeout(every, self.context.look.notified()).await;
            loop {
                // Those in use come first: where two claim to be the primary, the first is believed.
                let map = self.map();
                let used = map.servers.iter().map(|server| &server.address);
                let mut addresses: Vec<Address> = Vec::new();
                for address in used.chain(&self.seeds) {
                    if !addresses.contains(address) {
                        addresses.push(address.clone());
                    }
                }
                match discover(&self.context.dialer, addresses).await {
                    Ok(layout) => {
                        backoff.succeeded();
                        self.install(layout).await;
                        break;
                    }
                    Err(why) => tokio::time::sleep_until(backoff.failed(&why)).await,
                }
            }
            // However often somebody asks.
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// Uses what is there now: hands subscriptions over, and gives up what is there no more.
    async fn install(&self, layout: Layout) {
        let old = self.map();
        if old.layout == layout && !old.servers.is_empty() {
            return;
        }
        let mut moved: HashMap<Address, Vec<Moved>> = HashMap::new();
        for server in &old.servers {
            let (kept, address) = (layout.clone(), server.address.clone());
            let keeps = move |slot| kept.owner(slot) == Some(&address);
            for given in server.subscriber.give(keeps).await {
                let slot = self.context.keys.channel(&given.interest).0;
                if let Some(owner) = layout.owner(slot) {
                    moved.entry(owner.clone()).or_default().push(given);
                }
            }
        }
        let mut servers = Vec::new();
        for (index, address) in layout.primaries.iter().enumerate() {
            let taken = moved.remove(address).unwrap_or_default();
            let slot = layout.slot_of(index).unwrap_or(0);
            if let Some(server) = old.at(address) {
                let known = server.slot.load(Ordering::Relaxed);
                if layout.owner(known) != Some(address) {
                    server.slot.store(slot, Ordering::Relaxed);
                }
                if !taken.is_empty() {
                    server.subscriber.take(taken).await;
                }
                servers.push(server.clone());
            } else {
                tracing::info!(redis = %address, "a primary is used");
                servers.push(self.server(address, slot, layout.owners.is_none(), taken));
            }
        }
        *self.lock() = Arc::new(Map { layout: layout.clone(), servers });
        for server in &old.servers {
            if !layout.primaries.contains(&server.address) {
                tracing::info!(redis = %server.address, "a primary is used no more");
                self.context.health.forget(server.number);
            }
        }
    }

    fn server(
        &self,
        address: &Address,
        slot: Slot,
        is_only: bool,
        taken: Vec<Moved>,
    ) -> Arc<Server> {
        let lane = Lane::new(address.clone(), self.context.dialer.clone(), &self.lane_options);
        let lane = Arc::new(lane);
        let number = self.context.health.add();
        let slot = Arc::new(AtomicU16::new(slot));
        let place = Place { address: address.clone(), number, slot: slot.clone(), is_only };
        let subscriber = Subscriber::new(self.context.clone(), place, lane.clone(), taken);
        Arc::new(Server { address: address.clone(), number, slot, lane, subscriber })
    }

    /// Carries out requests, those for one Redis node in one pipeline; an answer for each, in order. With `replicas`,
    /// so many replicas must have them.
    pub(super) async fn run(
        &self,
        requests: Vec<Request>,
        replicas: usize,
        until: Instant,
    ) -> Vec<Result<Value, Error>> {
        let late = || Err(Error::Unavailable("Redis was busy for too long".to_owned()));
        let mut answers: Vec<_> = requests.iter().map(|_| late()).collect();
        let mut open: Vec<Open> = requests
            .into_iter()
            .enumerate()
            .map(|(index, request)| Open { index, request, redirect: None, adoption: None })
            .collect();
        for pause in PAUSES {
            let went = self.run_once(open, replicas, until).await;
            open = Vec::new();
            let mut foreign = Vec::new();
            for (mut request, answer) in went {
                let index = request.index;
                answers[index] = match answer {
                    Ok(Value::ServerError(error)) => match Refusal::of(&error) {
                        Refusal::Final(error) => Err(error),
                        Refusal::Foreign(why) => {
                            foreign.push(request);
                            Err(Error::Unavailable(why))
                        }
                        Refusal::Passes(why, redirect) => {
                            let is_known = |to: &Redirect| self.map().at(&to.to).is_some();
                            request.redirect = redirect.filter(is_known);
                            open.push(request);
                            Err(Error::Unavailable(why))
                        }
                    },
                    answer => answer,
                };
            }
            self.have_adopted(&mut foreign, until).await;
            let waits = open.iter().any(|request| request.redirect.is_none());
            if !open.is_empty() {
                self.context.look.notify_one();
            }
            open.append(&mut foreign);
            if open.is_empty() {
                break;
            }
            if waits {
                if Instant::now() + pause >= until {
                    break;
                }
                tokio::time::sleep(pause).await;
            }
        }
        answers
    }

    /// Has topics taken over, with the next attempt, that have come from other Redis nodes.
    async fn have_adopted(&self, requests: &mut [Open], until: Instant) {
        if requests.is_empty() {
            return;
        }
        let lanes = self.map().servers.iter().map(|server| server.lane.clone()).collect();
        let data_sets = data_sets(lanes, until).await;
        for open in requests {
            open.adoption = Some(adoption(&open.request.command, &data_sets));
        }
    }

    async fn run_once(
        &self,
        open: Vec<Open>,
        replicas: usize,
        until: Instant,
    ) -> Vec<(Open, Result<Value, Error>)> {
        let map = self.map();
        let mut went = Vec::with_capacity(open.len());
        let mut groups: Vec<(Arc<Server>, Vec<Open>)> = Vec::new();
        for request in open {
            let redirected = request.redirect.as_ref().and_then(|redirect| map.at(&redirect.to));
            let server = redirected.or_else(|| map.owner(request.request.slot));
            let Some(server) = server else {
                let why = "no Redis node has this slot".to_owned();
                went.push((request, Err(Error::Unavailable(why))));
                continue;
            };
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, server)) {
                Some((_, group)) => group.push(request),
                None => groups.push((server.clone(), vec![request])),
            }
        }
        if groups.len() == 1 {
            for (server, group) in groups {
                went.extend(carry(&server, group, replicas, until).await);
            }
            return went;
        }
        let mut carrying = JoinSet::new();
        for (server, group) in groups {
            carrying.spawn(async move { carry(&server, group, replicas, until).await });
        }
        while let Some(carried) = carrying.join_next().await {
            went.extend(carried.unwrap_or_default());
        }
        went
    }

    /// Whether one Redis has everything.
    pub(super) fn is_single(&self) -> bool {
        self.map().layout.owners.is_none()
    }

    /// Subscribes, and waits until all stand. What is held is let go when all are asked for.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; some may stand then.
    pub(super) async fn join(
        &self,
        interests: Vec<Interest>,
        until: Instant,
        held: Option<impl Send>,
    ) -> Result<(), Error> {
        let mut held = held;
        if interests.is_empty() {
            return Ok(());
        }
        let why = || Error::Unavailable("the subscription was not confirmed in time".to_owned());
        while Instant::now() < until {
            let (call, answered) = Call::new(interests.len());
            let open = Arc::downgrade(&call);
            let joining = async {
                for (server, group) in self.grouped(interests.clone()) {
                    // Dropped with the call, which then fails.
                    let _ = server.subscriber.join(group, call.clone()).await;
                }
                drop(call);
                held = None;
                answered.await
            };
            match tokio::time::timeout_at(until, joining).await {
                Ok(Ok(answer)) => return answer,
                // A Redis node is no longer used: its successor is asked.
                Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(_) => {
                    if let Some(call) = open.upgrade() {
                        self.abandon(interests, &call);
                    }
                    break;
                }
            }
        }
        Err(why())
    }

    /// Forgets topics that nobody waits for any more. What is wanted of devices is known to their claims.
    fn abandon(&self, mut interests: Vec<Interest>, call: &Arc<Call>) {
        interests.retain(|interest| matches!(interest, Interest::Topic(_)));
        for (server, group) in self.grouped(interests) {
            server.subscriber.abandon(group, call.clone());
        }
    }

    /// Unsubscribes, and waits until none stands any more.
    ///
    /// # Errors
    /// [`Error::Uncertain`]: it takes too long.
    pub(super) async fn leave(
        &self,
        interests: Vec<Interest>,
        until: Instant,
    ) -> Result<(), Error> {
        if interests.is_empty() {
            return Ok(());
        }
        let (call, answered) = Call::new(interests.len());
        let leaving = async {
            for (server, group) in self.grouped(interests) {
                server.subscriber.leave(group, call.clone()).await;
            }
            drop(call);
            // Where a connection breaks, its subscriptions end with it.
            let _ = answered.await;
        };
        let left = tokio::time::timeout_at(until, leaving).await;
        left.map_err(|_| Error::Uncertain("no answer in time".to_owned()))
    }

    /// Ends the subscriptions. Requests are carried out still.
    pub(super) fn hush(&self) {
        self.map().servers.iter().for_each(|server| server.subscriber.hush());
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        let nothing = Layout { primaries: Vec::new(), owners: None };
        *self.lock() = Arc::new(Map { layout: nothing, servers: Vec::new() });
    }

    fn grouped(&self, interests: Vec<Interest>) -> Vec<(Arc<Server>, Vec<Interest>)> {
        let map = self.map();
        let mut groups: Vec<(Arc<Server>, Vec<Interest>)> = Vec::new();
        for interest in interests {
            let slot = self.context.keys.channel(&interest).0;
            // A slot that nobody has is about to be given to somebody: a subscription waits for that anywhere.
            let Some(server) = map.owner(slot).or(map.servers.first()) else { continue };
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, server)) {
                Some((_, group)) => group.push(interest),
                None => groups.push((server.clone(), vec![interest])),
            }
        }
        groups
    }

    fn map(&self) -> Arc<Map> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Map>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends requests to one Redis node.
async fn carry(
    server: &Server,
    group: Vec<Open>,
    replicas: usize,
    until: Instant,
) -> Vec<(Open, Result<Value, Error>)> {
    let mut commands = Vec::with_capacity(group.len());
    let mut places = Vec::with_capacity(group.len());
    for request in &group {
        let is_moving = request.redirect.as_ref().is_some_and(|redirect| redirect.is_moving);
        for command in request.adoption.iter().chain([&request.request.command]) {
            commands.extend(is_moving.then(|| redis::cmd("ASKING")));
            commands.push(command.clone());
        }
        places.push(commands.len() - 1);
    }
    if replicas > 0 {
        let left = until.saturating_duration_since(Instant::now()).as_millis() / 2;
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(u64::try_from(left).unwrap_or(0).max(1));
        commands.push(wait);
    }
    match server.lane.ask(commands, until).await {
        Ok(mut answers) => {
            let replicated = match answers.last() {
                Some(Value::Int(reached)) if replicas > 0 => usize::try_from(*reached).unwrap_or(0),
                _ => usize::MAX,
            };
            let answer = |place: usize| {
                let answer = std::mem::take(&mut answers[place]);
                if replicated < replicas && !matches!(answer, Value::ServerError(_)) {
                    let why = format!("{replicated} of {replicas} replicas have it");
                    return Err(Error::Uncertain(why));
                }
                Ok(answer)
            };
            let answers: Vec<_> = places.into_iter().map(answer).collect();
            group.into_iter().zip(answers).collect()
        }
        Err(fault) => {
            let error = match fault {
                Fault::Unsent(why) => Error::Unavailable(why),
                Fault::Unanswered(why) => Error::Uncertain(why),
            };
            group.into_iter().map(|request| (request, Err(error.clone()))).collect()
        }
    }
}

/// What follows from an error of Redis.
enum Refusal {
    /// It will not do it.
    Final(Error),
    /// It has not done it, as the topic has come from another Redis node, perhaps not whole.
    Foreign(String),
    /// It has not done it, and that may change soon, or another one does it.
    Passes(String, Option<Redirect>),
}

impl Refusal {
    fn of(error: &redis::ServerError) -> Refusal {
        let details = error.details().unwrap_or_default();
        let why = format!("{} {details}", error.code());
        let redirect = |is_moving| {
            // Of "slot host:port".
            let (host, port) = details.split(' ').nth(1)?.rsplit_once(':')?;
            let to = Address { host: host.to_owned(), port: port.parse().ok()? };
            Some(Redirect { to, is_moving })
        };
        match error.kind() {
            Some(ServerErrorKind::Ask) => Refusal::Passes(why, redirect(true)),
            Some(ServerErrorKind::Moved) => Refusal::Passes(why, redirect(false)),
            Some(
                ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly,
            ) => Refusal::Passes(why, None),
            // A script of somebody else runs for long.
            None if error.code() == "FOREIGN" => Refusal::Foreign(why),
            None if error.code() == "BUSY" => Refusal::Passes(why, None),
            _ => Refusal::Final(Error::Refused(why)),
        }
    }
}

/// How often a look is taken without a cause.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Between attempts of a request that Redis has not carried out.
const PAUSES: [Duration; 12] = [
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(200),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(400),
    Duration::from_millis(400),
    Duration::from_millis(400),
    Duration::from_millis(400),
];
