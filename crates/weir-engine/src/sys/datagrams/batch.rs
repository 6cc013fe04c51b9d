//! The datagrams of one system call.
//!
//! The kernel's headers point into buffers. Each call builds them anew on its stack, so no pointer
//! outlives the call. A full batch costs some 100 ns for that.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use super::DatagramSocket;
use super::peer::{Local, Name, Peer, SOCKLEN_OF_NAME};

/// Room for the datagrams of one `recvmmsg`.
///
/// Shape: [`Inbox::BATCH`] buffers of one length, and the kernel's information about each datagram.
pub struct Inbox {
    bytes_max: usize,
    buffer: Box<[u8]>,
    names: Box<[Name; Inbox::BATCH]>,
    controls: Box<[Control; Inbox::BATCH]>,
    /// Length, whether the datagram was cut, and the address that it was sent to.
    heads: Box<[(usize, bool, Local); Inbox::BATCH]>,
    count: usize,
}

/// One datagram.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// Its content, or the beginning of it.
    pub bytes: &'a [u8],
    /// Whether it is longer than its buffer. Then the rest is lost.
    pub is_cut: bool,
    /// The sender.
    pub peer: Peer,
}

/// Answers that wait for one `sendmmsg`.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    waiting: Vec<(Peer, Range<usize>)>,
}

/// The result of sending answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Answers that the kernel took.
    pub sent: usize,
    /// Answers that the kernel refused: their address cannot be reached, or there was no room for a
    /// long time.
    pub refused: usize,
}

/// Control messages, aligned as the kernel wants them.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Inbox {
    /// The most datagrams of one syscall.
    pub const BATCH: usize = 64;

    /// Buffers for datagrams of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Inbox {
        Inbox {
            bytes_max,
            buffer: vec![0; bytes_max * Inbox::BATCH].into_boxed_slice(),
            names: Box::new([Name::NONE; Inbox::BATCH]),
            controls: Box::new([Control([0; CONTROL_BYTES]); Inbox::BATCH]),
            heads: Box::new([(0, false, Local::Own); Inbox::BATCH]),
            count: 0,
        }
    }

    /// Takes the waiting datagrams in place of earlier ones. Returns their number; 0: nothing
    /// waits.
    ///
    /// Cost: one syscall.
    pub fn receive(&mut self, socket: &DatagramSocket) -> io::Result<usize> {
        self.count = 0;
        let mut slices = [const { MaybeUninit::<libc::iovec>::uninit() }; Inbox::BATCH];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; Inbox::BATCH];
        let parts = self.buffer.chunks_exact_mut(self.bytes_max).zip(self.names.iter_mut());
        let parts = parts.zip(self.controls.iter_mut()).zip(slices.iter_mut()).zip(&mut headers);
        for ((((buffer, name), control), slice), header) in parts {
            let slice = slice
                .write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            header.write(libc::mmsghdr {
                msg_hdr: libc::msghdr {
                    msg_name: (&raw mut *name).cast(),
                    msg_namelen: SOCKLEN_OF_NAME,
                    msg_iov: slice,
                    msg_iovlen: 1,
                    msg_control: (&raw mut *control).cast(),
                    msg_controllen: CONTROL_BYTES,
                    msg_flags: 0,
                },
                msg_len: 0,
            });
        }
        // SAFETY: there are `BATCH` headers, all written. Each points to a slice, a name and a
        // control buffer of its own. These live on, and the header has their lengths.
        let received = unsafe {
            libc::recvmmsg(
                socket.fd.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                BATCH,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            let is_nothing =
                [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind());
            return if is_nothing { Ok(0) } else { Err(error) };
        };
        for (index, header) in headers.iter().enumerate().take(received) {
            // SAFETY: it was written above.
            let header = unsafe { header.assume_init_ref() };
            let bytes = (header.msg_len as usize).min(self.bytes_max);
            let is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let told = header.msg_hdr.msg_controllen.min(CONTROL_BYTES);
            let local = self.read_control(index, told);
            self.heads[index] = (bytes, is_cut, local);
        }
        self.count = received;
        Ok(received)
    }

    /// The datagrams that were received last.
    pub fn datagrams(&self) -> impl Iterator<Item = Received<'_>> {
        let parts = self.buffer.chunks_exact(self.bytes_max).zip(self.names.iter());
        parts.zip(self.heads.iter()).take(self.count).map(|((buffer, name), head)| {
            let (bytes, is_cut, local) = *head;
            Received { bytes: &buffer[..bytes], is_cut, peer: Peer { name: *name, local } }
        })
    }

    fn read_control(&self, index: usize, told: usize) -> Local {
        let mut local = Local::Own;
        let mut rest = &self.controls[index].0[..told];
        while let Some((level, kind, content, behind)) = control_message(rest) {
            rest = behind;
            match (level, kind, content.len()) {
                // Interface, our address that answers, the address in the packet.
                (libc::IPPROTO_IP, libc::IP_PKTINFO, 12) => {
                    let [.., a, b, c, d, _, _, _, _] = *content else { continue };
                    local = Local::V4(Ipv4Addr::new(a, b, c, d));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20) => {
                    let (octets, interface) = content.split_at(16);
                    let octets = <[u8; 16]>::try_from(octets).unwrap_or_default();
                    let interface = <[u8; 4]>::try_from(interface).unwrap_or_default();
                    local = Local::V6(Ipv6Addr::from(octets), u32::from_ne_bytes(interface));
                }
                _ => {}
            }
        }
        local
    }
}

impl Outbox {
    /// The most answers of one syscall.
    pub const BATCH: usize = Inbox::BATCH;

    /// Whether there is no room for another answer.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= Outbox::BATCH
    }

    /// The number of waiting answers.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no answer waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds the bytes that `write` appends, if it returns true. Returns what `write` returns.
    pub fn push(&mut self, peer: Peer, write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let start = self.bytes.len();
        let is_there = write(&mut self.bytes);
        if is_there {
            self.waiting.push((peer, start..self.bytes.len()));
        } else {
            self.bytes.truncate(start);
        }
        is_there
    }

    /// Sends all waiting answers.
    ///
    /// Cost: one syscall a batch. If the kernel has no room, it waits for room, but not for long.
    pub fn send(&mut self, socket: &DatagramSocket) -> Sent {
        let mut outcome = Sent::default();
        let mut next = 0;
        let mut has_waited = false;
        while next < self.waiting.len() {
            let end = self.waiting.len().min(next + Outbox::BATCH);
            match self.send_batch(socket, next..end) {
                // The kernel reports an error only if the first answer caused it.
                Ok(sent) => {
                    outcome.sent += sent;
                    next += sent.max(1);
                    has_waited = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !has_waited => {
                    socket.wait_for_room(ROOM_TIMEOUT);
                    has_waited = true;
                }
                Err(_) => {
                    outcome.refused += 1;
                    next += 1;
                }
            }
        }
        self.waiting.clear();
        self.bytes.clear();
        outcome
    }

    fn send_batch(&mut self, socket: &DatagramSocket, range: Range<usize>) -> io::Result<usize> {
        let mut slices = [const { MaybeUninit::<libc::iovec>::uninit() }; Outbox::BATCH];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; Outbox::BATCH];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; Outbox::BATCH];
        let waiting = &mut self.waiting[range];
        let count = libc::c_uint::try_from(waiting.len()).unwrap_or(BATCH);
        let parts = waiting.iter_mut().zip(&mut slices).zip(&mut headers).zip(&mut controls);
        for ((((peer, range), slice), header), control) in parts {
            let bytes = &mut self.bytes[range.clone()];
            let slice = slice
                .write(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
            let (msg_control, msg_controllen) = match peer.local.control() {
                Some((told, bytes)) => (ptr::from_mut(control.write(told)).cast(), bytes),
                None => (ptr::null_mut(), 0),
            };
            header.write(libc::mmsghdr {
                msg_hdr: libc::msghdr {
                    msg_name: (&raw mut peer.name).cast(),
                    msg_namelen: peer.name.socklen(),
                    msg_iov: slice,
                    msg_iovlen: 1,
                    msg_control,
                    msg_controllen,
                    msg_flags: 0,
                },
                msg_len: 0,
            });
        }
        // SAFETY: `count` headers are written; each points to a slice, a name and, or not, a control message, which live
        // on and are told by their lengths. The kernel writes nothing but their `msg_len`.
        let sent = unsafe {
            libc::sendmmsg(
                socket.fd.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                count,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl Local {
    /// The control message that sets the sender address of an answer, and its length.
    fn control(&self) -> Option<(Control, usize)> {
        let mut content = [0; 20];
        let (level, kind, bytes) = match self {
            Local::Own => return None,
            Local::V4(addr) => {
                content[4..8].copy_from_slice(&addr.octets());
                (libc::IPPROTO_IP, libc::IP_PKTINFO, 12)
            }
            Local::V6(addr, interface) => {
                content[..16].copy_from_slice(&addr.octets());
                // In other cases the routes decide.
                if addr.is_unicast_link_local() {
                    content[16..].copy_from_slice(&interface.to_ne_bytes());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20)
            }
        };
        let mut control = Control([0; CONTROL_BYTES]);
        control.0[..8].copy_from_slice(&(CONTROL_HEAD_BYTES + bytes).to_ne_bytes());
        control.0[8..12].copy_from_slice(&level.to_ne_bytes());
        control.0[12..16].copy_from_slice(&kind.to_ne_bytes());
        control.0[16..16 + bytes].copy_from_slice(&content[..bytes]);
        Some((control, (CONTROL_HEAD_BYTES + bytes).next_multiple_of(8)))
    }
}

/// The first control message (level, type, content), and the bytes behind it.
fn control_message(bytes: &[u8]) -> Option<(i32, i32, &[u8], &[u8])> {
    let (head, _) = bytes.split_first_chunk::<CONTROL_HEAD_BYTES>()?;
    let (length, kind) = head.split_first_chunk::<8>()?;
    let length = usize::from_ne_bytes(*length);
    let (level, kind) = kind.split_first_chunk::<4>()?;
    let kind = kind.first_chunk::<4>()?;
    let content = bytes.get(CONTROL_HEAD_BYTES..length)?;
    let behind = bytes.get(length.next_multiple_of(8)..).unwrap_or_default();
    Some((i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), content, behind))
}

/// The batch size in the type of the syscalls.
const BATCH: libc::c_uint = 64;
const _: () = assert!(BATCH as usize == Inbox::BATCH);
/// If the wait were longer, the answers would be too late anyway.
const ROOM_TIMEOUT: Duration = Duration::from_millis(20);
/// Bytes of a `cmsghdr`.
const CONTROL_HEAD_BYTES: usize = 16;
const _: () = assert!(size_of::<libc::cmsghdr>() == CONTROL_HEAD_BYTES);
/// Room for the longer of the two kinds of addresses.
const CONTROL_BYTES: usize = CONTROL_HEAD_BYTES + 24;
