//! The threads that handshakes are computed on, and the queue before them.
//!
//! Whoever is connected goes first: the threads have a tenth of a shard's weight. Whoever has begun or comes back with
//! a session goes before those who begin anew, for they take a fraction of the time; and who cannot be served soon is
//! refused at once. That somebody comes back is only what he says, though: whoever begins anew keeps some places, and
//! has his turn now and then.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use tokio::sync::oneshot;
use tracing::error;

use super::handshake::{Handshake, Step};
use crate::counters::Counters;
use crate::threads::schedule_settling_thread;

/// Threads for handshakes.
///
/// Shape: a queue of two levels, each first come, first served.
/// Limits: while `waiting_max` handshakes wait, one more that has not begun is refused, or, if it looks like a resumption,
/// takes the place of the newest that does not; an eighth of the places is not for resumptions. Those that have begun
/// are always taken: they are no more than have been let in.
/// Cost: a lock, a wake-up and a switch of threads for each step, of two that a handshake has.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

/// Why a step was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotStepped {
    /// Too many wait.
    Full,
    /// It panicked, or the pool has ended.
    Failed,
}

type Answer = Result<(Box<Handshake>, Step), NotStepped>;

/// Makes one step; on a thread of the pool.
type StepOf = dyn Fn(&mut Handshake) -> Step + Send + Sync;

struct Shared {
    queue: Mutex<Queue>,
    is_filled: Condvar,
    step: Box<StepOf>,
    waiting_max: usize,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Queue {
    /// Those that have begun, and resumptions.
    first: VecDeque<Job>,
    second: VecDeque<Job>,
    /// How many have gone before the second level since its last turn.
    passed: usize,
    is_closed: bool,
}

struct Job {
    handshake: Box<Handshake>,
    answer: oneshot::Sender<Answer>,
}

impl Pool {
    /// Starts `threads` threads.
    pub(crate) fn start(
        threads: usize,
        waiting_max: usize,
        counters: Arc<Counters>,
        step: impl Fn(&mut Handshake) -> Step + Send + Sync + 'static,
    ) -> io::Result<Pool> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            is_filled: Condvar::new(),
            step: Box::new(step),
            waiting_max,
            counters,
        });
        // Dropped, it ends those that have been started.
        let pool = Pool { shared };
        for _ in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let name = "weir-tls".to_owned();
            thread::Builder::new().name(name).spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// Has a thread make one step of the handshake.
    pub(crate) async fn step(&self, handshake: Box<Handshake>) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.shared.push(Job { handshake, answer });
        answered.await.unwrap_or(Err(NotStepped::Failed))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        (queue.first, queue.second) = Default::default();
        drop(queue);
        self.shared.is_filled.notify_all();
    }
}

impl Shared {
    fn push(&self, job: Job) {
        let mut queue = self.lock();
        let (has_begun, is_resumption) = (job.handshake.has_begun(), job.handshake.is_resumption());
        let kept = self.waiting_max / KEPT_PART;
        let taken = if is_resumption {
            queue.first.len() + queue.second.len().max(kept)
        } else {
            queue.count()
        };
        let is_full = taken >= self.waiting_max;
        let refused = match (has_begun, is_resumption, is_full) {
            (true, _, _) | (false, true, false) => {
                queue.first.push_back(job);
                None
            }
            (false, true, true) if queue.second.len() > kept => {
                queue.first.push_back(job);
                queue.second.pop_back()
            }
            (false, _, true) => Some(job),
            (false, false, false) => {
                queue.second.push_back(job);
                None
            }
        };
        self.tell(&queue);
        drop(queue);
        self.is_filled.notify_one();
        if let Some(refused) = refused {
            self.counters.tls.count_refused();
            // Whoever has gone away needs no answer.
            let _ = refused.answer.send(Err(NotStepped::Full));
        }
    }

    fn work(&self) {
        schedule_settling_thread();
        while let Some(Job { mut handshake, answer }) = self.next() {
            if answer.is_closed() {
                continue;
            }
            let step = catch_unwind(AssertUnwindSafe(|| (self.step)(&mut handshake)));
            let answered = match step {
                Ok(step) => Ok((handshake, step)),
                Err(_) => {
                    error!("a TLS handshake panicked; its connection is closed");
                    Err(NotStepped::Failed)
                }
            };
            let _ = answer.send(answered);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if queue.is_closed {
                return None;
            }
            let next = queue.pop();
            if next.is_some() {
                self.tell(&queue);
                return next;
            }
            // What a storm has grown is given back.
            (queue.first, queue.second) = Default::default();
            queue = self.is_filled.wait(queue).expect("no panic happens under the queue's lock");
        }
    }

    fn tell(&self, queue: &Queue) {
        self.counters.tls.set_waiting(queue.count());
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic happens under the queue's lock")
    }
}

impl Queue {
    fn count(&self) -> usize {
        self.first.len() + self.second.len()
    }

    fn pop(&mut self) -> Option<Job> {
        if self.second.is_empty() || (!self.first.is_empty() && self.passed + 1 < TURN) {
            self.passed += 1;
            return self.first.pop_front();
        }
        self.passed = 0;
        self.second.pop_front()
    }
}

/// What of the queue is for those who begin anew only, when all others come back: one in so many.
const KEPT_PART: usize = 8;
/// One in so many is one who begins anew, if there is one: with RSA a quarter of the time.
const TURN: usize = 16;

#[cfg(test)]
mod tests;
