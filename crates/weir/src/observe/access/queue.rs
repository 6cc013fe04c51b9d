//! How lines travel from the threads that answer requests to the one that writes.
//!
//! ```text
//!  thread ─► its stripe: a chunk being filled ──when full, or every 50 ms──► full chunks ─► writer ─► file
//!                    ▲                                                                        │
//!                    └────────────────────────── empty chunks ◄───────────────────────────────┘
//! ```
//!
//! A thread meets others at its stripe's lock only, which is held while a line is formatted or a chunk exchanged, and
//! once a chunk at the lock of the queue. Nobody holds either while something is written.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tracing::warn;

use super::stamp::Stamp;
use super::{Counts, Entry, line};
use crate::base::config::{AccessLogConfig, AccessLogFormat};

/// The way to the thread that writes. Dropped, it lets that thread write what there is, and does not wait for it.
pub(super) struct Queue {
    shared: Arc<Shared>,
}

/// What recording threads and the writer share.
pub(super) struct Shared {
    format: AccessLogFormat,
    clock: Clock,
    stripes: Box<[Stripe]>,
    chunks: Mutex<Chunks>,
    /// Notified when the writer has something to do, and by the writer when it has ended.
    waker: Condvar,
    lines: AtomicU64,
    dropped: AtomicU64,
    errors: AtomicU64,
    /// Milliseconds of the clock before which nothing more is said about drops.
    tell_again_ms: AtomicU64,
    dropped_told: AtomicU64,
    is_telling: AtomicBool,
}

/// Lines of one thread, or of a few that share it. No two lie in one cache line, or in two that are fetched together.
#[repr(align(128))]
struct Stripe(Mutex<Filling>);

struct Filling {
    chunk: Chunk,
    stamp: Stamp,
}

/// Whole lines.
#[derive(Default)]
pub(super) struct Chunk {
    /// With room for [`CHUNK_BYTES`], or for none.
    pub(super) bytes: Vec<u8>,
    pub(super) lines: u64,
}

struct Chunks {
    full: VecDeque<Chunk>,
    empty: Vec<Vec<u8>>,
    /// How many more may be made.
    unmade: usize,
    is_writer_asleep: bool,
    must_reopen: bool,
    must_end: bool,
    has_ended: bool,
}

/// What the writer is to do.
pub(super) struct Orders {
    pub(super) must_reopen: bool,
    pub(super) must_end: bool,
}

/// Wall time from the monotonic one, which requests are measured by anyway.
struct Clock {
    base: Instant,
    /// Microseconds from 1970 to `base`.
    base_unix_us: AtomicU64,
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>) -> Queue {
        Queue { shared }
    }

    /// Formats a line into the calling thread's stripe.
    pub(super) fn take(&self, entry: &Entry<'_>) {
        let shared = &*self.shared;
        let mut filling = shared.stripes[stripe_index(shared.stripes.len())].lock();
        let Filling { chunk, stamp } = &mut *filling;
        let has_room = chunk.bytes.capacity() - chunk.bytes.len() >= line::bytes_max(entry);
        if has_room || shared.exchange(chunk) {
            stamp.set(shared.clock.unix_us(entry.began));
            line::write(shared.format, &mut chunk.bytes, stamp, entry);
            chunk.lines += 1;
        } else {
            drop(filling);
            shared.drop_lines(1);
            shared.tell_drops(entry.began + entry.took);
        }
    }

    pub(super) fn reopen(&self) {
        self.shared.reopen();
    }

    pub(super) fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Ends the writer and waits for it, as long as a file system may reasonably take.
    pub(super) fn finish(&self) {
        let mut chunks = self.shared.lock();
        chunks.must_end = true;
        self.shared.waker.notify_all();
        let ended = self
            .shared
            .waker
            .wait_timeout_while(chunks, FINISH_TIMEOUT, |chunks| !chunks.has_ended);
        if !ended.expect(NO_PANIC).0.has_ended {
            warn!("the access log could not be written in time; its last lines are lost");
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    pub(super) fn new(config: &AccessLogConfig, threads: usize) -> Arc<Shared> {
        let stripes = threads.clamp(1, STRIPES_MAX);
        let chunks = config.queue_bytes / CHUNK_BYTES;
        Arc::new(Shared {
            format: config.format,
            clock: Clock::start(),
            stripes: (0..stripes).map(|_| Stripe::new()).collect(),
            chunks: Mutex::new(Chunks {
                full: VecDeque::with_capacity(chunks),
                empty: Vec::with_capacity(chunks),
                unmade: chunks,
                is_writer_asleep: false,
                must_reopen: false,
                must_end: false,
                has_ended: false,
            }),
            waker: Condvar::new(),
            lines: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            tell_again_ms: AtomicU64::new(0),
            dropped_told: AtomicU64::new(0),
            is_telling: AtomicBool::new(false),
        })
    }

    /// Has the writer open the file anew.
    pub(super) fn reopen(&self) {
        self.lock().must_reopen = true;
        self.waker.notify_all();
    }

    /// Has the writer write what there is, and end. No chunk is given out any more.
    pub(super) fn end(&self) {
        self.lock().must_end = true;
        self.waker.notify_all();
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            lines: self.lines.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }

    /// Hands a chunk over for an empty one; `false` if there is none, and then it stays as it is.
    fn exchange(&self, chunk: &mut Chunk) -> bool {
        let mut chunks = self.lock();
        let Some(empty) = chunks.take_empty() else { return false };
        let full = std::mem::replace(chunk, Chunk { bytes: empty, lines: 0 });
        chunks.give(full);
        let must_wake = chunks.is_writer_asleep && chunks.full.len() >= WAKE_CHUNKS;
        chunks.is_writer_asleep &= !must_wake;
        drop(chunks);
        if must_wake {
            self.waker.notify_all();
        }
        true
    }

    /// Takes what the stripes have so far, behind what they have handed over before.
    pub(super) fn gather(&self) {
        for stripe in &self.stripes {
            let mut filling = stripe.lock();
            let chunk = std::mem::take(&mut filling.chunk);
            self.lock().give(chunk);
        }
    }

    /// The next chunk to be written; `None`: there is none for now.
    pub(super) fn next_full(&self) -> Option<Chunk> {
        self.lock().full.pop_front()
    }

    /// Has a chunk filled again.
    pub(super) fn give_back(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.lock().empty.push(bytes);
    }

    /// Waits until there is something to do, at the latest `until`.
    pub(super) fn sleep(&self, until: Instant) -> Orders {
        let mut chunks = self.lock();
        let time = until.saturating_duration_since(now());
        if chunks.full.len() < WAKE_CHUNKS
            && !chunks.must_end
            && !chunks.must_reopen
            && !time.is_zero()
        {
            chunks.is_writer_asleep = true;
            chunks = self.waker.wait_timeout(chunks, time).expect(NO_PANIC).0;
            chunks.is_writer_asleep = false;
        }
        chunks.orders()
    }

    /// Waits before another attempt to write, unless the end is near or the file is to be opened anew.
    pub(super) fn sleep_on_error(&self, time: Duration) -> Orders {
        let is_idle = |chunks: &mut Chunks| !chunks.must_end && !chunks.must_reopen;
        let waited = self.waker.wait_timeout_while(self.lock(), time, is_idle);
        waited.expect(NO_PANIC).0.orders()
    }

    /// The last thing that the writer does.
    pub(super) fn set_ended(&self) {
        self.lock().has_ended = true;
        self.waker.notify_all();
    }

    pub(super) fn count_lines(&self, lines: u64) {
        self.lines.fetch_add(lines, Ordering::Relaxed);
    }

    pub(super) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn drop_lines(&self, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    pub(super) fn adjust_clock(&self) {
        self.clock.adjust();
    }

    /// Says what was dropped since the last time, every ten seconds at the most.
    pub(super) fn tell_drops(&self, now: Instant) {
        let now_ms = self.clock.millis(now);
        let total = self.dropped.load(Ordering::Relaxed);
        if total == self.dropped_told.load(Ordering::Relaxed)
            || now_ms < self.tell_again_ms.load(Ordering::Relaxed)
            || self.is_telling.swap(true, Ordering::Acquire)
        {
            return;
        }
        let lines = total - self.dropped_told.swap(total, Ordering::Relaxed).min(total);
        if lines > 0 {
            self.tell_again_ms.store(now_ms + TELL_INTERVAL_MS, Ordering::Relaxed);
            warn!(lines, total, "access log lines dropped: the file takes them too slowly");
        }
        self.is_telling.store(false, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Chunks> {
        self.chunks.lock().expect(NO_PANIC)
    }
}

impl Chunks {
    /// An empty chunk; `None` if there is none, or nobody would write it.
    fn take_empty(&mut self) -> Option<Vec<u8>> {
        if self.must_end {
            return None;
        }
        if let Some(empty) = self.empty.pop() {
            return Some(empty);
        }
        self.unmade = self.unmade.checked_sub(1)?;
        Some(Vec::with_capacity(CHUNK_BYTES))
    }

    fn give(&mut self, chunk: Chunk) {
        if chunk.lines > 0 {
            self.full.push_back(chunk);
        } else if chunk.bytes.capacity() > 0 {
            self.empty.push(chunk.bytes);
        }
    }

    fn orders(&mut self) -> Orders {
        let must_reopen = std::mem::take(&mut self.must_reopen);
        Orders { must_reopen, must_end: self.must_end }
    }
}

impl Stripe {
    fn new() -> Stripe {
        Stripe(Mutex::new(Filling { chunk: Chunk::default(), stamp: Stamp::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Filling> {
        self.0.lock().expect(NO_PANIC)
    }
}

impl Clock {
    fn start() -> Clock {
        let clock = Clock { base: now(), base_unix_us: AtomicU64::new(0) };
        clock.adjust();
        clock
    }

    /// Follows the wall clock, should somebody have set it.
    fn adjust(&self) {
        let unix = crate::base::clock::unix_time().saturating_sub(now() - self.base);
        self.base_unix_us.store(micros(unix), Ordering::Relaxed);
    }

    fn unix_us(&self, at: Instant) -> u64 {
        self.base_unix_us.load(Ordering::Relaxed) + micros(at.saturating_duration_since(self.base))
    }

    fn millis(&self, at: Instant) -> u64 {
        micros(at.saturating_duration_since(self.base)) / 1_000
    }
}

fn micros(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(time.subsec_micros()))
}

#[expect(clippy::disallowed_methods, reason = "the writer waits by the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The stripe of the calling thread: threads take them in turn.
fn stripe_index(stripes: usize) -> usize {
    static THREADS: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static THREAD: Cell<Option<u32>> = const { Cell::new(None) };
    }
    let thread = THREAD.get().unwrap_or_else(|| {
        let thread = THREADS.fetch_add(1, Ordering::Relaxed);
        THREAD.set(Some(thread));
        thread
    });
    usize::try_from(thread).unwrap_or(0) % stripes
}

/// Some 100 lines: what is done once a chunk costs little a line, and it is still in the cache when it is written.
pub(super) const CHUNK_BYTES: usize = 32 * 1024;
/// So many full chunks wake the writer; fewer wait for its next look, so that it is not woken for each.
const WAKE_CHUNKS: usize = 4;
/// More threads than this share stripes: each holds a chunk.
const STRIPES_MAX: usize = 16;
/// A disk that takes longer is stuck.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
const TELL_INTERVAL_MS: u64 = 10_000;
const NO_PANIC: &str = "no panic happens under the locks of the access log";

// Whatever a line shows, an empty chunk has room for it.
const _: () = assert!(line::LINE_BYTES_MAX <= CHUNK_BYTES);
// With the least queue every stripe has a chunk, and there are as many that can wait.
const _: () = assert!(AccessLogConfig::QUEUE_BYTES_MIN >= 2 * STRIPES_MAX * CHUNK_BYTES);
