//! The protocols under the mailbox in every interleaving: no push is slept through, no wake is wasted, and a credit is
//! room in the queue.
//!
//! The code under test is `src/sleep_flag.rs` itself, compiled once more with loom's atomics, so this runs with the plain
//! tests and needs no build of its own. Two counters stand for the queue, weaker in their ordering than the real one:
//! whatever holds here does not lean on the queue. Each rule is also broken on purpose, and loom finds it.

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
}
#[path = "../src/sleep_flag.rs"]
mod sleep_flag;

use std::sync::Arc;

use atomics::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use sleep_flag::{Credits, SleepFlag};

/// What producers and the consumer agree by: the real thing, or one that is broken.
trait Protocol: Send + Sync + 'static {
    fn new() -> Self;
    fn try_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool;
    fn note_awake(&self);
    fn must_wake(&self) -> bool;
}

impl Protocol for SleepFlag {
    fn new() -> Self {
        SleepFlag::new()
    }

    fn try_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        SleepFlag::try_sleep(self, is_idle)
    }

    fn note_awake(&self) {
        SleepFlag::note_awake(self);
    }

    fn must_wake(&self) -> bool {
        SleepFlag::must_wake(self)
    }
}

/// Stands for the eventfd: a wake stays until it is seen.
struct Waker {
    pending: Mutex<usize>,
    woken: Condvar,
    wakes: AtomicUsize,
}

impl Waker {
    fn new() -> Self {
        Self { pending: Mutex::new(0), woken: Condvar::new(), wakes: AtomicUsize::new(0) }
    }

    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        *self.pending.lock().expect("nobody panics under the lock") += 1;
        self.woken.notify_one();
    }

    /// Takes the wakes that have come; waits for one if it `may_wait`.
    fn wait(&self, may_wait: bool) {
        let mut pending = self.pending.lock().expect("nobody panics under the lock");
        while may_wait && *pending == 0 {
            pending = self.woken.wait(pending).expect("nobody panics under the lock");
        }
        *pending = 0;
    }
}

struct Mailbox<P> {
    pushed: AtomicUsize,
    protocol: P,
    waker: Waker,
}

impl<P: Protocol> Mailbox<P> {
    fn push(&self) {
        self.pushed.fetch_add(1, Ordering::Release);
        if self.protocol.must_wake() {
            self.waker.wake();
        }
    }

    /// The shard's loop, until `count` have come; the number of sleeps that it announced.
    fn serve(&self, count: usize) -> usize {
        let mut taken = 0;
        let mut announced = 0;
        loop {
            taken = self.pushed.load(Ordering::Acquire).max(taken);
            if taken == count {
                return announced;
            }
            announced += 1;
            let may_wait = self.protocol.try_sleep(|| self.pushed.load(Ordering::Acquire) == taken);
            self.waker.wait(may_wait);
            self.protocol.note_awake();
        }
    }
}

/// Producers that push once each, and the shard. A push that is slept through is a deadlock, which loom reports.
fn run_mailbox<P: Protocol>(producers: usize, preemptions_max: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions_max;
    model.check(move || {
        let mailbox = Arc::new(Mailbox {
            pushed: AtomicUsize::new(0),
            protocol: P::new(),
            waker: Waker::new(),
        });
        let producers: Vec<_> = (0..producers)
            .map(|_| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || mailbox.push())
            })
            .collect();
        let announced = mailbox.serve(producers.len());
        for producer in producers {
            producer.join().expect("a producer does not panic");
        }
        let wakes = mailbox.waker.wakes.load(Ordering::Relaxed);
        assert!(wakes <= announced, "at most one wake a sleep");
    });
}

#[test]
fn no_push_is_slept_through_and_a_sleep_ends_by_one_wake() {
    run_mailbox::<SleepFlag>(1, None);
}

#[test]
fn the_same_holds_for_two_producers() {
    run_mailbox::<SleepFlag>(2, Some(PREEMPTIONS_MAX));
}

/// Three threads in every interleaving take many minutes; what is broken here on purpose shows with two.
const PREEMPTIONS_MAX: usize = 3;

/// Looks before it announces.
struct LooksFirst(AtomicBool);

impl Protocol for LooksFirst {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn try_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        let is_idle = is_idle();
        self.0.swap(is_idle, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        is_idle
    }

    fn note_awake(&self) {
        self.0.swap(false, Ordering::SeqCst);
    }

    fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.swap(false, Ordering::SeqCst)
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn looking_before_announcing_loses_a_push() {
    run_mailbox::<LooksFirst>(1, None);
}

/// Announces and looks in the right order, but lets the processor swap the two.
struct NoFence(AtomicBool);

impl Protocol for NoFence {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn try_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        self.0.swap(true, Ordering::AcqRel);
        is_idle()
    }

    fn note_awake(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }

    fn must_wake(&self) -> bool {
        self.0.load(Ordering::Acquire) && self.0.swap(false, Ordering::AcqRel)
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_fences_a_push_is_lost() {
    run_mailbox::<NoFence>(1, None);
}

/// Wakes without taking the announcement down.
struct StaysUp(AtomicBool);

impl Protocol for StaysUp {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn try_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        self.0.swap(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        is_idle()
    }

    fn note_awake(&self) {
        self.0.swap(false, Ordering::SeqCst);
    }

    fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
#[should_panic(expected = "at most one wake a sleep")]
fn an_announcement_that_stays_up_wakes_twice() {
    run_mailbox::<StaysUp>(2, Some(PREEMPTIONS_MAX));
}

/// A queue of one place behind credits, as two counters.
fn run_queue<C: Send + Sync + 'static>(new: fn() -> C, try_take: fn(&C) -> bool, give: fn(&C)) {
    loom::model(move || {
        let queue = Arc::new((new(), AtomicUsize::new(0), AtomicUsize::new(0)));
        let producers: Vec<_> = (0..2)
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let (credits, pushed, popped) = &*queue;
                    if try_take(credits) {
                        let before = pushed.fetch_add(1, Ordering::Release);
                        let has_room = before <= popped.load(Ordering::Relaxed);
                        assert!(has_room, "a credit is room in the queue");
                    }
                })
            })
            .collect();
        let (credits, pushed, popped) = &*queue;
        let came = pushed.load(Ordering::Acquire);
        if came > 0 {
            popped.store(came, Ordering::Relaxed);
            give(credits);
        }
        for producer in producers {
            producer.join().expect("a push finds room");
        }
    });
}

#[test]
fn a_credit_is_room_in_the_queue() {
    run_queue(|| Credits::new(1), |credits| credits.try_take(0), Credits::give);
    loom::model(|| assert_eq!(Credits::new(3).free(), 3));
}

#[test]
#[should_panic(expected = "a credit is room in the queue")]
fn a_credit_that_returns_relaxed_is_no_room() {
    run_queue(
        || AtomicUsize::new(1),
        |free| {
            let take = |free: usize| free.checked_sub(1);
            free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        },
        |free| {
            free.fetch_add(1, Ordering::Relaxed);
        },
    );
}
