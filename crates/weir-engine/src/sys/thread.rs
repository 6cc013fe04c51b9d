//! The scheduling of a thread: its niceness and its time slice.

#![expect(unsafe_code, reason = "a syscall that no safe wrapper covers")]

use std::io;
use std::time::Duration;

use rustix::process::getpriority_process;

/// The scheduling of the calling thread, relative to how the process was started.
///
/// A thread that shares a processor with a busy shard waits for the end of the shard's time slice.
/// If its own slice is shorter, it goes first, as often as its share of the processor permits.
/// EEVDF has this slice (Linux 6.12 and later; other kernels ignore it): Peter Zijlstra,
/// "sched/eevdf: Use sched_attr::sched_runtime to set request/slice suggestion", 2024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadShare {
    /// Steps of niceness to go down, 0 to 19. Each takes some 20 % off its share while other
    /// threads want the processor too.
    pub nice: i32,
    /// The time slice, 100 µs to 100 ms; `None`: the kernel's, some milliseconds.
    pub slice: Option<Duration>,
}

impl ThreadShare {
    /// Applies the scheduling to the calling thread. This needs no privilege.
    ///
    /// Errors: the kernel's, if a sandbox forbids the syscall. Then the thread keeps its
    /// scheduling.
    pub fn apply(self) -> io::Result<()> {
        let nice = (getpriority_process(None)? + self.nice).min(NICE_MAX);
        let slice = self.slice.map_or(0, |slice| slice.as_nanos());
        let attributes = libc::sched_attr {
            size: ATTRIBUTES_BYTES,
            sched_policy: libc::SCHED_OTHER as u32,
            sched_flags: libc::SCHED_FLAG_KEEP_POLICY as u64,
            sched_nice: nice,
            sched_priority: 0,
            sched_runtime: u64::try_from(slice).unwrap_or(u64::MAX),
            sched_deadline: 0,
            sched_period: 0,
        };
        let (this_thread, no_flags) = (0, 0);
        // SAFETY: the kernel reads `size` bytes of a live structure, which is as the kernel's header has it.
        let done = unsafe {
            libc::syscall(libc::SYS_sched_setattr, this_thread, &raw const attributes, no_flags)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "56 bytes")]
const ATTRIBUTES_BYTES: u32 = size_of::<libc::sched_attr>() as u32;
/// The niceness with the smallest share.
const NICE_MAX: i32 = 19;

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> (i32, u64) {
        let nice = getpriority_process(None).unwrap();
        // SAFETY: plain integers, for which zeros are a value.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most that many bytes into a live structure.
        let done = unsafe {
            libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, ATTRIBUTES_BYTES, 0)
        };
        assert_eq!(done, 0);
        (nice, attributes.sched_runtime)
    }

    #[test]
    fn a_thread_goes_down_alone_and_keeps_to_its_slice() {
        let before = own();
        let (nice, slice) = std::thread::spawn(|| {
            let share = ThreadShare { nice: 5, slice: Some(Duration::from_micros(200)) };
            share.apply().unwrap();
            own()
        })
        .join()
        .unwrap();
        assert_eq!(nice, (before.0 + 5).min(NICE_MAX));
        // Kernels before 6.12 take no slice and tell none.
        assert!([0, 200_000].contains(&slice), "{slice}");
        assert_eq!(own(), before);
    }

    #[test]
    fn more_than_the_least_share_is_the_least() {
        let nice = std::thread::spawn(|| {
            ThreadShare { nice: 100, slice: None }.apply().unwrap();
            own().0
        });
        assert_eq!(nice.join().unwrap(), NICE_MAX);
    }
}
