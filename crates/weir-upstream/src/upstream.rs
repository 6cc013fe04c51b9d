//! One request to one named service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::{HeaderValue, Request, Response};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::attempt::{Connect, Core, FailureKind, Source, Terms};
use crate::balance::Balance;
use crate::dial::Dialer;
use crate::endpoint::{Rules, Target};
use crate::error::SendError;
use crate::head::Template;
use crate::incoming::Incoming;
use crate::names::Names;
use crate::outgoing::{Kept, Outgoing};
use crate::retry::{Earlier, RetryBudget, is_failure};
use crate::settings::{Settings, SettingsError};
use crate::status::{EndpointStatus, Failures, Status};
use crate::trace::TrySpans;
use crate::upkeep;

/// A named service. Clones share everything.
#[derive(Clone)]
pub struct Upstream {
    inner: Arc<Inner>,
}

/// What a caller asks of one request.
#[derive(Debug, Clone, Default)]
pub struct SendOptions {
    /// When the caller gives up. The settings' deadline counts too.
    pub deadline: Option<Instant>,
    /// Whether the request may reach a backend twice. `None`: as its method says (RFC 9110 section
    /// 9.2.2).
    pub idempotent: Option<bool>,
    /// The trace that the request belongs to, as the header `traceparent` has it (W3C Trace
    /// Context). Each try sends it with a span of its own.
    pub traceparent: Option<HeaderValue>,
    /// Records the tries, and says which `traceparent` each sends; the one above is not used then.
    pub spans: Option<Arc<dyn TrySpans>>,
}

struct Inner {
    core: Arc<Core>,
    budget: RetryBudget,
    requests: AtomicU64,
    failures: FailureCounts,
    is_kept_up: AtomicBool,
}

/// A request on its way through its tries.
struct Task {
    deadline: Instant,
    /// The deadline is the caller's own.
    is_callers: bool,
    /// Whether the request may reach a backend twice.
    may_repeat: bool,
    spans: Option<Arc<dyn TrySpans>>,
    tries: usize,
    tried: Vec<Arc<Target>>,
    earlier: Earlier,
}

#[derive(Default)]
struct FailureCounts {
    connect: AtomicU64,
    full: AtomicU64,
    timed_out: AtomicU64,
    broken: AtomicU64,
}

impl Upstream {
    /// Errors: the first setting that is not allowed.
    /// Cost: nothing is connected before the first request, unless `connections_min` says so.
    pub fn new(settings: Settings) -> Result<Upstream, SettingsError> {
        settings.check()?;
        let (names, dialer) = (Names::new(&settings)?, Dialer::new(&settings)?);
        Ok(Upstream::with(settings, Source::Names(names), Box::new(dialer), None))
    }

    pub(crate) fn with(
        settings: Settings,
        names: Source,
        dialer: Box<dyn Connect>,
        seed: Option<u64>,
    ) -> Upstream {
        let budget = RetryBudget::new(&settings.retry);
        let (requests, failures, is_kept_up) = Default::default();
        let (name, waiting_timed_out) = (settings.name.as_str().into(), AtomicU64::new(0));
        let rules = Arc::new(Rules::new(settings));
        let balance = Balance::new(Arc::clone(&rules), seed);
        let core = Arc::new(Core { name, rules, names, dialer, balance, waiting_timed_out });
        let inner = Arc::new(Inner { core, budget, requests, failures, is_kept_up });
        inner.keep_up();
        Upstream { inner }
    }

    /// The name in the settings.
    pub fn name(&self) -> &str {
        &self.inner.core.name
    }

    /// The settings in use.
    pub fn settings(&self) -> &Settings {
        &self.inner.core.rules.settings
    }

    /// Sends a request, and resolves when the head of its answer is there.
    ///
    /// The request's URI is a path with its query. `Host` is the request's own, else the settings',
    /// else the endpoint's address. An answer 101 can be upgraded with [`hyper::upgrade::on`].
    /// Dropping the future cancels the request.
    ///
    /// The request waits for a place on a connection, and is tried again where that can do no harm
    /// and the retry budget permits it. Each try tells the backend with `weir-deadline-ms` how many
    /// milliseconds the caller still waits for the head; a gRPC call with a deadline in its options
    /// has `grpc-timeout` instead.
    ///
    /// Errors: no answer; [`SendError::may_have_been_sent`] tells whether a backend may have seen
    /// the request.
    /// Cost: over an idle connection no task is woken and none is made.
    pub fn send(
        &self,
        request: Request<Outgoing>,
        options: SendOptions,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> + Send + use<'_> {
        let inner = &*self.inner;
        inner.requests.fetch_add(1, Ordering::Relaxed);
        inner.keep_up();
        inner.budget.deposit();
        let own = Instant::now() + self.settings().deadline;
        let SendOptions { deadline, idempotent, traceparent, spans } = options;
        let callers = deadline.filter(|callers| *callers < own);
        let (head, body) = request.into_parts();
        let mut template = Template::new(head, Kept::new(body), traceparent);
        let mut task = Task {
            deadline: callers.unwrap_or(own),
            is_callers: callers.is_some(),
            may_repeat: idempotent.unwrap_or_else(|| template.is_idempotent()),
            spans,
            tries: 1,
            tried: Vec::new(),
            earlier: Earlier::default(),
        };
        // A block keeps room only for what it takes along, and an `async fn` twice for each argument.
        // So the future stays small: the callers of a proxied request move it.
        async move {
            let answer = inner.send(&mut template, &mut task).await;
            if let Err(error) = &answer {
                inner.failures.count(error);
            }
            answer
        }
    }

    /// The figures now.
    pub fn status(&self) -> Status {
        let (inner, core) = (&*self.inner, &*self.inner.core);
        let (retries, retries_refused) = inner.budget.counts();
        let (now, targets) = (Instant::now(), core.balance.targets());
        let mut endpoints: Vec<_> = targets.iter().map(|target| target.status(now)).collect();
        if endpoints.is_empty() {
            let unknown = |address: &String| EndpointStatus {
                address: address.clone(),
                ..EndpointStatus::default()
            };
            endpoints = self.settings().addresses.iter().map(unknown).collect();
        }
        Status {
            requests: inner.requests.load(Ordering::Relaxed),
            failures: inner.failures.status(),
            retries,
            retries_refused,
            waiting: core.rules.queue.waiting(),
            waiting_timed_out: core.waiting_timed_out.load(Ordering::Relaxed),
            names: core.names.status(),
            dials: core.dialer.status(),
            endpoints,
        }
    }
}

impl Inner {
    /// Begins the upkeep of connections, once there is a runtime.
    fn keep_up(&self) {
        if self.is_kept_up.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(runtime) = Handle::try_current()
            && !self.is_kept_up.swap(true, Ordering::Relaxed)
        {
            runtime.spawn(upkeep::run(Arc::downgrade(&self.core)));
        }
    }

    async fn send(
        &self,
        template: &mut Template,
        task: &mut Task,
    ) -> Result<Response<Incoming>, SendError> {
        let mut stale = 0;
        loop {
            let terms = task.terms(self.tries_max());
            match self.core.attempt(template, &terms).await {
                Ok((answer, target)) => {
                    if !is_failure(answer.status()) || !self.may_try_again(template, task, false) {
                        return Ok(answer);
                    }
                    task.earlier.keep_answer(answer);
                    task.tried.push(target);
                }
                Err(failure)
                    if failure.kind == FailureKind::Stale
                        && stale < STALE_MAX
                        && template.body.is_untouched() =>
                {
                    stale += 1;
                    continue;
                }
                Err(failure) => {
                    let is_unsent = !failure.error.may_have_been_sent();
                    if failure.kind == FailureKind::Final
                        || !self.may_try_again(template, task, is_unsent)
                    {
                        return std::mem::take(&mut task.earlier).or(failure.error);
                    }
                    task.earlier.keep_error(failure.error);
                    task.tried.extend(failure.target);
                }
            }
            task.tries += 1;
        }
    }

    /// Whether another try may follow. If so, it has to.
    fn may_try_again(&self, template: &Template, task: &Task, is_unsent: bool) -> bool {
        (task.may_repeat || is_unsent)
            && task.tries < self.tries_max()
            && template.body.is_untouched()
            && Instant::now() < task.deadline
            && self.budget.withdraw()
    }

    fn tries_max(&self) -> usize {
        self.core.rules.settings.retry.tries_max
    }
}

impl Task {
    /// The terms of the next try.
    fn terms(&self, tries_max: usize) -> Terms<'_> {
        Terms {
            deadline: self.deadline,
            is_callers: self.is_callers,
            tried: &self.tried,
            is_last: self.tries >= tries_max,
            spans: self.spans.as_deref(),
        }
    }
}

impl FailureCounts {
    fn count(&self, error: &SendError) {
        let counter = match error {
            SendError::Dial { .. } => &self.connect,
            SendError::Full { .. } => &self.full,
            SendError::TimedOut { .. } => &self.timed_out,
            SendError::Broken { .. } => &self.broken,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn status(&self) -> Failures {
        Failures {
            connect: self.connect.load(Ordering::Relaxed),
            full: self.full.load(Ordering::Relaxed),
            timed_out: self.timed_out.load(Ordering::Relaxed),
            broken: self.broken.load(Ordering::Relaxed),
        }
    }
}

/// Connections in a row that had ended before the request began. After so many it is a failure.
const STALE_MAX: usize = 16;

#[cfg(test)]
mod tests;
