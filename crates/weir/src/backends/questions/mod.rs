//! Questions to hooks: a backend decides who may connect, subscribe and publish.
//!
//! ```text
//!  ask ─▶ kept? ─▶ in flight? ─▶ room? ─▶ a task asks the upstream ─▶ answer kept, all askers told
//!           │          │           └ no: it has failed
//!           ▼          ▼
//!        at once    its answer
//! ```

mod answer;
mod cache;
mod exchange;
mod question;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::uri::PathAndQuery;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, warn};
use weir_engine::{Footprint, Nanos};

use super::Backends;
use crate::base::clock::unix_time;
use crate::base::config::{Config, OnFailure};
use crate::observe::counters::Counters;
use crate::observe::counters::hooks::{Hook, QuestionOutcome};
use crate::observe::traces::{SpanKind, Tracer, note, note_failure, tries_of};
pub(crate) use answer::{Answer, Content, Identity, Replacement};
use answer::{Parsed, Rules};
use cache::Cache;
use question::Key;
pub(crate) use question::{About, Origin, Question};

/// The questions in flight, and kept answers.
///
/// Limits: `in_flight_max` questions of each hook; a further one fails. Answers of
/// `answer_bytes_max`, of which `cache_bytes_max` are kept.
/// Cost: without hooks one relaxed load. A question that is kept costs a SHA-256 of its subject and
/// a look into a table.
pub(crate) struct Questions {
    settings: ArcSwap<Settings>,
    /// Whether tokens are asked about.
    asks_tokens: AtomicBool,
    /// Whether any subscription or message is asked about.
    asks_acts: AtomicBool,
    table: Mutex<Table>,
    backends: Arc<Backends>,
    counters: Arc<Counters>,
    pub(crate) tracer: Arc<Tracer>,
    /// The tasks that wait for answers run there, whoever asks.
    runtime: Option<runtime::Handle>,
    /// The second of the last warning.
    warned: AtomicU64,
}

/// A question was not answered, and the rule for that is to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unanswered;

/// How a question ended. A failure that counts as a permission is [`Answer::Allowed`].
pub(crate) type Outcome = Result<Answer, Unanswered>;

/// A question that was asked.
pub(crate) enum Asked {
    /// The answer is known already.
    Known(Outcome),
    /// It will come.
    Waits(oneshot::Receiver<Outcome>),
}

#[derive(Default)]
struct Table {
    cache: Cache,
    /// Those who wait for the same answer.
    in_flight: HashMap<Key, Vec<oneshot::Sender<Outcome>>>,
    /// By hook.
    counts: [usize; Hook::ALL.len()],
    /// Counts the reloads that changed the hooks, and the devices that were revoked. Answers to
    /// earlier questions are not kept.
    version: u64,
}

struct Settings {
    /// By hook.
    ways: [Way; Hook::ALL.len()],
    connect: Option<Arc<str>>,
    /// With its own path, or that of `connect`.
    refresh: Option<Arc<str>>,
    secret: Box<[u8]>,
    answer_bytes_max: usize,
    with_payload: bool,
    rules: Rules,
}

/// How one hook is asked.
struct Way {
    path: PathAndQuery,
    timeout: Duration,
    in_flight_max: usize,
    on_failure: OnFailure,
}

/// What a task needs to ask a question.
struct Errand {
    key: Key,
    hook: Hook,
    upstream: Box<str>,
    body: Bytes,
    settings: Arc<Settings>,
    version: u64,
}

impl Questions {
    pub(crate) fn new(
        config: &Config,
        backends: Arc<Backends>,
        counters: Arc<Counters>,
        tracer: Arc<Tracer>,
    ) -> Arc<Questions> {
        let questions = Questions {
            settings: ArcSwap::from_pointee(Settings::of(config)),
            asks_tokens: AtomicBool::default(),
            asks_acts: AtomicBool::default(),
            table: Mutex::default(),
            backends,
            counters,
            tracer,
            runtime: runtime::Handle::try_current().ok(),
            warned: AtomicU64::default(),
        };
        questions.replace(config);
        Arc::new(questions)
    }

    /// Uses another configuration from now on. Nothing is kept.
    pub(crate) fn replace(&self, config: &Config) {
        let settings = Settings::of(config);
        let is_named = |hook: &Option<String>| hook.as_ref().is_some_and(|name| !name.is_empty());
        let hooks = &config.hooks;
        let asks_acts = !hooks.subscribe.upstream.is_empty()
            || !hooks.publish.upstream.is_empty()
            || config
                .topic_classes
                .iter()
                .any(|class| is_named(&class.subscribe_hook) || is_named(&class.publish_hook));
        self.asks_tokens.store(settings.connect.is_some(), Ordering::Release);
        self.asks_acts.store(asks_acts, Ordering::Release);
        self.settings.store(Arc::new(settings));
        let mut table = self.lock();
        table.version += 1;
        table.cache.reset(hooks.cache_bytes_max);
        self.counters.hooks.set_cache_bytes(0);
    }

    /// Forgets who has which token of a device that is revoked.
    ///
    /// Cost: without kept answers of that device, a lock and a look-up.
    pub(crate) fn forget(&self, device: &str) {
        let mut table = self.lock();
        // An answer that is on its way may be one from before.
        table.version += 1;
        table.cache.forget(device);
        self.counters.hooks.set_cache_bytes(table.cache.bytes());
    }

    /// The answers that are kept.
    pub(crate) fn footprint(&self) -> Footprint {
        self.lock().cache.footprint()
    }

    /// Whether a hook is asked about tokens that nobody else knows.
    pub(crate) fn asks_tokens(&self) -> bool {
        self.asks_tokens.load(Ordering::Acquire)
    }

    /// Whether a hook may be asked about a subscription or a message.
    pub(crate) fn asks_acts(&self) -> bool {
        self.asks_acts.load(Ordering::Relaxed)
    }

    /// Whether questions about messages contain the messages.
    pub(crate) fn with_payload(&self) -> bool {
        self.settings.load().with_payload
    }

    /// The upstream that answers who has a token; `None`: nobody is asked.
    pub(crate) fn upstream_for(&self, hook: Hook) -> Option<Arc<str>> {
        let settings = self.settings.load();
        match hook {
            Hook::Connect => settings.connect.clone(),
            Hook::Refresh => settings.refresh.clone(),
            // Their classes know.
            Hook::Subscribe | Hook::Publish => None,
        }
    }

    /// Asks, unless the answer is kept or the question is in flight. A kept answer does not serve a
    /// refresh, which asks for a later end.
    pub(crate) fn ask(self: &Arc<Self>, question: &Question<'_>) -> Asked {
        let Question { hook, upstream, .. } = *question;
        let (key, settings) = (question.key(), self.settings.load_full());
        let mut table = self.lock();
        if hook != Hook::Refresh
            && let Some(answer) = table.cache.get(&key, Nanos::now())
        {
            self.counters.hooks.count_cached(hook);
            return Asked::Known(Ok(answer));
        }
        let (sender, receiver) = oneshot::channel();
        if let Some(waiting) = table.in_flight.get_mut(&key) {
            waiting.push(sender);
            self.counters.hooks.count_joined(hook);
            return Asked::Waits(receiver);
        }
        let way = settings.way(hook);
        let (count, max) = (table.counts[hook as usize], way.in_flight_max);
        if count >= max {
            drop(table);
            self.counters.hooks.count_full(hook);
            self.warn(hook, upstream, &format!("{max} questions are in flight (in_flight_max)"));
            return Asked::Known(way.failed());
        }
        table.in_flight.insert(key, vec![sender]);
        table.counts[hook as usize] = count + 1;
        self.counters.hooks.set_in_flight(hook, count + 1);
        let version = table.version;
        drop(table);
        let (upstream, body) = (upstream.into(), question.body());
        let errand = Errand { key, hook, upstream, body, settings, version };
        let asking = Arc::clone(self).run(errand);
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(asking)),
            None => drop(tokio::spawn(asking)),
        }
        Asked::Waits(receiver)
    }

    /// Asks the upstream, keeps the answer and tells all that wait for it.
    async fn run(self: Arc<Self>, errand: Errand) {
        // If the runtime ends or the task panics, the question is not in flight any more.
        let mut done = Done { questions: &self, errand: &errand, outcome: Err(Unanswered) };
        let began = Instant::now();
        let found = self.exchange(&errand).await;
        let counts = &self.counters.hooks;
        match found {
            Ok(Parsed { answer, cache }) => {
                let outcome = match &answer {
                    Answer::Refused(_) => QuestionOutcome::Refused,
                    Answer::Changed(_) => QuestionOutcome::Changed,
                    Answer::Allowed | Answer::Identity(_) => QuestionOutcome::Allowed,
                };
                counts.count(errand.hook, outcome, began.elapsed());
                if !cache.is_zero() {
                    self.keep(&errand, answer.clone(), cache);
                }
                done.outcome = Ok(answer);
            }
            Err((outcome, why)) => {
                counts.count(errand.hook, outcome, began.elapsed());
                self.warn(errand.hook, &errand.upstream, &why);
                done.outcome = errand.settings.way(errand.hook).failed();
            }
        }
    }

    async fn exchange(&self, errand: &Errand) -> Result<Parsed, exchange::Failed> {
        let mut span = self.tracer.begin_kind(SpanKind::Internal, "hook");
        note(&mut span, "weir.hook", errand.hook.name());
        note(&mut span, "weir.upstream", &errand.upstream);
        let tries = tries_of(&span);
        let found = Box::pin(exchange::exchange(&self.backends, errand, tries)).await;
        note_failure(&mut span, found.as_ref().err().map(|(outcome, _)| outcome.name()));
        found
    }

    fn keep(&self, errand: &Errand, answer: Answer, cache: Duration) {
        let mut table = self.lock();
        // A refresh asks another question than the next connection does.
        if table.version == errand.version && errand.hook != Hook::Refresh {
            table.cache.put(errand.key, answer, Nanos::now().after(cache));
            self.counters.hooks.set_cache_bytes(table.cache.bytes());
        }
    }

    /// Warns once in a second.
    fn warn(&self, hook: Hook, upstream: &str, why: &str) {
        let hook = hook.name();
        let second = unix_time().as_secs();
        if self.warned.swap(second, Ordering::Relaxed) == second {
            debug!(hook, upstream, why, "a question to a hook has failed");
        } else {
            warn!(hook, upstream, why, "a question to a hook has failed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic happens under the lock of questions")
    }
}

impl Asked {
    /// Waits for the answer.
    pub(crate) async fn outcome(self) -> Outcome {
        match self {
            Asked::Known(outcome) => outcome,
            Asked::Waits(receiver) => receiver.await.unwrap_or(Err(Unanswered)),
        }
    }
}

impl Settings {
    fn of(config: &Config) -> Settings {
        let hooks = &config.hooks;
        let way = |path: &str, timeout, in_flight_max, on_failure| Way {
            path: path.parse().unwrap_or_else(|_| PathAndQuery::from_static("/")),
            timeout,
            in_flight_max,
            on_failure,
        };
        let name = |name: &str| (!name.is_empty()).then(|| Arc::from(name));
        let (connect, refresh) = (&hooks.connect, &hooks.refresh);
        let (subscribe, publish) = (&hooks.subscribe, &hooks.publish);
        let own_refresh = name(&refresh.upstream);
        let refresh_path = if own_refresh.is_some() { &refresh.path } else { &connect.path };
        let refuse = OnFailure::Refuse;
        Settings {
            ways: [
                way(&connect.path, connect.timeout, connect.in_flight_max, refuse),
                way(refresh_path, refresh.timeout, refresh.in_flight_max, refuse),
                way(
                    &subscribe.path,
                    subscribe.timeout,
                    subscribe.in_flight_max,
                    subscribe.on_failure,
                ),
                way(&publish.path, publish.timeout, publish.in_flight_max, publish.on_failure),
            ],
            refresh: own_refresh.or_else(|| name(&connect.upstream)),
            connect: name(&connect.upstream),
            secret: hooks.secret.as_bytes().into(),
            answer_bytes_max: hooks.answer_bytes_max,
            with_payload: publish.payload,
            rules: Rules {
                lifetime: connect.lifetime,
                device_id_bytes_max: config.limits.device_id_bytes_max,
                topic_bytes_max: config.limits.topic_bytes_max,
            },
        }
    }

    fn way(&self, hook: Hook) -> &Way {
        &self.ways[hook as usize]
    }
}

impl Way {
    /// What a failure counts as.
    fn failed(&self) -> Outcome {
        match self.on_failure {
            OnFailure::Refuse => Err(Unanswered),
            OnFailure::Allow => Ok(Answer::Allowed),
        }
    }
}

/// Ends a question when it is dropped.
struct Done<'a> {
    questions: &'a Questions,
    errand: &'a Errand,
    outcome: Outcome,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let hook = self.errand.hook;
        let waiting = {
            let mut table = self.questions.lock();
            let count = table.counts[hook as usize] - 1;
            table.counts[hook as usize] = count;
            self.questions.counters.hooks.set_in_flight(hook, count);
            let waiting = table.in_flight.remove(&self.errand.key).unwrap_or_default();
            if table.in_flight.is_empty() && table.in_flight.capacity() > TABLE_KEPT {
                table.in_flight.shrink_to(0);
            }
            waiting
        };
        for sender in waiting {
            // Who asked may have gone.
            let _ = sender.send(self.outcome.clone());
        }
    }
}

/// Unused entries that the table of questions in flight keeps.
const TABLE_KEPT: usize = 1_024;
