//! Clients that come back and go on where they were, as any program with the client library does.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use weir_client::{
    Backoff, Client, ClientError, Event, Options, Payload, Position, Push, ServerError,
    Subscription,
};

use super::ledger::Ledger;
use super::seen::Seen;
use crate::wait::now;

/// All clients, and what goes wrong for them.
pub(super) struct Crowd {
    nodes: Vec<Door>,
    /// Names of the topics.
    pub(super) topics: Vec<String>,
    pub(super) ledger: Ledger,
    pub(super) listeners: Vec<Listener>,
    /// What breaks a promise of the gateway; the first ones.
    problems: Mutex<Vec<String>>,
    problems_count: AtomicUsize,
    /// Connections that ended although their nodes had not.
    lost: Mutex<Vec<String>>,
    is_over: AtomicBool,
    /// Whether restless clients leave now and then.
    is_restless: AtomicBool,
}

/// Where clients come in.
struct Door {
    addr: SocketAddr,
    /// The test has killed the node: its connections are to end.
    is_killed: AtomicBool,
}

/// One client, and what it has seen.
pub(super) struct Listener {
    name: String,
    /// Indexes of its topics, with what it has seen of each.
    topics: Vec<(usize, Mutex<Seen>)>,
    is_connected: AtomicBool,
    /// After how long it leaves, and goes to another node; `None`: it stays.
    stays_for: Option<Duration>,
}

impl Crowd {
    /// Clients that are in so many of the topics each.
    pub(super) fn new(
        doors: Vec<SocketAddr>,
        (topics, clients, topics_each): (usize, usize, usize),
    ) -> Crowd {
        let door = |addr| Door { addr, is_killed: AtomicBool::new(false) };
        // Only restless clients are in the last topics: nodes join and leave these again and again.
        let busy = topics - topics / 5;
        let listener = |index: usize| {
            let is_restless = is_restless(index, clients);
            let lonely = (is_restless && busy < topics).then(|| busy + index / 4 % (topics - busy));
            // Each pair of neighbours shares a topic.
            let shared = (0..topics_each).map(|each| (index + each) % busy);
            Listener {
                name: format!("client-{index}"),
                topics: lonely
                    .into_iter()
                    .chain(shared)
                    .take(topics_each)
                    .map(|topic| (topic, Mutex::default()))
                    .collect(),
                is_connected: AtomicBool::new(false),
                stays_for: is_restless.then(|| STAYS_FOR[index / 4 % STAYS_FOR.len()]),
            }
        };
        Crowd {
            nodes: doors.into_iter().map(door).collect(),
            topics: (FIRST..FIRST + topics).map(|number| format!("chaos/{number}")).collect(),
            ledger: Ledger::new(topics),
            listeners: (0..clients).map(listener).collect(),
            problems: Mutex::default(),
            problems_count: AtomicUsize::new(0),
            lost: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_restless: AtomicBool::new(false),
        }
    }

    /// Has restless clients leave and come back, or stay.
    pub(super) fn set_restless(&self, is_restless: bool) {
        self.is_restless.store(is_restless, Ordering::SeqCst);
    }

    /// Says whether a node is killed.
    pub(super) fn set_killed(&self, node: usize, is_killed: bool) {
        self.nodes[node].is_killed.store(is_killed, Ordering::SeqCst);
    }

    /// From now on nothing counts any more.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Notes that a promise is broken.
    pub(super) fn note_problem(&self, problem: String) {
        if self.is_over.load(Ordering::SeqCst) {
            return;
        }
        self.problems_count.fetch_add(1, Ordering::Relaxed);
        let mut problems = lock(&self.problems);
        if problems.len() < PROBLEMS_SHOWN {
            problems.push(problem);
        }
    }

    /// Takes what has gone wrong: how much, and the first of it.
    pub(super) fn take_problems(&self) -> (usize, Vec<String>) {
        let count = self.problems_count.swap(0, Ordering::Relaxed);
        (count, std::mem::take(&mut *lock(&self.problems)))
    }

    /// Takes the connections that were lost, with the reason of each.
    pub(super) fn take_lost(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.lost))
    }

    /// Clients that are not connected, or not in all of their topics; without those that leave now and then.
    pub(super) fn missing(&self) -> usize {
        let is_restless = self.is_restless.load(Ordering::SeqCst);
        let is_missing = |listener: &&Listener| {
            !(listener.is_complete() || is_restless && listener.stays_for.is_some())
        };
        self.listeners.iter().filter(is_missing).count()
    }

    /// Clients of a topic that have not seen this message, nor a later one of its epoch.
    pub(super) fn behind(&self, topic: usize, message: Position) -> usize {
        let is_behind = |seen: &Seen| {
            !seen.at().is_some_and(|at| at.epoch == message.epoch && at.offset >= message.offset)
        };
        self.views(topic).filter(|(_, seen)| is_behind(&lock(seen))).count()
    }

    /// The clients of a topic, with what each has seen of it.
    pub(super) fn views(&self, topic: usize) -> impl Iterator<Item = (&Listener, &Mutex<Seen>)> {
        self.listeners.iter().flat_map(move |listener| {
            let topics = listener.topics.iter().filter(move |(index, _)| *index == topic);
            topics.map(move |(_, seen)| (listener, seen))
        })
    }

    /// Runs a client until the runtime ends.
    pub(super) async fn run(self: Arc<Self>, index: usize) {
        let listener = &self.listeners[index];
        let mut subscriptions = listener.subscriptions(&self.topics);
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        for attempt in index.. {
            let node = &self.nodes[attempt % self.nodes.len()];
            let mut options = Options::device(listener.name.as_str());
            options.topics = subscriptions.clone();
            let delay = match Client::connect(node.addr, options).await {
                Err(error) => backoff.after_error(&error),
                Ok(mut client) => {
                    let since = now();
                    listener.is_connected.store(true, Ordering::SeqCst);
                    let end = self.listen(listener, &mut client).await;
                    listener.handle_end();
                    let is_expected = matches!(end, End::Own)
                        || node.is_killed.load(Ordering::SeqCst)
                        || self.is_over.load(Ordering::SeqCst);
                    if !is_expected {
                        let (name, addr) = (&listener.name, node.addr);
                        lock(&self.lost).push(format!("{name} at {addr}: {end}"));
                    }
                    subscriptions = self.rejoined(listener, client.positions());
                    backoff.handle_lasted(since.elapsed());
                    end.delay(&mut backoff)
                }
            };
            let Some(delay) = delay else {
                return self.note_problem(format!("{} is not to return", listener.name));
            };
            sleep(delay).await;
        }
    }

    /// Takes what comes until the connection ends.
    async fn listen(&self, listener: &Listener, client: &mut Client) -> End {
        let mut refused: Vec<usize> = Vec::new();
        let mut again = Instant::now();
        let stays_until = listener.stays_for.map(|time| Instant::now() + time);
        let mut stays_until = stays_until.unwrap_or_else(|| Instant::now() + FOREVER);
        loop {
            let event = tokio::select! {
                event = client.next() => event,
                () = sleep_until(again), if !refused.is_empty() => {
                    for index in refused.drain(..) {
                        let subscription = listener.subscription(index, &self.topics);
                        if let Err(error) = client.subscribe(subscription).await {
                            return End::Error(error);
                        }
                    }
                    continue;
                }
                () = sleep_until(stays_until) => {
                    if self.is_restless.load(Ordering::SeqCst) {
                        return End::Own;
                    }
                    stays_until = Instant::now() + LEAVE_AGAIN;
                    continue;
                }
            };
            match event {
                Ok(Some(Event::Goodbye(goodbye))) => return End::Goodbye(goodbye),
                Ok(Some(event)) => {
                    if let Some(index) = self.handle(listener, event) {
                        refused.push(index);
                        again = Instant::now() + SUBSCRIBE_AGAIN;
                    }
                }
                Ok(None) => return End::Closed,
                Err(error) => return End::Error(error),
            }
        }
    }

    /// Handles an event; the topic that is to be asked for again, if there is one.
    fn handle(&self, listener: &Listener, event: Event) -> Option<usize> {
        let (topic, handled, is_again) = match event {
            Event::Push(push) => {
                let topic = push.topic.clone();
                (topic, self.handle_push(listener, &push), false)
            }
            Event::Subscribed(told) => {
                let handle = |_, seen: &mut Seen| seen.handle_subscribed(&told);
                let handled = listener.with_seen(&told.topic, &self.topics, handle);
                (told.topic, handled, false)
            }
            Event::Unsubscribed(told) => {
                let handle = |_, seen: &mut Seen| seen.handle_unsubscribed(&told);
                let handled = listener.with_seen(&told.topic, &self.topics, handle);
                (told.topic, handled, true)
            }
            Event::Error(ServerError { code, topic, .. }) if code == "busy" => {
                (topic, Ok(()), true)
            }
            other @ (Event::Published(_)
            | Event::Error(_)
            | Event::Pong(_)
            | Event::Expiring(_)
            | Event::Goodbye(_)
            | _) => (String::new(), Err(format!("{other:?}")), false),
        };
        if let Err(problem) = handled {
            self.note_problem(format!("{} in {topic}: {problem}", listener.name));
        }
        let index = || self.topics.iter().position(|name| *name == topic);
        is_again.then(index).flatten()
    }

    fn handle_push(&self, listener: &Listener, push: &Push) -> Result<(), String> {
        let Payload::Text(text) = &push.payload else { return Err(format!("{push:?}")) };
        let number = text.parse().map_err(|_| format!("{push:?}"))?;
        let (topic, at) = listener.with_seen(&push.topic, &self.topics, |topic, seen| {
            Ok((topic, seen.handle_push(push.offset)?))
        })?;
        self.ledger.note_seen(topic, at, number)
    }

    /// What the client asks for on its next connection: what the library says, and topics that
    /// ended and were not joined again yet.
    fn rejoined(&self, listener: &Listener, mut known: Vec<Subscription>) -> Vec<Subscription> {
        for wanted in listener.subscriptions(&self.topics) {
            match known.iter().find(|known| known.topic == wanted.topic) {
                None => known.push(wanted),
                Some(known) if known.from == wanted.from => {}
                Some(known) => self.note_problem(format!(
                    "{} has seen {wanted:?}, and its library {known:?}",
                    listener.name
                )),
            }
        }
        known
    }
}

impl Listener {
    /// The client's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn is_complete(&self) -> bool {
        self.is_connected.load(Ordering::SeqCst)
            && self.topics.iter().all(|(_, seen)| lock(seen).is_in())
    }

    fn handle_end(&self) {
        self.is_connected.store(false, Ordering::SeqCst);
        self.topics.iter().for_each(|(_, seen)| lock(seen).handle_end());
    }

    fn subscriptions(&self, names: &[String]) -> Vec<Subscription> {
        self.topics.iter().map(|(topic, _)| self.subscription(*topic, names)).collect()
    }

    /// Asks for a topic from where this client is.
    fn subscription(&self, topic: usize, names: &[String]) -> Subscription {
        let own = self.topics.iter().find(|(own, _)| *own == topic);
        let from = own.and_then(|(_, seen)| lock(seen).at());
        Subscription { topic: names[topic].clone(), from, presence: false }
    }

    fn with_seen<T>(
        &self,
        topic: &str,
        names: &[String],
        handle: impl FnOnce(usize, &mut Seen) -> Result<T, String>,
    ) -> Result<T, String> {
        let own = self.topics.iter().find(|(own, _)| names[*own] == topic);
        let (topic, seen) = own.ok_or_else(|| format!("{topic:?} is none of its topics"))?;
        handle(*topic, &mut lock(seen))
    }
}

/// How a connection ended.
enum End {
    /// The client has left.
    Own,
    Goodbye(weir_client::Goodbye),
    Closed,
    Error(ClientError),
}

impl End {
    fn delay(&self, backoff: &mut Backoff) -> Option<Duration> {
        match self {
            End::Own => Some(Duration::ZERO),
            End::Goodbye(goodbye) => backoff.after_goodbye(goodbye),
            End::Closed => Some(backoff.after_close()),
            End::Error(error) => backoff.after_error(error),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Own => write!(out, "it left"),
            End::Goodbye(goodbye) => write!(out, "{goodbye}"),
            End::Closed => write!(out, "closed without a word"),
            End::Error(error) => write!(out, "{error}"),
        }
    }
}

/// One in four, but not more than the nodes can take beside everything else.
fn is_restless(index: usize, clients: usize) -> bool {
    index % (clients / RESTLESS_MAX).max(4) == 3
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shorter than a program's, so that the time until all is well is mostly the gateway's.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// After a topic was refused.
const SUBSCRIBE_AGAIN: Duration = Duration::from_millis(200);
/// The number of the first topic: two of the first six are in the first slots of a Redis Cluster, which move.
const FIRST: usize = 129;
const RESTLESS_MAX: usize = 60;
/// Of restless clients, each another time.
const STAYS_FOR: [Duration; 4] = [
    Duration::from_millis(150),
    Duration::from_millis(400),
    Duration::from_millis(700),
    Duration::from_millis(1100),
];
/// When a client that would have left is asked again.
const LEAVE_AGAIN: Duration = Duration::from_millis(200);
const FOREVER: Duration = Duration::from_secs(86_400);
const PROBLEMS_SHOWN: usize = 20;
