//! The queue of a store's thread. It is bounded, and answers every job.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::tables::Tables;
use crate::contract::Error;

/// Batches that wait for a thread, in the order of their arrival.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<(usize, Box<dyn Job>)>,
    /// The items of all waiting jobs.
    items: usize,
    is_closed: bool,
}

/// A batch with a waiting caller.
pub(super) trait Job: Send {
    /// Whether its caller no longer waits.
    fn is_abandoned(&self) -> bool;
    /// Carries it out within a transaction. It may run again after the transaction has been undone.
    fn run(&mut self, tables: &Tables<'_>) -> rusqlite::Result<()>;
    /// Answers with the result of the last run, or with an error.
    fn answer(self: Box<Self>, outcome: Result<(), Error>);
}

/// A job made of a closure.
pub(super) struct Task<T, F> {
    run: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, Error>>,
}

/// Closes a queue when dropped, and drops the waiting jobs.
pub(super) struct CloseAtEnd<'a>(&'a Queue);

impl Queue {
    /// Adds a job, unless more than `items_max` items would wait. If nothing waits, the job may be
    /// larger.
    pub(super) fn push(
        &self,
        items: usize,
        items_max: usize,
        job: Box<dyn Job>,
    ) -> Result<(), Error> {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Err(Error::Unavailable("the store is closed".to_owned()));
        }
        // An empty batch takes a place too.
        let items = items.max(1);
        if waiting.items > 0 && waiting.items + items > items_max {
            return Err(Error::Overloaded(waiting.items));
        }
        waiting.items += items;
        waiting.jobs.push_back((items, job));
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for jobs and takes one, and further ones while they have at most `items_max` items
    /// together. `None` once the queue is closed and empty.
    pub(super) fn take(&self, items_max: usize) -> Option<Vec<Box<dyn Job>>> {
        let mut waiting = self.waiting();
        while waiting.jobs.is_empty() {
            if waiting.is_closed {
                return None;
            }
            waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let mut taken = Vec::new();
        let mut taken_items = 0;
        while let Some((items, job)) = waiting.jobs.pop_front() {
            if !taken.is_empty() && taken_items + items > items_max {
                waiting.jobs.push_front((items, job));
                break;
            }
            taken_items += items;
            taken.push(job);
        }
        waiting.items -= taken_items;
        Some(taken)
    }

    /// Closes the queue to new jobs. Waiting jobs are still given out.
    pub(super) fn close(&self) {
        self.waiting().is_closed = true;
        self.arrived.notify_all();
    }

    /// The number of waiting jobs.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting().jobs.len()
    }

    pub(super) fn close_at_end(&self) -> CloseAtEnd<'_> {
        CloseAtEnd(self)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
        // A caller that waits for a job learns that it was dropped.
        self.0.waiting().jobs.clear();
    }
}

impl<T, F> Task<T, F> {
    pub(super) fn new(run: F, reply: oneshot::Sender<Result<T, Error>>) -> Self {
        Task { run, result: None, reply }
    }
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: FnMut(&Tables<'_>) -> rusqlite::Result<T> + Send,
{
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn run(&mut self, tables: &Tables<'_>) -> rusqlite::Result<()> {
        self.result = Some((self.run)(tables)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), Error>) {
        let unknown = || Error::Unavailable("it was not carried out".to_owned());
        let Task { result, reply, .. } = *self;
        // The caller may have gone meanwhile.
        let _ = reply.send(outcome.and_then(|()| result.ok_or_else(unknown)));
    }
}
