//! A front for tests: a bounded queue of reports.

use std::collections::VecDeque;

use crate::command::{Front, Report};

/// The reports of a shard, in order, until they are taken.
///
/// Limits: it refuses reports beyond its room, or all of them while it is closed.
#[derive(Debug)]
pub struct Reports {
    queue: VecDeque<Report>,
    /// The reports at the end that the shard has not asked it to look at.
    unseen: usize,
    room: usize,
}

impl Reports {
    /// A front that holds at most `room` reports.
    pub fn with_room(room: usize) -> Self {
        Self { queue: VecDeque::new(), unseen: 0, room }
    }

    /// The oldest report, if the shard has asked to look at it.
    pub fn pop(&mut self) -> Option<Report> {
        if self.queue.len() == self.unseen { None } else { self.queue.pop_front() }
    }

    /// All reports that the shard has asked to look at, oldest first.
    pub fn take(&mut self) -> Vec<Report> {
        let seen = self.queue.len() - self.unseen;
        self.queue.drain(..seen).collect()
    }

    /// Changes the number of reports that it holds at most; 0 refuses all.
    pub fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// The number of waiting reports.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Default for Reports {
    fn default() -> Self {
        Self::with_room(usize::MAX)
    }
}

impl Front for Reports {
    fn try_report(&mut self, report: Report) -> Result<(), Report> {
        if self.queue.len() >= self.room {
            return Err(report);
        }
        self.queue.push_back(report);
        self.unseen += 1;
        Ok(())
    }

    fn flush(&mut self) -> bool {
        self.unseen = 0;
        false
    }
}
