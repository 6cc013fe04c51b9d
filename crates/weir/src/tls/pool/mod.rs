//! The queue of handshakes, and those who work it off.
//!
//! A connection is read, its handshake computed, and the answer sent on one and the same thread: to hand it to another
//! one and back would cost as much as a resumption. Whoever is connected goes first: the threads have a tenth of a
//! shard's weight. Whoever comes back with a session goes before those who begin anew, for that takes a fraction of the
//! time; and who cannot be served soon is refused at once. That somebody comes back is only what he says, though:
//! whoever begins anew keeps some places, and has his turn now and then.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, oneshot};
use tokio::task::block_in_place;
use tracing::error;

use super::handshake::{Handshake, Step};
use crate::base::workers::{Workers, behind_the_others};
use crate::observe::counters::Counters;

/// Makes handshakes.
///
/// Shape: a queue of two levels, each first come, first served, and a task for each thread that takes from it; between two
/// steps of such a task others have a turn on the thread, so that who arrives meanwhile is in the queue before the next
/// one is chosen.
/// Limits: while `waiting_max` handshakes wait, one more is refused, or, if it looks like a resumption, takes the place of
/// the newest that does not; an eighth of the places is not for resumptions. Only steps that begin with a ClientHello
/// wait; those behind them are made at once, and are no more than have been let in.
/// Cost: two locks and two turns of tasks for a step that waits, nothing for the others.
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

/// Makes one step.
type StepOf = dyn Fn(&mut Handshake) -> Step + Send + Sync;

struct Shared {
    queue: Mutex<Queue>,
    is_filled: Notify,
    step: Box<StepOf>,
    may_block: bool,
    waiting_max: usize,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Queue {
    /// Those that look like resumptions.
    first: VecDeque<Job>,
    second: VecDeque<Job>,
    /// How many have gone before the second level since its last turn.
    passed: usize,
    is_closed: bool,
}

enum Next {
    Job(Job),
    Wait,
    End,
}

struct Job {
    handshake: Box<Handshake>,
    answer: oneshot::Sender<Answer>,
}

impl Pool {
    /// Steps are made on the threads of `workers`. `may_block`: they wait for a signer elsewhere; then another thread goes
    /// on with what else there is to do, as many as there are workers at the most.
    pub(crate) fn start(
        workers: &Workers,
        may_block: bool,
        waiting_max: usize,
        counters: Arc<Counters>,
        step: impl Fn(&mut Handshake) -> Step + Send + Sync + 'static,
    ) -> Pool {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            is_filled: Notify::new(),
            step: Box::new(step),
            may_block,
            waiting_max,
            counters,
        });
        for _ in 0..workers.handle().metrics().num_workers() {
            let shared = Arc::clone(&shared);
            workers.handle().spawn(async move { shared.work().await });
        }
        Pool { shared }
    }

    /// Makes one step of the handshake; one that may sign when it is its turn.
    pub(crate) async fn step(&self, handshake: Box<Handshake>) -> Answer {
        if !handshake.is_with_hello() {
            return self.shared.make(handshake);
        }
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
        self.shared.is_filled.notify_waiters();
    }
}

impl Shared {
    fn push(&self, job: Job) {
        let mut queue = self.lock();
        let is_resumption = job.handshake.is_resumption();
        let kept = self.waiting_max / KEPT_PART;
        let taken = if is_resumption {
            queue.first.len() + queue.second.len().max(kept)
        } else {
            queue.count()
        };
        let is_full = taken >= self.waiting_max;
        let refused = match (is_resumption, is_full) {
            (true, false) => {
                queue.first.push_back(job);
                None
            }
            (true, true) if queue.second.len() > kept => {
                queue.first.push_back(job);
                queue.second.pop_back()
            }
            (_, true) => Some(job),
            (false, false) => {
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

    async fn work(&self) {
        loop {
            // Registered before the look: what is pushed between the two is noticed by this one.
            let mut filled = pin!(self.is_filled.notified());
            filled.as_mut().enable();
            match self.next() {
                Next::Job(Job { answer, .. }) if answer.is_closed() => {}
                Next::Job(Job { handshake, answer }) => {
                    let answered = if self.may_block {
                        block_in_place(|| self.make(handshake))
                    } else {
                        self.make(handshake)
                    };
                    let _ = answer.send(answered);
                    behind_the_others().await;
                }
                Next::Wait => filled.await,
                Next::End => return,
            }
        }
    }

    fn make(&self, mut handshake: Box<Handshake>) -> Answer {
        match catch_unwind(AssertUnwindSafe(|| (self.step)(&mut handshake))) {
            Ok(step) => Ok((handshake, step)),
            Err(_) => {
                error!("a TLS handshake panicked; its connection is closed");
                Err(NotStepped::Failed)
            }
        }
    }

    fn next(&self) -> Next {
        let mut queue = self.lock();
        if queue.is_closed {
            return Next::End;
        }
        match queue.pop() {
            Some(job) => {
                self.tell(&queue);
                Next::Job(job)
            }
            None => {
                // What a storm has grown is given back.
                (queue.first, queue.second) = Default::default();
                Next::Wait
            }
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
