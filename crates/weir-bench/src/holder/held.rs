//! Connections that are held: what little is known of each, and reading from them.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use weir_wire::format::Format;
use weir_wire::hot::encode_ping_frame;
use weir_wire::v1::{ServerMessage, server_message::Kind};
use weir_wire::{CloseReason, ProstMessage, frame};

use crate::payload::Verifier;
use crate::protocol::HoldTally;
use crate::stats::Lags;
use crate::sys;
use crate::tls::held::{HeldKeys, Opened};

/// The connections of a process.
#[derive(Default)]
pub(super) struct Crowd {
    held: Vec<Held>,
    keys: Vec<HeldKeys>,
    /// Bytes of a begun frame or record, by the connection's index.
    begun: HashMap<u32, Vec<u8>>,
    verifier: Option<Verifier>,
    /// The connections that were pinged and have not answered.
    pinged: Vec<u32>,
    /// The next connection to ping, and a part of a connection that is due.
    next: usize,
    owed: f64,
    lags: Lags,
    tally: HoldTally,
    raw: Vec<u8>,
    sealed: Vec<u8>,
}

/// One connection.
///
/// Shape: 12 bytes.
struct Held {
    /// `None`: the server has closed it.
    fd: Option<OwnedFd>,
    /// Its place among the keys; [`NO_KEYS`] without TLS.
    keys: u32,
    /// Messages received so far: the number of the next one.
    next_seq: u32,
}

/// The connections that still miss messages.
pub(super) struct Due {
    next_seq: u32,
    left: Vec<u32>,
    looks: usize,
}

const _: () = assert!(size_of::<Held>() == 12);
const NO_KEYS: u32 = u32::MAX;
/// One read: a message and an answer to a ping fit.
const READ_BYTES: usize = 16 << 10;
/// Connections that show whether it is time to look at all.
const SAMPLE: usize = 16;
/// All are looked at after this many looks at a sample.
const LOOKS_AT_SAMPLE: usize = 50;
const ERRORS_MAX: usize = 5;
const FRAME_BYTES_MAX: usize = 16 << 20;

impl Crowd {
    /// An empty crowd that expects payloads of `size` bytes.
    pub(super) fn new(size: usize) -> Crowd {
        Crowd { verifier: Some(Verifier::new(size)), raw: vec![0; READ_BYTES], ..Crowd::default() }
    }

    /// Adds a connection that is greeted, and bytes that were read behind that.
    pub(super) fn add(&mut self, fd: OwnedFd, keys: Option<HeldKeys>, ahead: Vec<u8>) {
        let at = keys.map_or(NO_KEYS, |keys| {
            self.keys.push(keys);
            u32::try_from(self.keys.len() - 1).unwrap_or(NO_KEYS)
        });
        if !ahead.is_empty() {
            self.begun.insert(u32::try_from(self.held.len()).unwrap_or(u32::MAX), ahead);
        }
        self.held.push(Held { fd: Some(fd), keys: at, next_seq: 0 });
    }

    /// Connections that were opened.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.held.len()).unwrap_or(u32::MAX)
    }

    /// Open connections.
    pub(super) fn open(&self) -> u32 {
        let open = self.held.iter().filter(|held| held.fd.is_some()).count();
        u32::try_from(open).unwrap_or(u32::MAX)
    }

    /// Connections with TLS that were opened.
    pub(super) fn with_tls(&self) -> u32 {
        u32::try_from(self.keys.len()).unwrap_or(u32::MAX)
    }

    /// Sends pings to this share of the connections, in turn.
    pub(super) fn ping(&mut self, share: f64) {
        let count = f64::from(u32::try_from(self.held.len()).unwrap_or(u32::MAX));
        self.owed = (self.owed + share * count).min(count);
        while self.owed >= 1.0 {
            self.owed -= 1.0;
            self.next = (self.next + 1) % self.held.len();
            let index = u32::try_from(self.next).unwrap_or(0);
            match self.ping_one(index) {
                Ok(true) => self.pinged.push(index),
                Ok(false) => {}
                Err(error) => self.end(index, &error.to_string()),
            }
        }
    }

    fn ping_one(&mut self, index: u32) -> Result<bool> {
        let held = &self.held[index as usize];
        let Some(fd) = &held.fd else { return Ok(false) };
        let mut ping = Vec::new();
        encode_ping_frame(&[], &mut ping);
        self.sealed.clear();
        let bytes = match self.keys.get_mut(held.keys as usize) {
            None => &ping,
            Some(keys) => {
                keys.seal(&ping, &mut self.sealed)?;
                &self.sealed
            }
        };
        let sent = send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        if sent < bytes.len() {
            bail!("a ping was taken in part");
        }
        Ok(true)
    }

    /// Reads the answers to the pings of the last tick.
    pub(super) fn read_pongs(&mut self) {
        let pinged = std::mem::take(&mut self.pinged);
        for index in pinged {
            let before = self.tally.pongs;
            self.read(index);
            if self.tally.pongs == before && self.held[index as usize].fd.is_some() {
                self.pinged.push(index);
            }
        }
    }

    /// The connections that miss messages before this number.
    pub(super) fn due(&self, next_seq: u32) -> Due {
        let misses = |held: &Held| held.next_seq < next_seq;
        let left = (0..).zip(&self.held).filter(|(_, held)| misses(held));
        Due { next_seq, left: left.map(|(index, _)| index).collect(), looks: 0 }
    }

    /// Looks whether messages have come. Returns the number of connections that still miss some.
    ///
    /// A server sends to neighbours at about the same time. So a sample of the connections is read
    /// first, and all only if the sample has got something, or after many looks, or `at_all`.
    pub(super) fn look(&mut self, due: &mut Due, at_all: bool) -> u64 {
        due.looks += 1;
        let step = (due.left.len() / SAMPLE).max(1);
        let before = self.tally.delivered;
        for at in (0..due.left.len()).step_by(step) {
            self.read(due.left[at]);
        }
        let is_time = self.tally.delivered > before || due.looks.is_multiple_of(LOOKS_AT_SAMPLE);
        if at_all || is_time {
            due.left.retain(|index| {
                if self.held[*index as usize].next_seq < due.next_seq {
                    self.read(*index);
                }
                let held = &self.held[*index as usize];
                held.next_seq < due.next_seq
            });
        }
        due.left.len() as u64
    }

    /// The counts since the last time.
    pub(super) fn take_tally(&mut self) -> HoldTally {
        let kept =
            HoldTally { closed: self.tally.closed, pongs: self.tally.pongs, ..Default::default() };
        let lags = self.lags.counts();
        self.lags.reset();
        HoldTally { lags, ..std::mem::replace(&mut self.tally, kept) }
    }

    /// Resets all connections.
    pub(super) fn close(&mut self) {
        for fd in self.held.drain(..).filter_map(|held| held.fd) {
            // If this fails, the connection still closes, in good order.
            let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
        }
        (self.keys, self.pinged, self.begun) = (Vec::new(), Vec::new(), HashMap::new());
        (self.next, self.owed) = (0, 0.0);
    }

    /// Reads once what has come for a connection.
    fn read(&mut self, index: u32) {
        let Some(fd) = &self.held[index as usize].fd else { return };
        let ended = match sys::receive_stamped(fd.as_fd(), &mut self.raw) {
            Ok((0, _)) => "the server has ended it".to_owned(),
            Ok((bytes, stamp)) => match self.take(index, bytes, stamp) {
                Ok(()) => return,
                Err(error) => error.to_string(),
            },
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => return,
                _ => error.to_string(),
            },
        };
        self.end(index, &ended);
    }

    fn end(&mut self, index: u32, why: &str) {
        self.held[index as usize].fd = None;
        self.begun.remove(&index);
        self.tally.closed += 1;
        self.note(format!("connection {index} of its process: {why}"));
    }

    fn note(&mut self, error: String) {
        if self.tally.errors.len() < ERRORS_MAX {
            self.tally.errors.push(error);
        }
    }

    /// Handles `bytes` bytes that were read.
    fn take(&mut self, index: u32, bytes: usize, stamp: Option<u64>) -> Result<()> {
        let mut raw = std::mem::take(&mut self.raw);
        let taken = match self.begun.remove(&index) {
            None => self.take_bytes(index, &raw[..bytes], stamp),
            Some(mut begun) => {
                begun.extend_from_slice(&raw[..bytes]);
                self.take_bytes(index, &begun, stamp)
            }
        };
        raw.resize(READ_BYTES, 0);
        self.raw = raw;
        taken
    }

    fn take_bytes(&mut self, index: u32, mut bytes: &[u8], stamp: Option<u64>) -> Result<()> {
        let keys = self.held[index as usize].keys as usize;
        if keys < self.keys.len() {
            let mut plain = Vec::new();
            loop {
                match self.keys[keys].open(bytes, &mut plain)? {
                    Opened::Incomplete => break,
                    Opened::Record(used) => bytes = &bytes[used..],
                    Opened::End => bail!("the server has ended TLS"),
                }
            }
            let used = self.take_frames(index, &plain, stamp)?;
            if used < plain.len() {
                bail!("a frame in two records");
            }
        } else {
            let used = self.take_frames(index, bytes, stamp)?;
            bytes = &bytes[used..];
        }
        if !bytes.is_empty() {
            self.begun.insert(index, bytes.to_vec());
        }
        Ok(())
    }

    fn take_frames(&mut self, index: u32, bytes: &[u8], stamp: Option<u64>) -> Result<usize> {
        let mut used = 0;
        while let Some((body, frame_bytes)) = frame::decode(&bytes[used..], FRAME_BYTES_MAX)? {
            used += frame_bytes;
            self.take_frame(index, body, stamp)?;
        }
        Ok(used)
    }

    fn take_frame(&mut self, index: u32, body: &[u8], stamp: Option<u64>) -> Result<()> {
        let next_seq = self.held[index as usize].next_seq;
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let verified = match verifier.check(Format::Stream, (0, next_seq), "", body) {
            Ok(verified) => verified,
            Err(error) => {
                self.tally.wrong += 1;
                self.note(error);
                return Ok(());
            }
        };
        let Some(verified) = verified else { return self.take_other(body) };
        for header in &verified.headers {
            let held = &mut self.held[index as usize];
            if header.seq != held.next_seq {
                self.tally.wrong += 1;
                self.note(format!("message {} where {next_seq} was to come", header.seq));
                return Ok(());
            }
            held.next_seq += 1;
            self.tally.delivered += 1;
            match stamp {
                Some(stamp) => self.lags.record(stamp.saturating_sub(header.sent_ns)),
                None => self.tally.unstamped += 1,
            }
        }
        Ok(())
    }

    /// Handles a frame without a message of the bench.
    fn take_other(&mut self, body: &[u8]) -> Result<()> {
        match ServerMessage::decode(body)?.kind {
            Some(Kind::Pong(_)) => self.tally.pongs += 1,
            Some(Kind::Goodbye(goodbye)) => return Err(farewell(goodbye.code)),
            other => self.note(format!("an unexpected message: {other:?}")),
        }
        Ok(())
    }
}

/// The error of a connection that the server has told to go.
pub(super) fn farewell(code: u32) -> anyhow::Error {
    let reason = CloseReason::from_code(code).map_or("unknown", CloseReason::name);
    anyhow!("goodbye: {reason}")
}
