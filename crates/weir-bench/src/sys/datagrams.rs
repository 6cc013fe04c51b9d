//! Sends and receives datagrams in batches, for the load generator and for the baselines.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{mem, ptr};

/// Most datagrams in one syscall.
pub(crate) const BATCH: usize = 64;
/// Room for a datagram.
pub(crate) const BYTES: usize = 1536;

/// Datagrams to send, or received ones, on a connected socket.
pub(crate) struct Batch {
    bytes: Vec<[u8; BYTES]>,
    lengths: [usize; BATCH],
}

impl Batch {
    pub(crate) fn new() -> Batch {
        Batch { bytes: vec![[0; BYTES]; BATCH], lengths: [0; BATCH] }
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        &self.bytes[index][..self.lengths[index]]
    }

    /// Copies a datagram to its place in the batch; returns that place.
    pub(crate) fn set(&mut self, index: usize, datagram: &[u8]) -> &mut [u8] {
        self.lengths[index] = datagram.len();
        let place = &mut self.bytes[index][..datagram.len()];
        place.copy_from_slice(datagram);
        place
    }

    /// Receives the waiting datagrams; returns their number.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.lengths = [BYTES; BATCH];
        let (mut slices, mut headers) = (self.slices(), no_headers());
        point(&mut headers, &mut slices);
        // SAFETY: each header points to its own slice, and the slice to a buffer; all outlive the
        // call.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                COUNT_MAX,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let count = count_of(count)?;
        for (length, header) in self.lengths.iter_mut().zip(&headers[..count]) {
            *length = header.msg_len as usize;
        }
        Ok(count)
    }

    /// Sends the first `count` datagrams; returns how many the kernel has taken.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
        let (mut slices, mut headers) = (self.slices(), no_headers());
        point(&mut headers, &mut slices);
        let count = libc::c_uint::try_from(count).unwrap_or(COUNT_MAX).min(COUNT_MAX);
        // SAFETY: as in `receive`.
        let sent = unsafe {
            libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT)
        };
        count_of(sent)
    }

    fn slices(&mut self) -> [libc::iovec; BATCH] {
        let mut slices = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        for ((slice, bytes), length) in slices.iter_mut().zip(&mut self.bytes).zip(self.lengths) {
            *slice = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
        }
        slices
    }
}

/// Echoes all datagrams in batches, for ever: one `recvmmsg` and one `sendmmsg`, with headers that
/// are made once.
pub(crate) fn echo_in_batches(fd: BorrowedFd<'_>) -> io::Error {
    let mut batch = Batch::new();
    batch.lengths = [BYTES; BATCH];
    // SAFETY: a plain C struct for which all zeroes is a valid value.
    let mut names: [libc::sockaddr_in6; BATCH] = unsafe { mem::zeroed() };
    let (mut slices, mut headers) = (batch.slices(), no_headers());
    point(&mut headers, &mut slices);
    for (header, name) in headers.iter_mut().zip(&mut names) {
        header.msg_hdr.msg_name = (&raw mut *name).cast();
        header.msg_hdr.msg_namelen = NAME_BYTES;
    }
    loop {
        // SAFETY: each header points to its own slice and name, and the slice to a buffer; all
        // outlive the call.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                COUNT_MAX,
                libc::MSG_WAITFORONE,
                ptr::null_mut(),
            )
        };
        let Ok(received) = count_of(received) else { return io::Error::last_os_error() };
        for (slice, header) in slices.iter_mut().zip(&headers[..received]) {
            slice.iov_len = header.msg_len as usize;
        }
        let mut sent = 0;
        while sent < received {
            let rest = &mut headers[sent..received];
            let count = libc::c_uint::try_from(rest.len()).unwrap_or(COUNT_MAX);
            // SAFETY: as above, and there are `count` headers.
            let taken = unsafe { libc::sendmmsg(fd.as_raw_fd(), rest.as_mut_ptr(), count, 0) };
            sent += count_of(taken).unwrap_or(0).max(1);
        }
        for (slice, header) in slices.iter_mut().zip(&mut headers[..received]) {
            slice.iov_len = BYTES;
            header.msg_hdr.msg_namelen = NAME_BYTES;
        }
    }
}

/// Requests socket buffers of this size.
pub(crate) fn set_buffers(fd: BorrowedFd<'_>, bytes: libc::c_int) -> io::Result<()> {
    for name in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        super::set_option_to(fd, libc::SOL_SOCKET, name, bytes)?;
    }
    Ok(())
}

/// Permits other sockets to bind the same address.
pub(crate) fn share_port(fd: BorrowedFd<'_>) -> io::Result<()> {
    super::set_option_to(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
}

fn no_headers() -> [libc::mmsghdr; BATCH] {
    // SAFETY: a plain C struct for which all zeroes is a valid value.
    unsafe { mem::zeroed() }
}

fn point(headers: &mut [libc::mmsghdr; BATCH], slices: &mut [libc::iovec; BATCH]) {
    for (header, slice) in headers.iter_mut().zip(slices) {
        header.msg_hdr.msg_iov = slice;
        header.msg_hdr.msg_iovlen = 1;
    }
}

/// The result of a syscall; 0 if it would have had to wait.
fn count_of(code: libc::c_int) -> io::Result<usize> {
    usize::try_from(code).or_else(|_| match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        error => Err(error),
    })
}

/// [`BATCH`] in the type of the syscalls.
const COUNT_MAX: libc::c_uint = 64;
const _: () = assert!(COUNT_MAX as usize == BATCH);
const NAME_BYTES: libc::socklen_t = 28;
const _: () = assert!(NAME_BYTES as usize == mem::size_of::<libc::sockaddr_in6>());
