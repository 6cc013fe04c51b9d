//! The mailbox of a shard: two bounded queues, credits for the first one, and a waker.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_queue::ArrayQueue;

use crate::command::{
    Adoption, Command, CreditKind, HandOver, Lend, Lender, Link, Passed, Taker, Urgent,
};
use crate::memory::{Footprint, rounded};
use crate::net::Waker;
use crate::sleep_flag::{Credits, SleepFlag};

/// The front's end of one shard's mailbox.
///
/// Shape: the *queue* carries commands in order and is bounded by credits; the *reserved queue* carries closing and
/// inspecting and never waits behind messages.
/// Limits: a command needs a credit. Without one the caller refuses or tries again later; no call blocks. Messages
/// have credits of their own, so messages and other commands cannot use up each other's.
/// Cost: both queues are allocated at the start.
pub struct Mailbox<S> {
    shared: Arc<Shared<S>>,
}

/// The shard's end.
pub(crate) struct Inbox<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    queue: ArrayQueue<Command<S>>,
    reserved: ArrayQueue<Urgent>,
    /// The commands of each kind that may still be pushed, and the capacity. Invariant for each
    /// kind: credits + commands in the queue + commands being carried out = capacity. So a push
    /// after a taken credit always finds room.
    credits: [Credits; CreditKind::COUNT],
    capacities: [usize; CreditKind::COUNT],
    sleep_flag: SleepFlag,
    waker: Waker,
    /// Present if the shard has descriptors of its own.
    passage: Option<Passage<S>>,
}

/// The way of sockets into a shard that has descriptors of its own, and of answers out of it.
///
/// Limits: at most [`PASSED_MAX`] sockets wait in it, and as many answers as the reserved queue
/// holds requests.
pub(crate) struct Passage<S> {
    pass: Pass<S>,
    /// The number of the last socket that was passed. Locked until its command is in the queue, so
    /// that commands and sockets have the same order.
    passed: Mutex<u64>,
    /// The same, for readers without the lock.
    passed_shown: AtomicU64,
    /// The number of the last socket that the shard took or refused.
    taken: AtomicU64,
    /// Answers to [`Urgent::Inspect`] and [`Urgent::Survey`]. A reply wakes the asker, which only the front's threads can do.
    answers: ArrayQueue<Answer>,
}

/// Moves a socket into the passage, under its number. This table's copy is then closed: while it
/// was open, the socket would have events at the shard even after the shard has closed it.
pub(crate) type Pass<S> = Box<dyn Fn(S, Passed) -> Result<(), (S, NotPassed)> + Send + Sync>;

/// A reply with its page.
type Answer = Box<dyn FnOnce() + Send>;

weir_wire::named_enum! {
    /// Why a socket was not passed to a shard.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum NotPassed {
        /// So many sockets wait in the passage already.
        Full = "full",
        /// So many descriptors are on their way in all passages of this user already. The kernel's
        /// limit is the soft limit on open files.
        InFlight = "in_flight",
        /// The shard has ended.
        Ended = "ended",
    }
}

/// An adoption that did not enter the passage, with its unused credit.
pub struct NotOffered<'a, S> {
    /// The credit.
    pub credit: Credit<'a, S>,
    /// The adoption, with the socket.
    pub adoption: Box<Adoption<S>>,
    /// Why.
    pub cause: NotPassed,
}

/// Sockets that wait in the passage to one shard. The kernel limits those in flight to all shards
/// together.
const PASSED_MAX: u64 = 128;

/// The right to push one command; returned unused when dropped.
#[must_use = "a credit that is dropped is returned"]
pub struct Credit<'a, S> {
    mailbox: &'a Mailbox<S>,
    kind: CreditKind,
}

/// The reserved queue is full; the request is given back.
pub struct Full(pub Urgent);

impl<S> Mailbox<S> {
    /// A mailbox whose queue holds this many commands of each kind, and the shard's end of it.
    pub(crate) fn new(
        capacities: [usize; CreditKind::COUNT],
        reserved_capacity: usize,
        waker: Waker,
        pass: Option<Pass<S>>,
    ) -> (Mailbox<S>, Inbox<S>) {
        let shared = Arc::new(Shared {
            queue: ArrayQueue::new(capacities.iter().sum()),
            reserved: ArrayQueue::new(reserved_capacity),
            credits: capacities.map(Credits::new),
            capacities,
            sleep_flag: SleepFlag::new(),
            waker,
            passage: pass.map(|pass| Passage {
                pass,
                passed: Mutex::new(0),
                passed_shown: AtomicU64::new(0),
                taken: AtomicU64::new(0),
                answers: ArrayQueue::new(reserved_capacity),
            }),
        });
        (Mailbox { shared: Arc::clone(&shared) }, Inbox { shared })
    }

    /// Takes the right to push one command of a kind. `None` if there is no credit of this kind.
    pub fn try_credit(&self, kind: CreditKind) -> Option<Credit<'_, S>> {
        self.try_credit_leaving(kind, 0)
    }

    /// Like [`Mailbox::try_credit`], but leaves `leave` credits of this kind to others.
    pub fn try_credit_leaving(&self, kind: CreditKind, leave: usize) -> Option<Credit<'_, S>> {
        self.shared.credits(kind).try_take(leave).then(|| Credit { mailbox: self, kind })
    }

    /// Pushes a command, or gives it back if there is no credit of its kind.
    pub fn try_push(&self, command: Command<S>) -> Result<(), Command<S>> {
        match self.try_credit(command.credit_kind()) {
            Some(credit) => {
                credit.push(command);
                Ok(())
            }
            None => Err(command),
        }
    }

    /// Pushes to the reserved queue, or gives the request back if it is full.
    pub fn try_urgent(&self, urgent: Urgent) -> Result<(), Full> {
        self.shared.reserved.push(urgent).map_err(Full)?;
        self.shared.wake();
        Ok(())
    }

    /// Wakes the shard if it sleeps. The front calls it when it has made room for reports, or after
    /// quiet pushes.
    pub fn wake(&self) {
        self.shared.wake();
    }

    /// Sockets that wait in the passage to a shard with descriptors of its own.
    pub fn passing(&self) -> u64 {
        self.shared.passage.as_ref().map_or(0, |passage| {
            // This order, so that the difference is never negative.
            let taken = passage.taken.load(Ordering::Acquire);
            passage.passed_shown.load(Ordering::Acquire).saturating_sub(taken)
        })
    }

    /// Gives the answers of a shard with descriptors of its own to those who asked. The front calls
    /// it whenever that shard wakes it.
    pub fn deliver_answers(&self) {
        let Some(passage) = &self.shared.passage else { return };
        let mut is_more = false;
        while let Some(answer) = passage.answers.pop() {
            is_more = true;
            answer();
        }
        if is_more {
            // The shard may have waited for room.
            self.shared.wake();
        }
    }

    /// Commands in the queue or being carried out.
    pub fn depth(&self) -> usize {
        CreditKind::ALL.into_iter().map(|kind| self.depth_of(kind)).sum()
    }

    /// The commands of one kind in the queue or being carried out.
    pub fn depth_of(&self, kind: CreditKind) -> usize {
        self.shared.credits_out(kind)
    }

    /// The commands in both queues, and the bytes of the queues. What a command or an answer owns
    /// besides is not counted.
    pub fn footprint(&self) -> Footprint {
        let Shared { queue, reserved, passage, .. } = &*self.shared;
        // A place also has its stamp.
        let place = |bytes: usize| bytes.next_multiple_of(8) + size_of::<usize>();
        let answers = passage.as_ref().map_or(0, |passage| passage.answers.capacity());
        let bytes = rounded(queue.capacity() * place(size_of::<Command<S>>()))
            + rounded(reserved.capacity() * place(size_of::<Urgent>()))
            + rounded(answers * place(size_of::<Answer>()));
        Footprint::new(queue.len() + reserved.len(), bytes)
    }

    /// Requests in the reserved queue.
    pub fn reserved_depth(&self) -> usize {
        self.shared.reserved.len()
    }

    /// The most commands of a kind that the queue holds.
    pub fn capacity(&self, kind: CreditKind) -> usize {
        self.shared.capacities[kind as usize]
    }
}

impl<S> Clone for Mailbox<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<'a, S> Credit<'a, S> {
    /// Pushes an adoption, like [`Credit::push_quietly`]. For a shard with descriptors of its own,
    /// the socket goes into the passage, and this table's copy of it is closed.
    ///
    /// Errors: the socket did not enter the passage. Unless the shard has ended, it may be offered
    /// again a moment later.
    /// Cost: with a passage, two syscalls.
    pub fn offer_quietly(self, adoption: Box<Adoption<S>>) -> Result<(), NotOffered<'a, S>> {
        let Some(passage) = &self.mailbox.shared.passage else {
            self.push_quietly(Command::Adopt(adoption));
            return Ok(());
        };
        let mut last = passage.passed.lock().expect("no panic happens under the passage's lock");
        let passed = Passed(*last + 1);
        let (socket, adoption) = adoption.with(passed);
        if let Err((socket, cause)) = passage.pass(socket, passed) {
            drop(last);
            let adoption = Box::new(adoption.with(socket).1);
            return Err(NotOffered { credit: self, adoption, cause });
        }
        *last = passed.0;
        passage.passed_shown.store(passed.0, Ordering::Release);
        self.push_quietly(Command::AdoptPassed(Box::new(adoption)));
        drop(last);
        Ok(())
    }

    /// Pushes the command that this credit was taken for.
    pub fn push(self, command: Command<S>) {
        let mailbox = self.mailbox;
        self.push_quietly(command);
        mailbox.shared.wake();
    }

    /// Like [`Credit::push`], but does not wake the shard. The caller must soon call
    /// [`Mailbox::wake`], for this command and others.
    pub fn push_quietly(self, command: Command<S>) {
        debug_assert!(command.credit_kind() == self.kind, "a credit is for one kind of commands");
        // There, its descriptor would be another device's socket.
        let is_misplaced =
            matches!(command, Command::Adopt(_)) && self.mailbox.shared.passage.is_some();
        assert!(!is_misplaced, "a socket goes to a table of its own through the passage only");
        let pushed = self.mailbox.shared.queue.push(command).is_ok();
        debug_assert!(pushed, "a credit is room in the queue");
        std::mem::forget(self);
    }
}

impl Mailbox<OwnedFd> {
    /// Asks the shard to hand everything over: see [`Taker`]. `link` goes along; for a shard with
    /// descriptors of its own through the passage. The shard must be suspended.
    ///
    /// Once the shard is at rest, it calls `is_due` on its own thread, and waits there. If that says
    /// no, the shard stays suspended, and `take` is not called: nothing was exported in vain.
    ///
    /// Errors: the link did not enter the passage, or the reserved queue is full. Unless the shard
    /// has ended, it may be asked again a moment later.
    pub fn hand_over(
        &self,
        link: OwnedFd,
        is_due: Box<dyn FnOnce() -> bool + Send>,
        take: Taker,
    ) -> Result<(), NotPassed> {
        let link = self.pass_link(link)?;
        let asked = self.try_urgent(Urgent::HandOver(HandOver { link, is_due, take }));
        asked.map_err(|Full(_)| NotPassed::Full)
    }

    /// Asks the shard to lend its sockets: see [`Lender`]. `link` goes along.
    ///
    /// Errors: as for [`Mailbox::hand_over`].
    pub fn lend(&self, link: OwnedFd, lender: Lender) -> Result<(), NotPassed> {
        let link = self.pass_link(link)?;
        let asked = self.try_urgent(Urgent::Lend(Lend { link, lender }));
        asked.map_err(|Full(_)| NotPassed::Full)
    }

    fn pass_link(&self, link: OwnedFd) -> Result<Link, NotPassed> {
        Ok(match &self.shared.passage {
            None => Link::Here(link),
            Some(passage) => {
                let last = passage.passed.lock();
                let mut last = last.expect("no panic happens under the passage's lock");
                let passed = Passed(*last + 1);
                passage.pass(link, passed).map_err(|(_, cause)| cause)?;
                *last = passed.0;
                passage.passed_shown.store(passed.0, Ordering::Release);
                Link::Passed(passed)
            }
        })
    }
}

impl<S> Passage<S> {
    fn pass(&self, socket: S, passed: Passed) -> Result<(), (S, NotPassed)> {
        if passed.0 - self.taken.load(Ordering::Acquire) > PASSED_MAX {
            return Err((socket, NotPassed::Full));
        }
        (self.pass)(socket, passed)
    }
}

impl<S> Drop for Credit<'_, S> {
    fn drop(&mut self) {
        self.mailbox.shared.credits(self.kind).give();
    }
}

impl<S> Inbox<S> {
    /// The next command. Its credit returns by [`Inbox::return_credit`] once the command is carried
    /// out.
    pub(crate) fn pop(&self) -> Option<Command<S>> {
        self.shared.queue.pop()
    }

    pub(crate) fn pop_urgent(&self) -> Option<Urgent> {
        self.shared.reserved.pop()
    }

    /// Whether nothing waits in the queue or the reserved queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.queue.is_empty() && self.shared.reserved.is_empty()
    }

    /// Notes that a socket has left the passage.
    pub(crate) fn note_taken(&self, passed: Passed) {
        if let Some(passage) = &self.shared.passage {
            passage.taken.store(passed.0, Ordering::Release);
        }
    }

    /// Whether [`Inbox::answer`] has room.
    pub(crate) fn has_room_for_answer(&self) -> bool {
        self.shared.passage.as_ref().is_none_or(|passage| !passage.answers.is_full())
    }

    /// Answers an inspection or a survey. Returns whether the front must be woken for that.
    pub(crate) fn answer<P: Send + 'static>(
        &self,
        reply: Box<dyn FnOnce(P) + Send>,
        page: P,
    ) -> bool {
        let Some(passage) = &self.shared.passage else {
            reply(page);
            return false;
        };
        let pushed = passage.answers.push(Box::new(move || reply(page))).is_ok();
        debug_assert!(pushed, "the shard takes a request when there is room for its answer");
        true
    }

    pub(crate) fn return_credit(&self, kind: CreditKind) {
        self.shared.credits(kind).give();
    }

    /// The number of taken credits of each kind, and the number of commands in the queue.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn credits_out(&self) -> ([usize; CreditKind::COUNT], usize) {
        (CreditKind::ALL.map(|kind| self.shared.credits_out(kind)), self.shared.queue.len())
    }

    /// Announces that the shard is about to wait; `false` if there is something to do after all.
    pub(crate) fn try_sleep(&self) -> bool {
        let shared = &self.shared;
        shared.sleep_flag.try_sleep(|| shared.queue.is_empty() && shared.reserved.is_empty())
    }

    /// Notes that the shard has stopped waiting.
    pub(crate) fn note_awake(&self) {
        self.shared.sleep_flag.note_awake();
    }
}

impl<S> Shared<S> {
    fn credits(&self, kind: CreditKind) -> &Credits {
        &self.credits[kind as usize]
    }

    fn credits_out(&self, kind: CreditKind) -> usize {
        self.capacities[kind as usize].saturating_sub(self.credits(kind).free())
    }

    /// After a push: wakes the shard once per sleep, and does nothing while the shard is awake.
    fn wake(&self) {
        if self.sleep_flag.must_wake() {
            (self.waker)();
        }
    }
}

/// The shard's end of a mailbox without a shard, so that tests can run the front against a scripted
/// shard.
#[cfg(feature = "sim")]
pub struct Detached<S>(Inbox<S>);

#[cfg(feature = "sim")]
impl<S> Detached<S> {
    /// A mailbox whose queue holds `capacity` commands of each kind, and its end. No thread is
    /// woken.
    pub fn mailbox(capacity: usize, reserved_capacity: usize) -> (Mailbox<S>, Detached<S>) {
        let capacities = [capacity; CreditKind::COUNT];
        let (mailbox, inbox) = Mailbox::new(capacities, reserved_capacity, Box::new(|| ()), None);
        (mailbox, Detached(inbox))
    }

    /// The next command. [`Detached::return_credit`] tells that it was carried out.
    pub fn pop(&self) -> Option<Command<S>> {
        self.0.pop()
    }

    /// The next urgent request.
    pub fn pop_urgent(&self) -> Option<Urgent> {
        self.0.pop_urgent()
    }

    /// Notes that one command of this kind has been carried out.
    pub fn return_credit(&self, kind: CreditKind) {
        self.0.return_credit(kind);
    }
}
