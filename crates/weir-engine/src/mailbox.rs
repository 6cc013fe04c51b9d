//! The mailbox of a shard: two bounded queues, credits for the first one, and a waker.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::command::{Command, CreditKind, Urgent};
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
}

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
    ) -> (Mailbox<S>, Inbox<S>) {
        let shared = Arc::new(Shared {
            queue: ArrayQueue::new(capacities.iter().sum()),
            reserved: ArrayQueue::new(reserved_capacity),
            credits: capacities.map(Credits::new),
            capacities,
            sleep_flag: SleepFlag::new(),
            waker,
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

    /// Commands in the queue or being carried out.
    pub fn depth(&self) -> usize {
        CreditKind::ALL.into_iter().map(|kind| self.depth_of(kind)).sum()
    }

    /// The commands of one kind in the queue or being carried out.
    pub fn depth_of(&self, kind: CreditKind) -> usize {
        self.shared.credits_out(kind)
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

impl<S> Credit<'_, S> {
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
        let pushed = self.mailbox.shared.queue.push(command).is_ok();
        debug_assert!(pushed, "a credit is room in the queue");
        std::mem::forget(self);
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
        let (mailbox, inbox) = Mailbox::new(capacities, reserved_capacity, Box::new(|| ()));
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
