//! The way of lines from the threads that answer requests to the thread that writes.
//!
//! ```text
//!  thread ─► its stripe: a chunk being filled ──when full, or every 50 ms──► full chunks ─► writer ─► file
//!                    ▲                                                                        │
//!                    └────────────────────────── empty chunks ◄───────────────────────────────┘
//! ```
//!
//! A thread meets others only at its stripe's lock and, once a chunk, at the lock of the queue. The
//! stripe's lock is held while a line is formatted or a chunk exchanged. No thread holds either
//! lock while the file is written.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tracing::warn;
use weir_engine::Footprint;

use super::stamp::Stamp;
use super::{Counts, Entry, line};
use crate::base::config::{AccessLogConfig, AccessLogFormat};

/// The way to the writing thread. When it is dropped, that thread writes the remaining lines; the
/// drop does not wait for it.
pub(super) struct Queue {
    shared: Arc<Shared>,
}

/// The common state of the recording threads and the writer.
pub(super) struct Shared {
    format: AccessLogFormat,
    clock: Clock,
    stripes: Box<[Stripe]>,
    chunks: Mutex<Chunks>,
    /// Notified when the writer has work, and by the writer when it has ended.
    waker: Condvar,
    lines: AtomicU64,
    dropped: AtomicU64,
    errors: AtomicU64,
    /// The time, in milliseconds of the clock, before which no log line about drops is written.
    tell_again_ms: AtomicU64,
    dropped_told: AtomicU64,
    is_telling: AtomicBool,
}

/// Lines of one thread, or of a few that share it. The alignment keeps stripes out of a common
/// cache line, and out of pairs that are fetched together.
#[repr(align(128))]
struct Stripe(Mutex<Filling>);

struct Filling {
    chunk: Chunk,
    stamp: Stamp,
}

/// Complete lines.
#[derive(Default)]
pub(super) struct Chunk {
    /// With a capacity of [`CHUNK_BYTES`], or of zero.
    pub(super) bytes: Vec<u8>,
    pub(super) lines: u64,
}

struct Chunks {
    full: VecDeque<Chunk>,
    empty: Vec<Vec<u8>>,
    /// The number of chunks that may still be allocated.
    unmade: usize,
    is_writer_asleep: bool,
    must_reopen: bool,
    must_end: bool,
    has_ended: bool,
}

/// Orders for the writer.
pub(super) struct Orders {
    pub(super) must_reopen: bool,
    pub(super) must_end: bool,
}

/// Wall time derived from the monotonic clock, which measures requests anyway.
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

    /// The chunks that have been made, full or empty.
    pub(super) fn footprint(&self) -> Footprint {
        let chunks = self.shared.lock();
        let made = chunks.full.capacity().saturating_sub(chunks.unmade);
        Footprint::of_each(made, CHUNK_BYTES)
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

    /// Lets the writer open the file again.
    pub(super) fn reopen(&self) {
        self.lock().must_reopen = true;
        self.waker.notify_all();
    }

    /// Lets the writer write the remaining lines and end. No further chunk is given out.
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

    /// Exchanges a full chunk for an empty one; `false` if there is none, and then the chunk stays.
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

    /// Takes the partly filled chunks of the stripes, after their earlier full ones.
    pub(super) fn gather(&self) {
        for stripe in &self.stripes {
            let mut filling = stripe.lock();
            let chunk = std::mem::take(&mut filling.chunk);
            self.lock().give(chunk);
        }
    }

    /// The next chunk to write; `None` if there is none at the moment.
    pub(super) fn next_full(&self) -> Option<Chunk> {
        self.lock().full.pop_front()
    }

    /// Returns a written chunk for further use.
    pub(super) fn give_back(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.lock().empty.push(bytes);
    }

    /// Waits for work, at the latest until `until`.
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

    /// Waits before another attempt to write, unless the writer must end or reopen the file.
    pub(super) fn sleep_on_error(&self, time: Duration) -> Orders {
        let is_idle = |chunks: &mut Chunks| !chunks.must_end && !chunks.must_reopen;
        let waited = self.waker.wait_timeout_while(self.lock(), time, is_idle);
        waited.expect(NO_PANIC).0.orders()
    }

    /// Called last by the writer.
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

    /// Logs the lines dropped since the last time, at most every ten seconds.
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
    /// An empty chunk; `None` if there is none, or if the writer ends.
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

    /// Follows the wall clock, which may have been set.
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

/// The stripe of the calling thread; threads take stripes in turn.
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

/// Some 100 lines. The work for a chunk costs little per line, and the chunk is still in the cache
/// when it is written.
pub(super) const CHUNK_BYTES: usize = 32 * 1024;
/// This many full chunks wake the writer. Fewer wait for its next look, so that it does not wake
/// for each.
const WAKE_CHUNKS: usize = 4;
/// Each stripe holds a chunk, so more threads than this share stripes.
const STRIPES_MAX: usize = 16;
/// A disk that takes longer is stuck.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
const TELL_INTERVAL_MS: u64 = 10_000;
const NO_PANIC: &str = "no panic happens under the locks of the access log";

// An empty chunk has room for every line.
const _: () = assert!(line::LINE_BYTES_MAX <= CHUNK_BYTES);
// With the smallest queue every stripe has a chunk, and the same number can wait.
const _: () = assert!(AccessLogConfig::QUEUE_BYTES_MIN >= 2 * STRIPES_MAX * CHUNK_BYTES);
