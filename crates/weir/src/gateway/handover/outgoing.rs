//! The old process's side: the pause, and what is handed over in it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::process::nice;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{error, warn};
use weir_engine::{HandedOver, Keeper, Lender, Loan, Nanos, NotHandedOver, Taker, Urgent};
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;
use zeroize::Zeroize as _;

use super::afterwards::tell_new;
use super::node::OldNode;
use super::parts::{
    FRONT_PART, LENT_BYTES, LENT_PART, LISTENERS_PART, RINGS_PART, SHARD_PART, encode, settled,
};
use crate::connection::reports::ReportsWatch;
use crate::core::pauses::Paused;
use crate::core::state::SharedState;
use crate::handover::{Link, LinkError, Moved, NotMoved, Stage, Successor};
use crate::topics::SentRings;
use crate::udp;

/// What a gateway hands over.
pub(super) struct Outgoing {
    pub(super) shared: Arc<SharedState>,
    /// The listening sockets with their names.
    pub(super) listeners: Arc<Vec<(&'static str, OwnedFd)>>,
    /// The threads for datagrams, if there are any.
    pub(super) datagrams: Option<Arc<udp::Threads>>,
    /// By shard.
    pub(super) reports: Arc<Vec<ReportsWatch>>,
    pub(super) tell: mpsc::Sender<Stage>,
    pub(super) upgrades: v1::UpgradeHistory,
}

/// A shard that waits on its thread until it is told what to do.
struct Resting {
    /// Sends what it knows, until then. Dropped: it serves on.
    go: SyncSender<Nanos>,
    sent: Receiver<Result<Sent, LinkError>>,
    keeper: SyncSender<Keeper>,
}

/// The threads for datagrams, if there are any, and what they remember.
type Datagrams = (Option<udp::Suspended>, Vec<v1::DatagramSocketState>);

/// What was sent over a link.
#[derive(Clone, Copy, Default)]
struct Sent {
    bytes: u64,
    descriptors: u64,
}

/// What is there before the pause.
struct Prepared {
    /// The version of the state's format.
    format: u32,
    /// By shard.
    links: Vec<OwnedFd>,
    /// Sockets of connections that the new process has copies of.
    lent: u64,
    /// Carries what the front sends before the pause.
    front: Link,
    node: Option<OldNode>,
}

/// A pause. Dropped before [`Pause::end`], it lets everything go on as before.
struct Pause<'a> {
    shared: &'a SharedState,
    runtime: &'a runtime::Handle,
    /// The dispatchers that stand still.
    paused: Vec<Paused>,
    resting: Vec<Resting>,
    /// The threads for datagrams.
    suspended: Option<udp::Suspended>,
    /// Until when the new process has to be ready.
    due: Nanos,
    /// The new process may own everything already.
    is_deciding: bool,
    is_over: bool,
}

impl Outgoing {
    /// Hands everything over. It blocks.
    pub(super) fn hand_over(
        mut self,
        mut successor: Successor,
        runtime: &runtime::Handle,
    ) -> Result<Moved, NotMoved> {
        let prepared = match self.prepare(&successor, runtime) {
            Ok(prepared) => prepared,
            Err(why) => return Err(self.abandon(successor, why)),
        };
        let Prepared { format, links, lent, front, mut node } = prepared;
        let connections = settled(self.shared.engine());
        let count = connections.iter().map(|(_, count)| count).sum();
        let mut rings = SentRings::default();
        let early = self.shared.router.send_rings(&mut rings, |part| send_rings(&front, part));
        let rest = |node: &mut OldNode| node.rest(&front, runtime);
        if let Err(why) = early.and_then(|()| node.as_mut().map_or(Ok(()), rest)) {
            return Err(self.abandon(successor, why));
        }
        // Before the pause, so that most of what they have begun is carried out.
        let (suspended, datagrams) = match self.suspend_datagrams() {
            Ok(suspended) => suspended,
            Err(why) => return Err(self.abandon(successor, why)),
        };
        let began = Nanos::now();
        self.upgrades.pause_began = began.0;
        let mut pause = match self.pause(&links, suspended, runtime) {
            Ok(pause) => pause,
            Err(why) => return Err(self.abandon(successor, why)),
        };
        self.tell(Stage::Paused);
        let bytes = self.shared.engine().budget().used();
        pause.due = Nanos::now().after(time_for(successor.pause_max(), count, bytes));
        let sent = match self.send(&mut pause, (datagrams, &mut rings), (&successor, format)) {
            Ok(Sent { bytes, descriptors }) => Sent { bytes, descriptors: descriptors + lent },
            Err(error) => {
                drop(pause);
                return Err(self.abandon(successor, NotMoved::because(error)));
            }
        };
        self.tell(Stage::Sent { bytes: sent.bytes, descriptors: sent.descriptors });
        let ready = successor.wait_until_ready(pause.due);
        if let Err(error) = ready {
            drop(pause);
            return Err(self.abandon(successor, NotMoved::because(error)));
        }
        self.tell(Stage::Ready);
        pause.is_deciding = true;
        if let Err(why) = successor.commit() {
            drop(pause);
            tell_shards(&self.shared, || Urgent::TakeBack);
            return Err(why);
        }
        let told = tell_new(&self.shared, successor.into_link(), runtime).inspect_err(|error| {
            warn!(%error, "nothing is told to the new process after the upgrade");
        });
        pause.end(told.ok().as_ref());
        if let Some(node) = node {
            node.leave();
        }
        let length = Nanos::now().since(began);
        self.tell(Stage::Committed { pause: length });
        let Sent { bytes, descriptors } = sent;
        Ok(Moved { connections, pause: length, bytes, descriptors, ..Moved::default() })
    }

    /// Gives up, before the pause or after it.
    fn abandon(&self, successor: Successor, why: NotMoved) -> NotMoved {
        // The new process ends first: until then it has copies of sockets.
        let why = successor.abandon(why);
        tell_shards(&self.shared, || Urgent::TakeBack);
        why
    }

    /// Gives the new process its sockets and links, and waits until its shards are there.
    fn prepare(
        &self,
        successor: &Successor,
        runtime: &runtime::Handle,
    ) -> Result<Prepared, NotMoved> {
        let until = Nanos::now().after(PREPARE_PATIENCE);
        let count = settled(self.shared.engine()).iter().map(|(_, count)| count).sum();
        let format = successor.plan(count, until)?;
        let listeners = self.listeners.iter().map(|(name, fd)| ((*name).to_owned(), fd.as_fd()));
        let datagrams = self.datagrams.iter().flat_map(|threads| threads.sockets());
        let datagrams = datagrams.map(|socket| ("udp".to_owned(), socket));
        let sockets: Vec<(String, BorrowedFd<'_>)> = listeners.chain(datagrams).collect();
        let sent = successor.link().send_sockets(LISTENERS_PART, &sockets, until);
        sent.map_err(NotMoved::because)?;
        self.tell(Stage::Listeners { sockets: sockets.len() as u64 });
        let shards = 0..self.shared.engine().shard_count();
        let links = shards.map(|shard| successor.link_of(&format!("shard-{shard}"), until));
        let links: Vec<Link> = links.collect::<Result<_, _>>().map_err(NotMoved::because)?;
        let front = successor.link_of("front", until).map_err(NotMoved::because)?;
        let node = OldNode::begin(&self.shared, (&front, successor), runtime, until)?;
        let mut sockets = Vec::with_capacity(links.len());
        for link in links {
            let Message::Ready(_) = link.receive(until).map_err(NotMoved::because)? else {
                return Err(NotMoved("a shard of the new process is not ready".to_owned()));
            };
            sockets.push(link.into_socket());
        }
        let lent = self.lend(&sockets, until)?;
        Ok(Prepared { format, links: sockets, lent, front, node })
    }

    /// Has all shards lend their sockets, so that those need not move in the pause. Returns how many.
    fn lend(&self, links: &[OwnedFd], until: Nanos) -> Result<u64, NotMoved> {
        let mut lending = Vec::with_capacity(links.len());
        for (shard, link) in links.iter().enumerate() {
            let (tell, told) = sync_channel(1);
            let link = link.try_clone().map_err(NotMoved::because)?;
            if let Err(cause) = self.shared.mailbox(shard).lend(link, lender(tell, until)) {
                return Err(NotMoved(format!("shard {shard} was not asked: {}", cause.name())));
            }
            lending.push(told);
        }
        let mut count = 0;
        for (shard, told) in lending.into_iter().enumerate() {
            match told.recv_timeout(PREPARE_PATIENCE) {
                Ok(Ok(lent)) => count += lent,
                Ok(Err(why)) => return Err(why),
                Err(_) => return Err(NotMoved(format!("shard {shard} does not answer"))),
            }
        }
        Ok(count)
    }

    /// Lets the threads for datagrams read nothing any more. Returns what they remember, with the
    /// requests that last.
    fn suspend_datagrams(&self) -> Result<Datagrams, NotMoved> {
        let Some(threads) = &self.datagrams else { return Ok((None, Vec::new())) };
        let suspended = threads.suspend();
        let now = Nanos::now();
        match suspended.export(now.after(ANSWERS_PATIENCE), now.after(DATAGRAMS_PATIENCE)) {
            Some(states) => Ok((Some(suspended), states)),
            None => Err(NotMoved("a thread for datagrams does not answer".to_owned())),
        }
    }

    /// Begins the pause: nothing is read any more, and nothing is left to do.
    fn pause<'a>(
        &'a self,
        links: &[OwnedFd],
        suspended: Option<udp::Suspended>,
        runtime: &'a runtime::Handle,
    ) -> Result<Pause<'a>, NotMoved> {
        let until = Nanos::now().after(REST_PATIENCE);
        loop {
            match self.try_pause(links, runtime, until)? {
                Some(mut pause) => {
                    pause.suspended = suspended;
                    return Ok(pause);
                }
                None if Nanos::now() < until => rest_a_moment(),
                None => {
                    let shortest = "the shards do not come to rest; try again with less load";
                    return Err(NotMoved(shortest.to_owned()));
                }
            }
        }
    }

    /// `None`: something was left to do.
    fn try_pause<'a>(
        &'a self,
        links: &[OwnedFd],
        runtime: &'a runtime::Handle,
        until: Nanos,
    ) -> Result<Option<Pause<'a>>, NotMoved> {
        let shared = &*self.shared;
        let mut pause = Pause {
            shared,
            runtime,
            paused: Vec::new(),
            resting: Vec::new(),
            suspended: None,
            due: Nanos::default(),
            is_deciding: false,
            is_over: false,
        };
        shared.door.pause();
        shared.adoptions.iter().for_each(|adoptions| adoptions.close());
        tell_shards(shared, || Urgent::Suspend);
        let still = runtime.block_on(async {
            let all = async {
                for shard in 0..shared.engine().shard_count() {
                    pause.paused.extend(shared.pauses.pause(shard).await);
                }
                shared.pauses.answered().await;
            };
            timeout(STILL_PATIENCE, all).await
        });
        if still.is_err() {
            return Err(NotMoved(
                "frames of devices wait for the broker, or for shards that have much to do"
                    .to_owned(),
            ));
        }
        // First: what is carried out finds devices and topics that take it.
        if let Some(cluster) = &shared.cluster {
            cluster.hold_back();
        }
        shared.door.shut();
        shared.router.stand_still();
        shared.devices.stand_still();
        if shared.drains.is_running() {
            return Err(NotMoved(DRAINING.to_owned()));
        }
        if let Some(cluster) = &shared.cluster {
            runtime.block_on(cluster.settle(SETTLE_PATIENCE));
        }
        for (shard, link) in links.iter().enumerate() {
            let Some(resting) = self.rest(shard, link, until)? else { return Ok(None) };
            pause.resting.push(resting);
        }
        // What a shard has reported after its dispatcher stood still is still to be done.
        Ok(self.reports.iter().all(ReportsWatch::is_empty).then_some(pause))
    }

    /// Brings a shard to rest.
    fn rest(
        &self,
        shard: usize,
        link: &OwnedFd,
        until: Nanos,
    ) -> Result<Option<Resting>, NotMoved> {
        loop {
            let (rested, is_resting) = sync_channel(1);
            let (go, goes) = sync_channel(1);
            let (sending, sent) = sync_channel(1);
            let (keeper, decided) = sync_channel(1);
            let link = link.try_clone().map_err(NotMoved::because)?;
            let (is_due, take) = taker(rested, goes, sending, decided);
            let mailbox = self.shared.mailbox(shard);
            if let Err(cause) = mailbox.hand_over(link, is_due, take) {
                return Err(NotMoved(format!("shard {shard} was not asked: {}", cause.name())));
            }
            match is_resting.recv_timeout(REST_PATIENCE) {
                Ok(Ok(())) => return Ok(Some(Resting { go, sent, keeper })),
                Ok(Err(NotHandedOver::NotAtRest)) if Nanos::now() < until => {
                    if !self.reports[shard].is_empty() {
                        return Ok(None);
                    }
                    rest_a_moment();
                }
                Ok(Err(NotHandedOver::NotAtRest)) => return Ok(None),
                Ok(Err(NotHandedOver::NoDescriptor)) => {
                    return Err(NotMoved(format!("shard {shard} has no free descriptor")));
                }
                Err(_) => return Err(NotMoved(format!("shard {shard} does not answer"))),
            }
        }
    }

    /// Sends the shards and the front.
    fn send(
        &self,
        pause: &mut Pause<'_>,
        (datagrams, rings): (Vec<v1::DatagramSocketState>, &mut SentRings),
        (successor, format): (&Successor, u32),
    ) -> Result<Sent, LinkError> {
        for resting in &pause.resting {
            // A thread that has ended shows below.
            let _ = resting.go.send(pause.due);
        }
        let front = v1::Front {
            topics: Some(self.shared.router.export(rings)),
            callers: Some(self.shared.export_callers()),
            terms: pause
                .paused
                .iter_mut()
                .map(|paused| std::mem::take(&mut paused.terms))
                .collect(),
            datagrams,
            broker_heard: self.shared.cluster.as_ref().map(|cluster| cluster.heard()),
            upgrades: Some(self.upgrades.clone()),
        };
        let mut bytes = encode(&front, format);
        let mut sum = Sent { bytes: bytes.len() as u64, descriptors: 0 };
        let sent = successor.link().send_part(FRONT_PART, &bytes, &[], pause.due);
        bytes.zeroize();
        for resting in &pause.resting {
            // It knows when to stop.
            let of_shard = resting.sent.recv_timeout(SEND_PATIENCE);
            let of_shard = of_shard.unwrap_or(Err(LinkError::Silent))?;
            sum.bytes += of_shard.bytes;
            sum.descriptors += of_shard.descriptors;
        }
        sent.map(|()| sum)
    }

    fn tell(&self, stage: Stage) {
        // Whoever asked may have gone.
        let _ = self.tell.try_send(stage);
    }
}

fn send_rings(front: &Link, part: &v1::EarlyRings) -> Result<(), NotMoved> {
    let until = Nanos::now().after(PREPARE_PATIENCE);
    front.send_part(RINGS_PART, &part.encode_to_vec(), &[], until).map_err(NotMoved::because)
}

/// Runs on the shard's thread, turn by turn. When all sockets are lent, it tells how many.
fn lender(tell: SyncSender<Result<u64, NotMoved>>, until: Nanos) -> Lender {
    let (mut link, mut count) = (None, 0);
    Box::new(move |loan| {
        let lent = match loan {
            Ok(loan) => lend(&mut link, loan, until),
            Err(_) => Err(NotMoved("a shard has no free descriptor".to_owned())),
        };
        match lent {
            // Whoever waits may have given up.
            Ok(0) => tell.send(Ok(count)).is_ok(),
            Ok(more) => {
                count += more;
                true
            }
            Err(why) => {
                let _ = tell.send(Err(why));
                false
            }
        }
    })
}

/// Returns how many; 0: all are lent.
fn lend(link: &mut Option<Link>, loan: Loan<'_>, until: Nanos) -> Result<u64, NotMoved> {
    let link = match link {
        Some(link) => link,
        None => link.insert(Link::new(loan.link.try_clone().map_err(NotMoved::because)?)),
    };
    let mut conns = Vec::with_capacity(loan.conns.len() * LENT_BYTES);
    for (conn, priority) in loan.conns {
        conns.extend(conn.to_u64().to_be_bytes());
        conns.push(*priority as u8);
    }
    link.send_part(LENT_PART, &conns, loan.sockets, until).map_err(NotMoved::because)?;
    Ok(loan.conns.len() as u64)
}

/// Both run on the shard's thread. With descriptors of its own it must wake no task, so the channels
/// are those of threads. The first waits until all shards are at rest, before anything is exported.
fn taker(
    rested: SyncSender<Result<(), NotHandedOver>>,
    goes: Receiver<Nanos>,
    sending: SyncSender<Result<Sent, LinkError>>,
    decided: Receiver<Keeper>,
) -> (Box<dyn FnOnce() -> bool + Send>, Taker) {
    let (tell, due) = (rested.clone(), Arc::new(AtomicU64::new(0)));
    let until = Arc::clone(&due);
    let is_due = Box::new(move || {
        let goes = tell.send(Ok(())).is_ok().then(|| goes.recv().ok()).flatten();
        due.store(goes.unwrap_or_default().0, Ordering::Relaxed);
        goes.is_some()
    });
    let take = Box::new(move |handed: Result<(HandedOver<'_>, OwnedFd), NotHandedOver>| {
        let (handed, link) = match handed {
            Ok(handed) => handed,
            Err(cause) => {
                let _ = rested.send(Err(cause));
                return Keeper::Itself;
            }
        };
        let until = Nanos(until.load(Ordering::Relaxed));
        let sent = Link::new(link).send_part(SHARD_PART, handed.state, handed.sockets, until);
        let size =
            Sent { bytes: handed.state.len() as u64, descriptors: handed.sockets.len() as u64 };
        let _ = sending.send(sent.map(|()| size));
        let keeper = decided.recv().unwrap_or(Keeper::Itself);
        if keeper == Keeper::Other {
            // This thread alone: it has only copies of sockets to close while the other process serves.
            let _ = nice(STEP_BACK);
        }
        keeper
    });
    (is_due, take)
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own, which may block")]
fn rest_a_moment() {
    std::thread::sleep(RETRY_INTERVAL);
}

/// The time that a new process has for so many connections and bytes of messages.
fn time_for(pause_max: Duration, connections: u64, bytes: usize) -> Duration {
    let for_connections = u32::try_from(connections).map(|count| PER_CONNECTION * count);
    let for_bytes = u32::try_from(bytes >> 20).map(|count| PER_MEBIBYTE * count);
    let for_all = for_connections.unwrap_or_default() + for_bytes.unwrap_or_default();
    pause_max.saturating_add(for_all)
}

fn tell_shards(shared: &SharedState, urgent: impl Fn() -> Urgent) {
    for mailbox in shared.mailboxes().iter() {
        while mailbox.try_urgent(urgent()).is_err() {
            rest_a_moment();
        }
    }
}

impl Pause<'_> {
    /// The new process goes on, and is told of the requests by datagram that last.
    fn end(mut self, tell: Option<&udp::TellEnded>) {
        self.is_over = true;
        // The shards and dispatchers end now, and not by themselves.
        self.shared.begin_shutdown();
        self.shared.door.move_away();
        for resting in self.resting.drain(..) {
            let _ = resting.keeper.send(Keeper::Other);
        }
        self.paused.drain(..).for_each(Paused::end);
        if let Some(suspended) = self.suspended.take() {
            suspended.leave(tell);
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.is_deciding && std::thread::panicking() {
            // Nobody knows who owns the connections. With both they would be lost.
            error!("the process fails while it gives its connections away, and ends");
            std::process::abort();
        }
        self.resting.clear();
        tell_shards(self.shared, || Urgent::GoOn);
        self.shared.router.resume_serving();
        if let Some(cluster) = &self.shared.cluster {
            cluster.resume_hearing(self.shared.counters());
        }
        {
            let _runtime = self.runtime.enter();
            self.shared.resume_callers();
        }
        self.paused.clear();
        self.shared.adoptions.iter().for_each(|adoptions| adoptions.open());
        self.shared.door.serve();
    }
}

/// A drain has told shards what to do, and they have to come to rest.
pub(super) const DRAINING: &str =
    "a drain closes connections: wait for its end, or cancel it (DELETE /v1/drain)";
/// The new process starts its threads and reads its certificates.
const PREPARE_PATIENCE: Duration = Duration::from_secs(30);
/// A request by datagram seldom lasts longer. One that lasts is answered by this process later.
const ANSWERS_PATIENCE: Duration = Duration::from_millis(100);
/// Long enough for a busy machine.
const DATAGRAMS_PATIENCE: Duration = Duration::from_secs(5);
/// Frames that have come are carried out within milliseconds.
const STILL_PATIENCE: Duration = Duration::from_millis(500);
const REST_PATIENCE: Duration = Duration::from_secs(1);
/// A broker nearby has answered within some milliseconds.
const SETTLE_PATIENCE: Duration = Duration::from_millis(50);
/// Some thirty times what a busy machine needs.
const PER_CONNECTION: Duration = Duration::from_micros(50);
const PER_MEBIBYTE: Duration = Duration::from_millis(20);
const RETRY_INTERVAL: Duration = Duration::from_micros(500);
/// On a busy processor such a thread gets a quarter of the time (`sched(7)`).
const STEP_BACK: i32 = 5;
/// A shard that has ended is not waited for longer.
const SEND_PATIENCE: Duration = Duration::from_secs(30);
