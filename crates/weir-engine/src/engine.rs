//! Starts, reaches and stops the threads of the shards.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::budget::Budget;
use crate::command::{Front, Urgent};
use crate::mailbox::{Full, Mailbox};
use crate::settings::ShardSettings;
use crate::shard::Shard;
use crate::stats::ShardStats;
use crate::sys::{Epoll, waker};

/// The shards of a process.
pub struct Engine {
    budget: Arc<Budget>,
    shards: Vec<Handle>,
}

/// The outside of one shard.
struct Handle {
    mailbox: Mailbox<OwnedFd>,
    stats: Arc<ShardStats>,
    thread: Option<JoinHandle<()>>,
}

/// Shards are numbered in eight bits.
const SHARDS_MAX: usize = 256;

impl Engine {
    /// Starts one shard for each of `fronts`, pinned to the processor named beside it.
    ///
    /// Errors: more than 256 shards, no thread, no epoll, or a processor outside the inherited affinity mask.
    pub fn start(
        settings: &ShardSettings,
        budget: Arc<Budget>,
        fronts: Vec<(Box<dyn Front>, Option<usize>)>,
    ) -> io::Result<Engine> {
        if fronts.is_empty() || fronts.len() > SHARDS_MAX {
            let message =
                format!("{} shards: at least 1 and at most {SHARDS_MAX} can be", fronts.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut engine = Engine { budget, shards: Vec::with_capacity(fronts.len()) };
        for (index, (front, cpu)) in (0..=u8::MAX).zip(fronts) {
            let shard = start_shard(index, front, cpu, settings, &engine.budget);
            match shard {
                Ok(shard) => engine.shards.push(shard),
                Err(error) => {
                    engine.stop();
                    return Err(error);
                }
            }
        }
        Ok(engine)
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// The mailbox of a shard.
    pub fn mailbox(&self, shard: usize) -> &Mailbox<OwnedFd> {
        &self.shards[shard].mailbox
    }

    /// The counters of a shard.
    pub fn stats(&self, shard: usize) -> &Arc<ShardStats> {
        &self.shards[shard].stats
    }

    /// The byte budget.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Ends all shards and waits for them. They close the remaining connections without a reason.
    pub fn stop(&mut self) {
        for shard in &mut self.shards {
            let Some(thread) = shard.thread.take() else { continue };
            while let Err(Full(_)) = shard.mailbox.try_urgent(Urgent::Stop) {
                if thread.is_finished() {
                    break;
                }
                std::thread::yield_now();
            }
            // A shard that panicked has reported it on standard error. The others still end in
            // order.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start_shard(
    index: u8,
    front: Box<dyn Front>,
    cpu: Option<usize>,
    settings: &ShardSettings,
    budget: &Arc<Budget>,
) -> io::Result<Handle> {
    let (wakes, waker) = waker()?;
    let capacities = [settings.message_capacity, settings.control_capacity];
    let (mailbox, inbox) = Mailbox::new(capacities, settings.reserved_capacity, waker);
    let stats = Arc::new(ShardStats::default());
    let (settings, budget, shard_stats) =
        (settings.clone(), Arc::clone(budget), Arc::clone(&stats));
    let (answer, started) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("shard-{index}")).spawn(move || {
        let net = cpu.map_or(Ok(()), pin).and_then(|()| Epoll::new(wakes));
        match net {
            Ok(net) => {
                let mut shard = Shard::new(index, net, front, inbox, settings, budget, shard_stats);
                let _ = answer.send(Ok(()));
                shard.run();
            }
            Err(error) => {
                let _ = answer.send(Err(error));
            }
        }
    })?;
    started.recv().unwrap_or_else(|_| Err(io::Error::other("the shard's thread ended at once")))?;
    Ok(Handle { mailbox, stats, thread: Some(thread) })
}

/// Keeps the calling thread on one processor.
fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
