//! The subscriptions at one Redis node: one connection, one task, which reads, writes and makes them anew.
//!
//! The connection is our own, on top of the same streams as those for requests. Three things of the `redis` crate (1.8)
//! stand against its connections here. Its multiplexed connection takes each `sunsubscribe` for the answer to its oldest
//! request, and Redis sends one unasked when a slot moves: from then on answers go to others' requests. It offers
//! `SSUBSCRIBE` for cluster connections alone, which resubscribe without telling for which channels there was a gap. And
//! its queues of messages have no bounds. What is left to write ourselves is small: a reply has one of four shapes.
//!
//! The task never waits for the handler, for a caller, or for Redis to read.

mod call;
mod reply;
mod session;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

pub(super) use self::call::Call;
use super::backoff::Backoff;
use super::counts::{Counters, count};
use super::dial::SharedDialer;
use super::health::Health;
use super::keys::{Interest, Keys, Slot};
use super::options::Address;
use super::requests::Lane;
use crate::contract::{Error, Event, EventHandler};
use crate::records::Scope;

/// What all subscriptions share.
pub(super) struct Context {
    pub(super) keys: Keys,
    pub(super) handler: Arc<dyn EventHandler>,
    pub(super) dialer: SharedDialer,
    pub(super) health: Health,
    pub(super) counts: Arc<Counters>,
    /// The number of this node.
    pub(super) number: AtomicU16,
    /// Tells this node from all others, also from those that had its name before.
    pub(super) instance: String,
    /// Asks for a look at which Redis node has which slots.
    pub(super) look: Notify,
    /// How often gaps were told: what Redis had before one may be lost.
    pub(super) interruptions: AtomicU64,
    pub(super) probe_every: Duration,
    /// How long a request may take.
    pub(super) timeout: Duration,
}

/// What a Redis node's subscriptions begin with.
pub(super) struct Place {
    pub(super) address: Address,
    /// Its number in [`Health`].
    pub(super) number: u64,
    /// A slot that it has.
    pub(super) slot: Arc<AtomicU16>,
    /// Whether it has all slots.
    pub(super) is_only: bool,
}

/// The subscriptions at one Redis node. They end when this is dropped.
pub(super) struct Subscriber {
    asks: mpsc::Sender<Ask>,
    task: JoinHandle<()>,
}

/// A subscription that moves to another Redis node, with the calls that wait for it.
pub(super) struct Moved {
    pub(super) interest: Interest,
    waiters: Vec<Arc<Call>>,
}

/// What a subscriber is asked.
enum Ask {
    Join {
        interests: Vec<Interest>,
        call: Arc<Call>,
    },
    Leave {
        interests: Vec<Interest>,
        call: Arc<Call>,
    },
    /// Forgets what only this call wanted, and what does not stand yet.
    Abandon {
        interests: Vec<Interest>,
        call: Arc<Call>,
    },
    /// Takes over from another one; a gap is told.
    Take(Vec<Moved>),
    /// Gives up what is not its own any more.
    Give {
        keeps: Box<dyn Fn(Slot) -> bool + Send>,
        answer: oneshot::Sender<Vec<Moved>>,
    },
}

impl Subscriber {
    /// Begins with what it takes over from others.
    pub(super) fn new(
        context: Arc<Context>,
        place: Place,
        lane: Arc<Lane>,
        taken: Vec<Moved>,
    ) -> Subscriber {
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let mut worker = Worker {
            context,
            place,
            lane,
            asked,
            table: HashMap::new(),
            unsent: VecDeque::new(),
            refused: Vec::new(),
            serial: 0,
            is_down: false,
            has_gaps: false,
        };
        worker.take(taken);
        Subscriber { asks, task: tokio::spawn(worker.run()) }
    }

    /// Subscribes; the call ends when all stand.
    ///
    /// # Errors
    /// This subscriber has ended.
    pub(super) async fn join(&self, interests: Vec<Interest>, call: Arc<Call>) -> Result<(), ()> {
        self.asks.send(Ask::Join { interests, call }).await.map_err(|_| ())
    }

    /// Unsubscribes; the call ends when none stands any more.
    pub(super) async fn leave(&self, interests: Vec<Interest>, call: Arc<Call>) {
        let _ = self.asks.send(Ask::Leave { interests, call }).await;
    }

    /// Forgets what only a call wanted that has ended in vain.
    pub(super) fn abandon(&self, interests: Vec<Interest>, call: Arc<Call>) {
        // When too much waits, a subscription stays that nobody wants: messages of it go nowhere.
        let _ = self.asks.try_send(Ask::Abandon { interests, call });
    }

    /// Ends the subscriptions: nothing is heard any more.
    pub(super) fn hush(&self) {
        self.task.abort();
    }

    /// Takes over from another one.
    pub(super) async fn take(&self, taken: Vec<Moved>) {
        let _ = self.asks.send(Ask::Take(taken)).await;
    }

    /// Gives up what is in slots that it does not keep.
    pub(super) async fn give(&self, keeps: impl Fn(Slot) -> bool + Send + 'static) -> Vec<Moved> {
        let (answer, answered) = oneshot::channel();
        let ask = Ask::Give { keeps: Box::new(keeps), answer };
        if self.asks.send(ask).await.is_err() {
            return Vec::new();
        }
        answered.await.unwrap_or_default()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task of a subscriber.
struct Worker {
    context: Arc<Context>,
    place: Place,
    /// Through which it sends messages to itself.
    lane: Arc<Lane>,
    asked: mpsc::Receiver<Ask>,
    /// What messages are wanted for.
    table: HashMap<Interest, Standing>,
    /// What is to be sent on this connection.
    unsent: VecDeque<Request>,
    /// What Redis has refused, to be tried again.
    refused: Vec<(Interest, u64)>,
    /// The number of the last entry of the table.
    serial: u64,
    /// Whether the last attempt to connect failed.
    is_down: bool,
    /// Whether there may be gaps that are not told yet.
    has_gaps: bool,
}

/// How a subscription stands.
struct Standing {
    /// Tells it from an earlier one for the same interest, whose confirmation may still come.
    serial: u64,
    stands: bool,
    /// Whether it was interrupted.
    has_gap: bool,
    waiters: Vec<Arc<Call>>,
}

/// What is asked on a connection: Redis answers in order.
enum Request {
    Introduction,
    Probe,
    Join(Interest, u64),
    Leave(Interest, Option<Arc<Call>>),
    /// Not sent: all before it are answered: subscriptions that stood before stand again.
    Restored,
}

impl Worker {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let Some(dialed) = self.dial().await else { return };
            let why = match dialed {
                Ok(dialed) => {
                    count(&self.context.counts.connects);
                    self.restore();
                    let ended = session::Session::new(&mut self, dialed).run().await;
                    let Some(why) = ended else { return };
                    if !self.is_down {
                        // One attempt at once: most often it was the connection alone.
                        backoff.succeeded();
                        tracing::warn!(redis = %self.place.address, why, "subscribing again");
                        self.interrupt();
                        self.context.look.notify_one();
                        self.is_down = true;
                        continue;
                    }
                    why
                }
                Err(why) => why,
            };
            self.interrupt();
            self.is_down = true;
            self.refuse_waiters(&why);
            self.context.health.down(self.place.number, &why);
            self.context.look.notify_one();
            let until = backoff.failed(&why);
            if !self.wait(until, &why).await {
                return;
            }
        }
    }

    /// Connects while it listens to what is asked; `None`: nobody asks any more.
    async fn dial(&mut self) -> Option<Result<session::Dialed, String>> {
        let (dialer, address) = (self.context.dialer.clone(), self.place.address.clone());
        let mut dialing = Box::pin(async move { dialer.dial_for_subscriptions(&address).await });
        loop {
            tokio::select! {
                dialed = &mut dialing => return Some(dialed),
                ask = self.asked.recv() => self.handle_offline(ask?),
            }
        }
    }

    /// Waits, and refuses what is asked meanwhile; whether anybody may still ask.
    async fn wait(&mut self, until: tokio::time::Instant, why: &str) -> bool {
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return true,
                ask = self.asked.recv() => match ask {
                    Some(Ask::Join { call, .. }) => call.failed(Error::Unavailable(why.to_owned())),
                    Some(ask) => self.handle_offline(ask),
                    None => return false,
                },
            }
        }
    }

    /// Without a connection. Nothing is to be sent then: a new one begins with the whole table.
    fn handle_offline(&mut self, ask: Ask) {
        self.handle(ask);
        self.unsent.clear();
    }

    fn handle(&mut self, ask: Ask) {
        match ask {
            Ask::Join { interests, call } => {
                for interest in interests {
                    self.join(interest, &call);
                }
            }
            Ask::Leave { interests, call } => {
                for interest in interests {
                    if self.table.remove(&interest).is_some() {
                        self.unsent.push_back(Request::Leave(interest, Some(call.clone())));
                    } else {
                        call.succeeded();
                    }
                }
            }
            Ask::Abandon { interests, call } => {
                for interest in interests {
                    self.abandon(interest, &call);
                }
            }
            Ask::Take(taken) => {
                self.take(taken);
                self.unsent.push_back(Request::Restored);
            }
            Ask::Give { keeps, answer } => {
                let _ = answer.send(self.give(&*keeps));
            }
        }
    }

    fn join(&mut self, interest: Interest, call: &Arc<Call>) {
        if let Some(standing) = self.table.get_mut(&interest) {
            if standing.stands {
                call.succeeded();
            } else {
                standing.waiters.push(call.clone());
            }
            return;
        }
        self.insert(interest, vec![call.clone()], false);
    }

    fn abandon(&mut self, interest: Interest, call: &Arc<Call>) {
        let Some(standing) = self.table.get_mut(&interest) else { return };
        standing.waiters.retain(|waiter| !Arc::ptr_eq(waiter, call));
        if !standing.stands && !standing.has_gap && standing.waiters.is_empty() {
            self.table.remove(&interest);
            self.unsent.push_back(Request::Leave(interest, None));
        }
    }

    fn take(&mut self, taken: Vec<Moved>) {
        self.has_gaps |= !taken.is_empty();
        for Moved { interest, waiters } in taken {
            match self.table.get_mut(&interest) {
                None => self.insert(interest, waiters, true),
                Some(standing) if standing.stands => {
                    // It was joined here meanwhile. What came before that is missed.
                    waiters.iter().for_each(|call| call.succeeded());
                    standing.has_gap = true;
                }
                Some(standing) => {
                    standing.has_gap = true;
                    standing.waiters.extend(waiters);
                }
            }
        }
    }

    fn insert(&mut self, interest: Interest, waiters: Vec<Arc<Call>>, has_gap: bool) {
        self.serial += 1;
        let serial = self.serial;
        self.unsent.push_back(Request::Join(interest.clone(), serial));
        self.table.insert(interest, Standing { serial, stands: false, has_gap, waiters });
    }

    fn give(&mut self, keeps: &dyn Fn(Slot) -> bool) -> Vec<Moved> {
        let keys = &self.context.keys;
        let given: Vec<_> =
            self.table.extract_if(|interest, _| !keeps(keys.channel(interest).0)).collect();
        let given = given.into_iter().map(|(interest, standing)| {
            self.unsent.push_back(Request::Leave(interest.clone(), None));
            Moved { interest, waiters: standing.waiters }
        });
        given.collect()
    }

    /// Nothing stands any more.
    fn interrupt(&mut self) {
        self.unsent.clear();
        self.refused.clear();
        for standing in self.table.values_mut() {
            // What never stood has missed nothing.
            standing.has_gap |= standing.stands;
            standing.stands = false;
            self.has_gaps |= standing.has_gap;
        }
    }

    /// Has everything subscribed to on a new connection.
    fn restore(&mut self) {
        self.unsent.clear();
        for (interest, standing) in &self.table {
            self.unsent.push_back(Request::Join(interest.clone(), standing.serial));
        }
        self.unsent.push_back(Request::Restored);
    }

    /// Tells those who wait that it fails, and forgets what only they wanted.
    fn refuse_waiters(&mut self, why: &str) {
        self.table.retain(|_, standing| {
            for call in standing.waiters.drain(..) {
                call.failed(Error::Unavailable(why.to_owned()));
            }
            standing.stands || standing.has_gap
        });
    }

    /// Tells the gap of a topic before its first message behind the gap.
    fn tell_gap(&mut self, interest: &Interest) {
        if !self.has_gaps {
            return;
        }
        let Some(standing) = self.table.get_mut(interest) else { return };
        if std::mem::take(&mut standing.has_gap)
            && let Interest::Topic(name) = interest
        {
            self.context.tell_gap(Scope::Topics(vec![name.clone()]));
        }
    }

    /// Everything that was asked before stands.
    fn restored(&mut self) {
        self.is_down = false;
        self.tell_gaps();
        self.has_gaps = self.table.values().any(|standing| standing.has_gap);
        self.context.health.up(self.place.number);
    }

    /// Tells the gaps of what stands again.
    fn tell_gaps(&mut self) {
        let (mut topics, mut devices, mut has_node) = (Vec::new(), Vec::new(), false);
        for (interest, standing) in &mut self.table {
            if standing.stands && std::mem::take(&mut standing.has_gap) {
                match interest {
                    Interest::Topic(name) => topics.push(name.clone()),
                    Interest::Device(name) => devices.push(name.clone()),
                    Interest::Node(_) | Interest::All | Interest::Revocations => has_node = true,
                }
            }
        }
        let scopes = if self.place.is_only && std::mem::take(&mut self.has_gaps) {
            vec![Scope::All]
        } else {
            let mut scopes = Vec::new();
            scopes.extend((!topics.is_empty()).then_some(Scope::Topics(topics)));
            scopes.extend((!devices.is_empty()).then_some(Scope::Devices(devices)));
            scopes.extend(has_node.then_some(Scope::Node));
            scopes
        };
        for scope in scopes {
            self.context.tell_gap(scope);
        }
    }
}

impl Context {
    fn tell_gap(&self, scope: Scope) {
        self.interruptions.fetch_add(1, Ordering::Relaxed);
        self.handler.handle(Event::Gap(scope));
    }
}

/// Calls that may wait for a subscriber.
const ASKS_MAX: usize = 1024;
