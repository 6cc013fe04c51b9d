//! The pair of sockets between the old and the new process: packets, messages, and parts of the
//! state with their descriptors.
//!
//! The sockets are `SOCK_SEQPACKET`, not a stream. The kernel keeps the bounds of each packet, so
//! that a reader never gets half a message from a process that has died, and that a descriptor
//! arrives with its own packet only.
//!
//! Calls block the thread, each until its time is over. Any thread may call them, also one with a
//! descriptor table of its own. A link has one user at a time.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, shutdown, socketpair,
};
use rustix::process::{Resource, getrlimit};
use weir_engine::Nanos;
use weir_wire::ProstMessage;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;

/// One end of the pair.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    /// Most descriptors that may be on their way.
    window: usize,
}

/// Why something did not go over the link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The pair has ended.
    #[error("the other process has ended")]
    Ended,
    /// The other process has given up, and says why.
    #[error("{0}")]
    Failed(String),
    /// Nothing came in time.
    #[error("the other process does not answer in time")]
    Silent,
    /// A message that this program does not know, or not at this place.
    #[error("the other process says what this one does not understand: {0}")]
    NotUnderstood(&'static str),
    /// Descriptors were lost on their way: the table of this process is full.
    #[error(
        "no room for all open files of the other process: the limit on open files is {limit} here"
    )]
    NoRoom {
        /// The soft limit.
        limit: u64,
    },
    /// The kernel lets no further descriptors be on their way.
    #[error(
        "too many open files are on their way between processes of this user; the limit is that on \
         open files, {limit}"
    )]
    TooManyOnTheirWay {
        /// The soft limit.
        limit: u64,
    },
    /// The kernel's error.
    #[error("the pair of sockets fails: {0}")]
    Io(#[from] io::Error),
}

/// What was read from the pair.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// A message.
    Message(Message),
    /// Nothing, and nothing will come: no process has the other end any more.
    End,
    /// Nothing yet.
    Nothing,
}

impl Link {
    /// A pair. Both ends close when a program is executed.
    pub(crate) fn pair() -> io::Result<(Link, Link)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Link::new(one), Link::new(other)))
    }

    /// An end of a pair that was made elsewhere, or that was passed here.
    pub(crate) fn new(socket: OwnedFd) -> Link {
        // Several links share what may be on its way: each takes a quarter of it.
        let share = usize::try_from(open_files_limit() / 4).unwrap_or(usize::MAX);
        Link { socket, window: share.clamp(1, WINDOW_MAX) }
    }

    /// The socket, to pass it on.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Ends the pair for both processes. What was sent can still be received.
    pub(super) fn end(&self) {
        // The other end may have gone.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Sends one message.
    pub(crate) fn send(&self, message: Message, until: Nanos) -> Result<(), LinkError> {
        self.send_quietly(message, until).map_err(|error| self.better(error))
    }

    /// The same, but what the other process has said stays in the pair.
    pub(super) fn send_quietly(&self, message: Message, until: Nanos) -> Result<(), LinkError> {
        let bytes = v1::LinkMessage { kind: Some(message) }.encode_to_vec();
        if bytes.len() > PACKET_BYTES_MAX {
            return Err(LinkError::NotUnderstood("a message that is too long"));
        }
        self.put(MAGIC_MESSAGE, &bytes, &[], until)
    }

    /// Receives one message.
    pub(crate) fn receive(&self, until: Nanos) -> Result<Message, LinkError> {
        match self.hear(until)? {
            Heard::Message(Message::Failed(failed)) => Err(LinkError::Failed(failed.sentence)),
            Heard::Message(message) => Ok(message),
            Heard::End => Err(LinkError::Ended),
            Heard::Nothing => Err(LinkError::Silent),
        }
    }

    /// Waits for what comes next: a message, the end, or the end of the time.
    pub(super) fn hear(&self, until: Nanos) -> Result<Heard, LinkError> {
        let mut buf = vec![0; PACKET_BYTES_MAX];
        let mut none = Vec::new();
        match self.take(&mut buf, &mut none, until)? {
            Taken::Packet { magic: MAGIC_MESSAGE, bytes } => {
                Ok(Heard::Message(read(&buf[..bytes])?))
            }
            Taken::Packet { .. } => Err(LinkError::NotUnderstood("a piece of no part")),
            Taken::End => Ok(Heard::End),
            Taken::Nothing => Ok(Heard::Nothing),
        }
    }

    /// Sends a part of the state: its bytes and its descriptors, which the receiver gets in this
    /// order. Returns when the receiver has all of it.
    ///
    /// Cost: a syscall for each 64 KiB or 253 descriptors, and one for each receipt.
    pub(crate) fn send_part(
        &self,
        name: &str,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        until: Nanos,
    ) -> Result<(), LinkError> {
        let (all_bytes, all) = (bytes.len() as u64, descriptors.len() as u64);
        let part = v1::LinkPart { name: name.to_owned(), bytes: all_bytes, descriptors: all };
        self.send(Message::Part(part), until)?;
        let (mut bytes, mut descriptors) = (bytes, descriptors);
        let (mut sent, mut taken) = (0, 0);
        while !bytes.is_empty() || !descriptors.is_empty() {
            while sent - taken >= self.window && !descriptors.is_empty() {
                taken = self.receipt(sent, until)?.1;
            }
            let (now, later) = bytes.split_at(bytes.len().min(PACKET_BYTES_MAX));
            let room = DESCRIPTORS_MAX.min(self.window.saturating_sub(sent - taken));
            let (passed, kept) = descriptors.split_at(descriptors.len().min(room));
            self.put(MAGIC_PART, now, passed, until).map_err(|error| self.better(error))?;
            sent += passed.len();
            (bytes, descriptors) = (later, kept);
        }
        while self.receipt(sent, until)? != (all_bytes, sent) {}
        Ok(())
    }

    /// The bytes and descriptors that the receiver says it has.
    fn receipt(&self, sent: usize, until: Nanos) -> Result<(u64, usize), LinkError> {
        let Message::Taken(taken) = self.receive(until)? else {
            return Err(LinkError::NotUnderstood("no receipt for a part"));
        };
        match usize::try_from(taken.descriptors) {
            Ok(count) if count <= sent => Ok((taken.bytes, count)),
            Ok(_) | Err(_) => Err(LinkError::NotUnderstood("a receipt for more than was sent")),
        }
    }

    /// Receives the next part of the state, which must have this name.
    ///
    /// Errors: if the table of this process has no room for the descriptors, the other process is
    /// told too.
    pub(crate) fn receive_part(
        &self,
        name: &str,
        until: Nanos,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), LinkError> {
        let Message::Part(part) = self.receive(until)? else {
            return Err(LinkError::NotUnderstood("no part where one is due"));
        };
        if part.name != name {
            return Err(LinkError::NotUnderstood("another part than the one that is due"));
        }
        let received = self.receive_pieces(part.bytes, part.descriptors, until);
        if let Err(error @ LinkError::NoRoom { .. }) = &received {
            let failed = v1::LinkFailed { sentence: error.to_string() };
            // The error is returned in any case.
            let _ = self.send_quietly(Message::Failed(failed), until);
        }
        received
    }

    fn receive_pieces(
        &self,
        bytes: u64,
        count: u64,
        until: Nanos,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), LinkError> {
        let (Ok(bytes), Ok(count)) = (usize::try_from(bytes), usize::try_from(count)) else {
            return Err(LinkError::NotUnderstood("a part that is too large"));
        };
        let (mut state, mut descriptors) = (Vec::new(), Vec::new());
        // Until they are written, they are addresses without memory. The last piece is read into a
        // buffer of full size.
        let room = bytes.checked_add(PACKET_BYTES_MAX);
        if room.is_none_or(|room| state.try_reserve_exact(room).is_err()) {
            return Err(LinkError::NotUnderstood("a part for which there is no memory"));
        }
        while (state.len(), descriptors.len()) != (bytes, count) {
            let (has, had) = (state.len(), descriptors.len());
            state.resize(has + PACKET_BYTES_MAX, 0);
            let length = match self.take(&mut state[has..], &mut descriptors, until)? {
                Taken::Packet { magic: MAGIC_PART, bytes } => bytes,
                Taken::Packet { bytes, .. } => {
                    if let Message::Failed(failed) = read(&state[has..has + bytes])? {
                        return Err(LinkError::Failed(failed.sentence));
                    }
                    return Err(LinkError::NotUnderstood("a message within a part"));
                }
                Taken::End => return Err(LinkError::Ended),
                Taken::Nothing => return Err(LinkError::Silent),
            };
            state.truncate(has + length);
            let is_new = length > 0 || descriptors.len() > had;
            if !is_new || state.len() > bytes || descriptors.len() > count {
                return Err(LinkError::NotUnderstood("a part of another size than announced"));
            }
            if descriptors.len() > had && (state.len(), descriptors.len()) != (bytes, count) {
                self.give_receipt(state.len(), descriptors.len(), until)?;
            }
        }
        self.give_receipt(bytes, count, until)?;
        Ok((state, descriptors))
    }

    fn give_receipt(&self, bytes: usize, count: usize, until: Nanos) -> Result<(), LinkError> {
        let taken = v1::LinkTaken { bytes: bytes as u64, descriptors: count as u64 };
        self.send(Message::Taken(taken), until)
    }

    /// Sends sockets with their names, as a part of the state.
    pub(crate) fn send_sockets(
        &self,
        name: &str,
        sockets: &[(String, BorrowedFd<'_>)],
        until: Nanos,
    ) -> Result<(), LinkError> {
        let names = sockets.iter().map(|(name, _)| name.clone()).collect();
        let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(|(_, fd)| *fd).collect();
        let bytes = v1::LinkSockets { names }.encode_to_vec();
        self.send_part(name, &bytes, &descriptors, until)
    }

    /// Receives sockets with their names.
    pub(crate) fn receive_sockets(
        &self,
        name: &str,
        until: Nanos,
    ) -> Result<Vec<(String, OwnedFd)>, LinkError> {
        let (bytes, descriptors) = self.receive_part(name, until)?;
        let sockets = v1::LinkSockets::decode(bytes.as_slice())
            .map_err(|_| LinkError::NotUnderstood("names of sockets"))?;
        if sockets.names.len() != descriptors.len() {
            return Err(LinkError::NotUnderstood("another number of sockets than of names"));
        }
        Ok(sockets.names.into_iter().zip(descriptors).collect())
    }
}

/// What one read of the socket gives.
enum Taken {
    /// A packet; its body is in the buffer.
    Packet { magic: [u8; 8], bytes: usize },
    /// The pair has ended.
    End,
    /// The time is over.
    Nothing,
}

impl Link {
    /// Puts a packet into the pair.
    fn put(
        &self,
        magic: [u8; 8],
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
        until: Nanos,
    ) -> Result<(), LinkError> {
        loop {
            let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                let is_pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
                debug_assert!(is_pushed, "there is space for {DESCRIPTORS_MAX}");
            }
            let parts = [IoSlice::new(&magic), IoSlice::new(body)];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &parts, &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::OUT, until)? {
                        return Err(LinkError::Silent);
                    }
                }
                // A reset is told once if the other end has left something unread.
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    return Err(LinkError::Ended);
                }
                Err(Errno::TOOMANYREFS) => {
                    // Other links of this user may be as busy: their receivers make room.
                    if Nanos::now() >= until {
                        return Err(LinkError::TooManyOnTheirWay { limit: open_files_limit() });
                    }
                    self.wait_a_moment();
                }
                Err(error) => return Err(LinkError::Io(error.into())),
            }
        }
    }

    /// Takes a packet out of the pair. Its descriptors go behind those that are there.
    fn take(
        &self,
        body: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
        until: Nanos,
    ) -> Result<Taken, LinkError> {
        let mut magic = [0; 8];
        loop {
            let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut parts = [IoSliceMut::new(&mut magic), IoSliceMut::new(body)];
            let message = match recvmsg(&self.socket, &mut parts, &mut ancillary, flags) {
                Ok(message) => message,
                // The other end was closed with something unread. What it has said before is still
                // to be read.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::IN, until)? {
                        return Ok(Taken::Nothing);
                    }
                    continue;
                }
                Err(error) => return Err(LinkError::Io(error.into())),
            };
            if message.bytes == 0 {
                return Ok(Taken::End);
            }
            let had = descriptors.len();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    descriptors.extend(passed);
                }
            }
            if message.flags.contains(ReturnFlags::CTRUNC) {
                return Err(LinkError::NoRoom { limit: open_files_limit() });
            }
            let is_known = [MAGIC_MESSAGE, MAGIC_PART].contains(&magic);
            if message.flags.contains(ReturnFlags::TRUNC) || !is_known {
                return Err(LinkError::NotUnderstood("a packet without the magic number"));
            }
            if magic == MAGIC_MESSAGE && descriptors.len() > had {
                return Err(LinkError::NotUnderstood("a message with descriptors"));
            }
            let bytes = message.bytes.saturating_sub(magic.len());
            return Ok(Taken::Packet { magic, bytes });
        }
    }

    /// Waits until the socket is ready; `false` if the time is over.
    fn wait(&self, events: PollFlags, until: Nanos) -> Result<bool, LinkError> {
        loop {
            let left = until.since(Nanos::now());
            if left.is_zero() {
                return Ok(false);
            }
            let mut sockets = [PollFd::new(&self.socket, events)];
            match poll(&mut sockets, Some(&timespec(left))) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(LinkError::Io(error.into())),
            }
        }
    }

    /// Waits for something that nothing announces.
    #[expect(clippy::unused_self, reason = "a user of the link waits")]
    pub(super) fn wait_a_moment(&self) {
        // A signal ends it early, which does no harm.
        let _ = poll(&mut [], Some(&timespec(MOMENT)));
    }

    /// Why the pair has ended, if the other process has said it before.
    fn better(&self, error: LinkError) -> LinkError {
        if !matches!(error, LinkError::Ended) {
            return error;
        }
        loop {
            match self.hear(Nanos::default()) {
                Ok(Heard::Message(Message::Failed(failed))) => {
                    return LinkError::Failed(failed.sentence);
                }
                Ok(Heard::Message(_)) => {}
                Ok(Heard::End | Heard::Nothing) | Err(_) => return error,
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn read(bytes: &[u8]) -> Result<Message, LinkError> {
    let message = v1::LinkMessage::decode(bytes);
    let kind = message.map_err(|_| LinkError::NotUnderstood("bytes that are no message"))?.kind;
    kind.ok_or(LinkError::NotUnderstood("a message of a kind that this program does not know"))
}

fn timespec(duration: Duration) -> Timespec {
    // A duration of more than 24 days only makes a caller look again.
    Timespec::try_from(duration.min(Duration::from_secs(86_400))).unwrap_or_default()
}

/// Makes the table of the calling thread large enough for so many further descriptors, so that it
/// does not grow when they arrive. In a process with threads, the kernel waits some milliseconds
/// each time that it doubles a table. A failure only costs that time.
pub(crate) fn reserve_descriptors(link: &Link, count: u64) {
    let highest = count.saturating_add(OTHERS).min(open_files_limit().saturating_sub(1));
    if let Ok(highest) = i32::try_from(highest) {
        // The table stays as large as it was once.
        let _ = rustix::io::fcntl_dupfd_cloexec(link, highest);
    }
}

/// The soft limit on open files.
pub(super) fn open_files_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

const MAGIC_MESSAGE: [u8; 8] = *b"WEIRHAND";
const MAGIC_PART: [u8; 8] = *b"WEIRPART";

/// Bytes of a packet's body. Two packets fit into the buffer that the kernel gives to each socket,
/// so that both sides work at the same time.
const PACKET_BYTES_MAX: usize = 64 << 10;
/// The kernel takes no more in one packet (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;
/// Four packets: the sender fills the next while the receiver takes the one before.
const WINDOW_MAX: usize = 4 * DESCRIPTORS_MAX;
const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(253));
/// Descriptors that a process opens by itself.
const OTHERS: u64 = 128;
const MOMENT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn far() -> Nanos {
        Nanos::now().after(Duration::from_secs(60))
    }

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    /// Sends a part from another thread.
    fn pass(bytes: &[u8], count: usize) -> (Vec<u8>, usize) {
        let (one, other) = Link::pair().unwrap();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let file = null();
                one.send_part("it", bytes, &vec![file.as_fd(); count], far())
            });
            let (bytes, files) = other.receive_part("it", far()).unwrap();
            sender.join().unwrap().unwrap();
            (bytes, files.len())
        })
    }

    #[test]
    fn parts_arrive_whole_whatever_their_size() {
        let pattern = |length| (0..=250).cycle().take(length).collect::<Vec<u8>>();
        for length in [0, 1, 65_535, 65_536, 65_537, 131_072, 3_000_000] {
            for count in [0, 1, 253, 254, 1_200] {
                let bytes = pattern(length);
                assert!(pass(&bytes, count) == (bytes, count), "{length} bytes, {count} files");
            }
        }
    }

    #[test]
    fn sockets_keep_their_names() {
        let (one, other) = Link::pair().unwrap();
        let (a, b) = (null(), null());
        let sender = std::thread::spawn(move || {
            let sockets = [("tcp".to_owned(), a.as_fd()), ("admin".to_owned(), b.as_fd())];
            one.send_sockets("listeners", &sockets, far()).unwrap();
        });
        let sockets = other.receive_sockets("listeners", far()).unwrap();
        sender.join().unwrap();
        let names: Vec<&str> = sockets.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["tcp", "admin"]);
    }

    #[test]
    fn what_was_said_before_a_death_is_heard() {
        let (one, other) = Link::pair().unwrap();
        let ready = || Message::Ready(v1::LinkReady {});
        one.send(ready(), far()).unwrap();
        // Left unread: the kernel tells a reset before it gives what is in the pair.
        other.send(ready(), far()).unwrap();
        drop(one);
        assert_eq!(other.hear(far()).unwrap(), Heard::Message(ready()));
        assert_eq!(other.hear(far()).unwrap(), Heard::End);
        assert!(matches!(other.send(ready(), far()), Err(LinkError::Ended)));
    }

    #[test]
    fn the_reason_of_an_end_is_found_behind_other_words() {
        let (one, other) = Link::pair().unwrap();
        one.send(Message::Ready(v1::LinkReady {}), far()).unwrap();
        let sentence = "for a reason".to_owned();
        one.send(Message::Failed(v1::LinkFailed { sentence }), far()).unwrap();
        drop(one);
        let error = other.send_part("it", b"1", &[], far()).unwrap_err();
        assert_eq!(error.to_string(), "for a reason");
    }

    #[test]
    fn silence_is_told_when_the_time_is_over() {
        let (one, other) = Link::pair().unwrap();
        let soon = || Nanos::now().after(Duration::from_millis(1));
        assert!(matches!(one.receive(soon()), Err(LinkError::Silent)));
        let error = one.send_part("it", &vec![0; 10_000_000], &[], soon()).unwrap_err();
        assert!(matches!(error, LinkError::Silent), "{error}");
        drop(other);
    }

    fn raw(packets: &[Vec<u8>]) -> Link {
        let (one, other) = Link::pair().unwrap();
        for packet in packets {
            rustix::net::send(&one.socket, packet, SendFlags::NOSIGNAL).unwrap();
        }
        other
    }

    fn message(message: Message) -> Vec<u8> {
        let body = v1::LinkMessage { kind: Some(message) }.encode_to_vec();
        [MAGIC_MESSAGE.to_vec(), body].concat()
    }

    #[test]
    fn a_part_that_is_not_as_announced_is_refused() {
        let check = |bytes, descriptors, pieces: &[&[u8]], expected: &str| {
            let part = v1::LinkPart { name: "it".to_owned(), bytes, descriptors };
            let mut packets = vec![message(Message::Part(part))];
            packets.extend(pieces.iter().map(|piece| [&MAGIC_PART[..], piece].concat()));
            let error = raw(&packets).receive_part("it", far()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(3, 0, &[b"1234"], "another size than announced");
        check(3, 0, &[b""], "another size than announced");
        check(3, 0, &[b"12"], "the other process has ended");
        check(3, 1, &[b"123"], "the other process has ended");
        check(3, 1, &[b"123", b""], "another size than announced");
        check(u64::MAX, 0, &[b"1"], "no memory");
        check(u64::MAX >> 2, 0, &[b"1"], "no memory");
        let other = Message::Part(v1::LinkPart { name: "that".to_owned(), ..Default::default() });
        let error = raw(&[message(other)]).receive_part("it", far()).unwrap_err();
        assert!(error.to_string().contains("another part"), "{error}");
    }

    proptest! {
        #[test]
        fn no_packet_makes_it_panic(
            packets in proptest::collection::vec(
                (0..4_usize, proptest::collection::vec(any::<u8>(), 0..64)), 1..4
            ),
        ) {
            let part = v1::LinkPart { name: "it".to_owned(), bytes: 50, descriptors: 0 };
            let packets: Vec<Vec<u8>> = packets
                .into_iter()
                .map(|(kind, bytes)| match kind {
                    0 => [MAGIC_MESSAGE.to_vec(), bytes].concat(),
                    1 => [MAGIC_PART.to_vec(), bytes].concat(),
                    2 => message(Message::Part(part.clone())),
                    _ => bytes,
                })
                .filter(|packet| !packet.is_empty())
                .collect();
            let _ = raw(&packets).receive(far());
            let _ = raw(&packets).receive_part("it", far());
            let _ = raw(&packets).receive_sockets("it", far());
        }
    }
}
