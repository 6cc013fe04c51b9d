//! A descriptor table for one thread, and the passage into it.
//!
//! The limit on open files counts for each table, and all threads of a process share one. A shard
//! that leaves it has a limit of its own, and no contention with others for the table.
//!
//! From then on a number names another file in each table. So a descriptor of the shard is a
//! [`ShardFd`], which cannot leave the thread. What the thread got from its starter it knows by
//! number, and closes only its own copy. Nothing that the thread drops may close a descriptor of
//! the front's table: the engine keeps the mailbox, with its waker, until the thread has ended.

#![expect(unsafe_code, reason = "a thread leaves the table that Rust takes for the only one")]

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

use crate::command::Passed;
use crate::mailbox::NotPassed;

/// A descriptor in the table of the calling thread. Only this thread closes it.
#[derive(Debug)]
pub(crate) struct ShardFd {
    fd: OwnedFd,
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl ShardFd {
    /// A descriptor that this thread has opened, received, or got from its starter for good.
    pub(crate) fn new(fd: OwnedFd) -> ShardFd {
        ShardFd { fd, _stays_on_its_thread: PhantomData }
    }

    /// The descriptor, for one who closes it on this thread.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for ShardFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The descriptors that a table of one's own has from the start.
const STANDARD_STREAMS: [RawFd; 3] = [0, 1, 2];

thread_local! {
    static HAS_OWN_TABLE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread has a table of its own. Descriptors of the front mean nothing to it.
pub(crate) fn has_own_table() -> bool {
    HAS_OWN_TABLE.get()
}

/// Gives the calling thread a table of its own, with the standard streams and copies of `kept`.
///
/// The thread's starter keeps `kept` open until this returns. Whatever else the thread holds must
/// not close descriptors when it is dropped.
/// Errors: a kernel before 5.9, or a sandbox that forbids the syscall.
pub(crate) fn leave_shared_table<const N: usize>(kept: [RawFd; N]) -> io::Result<[ShardFd; N]> {
    let mut numbers: Vec<u32> = kept
        .into_iter()
        .chain(STANDARD_STREAMS)
        .map(|number| u32::try_from(number).map_err(io::Error::other))
        .collect::<io::Result<_>>()?;
    numbers.sort_unstable();
    let highest = numbers.last().copied().unwrap_or(0);
    // With the end of all numbers first: the kernel does not even copy what lies there.
    close_range(highest + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    HAS_OWN_TABLE.set(true);
    for pair in numbers.windows(2) {
        if let [before, after] = pair
            && before + 1 < *after
        {
            close_range(before + 1, after - 1, 0)?;
        }
    }
    Ok(kept.map(|number| {
        // SAFETY: the starter keeps `kept` open, so the new table has a copy. Nobody else owns it.
        ShardFd::new(unsafe { OwnedFd::from_raw_fd(number) })
    }))
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: it touches no memory. It closes descriptors of a table that is new with this call or
    // with an earlier one of `leave_shared_table`, and none that this thread keeps.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A passage into a table: the front's end and the shard's.
pub(crate) fn passage() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Puts a copy of a socket into the passage.
pub(crate) fn pass(to: &OwnedFd, socket: &OwnedFd, passed: Passed) -> Result<(), NotPassed> {
    debug_assert!(!has_own_table(), "sockets come from the front's table");
    let number = passed.0.to_ne_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets = [socket.as_fd()];
    let is_pushed = ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    debug_assert!(is_pushed, "there is space for one");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(to, &[IoSlice::new(&number)], &mut ancillary, flags) {
        Ok(_) => Ok(()),
        Err(Errno::TOOMANYREFS) => Err(NotPassed::InFlight),
        Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(NotPassed::Ended),
        // Without memory for the message it is like without room in the buffer.
        Err(_) => Err(NotPassed::Full),
    }
}

/// The shard's end of a passage.
#[derive(Debug)]
pub(crate) struct PassageEnd(ShardFd);

impl PassageEnd {
    pub(crate) fn new(from: ShardFd) -> PassageEnd {
        PassageEnd(from)
    }

    /// Takes the socket with this number. Earlier ones are closed.
    ///
    /// Errors: `EMFILE` if the table has no free descriptor. The kernel then closes the socket, and
    /// tells by a flag only.
    pub(crate) fn take(&self, passed: Passed) -> io::Result<OwnedFd> {
        loop {
            let (number, socket) = self.take_next()?;
            // Another device's socket must not be taken for this one.
            assert!(number <= passed, "socket {number:?} has overtaken {passed:?}");
            if number == passed {
                return socket.ok_or_else(|| Errno::MFILE.into());
            }
        }
    }

    fn take_next(&self) -> io::Result<(Passed, Option<OwnedFd>)> {
        let mut number = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut number)];
        let message = recvmsg(&self.0, &mut parts, &mut ancillary, flags)?;
        if message.bytes != 8 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let socket = ancillary.drain().find_map(|message| {
            let RecvAncillaryMessage::ScmRights(mut sockets) = message else { return None };
            sockets.next()
        });
        debug_assert!(socket.is_some() != message.flags.contains(ReturnFlags::CTRUNC));
        Ok((Passed(u64::from_ne_bytes(number)), socket))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::read_dir;
    use std::os::fd::AsRawFd;

    use super::*;

    fn is_open(number: RawFd) -> bool {
        std::path::Path::new(&format!("/proc/thread-self/fd/{number}")).exists()
    }

    fn open_count() -> usize {
        // Reading the directory takes a descriptor.
        read_dir("/proc/thread-self/fd").unwrap().count() - 1
    }

    #[test]
    fn a_table_of_ones_own_has_only_what_was_kept() {
        let files: Vec<OwnedFd> =
            (0..40).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
        let numbers: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
        let kept = [numbers[20], numbers[3]];
        let theirs = numbers.clone();
        let own = std::thread::spawn(move || {
            assert!(!has_own_table());
            let own = leave_shared_table(kept).unwrap();
            assert!(has_own_table());
            assert_eq!(own.each_ref().map(|fd| fd.as_fd().as_raw_fd()), kept);
            let open: Vec<RawFd> = theirs.into_iter().filter(|number| is_open(*number)).collect();
            let count = open_count();
            drop(own);
            (open, count, open_count())
        });
        let (mut open, count, after) = own.join().unwrap();
        open.sort_unstable();
        let mut expected = kept;
        expected.sort_unstable();
        assert_eq!(open, expected);
        assert_eq!((count, after), (5, 3));
        assert!(numbers.iter().all(|number| is_open(*number)), "no other table has changed");
    }

    #[test]
    fn sockets_come_out_in_order_and_earlier_ones_are_closed() {
        let (to, from) = passage().unwrap();
        let end = PassageEnd::new(ShardFd::new(from));
        let mut peers = Vec::new();
        for number in 1..=5 {
            let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
            pass(&to, &one.into(), Passed(number)).unwrap();
            peers.push(other);
        }
        for number in [2, 5] {
            let socket = std::os::unix::net::UnixStream::from(end.take(Passed(number)).unwrap());
            std::io::Write::write_all(&mut &socket, &[7]).unwrap();
            let mut byte = [0];
            let peer = &mut &peers[usize::try_from(number).unwrap() - 1];
            std::io::Read::read_exact(peer, &mut byte).unwrap();
        }
        let mut byte = [0];
        for number in [0, 2, 3] {
            let read = std::io::Read::read(&mut &peers[number], &mut byte).unwrap();
            assert_eq!(read, 0, "socket {number} is closed");
        }
        assert_eq!(end.take(Passed(6)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(end);
        let (one, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(pass(&to, &one.into(), Passed(6)), Err(NotPassed::Ended));
    }

    #[test]
    fn a_full_buffer_gives_the_socket_back() {
        let (to, _from) = passage().unwrap();
        let (one, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let one = OwnedFd::from(one);
        let passed = (1..100_000).take_while(|number| pass(&to, &one, Passed(*number)).is_ok());
        let count = passed.count();
        // A shard's share of the passage fits in the buffer that the kernel grants by default.
        assert!((128..100_000 - 1).contains(&count), "{count}");
        assert_eq!(pass(&to, &one, Passed(0)), Err(NotPassed::Full));
    }

    #[test]
    #[should_panic(expected = "has overtaken")]
    fn a_stranger_is_never_taken_for_another() {
        let (to, from) = passage().unwrap();
        let (one, _) = std::os::unix::net::UnixStream::pair().unwrap();
        pass(&to, &one.into(), Passed(2)).unwrap();
        let _ = PassageEnd::new(ShardFd::new(from)).take(Passed(1));
    }
}
