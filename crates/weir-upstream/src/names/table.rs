//! What is known of the names of an upstream, and when to ask again. It does no I/O and reads no
//! clock.
//!
//! Each question has an entry:
//!
//! ```text
//! due --ask--> asked --records--> known until TTL --> due (the records stay in use)
//!                |--none---> nothing known, due after back-off
//!                `--failed-> the records stay until `stale_max`, due after back-off
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::endpoint::Endpoint;
use super::question::{Answer, NoAnswer, Question, RecordKind, Records, Target};
use crate::address::Address;
use crate::settings::{DnsSettings, IpFamilies};

/// What is known of the names of an upstream.
pub(super) struct Table {
    addresses: Vec<Address>,
    dns: DnsSettings,
    /// Whether a proxy looks names up, except those of SRV records.
    proxy_resolves: bool,
    entries: BTreeMap<Question, Entry>,
}

/// The endpoints at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    /// In order, none twice, at most `endpoints_max`.
    pub(super) endpoints: Vec<Endpoint>,
    /// Endpoints beyond `endpoints_max`.
    pub(super) left_out: usize,
    /// Whether records are in use after their time, since no server answers.
    pub(super) is_stale: bool,
    /// Whether each question has been asked and answered, or has failed, at least once.
    pub(super) is_complete: bool,
    /// Why questions have no records now.
    pub(super) problems: Vec<String>,
}

#[derive(Default)]
struct Entry {
    known: Option<Known>,
    /// `None`: a look-up is under way.
    due: Option<Instant>,
    /// Look-ups in a row that brought no records.
    failures: u32,
    /// What the last one said.
    problem: Option<String>,
    /// Whether it said that there are no such records.
    is_empty: bool,
    is_tried: bool,
}

struct Known {
    records: Records,
    until: Instant,
    /// The end of `stale_max`.
    gone: Instant,
}

impl Table {
    pub(super) fn new(
        addresses: Vec<Address>,
        dns: DnsSettings,
        proxy_resolves: bool,
        now: Instant,
    ) -> Table {
        let mut table = Table { addresses, dns, proxy_resolves, entries: BTreeMap::new() };
        table.renew_questions(now);
        table
    }

    /// Whether there is nothing to look up.
    pub(super) fn is_fixed(&self) -> bool {
        self.entries.is_empty()
    }

    /// At most so many of the questions that are due. They count as asked from now on.
    pub(super) fn take_due(&mut self, now: Instant, count_max: usize) -> Vec<Question> {
        let mut due = Vec::new();
        for (question, entry) in &mut self.entries {
            if due.len() < count_max && entry.due.is_some_and(|due| due <= now) {
                entry.due = None;
                due.push(question.clone());
            }
        }
        due
    }

    /// When to look at the table again, if no answer comes before.
    pub(super) fn next(&self) -> Option<Instant> {
        let entries = self.entries.values();
        let times = entries.flat_map(|entry| [entry.due, entry.known.as_ref().map(|k| k.gone)]);
        times.flatten().min()
    }

    /// Takes what a look-up has brought.
    pub(super) fn handle(
        &mut self,
        question: &Question,
        found: Result<Answer, NoAnswer>,
        now: Instant,
    ) {
        // A question that is no longer asked has no entry.
        let Some(entry) = self.entries.get_mut(question) else { return };
        entry.is_tried = true;
        match found {
            Ok(answer) => {
                let until = now + answer.ttl.clamp(self.dns.ttl_min, self.dns.ttl_max);
                let gone = until + self.dns.stale_max;
                *entry = Entry { due: Some(until), is_tried: true, ..Entry::default() };
                entry.known = Some(Known { records: answer.records, until, gone });
            }
            Err(NoAnswer::None { ttl }) => {
                entry.known = None;
                entry.is_empty = true;
                entry.problem =
                    Some(format!("{} has no {} record", question.name, question.kind.word()));
                let pause = back_off(entry.failures).max(ttl.unwrap_or_default());
                entry.due = Some(now + pause.min(BACK_OFF_MAX));
                entry.failures += 1;
            }
            Err(NoAnswer::Failed(problem)) => {
                entry.is_empty = false;
                entry.problem =
                    Some(format!("{} {}: {problem}", question.name, question.kind.word()));
                entry.due = Some(now + back_off(entry.failures));
                entry.failures += 1;
            }
        }
        self.renew_questions(now);
    }

    /// The endpoints now.
    pub(super) fn view(&mut self, now: Instant) -> View {
        self.forget(now);
        let mut view = View { is_complete: true, ..View::default() };
        let mut all = Vec::new();
        for address in &self.addresses {
            match address {
                Address::Socket(addr) => all.push(Endpoint::Tcp { addr: *addr, name: None }),
                Address::Unix(path) => all.push(Endpoint::Unix(Arc::clone(path))),
                Address::Name { host, port } => self.add_name(host, *port, &mut all),
                Address::Srv(_) => {}
            }
        }
        for target in self.targets() {
            self.add_name(&target.name, target.port, &mut all);
        }
        let mut places = BTreeSet::new();
        all.retain(|endpoint| places.insert(endpoint.to_string()));
        view.left_out = all.len().saturating_sub(self.dns.endpoints_max);
        all.truncate(self.dns.endpoints_max);
        view.endpoints = all;
        for entry in self.entries.values() {
            let is_over = |known: &Known| known.until <= now;
            view.is_stale |= entry.failures > 0 && entry.known.as_ref().is_some_and(is_over);
            view.is_complete &= entry.is_tried;
        }
        let counts = |(question, entry): &(&Question, &Entry)| {
            // A name with addresses of one kind alone is in order.
            !(entry.is_empty && self.has_other_kind(question))
        };
        let problems = self.entries.iter().filter(counts);
        view.problems = problems.filter_map(|(_, entry)| entry.problem.clone()).collect();
        view
    }

    fn has_other_kind(&self, question: &Question) -> bool {
        let other = match question.kind {
            RecordKind::A => RecordKind::Aaaa,
            RecordKind::Aaaa => RecordKind::A,
            RecordKind::Srv => return false,
        };
        self.records(&question.name, other).is_some()
    }

    /// Drops records that were stale for too long.
    fn forget(&mut self, now: Instant) {
        let mut is_gone = false;
        for entry in self.entries.values_mut() {
            if entry.known.as_ref().is_some_and(|known| known.gone <= now) {
                entry.known = None;
                is_gone = true;
            }
        }
        if is_gone {
            self.renew_questions(now);
        }
    }

    /// Adds the questions that addresses and SRV records ask for, and drops the others.
    fn renew_questions(&mut self, now: Instant) {
        let mut questions = BTreeSet::new();
        for address in &self.addresses {
            match address {
                Address::Name { host, .. } => self.ask_for(host, &mut questions),
                Address::Srv(name) => {
                    questions.insert(Question { name: Arc::clone(name), kind: RecordKind::Srv });
                }
                Address::Socket(_) | Address::Unix(_) => {}
            }
        }
        for target in self.targets() {
            self.ask_for(&target.name, &mut questions);
        }
        self.entries.retain(|question, _| questions.contains(question));
        for question in questions {
            let new = || Entry { due: Some(now), ..Entry::default() };
            self.entries.entry(question).or_insert_with(new);
        }
    }

    fn ask_for(&self, name: &Arc<str>, questions: &mut BTreeSet<Question>) {
        if self.proxy_resolves {
            return;
        }
        let kinds: &[RecordKind] = match self.dns.families {
            IpFamilies::Both => &[RecordKind::A, RecordKind::Aaaa],
            IpFamilies::Ipv4 => &[RecordKind::A],
            IpFamilies::Ipv6 => &[RecordKind::Aaaa],
        };
        for &kind in kinds {
            questions.insert(Question { name: Arc::clone(name), kind });
        }
    }

    fn add_name(&self, name: &Arc<str>, port: u16, all: &mut Vec<Endpoint>) {
        if self.proxy_resolves {
            all.push(Endpoint::Named { name: Arc::clone(name), port });
            return;
        }
        for kind in [RecordKind::A, RecordKind::Aaaa] {
            if let Some(Records::Addresses(addresses)) = self.records(name, kind) {
                // Servers rotate them. The same ones are the same list.
                let mut addresses = addresses.clone();
                addresses.sort_unstable();
                all.extend(addresses.into_iter().map(|ip| Endpoint::Tcp {
                    addr: SocketAddr::new(ip, port),
                    name: Some(Arc::clone(name)),
                }));
            }
        }
    }

    /// The targets of SRV records: for each name those with the lowest priority number.
    fn targets(&self) -> Vec<Target> {
        let mut all = Vec::new();
        for address in &self.addresses {
            let Address::Srv(name) = address else { continue };
            let Some(Records::Targets(targets)) = self.records(name, RecordKind::Srv) else {
                continue;
            };
            let first = targets.iter().map(|target| target.priority).min();
            let mut group: Vec<Target> =
                targets.iter().filter(|target| Some(target.priority) == first).cloned().collect();
            group.sort_unstable_by(|a, b| (&a.name, a.port).cmp(&(&b.name, b.port)));
            all.append(&mut group);
        }
        // More could never become endpoints.
        all.truncate(self.dns.endpoints_max);
        all
    }

    fn records(&self, name: &Arc<str>, kind: RecordKind) -> Option<&Records> {
        let question = Question { name: Arc::clone(name), kind };
        self.entries.get(&question)?.known.as_ref().map(|known| &known.records)
    }
}

/// The pause after so many failures before this one.
fn back_off(failures: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failures.min(16));
    BACK_OFF_MIN.saturating_mul(factor).min(BACK_OFF_MAX)
}

const BACK_OFF_MIN: Duration = Duration::from_secs(1);
/// A name that is new in DNS is found this soon.
pub(super) const BACK_OFF_MAX: Duration = Duration::from_secs(30);
