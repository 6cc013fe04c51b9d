//! Samples of the CPU time of all threads: a timer, and a signal handler that follows frame
//! pointers.
//!
//! The handler may interrupt any instruction of any thread, so it uses nothing but atomics, its own
//! stack and system calls. It reads the interrupted stack with `process_vm_readv`, which fails where
//! a direct read would crash: in code without frame pointers, as assembly is, the register may hold
//! anything. The handler uses no descriptor, because a shard may have a descriptor table of its own
//! (`engine.own_descriptors`): there the same number may be a device's socket.

use std::collections::HashMap;
use std::io;
use std::mem::{MaybeUninit, size_of, size_of_val};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread::yield_now;
use std::time::Duration;

use libc::{c_int, c_void, siginfo_t, ucontext_t};

/// A running sampling. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Sampling {
    interval: Duration,
    began_ms: u64,
}

/// What a sampling has seen.
#[derive(Debug)]
pub(crate) struct Samples {
    /// The name of a thread and its stack, from the innermost call, with the number of samples. The
    /// first address is that of an instruction; the others are those to which the calls return.
    pub(crate) stacks: HashMap<(ThreadName, Vec<usize>), u64>,
    /// Samples for which there was no room.
    pub(crate) lost: usize,
    /// The CPU time between two samples.
    pub(crate) interval: Duration,
    /// Since 1970.
    pub(crate) began_ms: u64,
    pub(crate) duration: Duration,
}

/// The name of a thread, as the kernel keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ThreadName([u8; NAME_BYTES]);

impl ThreadName {
    pub(crate) fn text(&self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}

impl Sampling {
    /// Errors: [`io::ErrorKind::ResourceBusy`] if one is running, and what the system refuses.
    pub(crate) fn start(processors: usize) -> io::Result<Sampling> {
        // Otherwise each stack would have one frame, and nobody would know why.
        read_words(ptr::from_ref(&PROBE).expose_provenance()).ok_or_else(|| {
            let error = io::Error::last_os_error();
            io::Error::new(error.kind(), format!("process_vm_readv: {error}"))
        })?;
        if IS_RUNNING.swap(true, Ordering::SeqCst) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let interval = INTERVAL * u32::try_from(processors.div_ceil(8)).unwrap_or(1).max(1);
        let sampling = Sampling { interval, began_ms: weir::unix_millis() };
        // From here on, dropping `sampling` takes back what was done.
        RECORDS.store(Box::into_raw(Box::new(Records::new())), Ordering::SeqCst);
        catch_signal()?;
        set_timer(interval)?;
        Ok(sampling)
    }

    /// Ends the sampling.
    pub(crate) fn stop(self) -> Samples {
        let (interval, began_ms) = (self.interval, self.began_ms);
        let duration = Duration::from_millis(weir::unix_millis().saturating_sub(began_ms));
        let records = take_records();
        let stacks = records.as_ref().map(|records| records.stacks()).unwrap_or_default();
        let lost = records.map_or(0, |records| records.lost.into_inner());
        Samples { stacks, lost, interval, began_ms, duration }
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        drop(take_records());
        IS_RUNNING.store(false, Ordering::SeqCst);
    }
}

/// Stops the timer and takes what the handler has written, once no handler uses it any more.
fn take_records() -> Option<Box<Records>> {
    // It cannot fail: the timer and its values are valid.
    let _ = set_timer(Duration::ZERO);
    let records = RECORDS.swap(ptr::null_mut(), Ordering::SeqCst);
    // A handler counts itself before it looks for the records. So if none is counted now, none has
    // them.
    while HANDLERS.load(Ordering::SeqCst) > 0 {
        yield_now();
    }
    if records.is_null() {
        return None;
    }
    #[expect(unsafe_code, reason = "the handler needs a pointer")]
    // SAFETY: the pointer comes from `Box::into_raw` in `start`. The swap has taken it, so this is
    // the only place that makes a box of it; no handler has it any more.
    Some(unsafe { Box::from_raw(records) })
}

/// The places of the samples. Each has a word with the number of its frames, its thread's name and
/// its frames.
#[derive(Debug)]
struct Records {
    words: Box<[AtomicUsize]>,
    /// Words that are reserved; beyond the end if there was no room.
    reserved: AtomicUsize,
    lost: AtomicUsize,
}

impl Records {
    fn new() -> Records {
        let words = (0..WORDS).map(|_| AtomicUsize::new(0)).collect();
        Records { words, reserved: AtomicUsize::new(0), lost: AtomicUsize::new(0) }
    }

    /// Adds a sample. Signal handlers call it, at any time and on any thread.
    fn add(&self, name: [usize; NAME_WORDS], frames: &[usize]) {
        let needed = 1 + NAME_WORDS + frames.len();
        let begin = self.reserved.fetch_add(needed, Ordering::Relaxed);
        let place = begin.checked_add(needed).and_then(|end| self.words.get(begin..end));
        let Some((head, rest)) = place.and_then(|place| place.split_first()) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        for (word, value) in rest.iter().zip(name.iter().chain(frames)) {
            word.store(*value, Ordering::Relaxed);
        }
        head.store(frames.len(), Ordering::Relaxed);
    }

    /// Equal samples together, after the last handler has ended.
    fn stacks(&self) -> HashMap<(ThreadName, Vec<usize>), u64> {
        let mut stacks = HashMap::new();
        let mut words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        while let Some(count) = words.next().filter(|count| *count > 0) {
            let mut name = [0; NAME_BYTES];
            for bytes in name.chunks_exact_mut(size_of::<usize>()) {
                bytes.copy_from_slice(&words.next().unwrap_or_default().to_ne_bytes());
            }
            let frames = words.by_ref().take(count).collect();
            *stacks.entry((ThreadName(name), frames)).or_default() += 1;
        }
        stacks
    }
}

/// The handler of SIGPROF. It stays in place after a sampling, for a signal that comes late.
extern "C" fn take_sample(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    HANDLERS.fetch_add(1, Ordering::SeqCst);
    let records = RECORDS.load(Ordering::SeqCst);
    if !records.is_null() && !context.is_null() {
        let errno = errno();
        #[expect(unsafe_code, reason = "the handler has no other way to them")]
        // SAFETY: `take_records` frees them only when no handler is counted, and this one is.
        let records = unsafe { &*records };
        #[expect(unsafe_code, reason = "the kernel passes the registers so")]
        // SAFETY: with SA_SIGINFO, the third argument points to a `ucontext_t`, which stays valid
        // until the handler returns.
        let context = unsafe { &*context.cast::<ucontext_t>() };
        let mut frames = [0; FRAMES_MAX];
        let count = walk(Registers::of(context), &mut frames);
        records.add(thread_name(), &frames[..count]);
        set_errno(errno);
    }
    HANDLERS.fetch_sub(1, Ordering::SeqCst);
}

/// The registers from which a stack is followed.
#[derive(Debug, Clone, Copy)]
struct Registers {
    instruction: usize,
    stack: usize,
    frame: usize,
}

impl Registers {
    #[cfg(target_arch = "x86_64")]
    fn of(context: &ucontext_t) -> Registers {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a register is an address"
        )]
        let register = |index: c_int| context.uc_mcontext.gregs[index as usize] as usize;
        Registers {
            instruction: register(libc::REG_RIP),
            stack: register(libc::REG_RSP),
            frame: register(libc::REG_RBP),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn of(context: &ucontext_t) -> Registers {
        #[expect(clippy::cast_possible_truncation, reason = "a register is an address")]
        let address = |register: u64| register as usize;
        let machine = &context.uc_mcontext;
        Registers {
            instruction: address(machine.pc),
            stack: address(machine.sp),
            frame: address(machine.regs[29]),
        }
    }
}

/// Follows frame pointers, and returns the number of frames. A frame begins with the pointer to its
/// caller's frame, followed by the address to which it returns. A caller's frame lies higher.
fn walk(registers: Registers, frames: &mut [usize; FRAMES_MAX]) -> usize {
    let Registers { instruction, stack, mut frame } = registers;
    frames[0] = instruction;
    let mut count = 1;
    let mut floor = stack;
    while count < FRAMES_MAX {
        let is_in_stack = frame >= floor && frame - stack < STACK_BYTES_MAX;
        if !is_in_stack || !frame.is_multiple_of(size_of::<usize>()) {
            break;
        }
        let Some([caller, back]) = read_words(frame) else { break };
        if back == 0 {
            break;
        }
        frames[count] = back;
        count += 1;
        floor = frame + size_of::<[usize; 2]>();
        frame = caller;
    }
    count
}

/// Reads two words of this process; `None` if the memory is not readable.
fn read_words(address: usize) -> Option<[usize; 2]> {
    let mut words = [0_usize; 2];
    let bytes = size_of_val(&words);
    let to = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
    let from = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address), iov_len: bytes };
    #[expect(unsafe_code, reason = "rustix has no such call")]
    // SAFETY: getpid has no conditions.
    let process = unsafe { libc::getpid() };
    #[expect(unsafe_code, reason = "rustix has no such call")]
    // SAFETY: `to` is a buffer of that length. The kernel checks `from` itself and reads it for us.
    let read = unsafe { libc::process_vm_readv(process, &raw const to, 1, &raw const from, 1, 0) };
    (usize::try_from(read) == Ok(bytes)).then_some(words)
}

/// The name of the calling thread.
fn thread_name() -> [usize; NAME_WORDS] {
    let mut name = [0_usize; NAME_WORDS];
    #[expect(unsafe_code, reason = "rustix allocates for the name")]
    // SAFETY: PR_GET_NAME writes 16 bytes, of which the last is 0; the array has as many.
    unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
    }
    name
}

fn errno() -> c_int {
    let place = errno_place();
    #[expect(unsafe_code, reason = "a handler must leave it as it was")]
    // SAFETY: it is a variable of this thread, which lives as long as the thread.
    unsafe {
        *place
    }
}

fn set_errno(errno: c_int) {
    let place = errno_place();
    #[expect(unsafe_code, reason = "a handler must leave it as it was")]
    // SAFETY: it is a variable of this thread, which lives as long as the thread.
    unsafe {
        *place = errno;
    }
}

fn errno_place() -> *mut c_int {
    #[expect(unsafe_code, reason = "a handler must leave it as it was")]
    // SAFETY: the function has no conditions.
    unsafe {
        libc::__errno_location()
    }
}

fn catch_signal() -> io::Result<()> {
    #[expect(unsafe_code, reason = "libc has no other way to an empty one")]
    // SAFETY: zeros are a valid `sigaction`: an empty mask, no flags, the default action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = take_sample;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    #[expect(unsafe_code, reason = "only a signal interrupts a thread")]
    // SAFETY: the handler has the form that SA_SIGINFO asks for. It allocates nothing, takes no lock
    // and leaves errno as it was, so it may interrupt any code.
    let done = unsafe { libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the timer of the process's CPU time; zero stops it.
fn set_timer(interval: Duration) -> io::Result<()> {
    let micros = libc::suseconds_t::try_from(interval.as_micros()).unwrap_or(0);
    let interval = libc::timeval { tv_sec: micros / 1_000_000, tv_usec: micros % 1_000_000 };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    #[expect(unsafe_code, reason = "rustix has no such call")]
    // SAFETY: the pointer is valid, and a null pointer for the old value is permitted.
    let done = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

static IS_RUNNING: AtomicBool = AtomicBool::new(false);
static RECORDS: AtomicPtr<Records> = AtomicPtr::new(ptr::null_mut());
/// Handlers that are running.
static HANDLERS: AtomicUsize = AtomicUsize::new(0);
/// Two words to try whether memory can be read.
static PROBE: [usize; 2] = [0; 2];

/// The kernel checks the timer at its own ticks, of 1 to 10 ms.
const INTERVAL: Duration = Duration::from_millis(10);
/// 8 MB. A minute of eight busy processors makes 48,000 samples, of some 20 words each.
const WORDS: usize = 1 << 20;
const FRAMES_MAX: usize = 64;
/// More than any thread's stack.
const STACK_BYTES_MAX: usize = 64 << 20;
const NAME_BYTES: usize = 16;
const NAME_WORDS: usize = NAME_BYTES / size_of::<usize>();

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn memory_that_is_not_there_is_not_read() {
        let here = [1_usize, 2];
        assert_eq!(read_words(ptr::from_ref(&here).expose_provenance()), Some(here));
        for address in [0, 8, usize::MAX - 7, usize::MAX / 2] {
            assert_eq!(read_words(address), None, "{address:x}");
        }
    }

    #[test]
    fn a_register_with_anything_ends_the_stack() {
        let mut frames = [0; FRAMES_MAX];
        let loop_of_itself = [0_usize, 1];
        let own = ptr::from_ref(&loop_of_itself).expose_provenance();
        for (frame, stack, count) in [
            (0, 0, 1),
            (1, 0, 1),
            (usize::MAX, 0, 1),
            (16, 32, 1),
            (usize::MAX - 15, 1, 1),
            (own, own, 2),
        ] {
            let registers = Registers { instruction: 7, stack, frame };
            assert_eq!(walk(registers, &mut frames), count, "{registers:x?}");
        }
    }

    #[test]
    fn samples_without_room_are_counted() {
        let records = Records::new();
        for _ in 0..=WORDS / 4 {
            records.add([0; NAME_WORDS], &[5]);
        }
        assert_eq!(records.lost.load(Ordering::Relaxed), 1);
        let stacks = records.stacks();
        assert_eq!(stacks.into_values().collect::<Vec<_>>(), [WORDS as u64 / 4]);
    }

    #[test]
    fn a_busy_thread_is_seen_and_only_one_sampling_runs() {
        let sampling = Sampling::start(1).unwrap();
        let second = Sampling::start(1).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
        let work = (0..100_000_000_u64).fold(0, |sum, number| black_box(sum ^ number));
        black_box(work);
        let samples = sampling.stop();
        assert!(samples.stacks.values().sum::<u64>() > 5, "{samples:?}");
        drop(Sampling::start(1).unwrap());
    }
}
