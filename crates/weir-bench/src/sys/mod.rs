//! The system calls that rustix does not offer, and the allocator: the only unsafe code of the
//! bench.
#![expect(unsafe_code, reason = "calls into libc that no safe wrapper covers")]

pub(crate) mod allocator;
pub(crate) mod datagrams;

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::time::Duration;

/// Bytes for control messages: room for one time stamp and more.
const CONTROL_WORDS: usize = 16;

/// Receives without waiting; also returns the time at which the kernel received the last of the
/// bytes.
///
/// The time is in nanoseconds since 1970; `None` if the kernel did not stamp (see
/// [`stamp_receives`]).
pub(crate) fn receive_stamped(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
) -> io::Result<(usize, Option<u64>)> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: `msghdr` is a plain C struct for which all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(&control);
    // SAFETY: the pointers in `header` name `buf` and `control`, which outlive the call, with their
    // true lengths.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let words = header.msg_controllen.div_ceil(mem::size_of::<u64>());
    Ok((got, stamp_in(control.get(..words).unwrap_or(&control))))
}

/// Finds the receive time in control messages: a `cmsghdr` of two words, then a `timespec` of two words.
fn stamp_in(control: &[u64]) -> Option<u64> {
    let [bytes, kind, rest @ ..] = control else { return None };
    let kind = kind.to_ne_bytes();
    let [l0, l1, l2, l3, t0, t1, t2, t3] = kind;
    let level = i32::from_ne_bytes([l0, l1, l2, l3]);
    let kind = i32::from_ne_bytes([t0, t1, t2, t3]);
    if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPNS {
        let [seconds, nanos, ..] = rest else { return None };
        return Some(seconds.wrapping_mul(1_000_000_000).wrapping_add(*nanos));
    }
    let words = usize::try_from(*bytes).ok()?.div_ceil(mem::size_of::<u64>());
    stamp_in(control.get(words.max(2)..)?)
}

/// Asks the kernel to stamp received data with the time.
pub(crate) fn stamp_receives(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS)
}

/// Makes `bind` fix the source address only. `connect` then chooses the port, so that one port
/// serves many peers.
pub(crate) fn bind_address_only(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)
}

fn set_option(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<()> {
    set_option_to(fd, level, name, 1)
}

fn set_option_to(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let bytes = libc::socklen_t::try_from(mem::size_of_val(&value)).unwrap_or(0);
    let value = (&raw const value).cast();
    // SAFETY: the pointer names an argument, which outlives the call, with its true length.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, bytes) })
}

/// CPU time of a process: all its threads, running and ended.
pub(crate) fn process_cpu(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a valid place for the result.
    let code = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
    let nanos = u32::try_from(time.tv_nsec).map_err(io::Error::other)?;
    Ok(Duration::new(seconds, nanos))
}

/// Makes the kernel kill the command's process when the starting thread ends. Also unblocks the
/// signals that [`block_end_signals`] blocked, since the process would inherit that.
pub(crate) fn die_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes only async-signal-safe calls, and allocates nothing.
    unsafe { command.pre_exec(prepare_child) }
}

fn prepare_child() -> io::Result<()> {
    mask_end_signals(libc::SIG_UNBLOCK)?;
    // SAFETY: `PR_SET_PDEATHSIG` takes a signal number and touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
}

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and those it starts, for [`wait_for_end_signal`].
pub(crate) fn block_end_signals() -> io::Result<()> {
    mask_end_signals(libc::SIG_BLOCK)
}

fn mask_end_signals(how: libc::c_int) -> io::Result<()> {
    let set = end_signals();
    // SAFETY: `set` is initialised; the old mask is not requested.
    let code = unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) };
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Waits for one of the signals that [`block_end_signals`] blocked; returns its number.
pub(crate) fn wait_for_end_signal() -> i32 {
    let set = end_signals();
    let mut signal: libc::c_int = 0;
    loop {
        // SAFETY: `set` is initialised and `signal` is a valid place for the result.
        if unsafe { libc::sigwait(&raw const set, &raw mut signal) } == 0 {
            return signal;
        }
    }
}

fn end_signals() -> libc::sigset_t {
    // SAFETY: `sigset_t` is a plain C struct for which all zeroes is a valid (empty) value on Linux.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: `set` is initialised and the signal number is valid.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// Bytes of a page of memory.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: it touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

fn check(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;
    use crate::clock;

    /// Waits until the kernel stamps received data, which takes a moment after the first socket
    /// asks for it. While this socket is open, the kernel stamps for all sockets.
    pub(crate) fn stamping() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stamp_receives(client.as_fd()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut buf = [0; 64];
        for _ in 0..200 {
            let before = clock::realtime_ns();
            server.write_all(b"hello").unwrap();
            clock::sleep(Duration::from_millis(5));
            let after = clock::realtime_ns();
            let (got, stamp) = receive_stamped(client.as_fd(), &mut buf).unwrap();
            assert_eq!(&buf[..got], b"hello");
            if let Some(stamp) = stamp {
                assert!((before..=after).contains(&stamp), "{before} {stamp} {after}");
                return client;
            }
        }
        panic!("no time stamp in 200 messages");
    }

    #[test]
    fn the_kernel_stamps_what_a_tcp_socket_receives() {
        stamping();
    }

    #[test]
    fn cpu_time_of_a_process_grows_as_it_works() {
        let before = process_cpu(std::process::id()).unwrap();
        let mut sum = 0_u64;
        while process_cpu(std::process::id()).unwrap() < before + Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }

    #[test]
    fn a_stamp_is_found_behind_another_control_message() {
        let kind = |level: i32, kind: i32| {
            u64::from_ne_bytes(
                [level.to_ne_bytes(), kind.to_ne_bytes()].concat().try_into().unwrap(),
            )
        };
        let stamp = kind(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
        assert_eq!(stamp_in(&[24, kind(6, 1), 7, 32, stamp, 2, 5]), Some(2_000_000_005));
        assert_eq!(stamp_in(&[24, kind(6, 1), 7]), None);
        assert_eq!(stamp_in(&[0, 0, 0, 0]), None);
        assert_eq!(stamp_in(&[]), None);
    }
}
