//! The endpoints that stand behind the addresses of an upstream.
//!
//! One task looks the names up, keeps the answers by their TTL, and publishes the endpoints. Requests
//! read what is published. They wait only before the first answer.

mod endpoint;
mod hickory;
mod question;
mod table;

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, warn};

use self::question::{Answer, LookUp, Looking, NoAnswer, Question};
use self::table::{BACK_OFF_MAX, Table, View};
use crate::address::Address;
use crate::dial::{DialError, DialStep};
use crate::settings::{DnsSettings, Settings, SettingsError};

pub(crate) use endpoint::Endpoint;

/// How look-ups went, since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamesStatus {
    /// Look-ups that were begun.
    pub lookups: u64,
    /// Look-ups without an answer: no server answered in time, or none could.
    pub failures: u64,
    /// Look-ups whose answer was that there are no such records.
    pub negatives: u64,
    /// Requests that used records after their time, since no server answered.
    pub stale_uses: u64,
    /// Endpoints that are known, but not used, since there are more than `endpoints_max`.
    pub left_out: u64,
    /// Why names have no records now, or no new ones.
    pub problems: Vec<String>,
}

/// The current endpoints of an upstream.
pub(crate) struct Names {
    shared: Arc<Shared>,
    /// What the task needs. `None`: the addresses need no look-up.
    resolver: Option<Arc<dyn LookUp>>,
    source: Source,
    wait_max: Duration,
    task: OnceLock<AbortHandle>,
}

/// What the endpoints are made of.
#[derive(Clone)]
struct Source {
    upstream: String,
    addresses: Vec<Address>,
    dns: DnsSettings,
    proxy_resolves: bool,
}

struct Shared {
    published: watch::Sender<Option<Published>>,
    lookups: AtomicU64,
    failures: AtomicU64,
    negatives: AtomicU64,
    stale_uses: AtomicU64,
}

#[derive(Clone)]
struct Published {
    endpoints: Arc<[Endpoint]>,
    view: View,
}

impl Names {
    /// Errors: an address that is none, or no DNS server for one that needs it.
    pub(crate) fn new(settings: &Settings) -> Result<Names, SettingsError> {
        let proxy_resolves = settings.proxy.as_ref().is_some_and(|proxy| proxy.resolves);
        Names::of(settings.parsed()?, proxy_resolves, settings)
    }

    /// The endpoints of an upstream's proxy.
    pub(crate) fn of_proxy(address: Address, settings: &Settings) -> Result<Names, SettingsError> {
        Names::of(vec![address], false, settings)
    }

    fn of(
        addresses: Vec<Address>,
        proxy_resolves: bool,
        settings: &Settings,
    ) -> Result<Names, SettingsError> {
        let (upstream, dns) = (settings.name.clone(), settings.dns.clone());
        let source = Source { upstream, addresses, dns, proxy_resolves };
        let is_fixed = source.table().is_fixed();
        let resolver = if is_fixed { None } else { Some(hickory::resolver(&settings.dns)?) };
        Ok(Names::from(source, resolver, settings.connect_timeout))
    }

    fn from(source: Source, resolver: Option<Arc<dyn LookUp>>, wait_max: Duration) -> Names {
        let shared = Shared {
            published: watch::Sender::new(None),
            lookups: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            negatives: AtomicU64::new(0),
            stale_uses: AtomicU64::new(0),
        };
        if resolver.is_none() {
            let view = source.table().view(Instant::now());
            let endpoints = view.endpoints.as_slice().into();
            shared.published.send_replace(Some(Published { endpoints, view }));
        }
        Names { shared: Arc::new(shared), resolver, source, wait_max, task: OnceLock::new() }
    }

    /// The endpoints that are known now: the same `Arc` as long as they have not changed. Waits only
    /// before the first answer, and at most `connect_timeout`. Later look-ups go on beside the calls.
    /// Errors: no answer yet, or no addresses in it.
    pub(crate) async fn endpoints(&self) -> Result<Arc<[Endpoint]>, DialError> {
        self.begin();
        if let Some(published) = &*self.shared.published.borrow() {
            return self.shared.usable(published);
        }
        let mut published = self.shared.published.subscribe();
        let first = published.wait_for(Option::is_some);
        match timeout(self.wait_max, first).await {
            Ok(Ok(published)) => match &*published {
                Some(published) => self.shared.usable(published),
                None => Err(DialError::Timeout(DialStep::Dns)),
            },
            // The sender is ours, so it has not gone.
            Ok(Err(_)) | Err(_) => Err(DialError::Timeout(DialStep::Dns)),
        }
    }

    /// The figures now.
    pub(crate) fn status(&self) -> NamesStatus {
        let (shared, published) = (&self.shared, self.shared.published.borrow());
        let view = published.as_ref().map(|published| &published.view);
        NamesStatus {
            lookups: shared.lookups.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            negatives: shared.negatives.load(Ordering::Relaxed),
            stale_uses: shared.stale_uses.load(Ordering::Relaxed),
            left_out: view.map_or(0, |view| view.left_out as u64),
            problems: view.map(|view| view.problems.clone()).unwrap_or_default(),
        }
    }

    /// Starts the task, with the first request: only then there is a runtime for sure.
    fn begin(&self) {
        let Some(resolver) = &self.resolver else { return };
        self.task.get_or_init(|| {
            let (source, shared) = (self.source.clone(), Arc::clone(&self.shared));
            tokio::spawn(keep_current(source, Arc::clone(resolver), shared)).abort_handle()
        });
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl Source {
    fn table(&self) -> Table {
        let (addresses, dns) = (self.addresses.clone(), self.dns.clone());
        Table::new(addresses, dns, self.proxy_resolves, Instant::now())
    }
}

impl Shared {
    fn usable(&self, published: &Published) -> Result<Arc<[Endpoint]>, DialError> {
        if published.endpoints.is_empty() {
            return Err(DialError::Dns(match published.view.problems.is_empty() {
                true => "the records name no addresses".to_owned(),
                false => published.view.problems.join("; "),
            }));
        }
        if published.view.is_stale {
            self.stale_uses.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Arc::clone(&published.endpoints))
    }

    /// Publishes the view, unless it would only hide endpoints while others are still looked up.
    fn publish(&self, view: View) {
        if view.endpoints.is_empty() && !view.is_complete {
            return;
        }
        self.published.send_if_modified(|published| match published {
            Some(published) if published.view == view => false,
            Some(published) => {
                if published.view.endpoints != view.endpoints {
                    published.endpoints = view.endpoints.as_slice().into();
                }
                published.view = view;
                true
            }
            None => {
                let endpoints = view.endpoints.as_slice().into();
                *published = Some(Published { endpoints, view });
                true
            }
        });
    }

    fn count(&self, upstream: &str, question: &Question, found: &Result<Answer, NoAnswer>) {
        let (name, kind) = (&question.name, question.kind.word());
        match found {
            Ok(_) => debug!(upstream, %name, kind, "looked up"),
            Err(NoAnswer::None { .. }) => {
                self.negatives.fetch_add(1, Ordering::Relaxed);
                debug!(upstream, %name, kind, "there are no such records");
            }
            Err(NoAnswer::Failed(error)) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                warn!(upstream, %name, kind, error, "a look-up has failed");
            }
        }
    }
}

type UnderWay = Vec<(Question, Looking)>;

/// Looks up what is due, for ever.
async fn keep_current(source: Source, resolver: Arc<dyn LookUp>, shared: Arc<Shared>) {
    let mut table = source.table();
    let mut under_way = UnderWay::new();
    let limit = source.dns.timeout;
    loop {
        let now = Instant::now();
        for question in table.take_due(now, UNDER_WAY_MAX - under_way.len()) {
            shared.lookups.fetch_add(1, Ordering::Relaxed);
            let looking = timeout(limit, resolver.look_up(&question));
            let looking = async move {
                looking.await.unwrap_or_else(|_| {
                    Err(NoAnswer::Failed(format!("no answer within dns_timeout ({limit:?})")))
                })
            };
            under_way.push((question, Box::pin(looking)));
        }
        shared.publish(table.view(now));
        // While the limit is reached, only an answer makes room.
        let next = match under_way.len() < UNDER_WAY_MAX {
            true => table.next().unwrap_or(now + BACK_OFF_MAX),
            false => now + BACK_OFF_MAX,
        };
        tokio::select! {
            (question, found) = first_done(&mut under_way) => {
                shared.count(&source.upstream, &question, &found);
                table.handle(&question, found, Instant::now());
            }
            () = sleep_until(next) => {}
        }
    }
}

/// Waits for one of the look-ups, and removes it.
async fn first_done(under_way: &mut UnderWay) -> (Question, Result<Answer, NoAnswer>) {
    poll_fn(|cx| {
        for index in 0..under_way.len() {
            if let Poll::Ready(found) = under_way[index].1.as_mut().poll(cx) {
                return Poll::Ready((under_way.swap_remove(index).0, found));
            }
        }
        Poll::Pending
    })
    .await
}

/// Look-ups under way at once.
const UNDER_WAY_MAX: usize = 16;

#[cfg(test)]
mod tests;
