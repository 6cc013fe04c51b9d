//! Starts, reaches and stops the threads of the shards.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::budget::Budget;
use crate::command::{Front, Urgent};
use crate::mailbox::{Full, Mailbox, Pass};
use crate::net::Waker;
use crate::settings::ShardSettings;
use crate::shard::Shard;
use crate::stats::ShardStats;
use crate::sys::descriptors::{PassageEnd, ShardFd, leave_shared_table, pass, passage};
use crate::sys::{Epoll, FrontWaker, OWN_TABLE_DESCRIPTORS, OwnTable, counter, waker};

/// The shards of a process.
pub struct Engine {
    budget: Arc<Budget>,
    shards: Vec<Handle>,
}

/// The outside of one shard.
///
/// It keeps the mailbox until the thread has ended: the waker in it must be dropped here, where its
/// descriptor belongs.
struct Handle {
    mailbox: Mailbox<OwnedFd>,
    stats: Arc<ShardStats>,
    thread: Option<JoinHandle<()>>,
    wakes: Option<OwnedFd>,
}

/// The front's side of what connects it to a shard.
struct FrontSide {
    waker: Waker,
    /// With a table of its own: the way into it, and the counter by which the shard wakes the front.
    pass: Option<Pass<OwnedFd>>,
    wakes: Option<OwnedFd>,
}

/// The shard's side, on its way to the thread.
enum ShardSide {
    /// The counter that the waker adds to.
    Shared(OwnedFd),
    /// Waker, passage, and the counter for wakes of the front, by their numbers in the table that
    /// the thread begins with.
    Own([RawFd; 3]),
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

    /// A descriptor that becomes readable whenever a shard with descriptors of its own wakes the
    /// front. `None` for other shards, and if it was taken before.
    ///
    /// The shard adds to the counter behind it, which never has to be read if it is polled
    /// edge-triggered.
    pub fn take_wakes(&mut self, shard: usize) -> Option<OwnedFd> {
        self.shards[shard].wakes.take()
    }

    /// The descriptors that a shard with descriptors of its own needs beside its sockets.
    pub const SHARD_DESCRIPTORS: usize = OWN_TABLE_DESCRIPTORS;

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
    let (front_side, shard_side, _open_until_started) = connect(settings.own_descriptors)?;
    let FrontSide { waker, pass, wakes } = front_side;
    let capacities = [settings.message_capacity, settings.control_capacity];
    let (mailbox, inbox) = Mailbox::new(capacities, settings.reserved_capacity, waker, pass);
    let stats = Arc::new(ShardStats::default());
    let (settings, budget, shard_stats) =
        (settings.clone(), Arc::clone(budget), Arc::clone(&stats));
    let (answer, started) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("shard-{index}")).spawn(move || {
        let net = cpu.map_or(Ok(()), pin).and_then(|()| shard_side.open());
        match net {
            Ok((net, _wakes_front_at_the_end)) => {
                let mut shard = Shard::new(index, net, front, inbox, settings, budget, shard_stats);
                let _ = answer.send(Ok(()));
                shard.run();
            }
            Err(error) => {
                let _ = answer.send(Err(error));
            }
        }
    })?;
    let started = started
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("the shard's thread ended at once")));
    if let Err(error) = started {
        // Before the mailbox is dropped: see `Handle`.
        let _ = thread.join();
        return Err(error);
    }
    Ok(Handle { mailbox, stats, thread: Some(thread), wakes })
}

/// Makes what connects front and shard. The third part must stay open until the shard has started.
fn connect(own_descriptors: bool) -> io::Result<(FrontSide, ShardSide, Option<OwnedFd>)> {
    let counted = counter()?;
    if !own_descriptors {
        let polled = counted.try_clone()?;
        let front = FrontSide { waker: waker(counted), pass: None, wakes: None };
        return Ok((front, ShardSide::Shared(polled), None));
    }
    let (to, from) = passage()?;
    let wakes = counter()?;
    let shard = ShardSide::Own([&counted, &from, &wakes].map(AsRawFd::as_raw_fd));
    let pass: Pass<OwnedFd> =
        Box::new(move |socket, number| pass(&to, &socket, number).map_err(|cause| (socket, cause)));
    let front = FrontSide { waker: waker(counted), pass: Some(pass), wakes: Some(wakes) };
    Ok((front, shard, Some(from)))
}

impl ShardSide {
    /// Opens the epoll of the calling thread, after leaving the shared table if that is asked for.
    /// The second part is dropped last.
    fn open(self) -> io::Result<(Epoll, Option<WakeAtEnd>)> {
        match self {
            ShardSide::Shared(polled) => Ok((Epoll::new(ShardFd::new(polled), None)?, None)),
            ShardSide::Own(numbers) => {
                let [polled, from, wakes] = leave_shared_table(numbers).map_err(|error| {
                    io::Error::new(error.kind(), format!("no table for `own_descriptors`: {error}"))
                })?;
                let (passage, front) = (PassageEnd::new(from), FrontWaker::new(wakes));
                let at_end = WakeAtEnd(front.clone());
                Ok((Epoll::new(polled, Some(OwnTable { passage, front }))?, Some(at_end)))
            }
        }
    }
}

/// Wakes the front when the thread has dropped its end of the reports, even after a panic.
struct WakeAtEnd(FrontWaker);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Keeps the calling thread on one processor.
fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
