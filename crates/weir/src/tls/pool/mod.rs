//! The queue of handshakes, and the tasks that work it off.
//!
//! A connection is read, its handshake computed and the answer sent on the same thread, because
//! handing it to another thread and back would cost as much as a resumption. Connected devices go
//! first: handshake threads have a tenth of a shard's weight. Handshakes that resume a session go
//! before full ones, which take many times as long. A handshake that cannot be served soon is
//! refused at once. However, resumption is an unverified claim of the client, so full handshakes
//! have some places of their own and get a turn now and then.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, oneshot};
use tokio::task::block_in_place;
use tracing::error;
use weir_engine::{Footprint, rounded};

use super::handshake::{Handshake, Step};
use crate::base::workers::{Workers, behind_the_others};
use crate::observe::counters::Counters;

/// Makes handshakes.
///
/// Shape: a queue of two levels, each first come, first served, and a task for each thread that
/// takes from it. Between two steps, other tasks have a turn on the thread, so that new handshakes
/// are in the queue before the next choice.
/// Limits: at most `waiting_max` handshakes wait. One more is refused; if it looks like a
/// resumption, it replaces the newest full one instead. An eighth of the places is not for
/// resumptions. Only steps that begin with a ClientHello wait. Later steps are made at once; there
/// are no more of them than admitted handshakes.
/// Cost: two locks and two turns of tasks for a step that waits, and nothing for the others.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

/// The reason why a step was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotStepped {
    /// Too many handshakes wait.
    Full,
    /// The step panicked, or the pool has ended.
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
    /// Handshakes that look like resumptions.
    first: VecDeque<Job>,
    second: VecDeque<Job>,
    /// Handshakes that went before the second level since its last turn.
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
    /// Steps run on the threads of `workers`. `may_block` says that they may wait for a signer.
    /// Then another thread takes over the other work; there are at most as many of these as
    /// workers.
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

    /// The waiting handshakes, without the state that rustls keeps of them.
    pub(crate) fn footprint(&self) -> Footprint {
        let queue = self.shared.lock();
        let lists = rounded(queue.first.capacity() * size_of::<Job>())
            + rounded(queue.second.capacity() * size_of::<Job>());
        let handshakes = queue.count() * rounded(size_of::<Handshake>());
        Footprint::new(queue.count(), lists + handshakes)
    }

    /// Makes one step of the handshake. A step that may sign waits for its turn.
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
            // The peer may have left; then no answer is needed.
            let _ = refused.answer.send(Err(NotStepped::Full));
        }
    }

    async fn work(&self) {
        loop {
            // Registered before the look, so that a push between the two is noticed.
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
                // Returns the memory after a storm.
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

/// One in this many places is only for full handshakes.
const KEPT_PART: usize = 8;
/// One in this many turns is for a full handshake, if one waits. With RSA that is a quarter of the
/// time.
const TURN: usize = 16;

#[cfg(test)]
mod tests;
