//! Starts, reaches and stops the threads of the shards.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};
use zeroize::Zeroize;

use crate::budget::Budget;
use crate::command::{Front, Lent, Taken, TakenOver, Urgent};
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
    /// Lets a shard serve that has taken over. Dropped before, it ends the thread.
    begin: Mutex<Option<SyncSender<()>>>,
}

impl Handle {
    fn take_begin(&self) -> Option<SyncSender<()>> {
        self.begin.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Gets what a shard takes over: a link, and what receives over it on the shard's thread.
pub struct Source {
    /// The descriptor of the link.
    pub link: OwnedFd,
    /// Runs on the shard's thread.
    pub receive: Box<Receive>,
}

/// Receives what a shard takes over. Before that it passes on the sockets that the other process
/// lends.
pub type Receive =
    dyn FnOnce(OwnedFd, &mut dyn FnMut(Lent) -> io::Result<()>) -> io::Result<TakenOver> + Send;

/// The front's side of what connects it to a shard.
struct FrontSide {
    waker: Waker,
    /// With a table of its own: the way into it, and the counter by which the shard wakes the front.
    pass: Option<Pass<OwnedFd>>,
    wakes: Option<OwnedFd>,
}

/// The shard's side, on its way to the thread.
enum ShardSide {
    /// The counter that the waker adds to, and the link of a shard that takes over.
    Shared(OwnedFd, Option<OwnedFd>),
    /// Waker, passage, and the counter for wakes of the front, by their numbers in the table that
    /// the thread begins with; and the number of the link.
    Own([RawFd; 3], Option<RawFd>),
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
        let fronts = fronts.into_iter().map(|(front, cpu)| (front, cpu, None)).collect();
        Ok(Engine::start_all(settings, budget, fronts)?.0)
    }

    /// Starts shards that take over what the shards of another process hand over, in their order.
    /// They serve nothing before [`Engine::begin`]; if the engine ends before, no connection ends by
    /// that. Also returns the connections of each shard.
    ///
    /// Errors: as for [`Engine::start`]; a source's; a state that this program does not understand.
    pub fn take_over(
        settings: &ShardSettings,
        budget: Arc<Budget>,
        fronts: Vec<(Box<dyn Front>, Option<usize>, Source)>,
    ) -> io::Result<(Engine, Vec<Vec<Taken>>)> {
        let fronts = fronts.into_iter().map(|(front, cpu, source)| (front, cpu, Some(source)));
        Engine::start_all(settings, budget, fronts.collect())
    }

    /// Lets the shards serve that have taken over.
    pub fn begin(&self) {
        for shard in &self.shards {
            // A shard that has ended by itself shows that by its reports.
            let _ = shard.take_begin().map(|begin| begin.send(()));
        }
    }

    fn start_all(
        settings: &ShardSettings,
        budget: Arc<Budget>,
        fronts: Vec<Place>,
    ) -> io::Result<(Engine, Vec<Vec<Taken>>)> {
        if fronts.is_empty() || fronts.len() > SHARDS_MAX {
            let message =
                format!("{} shards: at least 1 and at most {SHARDS_MAX} can be", fronts.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut engine = Engine { budget, shards: Vec::with_capacity(fronts.len()) };
        let mut started = Vec::with_capacity(fronts.len());
        for (index, front) in (0..=u8::MAX).zip(fronts) {
            let (shard, is_started) = start_shard(index, front, settings, &engine.budget)?;
            engine.shards.push(shard);
            started.push(is_started);
        }
        // All at once, because those that take over may take their time.
        let mut taken = Vec::with_capacity(started.len());
        for is_started in started {
            let ended = |_| Err(io::Error::other("the shard's thread ended at once"));
            taken.push(is_started.recv().unwrap_or_else(ended)?);
        }
        Ok((engine, taken))
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
            drop(shard.take_begin());
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

/// The handle of a shard, and the channel by which it tells that it has started, with the
/// connections that it has taken over.
type Starting = (Handle, Receiver<io::Result<Vec<Taken>>>);

/// What a shard begins with: its front, its processor, and another process's shard in whose place
/// it begins.
type Place = (Box<dyn Front>, Option<usize>, Option<Source>);

fn start_shard(
    index: u8,
    (front, cpu, source): Place,
    settings: &ShardSettings,
    budget: &Arc<Budget>,
) -> io::Result<Starting> {
    let (source, link) = source.map(|Source { link, receive }| (receive, link)).unzip();
    let (front_side, shard_side, open_until_started) = connect(settings.own_descriptors, link)?;
    let FrontSide { waker, pass, wakes } = front_side;
    let capacities = [settings.message_capacity, settings.control_capacity];
    let (mailbox, inbox) = Mailbox::new(capacities, settings.reserved_capacity, waker, pass);
    let stats = Arc::new(ShardStats::default());
    let (settings, budget, shard_stats) =
        (settings.clone(), Arc::clone(budget), Arc::clone(&stats));
    let (answer, started) = sync_channel(1);
    let (opened, is_opened) = sync_channel::<()>(1);
    let (begin, begins) = sync_channel(1);
    let begin = Mutex::new(source.is_some().then_some(begin));
    let thread = std::thread::Builder::new().name(format!("shard-{index}")).spawn(move || {
        let net = cpu.map_or(Ok(()), pin).and_then(|()| shard_side.open());
        drop(opened);
        let (net, _wakes_front_at_the_end, link) = match net {
            Ok((net, at_end, link)) => (net, at_end, link),
            Err(error) => return drop(answer.send(Err(error))),
        };
        let mut shard = Shard::new(index, net, front, inbox, settings, budget, shard_stats);
        if let (Some(receive), Some(link)) = (source, link) {
            let mut borrow =
                |Lent { conn, priority, socket }: Lent| shard.borrow((conn, priority), socket);
            let taken_over =
                receive(link, &mut borrow).and_then(|TakenOver { mut state, sockets }| {
                    let taken_over = shard.take_over(&state, sockets);
                    state.zeroize();
                    taken_over
                });
            let is_taken_over = taken_over.is_ok();
            let _ = answer.send(taken_over);
            if !is_taken_over || begins.recv().is_err() {
                return;
            }
        } else {
            let _ = answer.send(Ok(Vec::new()));
        }
        shard.run();
    })?;
    // The thread has its own copies, or has ended, when this ends.
    let _ = is_opened.recv();
    drop(open_until_started);
    Ok((Handle { mailbox, stats, thread: Some(thread), wakes, begin }, started))
}

/// Makes what connects front and shard. The third part must stay open until the shard has started.
fn connect(
    own_descriptors: bool,
    link: Option<OwnedFd>,
) -> io::Result<(FrontSide, ShardSide, Vec<OwnedFd>)> {
    let counted = counter()?;
    if !own_descriptors {
        let polled = counted.try_clone()?;
        let front = FrontSide { waker: waker(counted), pass: None, wakes: None };
        return Ok((front, ShardSide::Shared(polled, link), Vec::new()));
    }
    let (to, from) = passage()?;
    let wakes = counter()?;
    let numbers = [&counted, &from, &wakes].map(AsRawFd::as_raw_fd);
    let shard = ShardSide::Own(numbers, link.as_ref().map(AsRawFd::as_raw_fd));
    let pass: Pass<OwnedFd> =
        Box::new(move |socket, number| pass(&to, &socket, number).map_err(|cause| (socket, cause)));
    let front = FrontSide { waker: waker(counted), pass: Some(pass), wakes: Some(wakes) };
    Ok((front, shard, link.into_iter().chain([from]).collect()))
}

impl ShardSide {
    /// Opens the epoll of the calling thread, after leaving the shared table if that is asked for.
    /// The second part is dropped last. The third one is the link, if there is one.
    fn open(self) -> io::Result<(Epoll, Option<WakeAtEnd>, Option<OwnedFd>)> {
        match self {
            ShardSide::Shared(polled, link) => {
                Ok((Epoll::new(ShardFd::new(polled), None)?, None, link))
            }
            ShardSide::Own(numbers, link) => {
                let no_table = |error: io::Error| {
                    io::Error::new(error.kind(), format!("no table for `own_descriptors`: {error}"))
                };
                let [polled, from, wakes] = numbers;
                let (kept, link) = match link {
                    None => (leave_shared_table(numbers).map_err(no_table)?, None),
                    Some(link) => {
                        let kept = leave_shared_table([polled, from, wakes, link]);
                        let [polled, from, wakes, link] = kept.map_err(no_table)?;
                        ([polled, from, wakes], Some(link.into_fd()))
                    }
                };
                let [polled, from, wakes] = kept;
                let (passage, front) = (PassageEnd::new(from), FrontWaker::new(wakes));
                let at_end = WakeAtEnd(front.clone());
                Ok((Epoll::new(polled, Some(OwnTable { passage, front }))?, Some(at_end), link))
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
