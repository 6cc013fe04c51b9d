//! Publishers at several nodes at once: each has a connection and publishes to all topics in turn.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;

use crate::clock;
use crate::http::Http;
use crate::payload::Header;
use crate::protocol::Seen;
use crate::stats::{Lags, real};

/// The publishers of a run.
pub(super) struct Publishers {
    all: Vec<Publisher>,
    size: usize,
}

/// One publisher.
struct Publisher {
    http: Http,
    number: u32,
    topics: Vec<String>,
    next_seq: u32,
    /// By topic, what the answers say.
    answered: Vec<Seen>,
    epochs: Vec<u64>,
    body: String,
}

/// What publishers have done in some time.
#[derive(Debug, Clone, Default)]
pub(super) struct Published {
    /// Messages answered with their offset.
    pub(super) accepted: u64,
    /// Messages answered with 503; their numbers were used again.
    pub(super) refused: u64,
    /// Messages of which the server does not know whether they were published.
    pub(super) uncertain: u64,
    /// From the first message to the last answer, in seconds.
    pub(super) seconds: f64,
    /// From writing a request to its answer.
    pub(super) answers: Lags,
    /// Longest delay of a message behind its schedule.
    pub(super) late_max: Duration,
}

/// When messages are due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Messages a second of all publishers; `None`: the next one after each answer.
    pub(super) rate: Option<f64>,
    /// How long.
    pub(super) time: Duration,
}

#[derive(Deserialize)]
struct Accepted {
    /// A topic of one node that nobody reads and that keeps nothing has no position.
    offset: Option<u64>,
    epoch: Option<String>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(rename = "type")]
    kind: String,
}

impl Publishers {
    /// Publishers, each with its connection; `size` is that of a payload.
    pub(super) fn new(https: Vec<Http>, topics: &[String], size: usize) -> Publishers {
        let publisher = |(number, http)| Publisher {
            http,
            number,
            topics: topics.to_vec(),
            next_seq: 0,
            answered: vec![Seen::default(); topics.len()],
            epochs: vec![0; topics.len()],
            body: String::new(),
        };
        Publishers { all: (0..).zip(https).map(publisher).collect(), size }
    }

    /// Publishes for some time, and runs `beside` in this thread meanwhile, which gets a function that
    /// says whether publishing goes on.
    pub(super) fn run(
        &mut self,
        pace: Pace,
        beside: impl FnOnce(&dyn Fn() -> bool) -> Result<()>,
    ) -> Result<Published> {
        let (size, count) = (self.size, self.all.len());
        let began = clock::monotonic();
        let (results, went) = thread::scope(|scope| {
            let running: Vec<_> = (self.all.iter_mut())
                .map(|publisher| scope.spawn(move || publisher.run(pace, size, (began, count))))
                .collect();
            let went = beside(&|| running.iter().any(|thread| !thread.is_finished()));
            let results: Vec<Result<Published>> = running
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(anyhow!("a publisher panicked")))
                })
                .collect();
            (results, went)
        });
        went?;
        let mut published = Published::default();
        for result in results {
            published.add(&result?);
        }
        published.seconds = (clock::monotonic() - began).as_secs_f64();
        Ok(published)
    }

    /// By topic, the messages that were answered.
    pub(super) fn answered(&self) -> Vec<Seen> {
        let mut all: Vec<Seen> = Vec::new();
        for publisher in &self.all {
            all.resize(publisher.answered.len(), Seen::default());
            for (all, one) in all.iter_mut().zip(&publisher.answered) {
                all.join(one);
            }
        }
        all
    }

    /// Topics for which answers name more than one epoch.
    pub(super) fn restarted(&self) -> u64 {
        let Some(first) = self.all.first() else { return 0 };
        let changed = (0..first.topics.len()).filter(|&topic| {
            let mut epochs: Vec<u64> = self.all.iter().map(|one| one.epochs[topic]).collect();
            epochs.retain(|epoch| *epoch != 0);
            epochs.sort_unstable();
            epochs.dedup();
            epochs.len() > 1
        });
        changed.count() as u64
    }
}

impl Published {
    fn add(&mut self, other: &Published) {
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.uncertain += other.uncertain;
        self.answers.add(&other.answers.counts());
        self.late_max = self.late_max.max(other.late_max);
    }
}

impl Publisher {
    fn run(
        &mut self,
        pace: Pace,
        size: usize,
        (began, publishers): (Duration, usize),
    ) -> Result<Published> {
        let end = began + pace.time;
        let mut published = Published::default();
        let mut text = String::new();
        for turn in 0_u64.. {
            if let Some(rate) = pace.rate {
                // The messages of all publishers are spread evenly.
                let before = turn * publishers as u64 + u64::from(self.number);
                let due = began + Duration::from_secs_f64(real(before) / rate);
                if due >= end {
                    break;
                }
                clock::sleep_until(due);
                published.late_max = published.late_max.max(clock::monotonic().saturating_sub(due));
            } else if clock::monotonic() >= end {
                break;
            }
            self.publish(size, &mut text, &mut published)?;
        }
        Ok(published)
    }

    fn publish(&mut self, size: usize, text: &mut String, published: &mut Published) -> Result<()> {
        let (stream, seq) = (self.number, self.next_seq);
        let place = (stream as usize + seq as usize) % self.topics.len();
        let topic = &self.topics[place];
        let sent_ns = clock::realtime_ns();
        Header { stream, seq, sent_ns }.compose(size, text);
        self.body.clear();
        // Topics and payloads of the bench contain nothing that JSON escapes.
        write!(self.body, r#"{{"topic":"{topic}","text":"{text}"}}"#)?;
        let response = self.http.post("/v1/publish", &self.body)?;
        published.answers.record(clock::realtime_ns().saturating_sub(sent_ns));
        match response.status {
            200 => {
                let accepted: Accepted = serde_json::from_str(&response.body)
                    .with_context(|| format!("the server answered {:?}", response.body))?;
                if let (Some(offset), Some(epoch)) = (accepted.offset, &accepted.epoch) {
                    let last = self.answered[place].last;
                    if offset <= last {
                        bail!("topic {topic}: offset {offset} is answered after {last}");
                    }
                    self.answered[place].add(offset, stream, seq);
                    self.epochs[place] = u64::from_str_radix(epoch, 16)
                        .with_context(|| format!("{epoch:?} is no epoch"))?;
                }
                self.next_seq += 1;
                published.accepted += 1;
            }
            503 => {
                let problem: Option<Problem> = serde_json::from_str(&response.body).ok();
                if problem.is_some_and(|problem| problem.kind.ends_with("uncertain")) {
                    // It may have been published, so the number is used up.
                    self.next_seq += 1;
                    published.uncertain += 1;
                } else {
                    published.refused += 1;
                }
                clock::sleep(REFUSED_PAUSE);
            }
            status => bail!("publishing gave {status}: {}", response.body),
        }
        Ok(())
    }
}

/// Before a message that was refused is sent again.
const REFUSED_PAUSE: Duration = Duration::from_millis(5);
