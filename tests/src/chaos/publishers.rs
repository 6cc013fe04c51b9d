//! Publishers that send each message again until they know that it is accepted.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_client::Position;

use super::clients::{Crowd, lock};
use crate::admin::Answer;
use crate::line::Line;
use crate::wait::{now, pause};

/// Publishers at work, and when the next message is due.
pub(super) struct Publishers {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    crowd: Arc<Crowd>,
    /// Admin addresses of the nodes.
    nodes: Vec<SocketAddr>,
    /// What the idempotency keys of this run begin with.
    run: String,
    every: Duration,
    next: Mutex<Next>,
    /// Messages that are not answered yet.
    unanswered: AtomicU64,
    is_over: AtomicBool,
}

struct Next {
    number: u64,
    due: Instant,
    is_paused: bool,
}

impl Publishers {
    /// Has so many messages a second published, by so many publishers that wait for their answers.
    pub(super) fn start(
        crowd: &Arc<Crowd>,
        nodes: Vec<SocketAddr>,
        (rate, workers): (usize, usize),
    ) -> Publishers {
        let rate = u32::try_from(rate.max(1)).unwrap_or(u32::MAX);
        let shared = Arc::new(Shared {
            crowd: Arc::clone(crowd),
            nodes,
            run: format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed)),
            every: Duration::from_secs(1) / rate,
            next: Mutex::new(Next { number: 1, due: now(), is_paused: true }),
            unanswered: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let worker = |_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.work())
        };
        Publishers { workers: (0..workers).map(worker).collect(), shared }
    }

    /// Lets messages flow.
    pub(super) fn go_on(&self) {
        lock(&self.shared.next).is_paused = false;
    }

    /// Lets no more messages begin.
    pub(super) fn pause(&self) {
        lock(&self.shared.next).is_paused = true;
    }

    /// Messages that are not answered yet.
    pub(super) fn unanswered(&self) -> u64 {
        self.shared.unanswered.load(Ordering::SeqCst)
    }

    /// The number that the next message gets.
    pub(super) fn next_number(&self) -> u64 {
        lock(&self.shared.next).number
    }

    /// Publishes one message to each topic, while nothing else flows.
    pub(super) fn publish_to_all(&self) {
        let mut lines = self.shared.lines();
        for topic in 0..self.shared.crowd.topics.len() {
            let number = {
                let mut next = lock(&self.shared.next);
                next.number += 1;
                next.number - 1
            };
            self.shared.publish(number, topic, &mut lines);
        }
    }
}

impl Drop for Publishers {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            // One that panics has published nothing more, and clients wait in vain.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lines(&self) -> Vec<Line> {
        self.nodes.iter().copied().map(Line::new).collect()
    }

    fn work(&self) {
        let mut lines = self.lines();
        while !self.is_over.load(Ordering::SeqCst) {
            let Some((number, due)) = self.take() else {
                pause(LOOK_EVERY);
                continue;
            };
            pause(due.saturating_duration_since(now()));
            let topics = u64::try_from(self.crowd.topics.len()).unwrap_or(1);
            self.publish(number, usize::try_from(number % topics).unwrap_or(0), &mut lines);
            self.unanswered.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The next message, and when it is due. What was not published in time is not made up for.
    fn take(&self) -> Option<(u64, Instant)> {
        let mut next = lock(&self.next);
        if next.is_paused {
            return None;
        }
        self.unanswered.fetch_add(1, Ordering::SeqCst);
        let (number, due) = (next.number, next.due.max(now()));
        next.number += 1;
        next.due = due + self.every;
        Some((number, due))
    }

    /// Publishes a message, at one node after the other, until it is answered.
    fn publish(&self, number: u64, topic: usize, lines: &mut [Line]) {
        let body = json!({"topic": self.crowd.topics[topic], "text": number.to_string()});
        let (body, key) = (body.to_string(), format!("{}-{number}", self.run));
        let first = usize::try_from(number).unwrap_or(0);
        for attempt in 0.. {
            let line = &mut lines[(first + attempt) % self.nodes.len()];
            let field = Some(("Idempotency-Key", key.clone()));
            let result = match line.post_with("/v1/publish", field, &body) {
                Ok(answer) => self.handle(&answer, topic, number),
                Err(error) => is_passing(&error).then_some(false).ok_or_else(|| error.to_string()),
            };
            match result {
                Ok(true) => return,
                Err(problem) => {
                    return self.crowd.note_problem(format!("message {number}: {problem}"));
                }
                Ok(false) if self.is_over.load(Ordering::SeqCst) => return,
                Ok(false) => pause(AGAIN),
            }
        }
    }

    /// Whether the message is accepted. Errors: no answer that a publisher should get.
    fn handle(&self, answer: &Answer, topic: usize, number: u64) -> Result<bool, String> {
        match answer.status {
            200 => {
                let json: Value = serde_json::from_str(&answer.body).unwrap_or_default();
                let epoch = json["epoch"].as_str();
                let epoch = epoch.and_then(|text| u64::from_str_radix(text, 16).ok());
                let place = epoch.zip(json["offset"].as_u64());
                let (epoch, offset) = place.ok_or_else(|| answer.body.clone())?;
                self.crowd.ledger.note_answered(topic, Position { epoch, offset }, number)?;
                Ok(true)
            }
            // The broker is away, or the first attempt is still on its way.
            503 | 409 => Ok(false),
            status => Err(format!("{status} {}", answer.body)),
        }
    }
}

/// Whether the node has gone, and another one is to be asked.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof,
    };
    let kind = error.kind();
    [BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof]
        .contains(&kind)
}

/// Runs of this process: their idempotency keys differ.
static RUNS: AtomicU64 = AtomicU64::new(0);
/// Before the next attempt of a message that was not accepted.
const AGAIN: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(5);
