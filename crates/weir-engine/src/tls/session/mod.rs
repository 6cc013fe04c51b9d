//! [`Session`]: the records of one connection in both directions, and the rules for its peer.

#[cfg(any(test, feature = "sim"))]
mod forge;
mod handover;

use std::fmt;
use std::io::IoSlice;

use zeroize::Zeroize;

use super::alert::{self, ALERT_BYTES, Alert, Heard, Violation};
use super::keys::{IV_BYTES, KEY_BYTES_MAX, Keys, SECRET_BYTES_MAX, ratchet, traffic_keys};
use super::protocol::{Cipher, Exhausted, Keys12, Opened, Version};
#[cfg(not(any(test, feature = "sim")))]
use super::record::plaintext_bytes_max;
use super::record::{Content, ContentType, Form, nonce};
#[cfg(any(test, feature = "sim"))]
use super::seals::plaintext_bytes_max;
use crate::sys::aead::Aead;

/// The records of one connection, both ways.
///
/// ```text
///  send:    seal … seal ──CloseNotify or a fatal alert──▶ closed: nothing more is sealed
///  receive: open … open ──close_notify, a violation─────▶ closed: nothing more is opened
/// ```
///
/// Shape: fixed, at most [`Session::BYTES_MAX`]. It is wiped when dropped, and `take` wipes the old
/// place.
/// Limits: records without application data (key updates, empty records, warnings, requests to
/// renegotiate) may come [`Session::IDLE_MAX`] times in a row.
/// Cost: a record costs the time of its cipher and of the key schedule, some 100 ns. Opening in TLS
/// 1.3 also derives the key, about 1 µs a call. No allocation except to grow `out`.
pub struct Session {
    state: State,
}

/// All bytes of a session. A copy is a leak unless it is wiped: see [`Session::take`].
#[derive(Clone, Copy)]
struct State {
    /// Number of the next record to seal under these keys. Below `1 << records_log2`, so it never
    /// wraps.
    send_sequence: u64,
    /// Number of the next record to open.
    receive_sequence: u64,
    /// TLS 1.3: the secret from which `send_key` and `send_iv` are derived; not used in TLS 1.2.
    send_secret: [u8; SECRET_BYTES_MAX],
    /// TLS 1.3: the secret; TLS 1.2: key and IV.
    receive_secret: [u8; SECRET_BYTES_MAX],
    send_key: [u8; KEY_BYTES_MAX],
    send_iv: [u8; IV_BYTES],
    /// Bytes still to come of a ClientHello that is skipped (TLS 1.2).
    handshake_left: u16,
    /// Bytes seen of the begun handshake message (TLS 1.2: of its header).
    handshake_seen: u8,
    /// Records in a row without application data.
    idle: u8,
    /// Key changes that have not been read yet.
    key_changes: u8,
    /// The most records under one key, as a power of two.
    records_log2: u8,
    version: Version,
    cipher: Cipher,
    is_send_closed: bool,
    is_receive_closed: bool,
    /// The peer has asked us to change our keys.
    is_update_due: bool,
    /// The peer has asked for a second handshake.
    is_refusal_due: bool,
}

const _: () = assert!(size_of::<Session>() <= Session::BYTES_MAX);

impl Session {
    /// The largest size of a session.
    pub const BYTES_MAX: usize = 168;

    /// The most records in a row without application data. Peers have no reason for more than a
    /// few, and each costs us at least a key schedule.
    pub const IDLE_MAX: u8 = 32;

    /// A TLS 1.3 session, from its application traffic secrets and the numbers of records already
    /// sent and received under them.
    ///
    /// `None`: a secret has another length than the cipher's hash, or the cipher permits fewer
    /// records.
    pub fn tls13(cipher: Cipher, send: (&[u8], u64), receive: (&[u8], u64)) -> Option<Session> {
        let bytes = cipher.secret_bytes();
        if send.0.len() != bytes || receive.0.len() != bytes {
            return None;
        }
        let mut session = Session::new(Version::Tls13, cipher, send.1, receive.1)?;
        session.state.send_secret[..bytes].copy_from_slice(send.0);
        session.state.receive_secret[..bytes].copy_from_slice(receive.0);
        session.state.derive_send_keys();
        Some(session)
    }

    /// A TLS 1.2 session, from its keys and the next sequence numbers.
    ///
    /// `None`: a key or an IV has another length than the cipher needs, or the cipher permits fewer
    /// records.
    pub fn tls12(
        cipher: Cipher,
        send: (Keys12<'_>, u64),
        receive: (Keys12<'_>, u64),
    ) -> Option<Session> {
        let fits =
            |keys: Keys12<'_>| keys.key.len() == cipher.key_bytes() && keys.iv.len() == IV_BYTES;
        if !fits(send.0) || !fits(receive.0) {
            return None;
        }
        let mut session = Session::new(Version::Tls12, cipher, send.1, receive.1)?;
        let state = &mut session.state;
        state.send_key[..cipher.key_bytes()].copy_from_slice(send.0.key);
        state.send_iv.copy_from_slice(send.0.iv);
        state.receive_secret[..cipher.key_bytes()].copy_from_slice(receive.0.key);
        state.receive_secret[KEY_BYTES_MAX..][..IV_BYTES].copy_from_slice(receive.0.iv);
        Some(session)
    }

    fn new(version: Version, cipher: Cipher, sent: u64, received: u64) -> Option<Session> {
        let records_log2 = if cipher.is_gcm() { GCM_RECORDS_LOG2 } else { SEQUENCE_LOG2 };
        let state = State {
            send_sequence: sent,
            receive_sequence: received,
            send_secret: [0; SECRET_BYTES_MAX],
            receive_secret: [0; SECRET_BYTES_MAX],
            send_key: [0; KEY_BYTES_MAX],
            send_iv: [0; IV_BYTES],
            handshake_left: 0,
            handshake_seen: 0,
            idle: 0,
            key_changes: 0,
            records_log2,
            version,
            cipher,
            is_send_closed: false,
            is_receive_closed: false,
            is_update_due: false,
            is_refusal_due: false,
        };
        // Built before the check, so that only one place knows the limit.
        (sent < state.last_record()).then_some(Session { state })
    }

    /// Moves the session out and wipes the old place, which then neither seals nor opens.
    pub fn take(&mut self) -> Session {
        let state = self.state;
        self.wipe();
        Session { state }
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.state.version
    }

    /// The cipher.
    pub fn cipher(&self) -> Cipher {
        self.state.cipher
    }

    /// How often keys have changed since the last call, both directions together (up to 255).
    pub fn take_key_changes(&mut self) -> u32 {
        u32::from(std::mem::take(&mut self.state.key_changes))
    }

    /// Whether few records are left under keys that cannot change (TLS 1.2). Then it is time for
    /// `Goodbye`.
    pub fn is_nearly_exhausted(&self) -> bool {
        let state = &self.state;
        state.version == Version::Tls12 && state.send_sequence >= state.late_record()
    }

    fn wipe(&mut self) {
        let state = &mut self.state;
        state.send_secret.zeroize();
        state.receive_secret.zeroize();
        state.send_key.zeroize();
        state.send_iv.zeroize();
        (state.is_send_closed, state.is_receive_closed) = (true, true);
    }
}

/// Sealing.
impl Session {
    /// The most bytes that one call of [`Session::seal`] appends.
    pub const SEALED_BYTES_MAX: usize = super::RECORD_BYTES_MAX + DUE_BYTES_MAX;

    /// Seals the beginning of `plaintext`, at most one record's worth (16,384 bytes), and appends
    /// the record to `out`. If necessary it first appends an answer to the peer's `KeyUpdate`, or
    /// our own `KeyUpdate` before the cipher's limit. Returns how many bytes of `plaintext` the
    /// record holds. Empty plaintext makes no record.
    ///
    /// Errors: the keys are spent, or an alert has been sealed after which nothing may follow. Then
    /// nothing is appended.
    pub fn seal(
        &mut self,
        plaintext: &[IoSlice<'_>],
        out: &mut Vec<u8>,
    ) -> Result<usize, Exhausted> {
        let state = &self.state;
        let refusals = u64::from(state.is_refusal_due);
        if state.is_send_closed
            || (state.version == Version::Tls12
                && state.send_sequence + refusals >= state.last_record())
        {
            return Err(Exhausted);
        }
        self.seal_due(out)?;
        let all = plaintext.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()));
        let bytes = all.min(plaintext_bytes_max());
        if bytes > 0 {
            let parts = plaintext.iter().map(|part| &**part);
            let kind = ContentType::ApplicationData;
            self.state.seal(Content { kind, parts, bytes }, out)?;
        }
        Ok(bytes)
    }

    /// Seals an alert. After `CloseNotify` or a fatal alert nothing more can be sealed.
    pub fn seal_alert(&mut self, alert: Alert, out: &mut Vec<u8>) -> Result<(), Exhausted> {
        if alert.is_last() {
            self.seal_last(alert.encode(), out);
            return Ok(());
        }
        if self.state.is_send_closed {
            return Ok(());
        }
        self.state.seal(Content::whole(ContentType::Alert, &alert.encode()), out)
    }

    /// Seals a fatal alert by its code, even one that an established connection never sends.
    /// Nothing more can be sealed afterwards.
    pub fn seal_fatal(&mut self, code: u8, out: &mut Vec<u8>) {
        self.seal_last([alert::FATAL, code], out);
    }

    fn seal_last(&mut self, content: [u8; ALERT_BYTES], out: &mut Vec<u8>) {
        if self.state.is_send_closed {
            return;
        }
        self.state.is_send_closed = true;
        // The last number of the keys is kept for this alert.
        self.state.seal_any(Content::whole(ContentType::Alert, &content), out);
    }

    /// Whether a record must leave although there is no plaintext: the answer to a `KeyUpdate` or,
    /// in TLS 1.2, to a request to renegotiate. [`Session::seal_due`] seals it.
    pub fn is_due(&self) -> bool {
        let state = &self.state;
        !state.is_send_closed && (state.is_update_due || state.is_refusal_due)
    }

    /// Seals the pending answers.
    pub fn seal_due(&mut self, out: &mut Vec<u8>) -> Result<(), Exhausted> {
        let state = &mut self.state;
        if state.is_send_closed {
            return Ok(());
        }
        let is_late = state.send_sequence >= state.late_record();
        if state.version == Version::Tls13 && (state.is_update_due || is_late) {
            state.seal(Content::whole(ContentType::Handshake, &KEY_UPDATE), out)?;
            state.is_update_due = false;
            state.next_send_keys();
        }
        if state.is_refusal_due {
            state.is_refusal_due = false;
            self.seal_alert(Alert::NoRenegotiation, out)?;
        }
        Ok(())
    }
}

/// Opening.
impl Session {
    /// Opens the whole records at the beginning of `input` in place, and moves their plaintext
    /// together at its beginning. The work is bounded by the bytes of `input`.
    ///
    /// Errors: the connection is over. Records that the same call opened before are not returned.
    pub fn open(&mut self, input: &mut [u8]) -> Result<Opened, Violation> {
        let opened = self.open_all(input);
        self.state.is_receive_closed |= opened.is_err();
        opened
    }

    /// Records opened under the present key.
    pub(crate) fn records_opened(&self) -> u64 {
        self.state.receive_sequence
    }

    /// The size of the record that `head` begins, once its five bytes of header are there.
    ///
    /// Errors: no record of an established connection has such a header.
    pub fn record_bytes(&self, head: &[u8]) -> Result<Option<usize>, Violation> {
        self.state.form().record_bytes(head)
    }

    fn open_all(&mut self, input: &mut [u8]) -> Result<Opened, Violation> {
        let mut done = Opened { plaintext: 0, used: 0, is_end: false };
        while !self.state.is_receive_closed && self.is_whole(&input[done.used..])? {
            // One pass for each key. The key lies on the stack only during the pass.
            let keys = self.state.receive_keys();
            let key = &keys.key[..self.state.cipher.key_bytes()];
            let algorithm = self.state.cipher.algorithm();
            Aead::with(algorithm, key, |aead| self.pass(aead, &keys.iv, input, &mut done))?;
        }
        if self.state.is_receive_closed {
            (done.used, done.is_end) = (input.len(), true);
        }
        Ok(done)
    }

    fn is_whole(&self, input: &[u8]) -> Result<bool, Violation> {
        Ok(self.record_bytes(input)?.is_some_and(|bytes| bytes <= input.len()))
    }

    /// Opens records until none is whole, the key changes, or the peer has ended.
    fn pass(
        &mut self,
        aead: &Aead,
        iv: &[u8; IV_BYTES],
        input: &mut [u8],
        done: &mut Opened,
    ) -> Result<(), Violation> {
        while let Some(bytes) = self.record_bytes(&input[done.used..])?
            && let Some(record) = input[done.used..].get_mut(..bytes)
        {
            let state = &mut self.state;
            let sequence = state.receive_sequence;
            let next = sequence.checked_add(1);
            state.receive_sequence =
                next.ok_or(Violation::unexpected("more records than there are numbers"))?;
            let (kind, content) = state.form().open(aead, iv, sequence, record)?;
            let content = done.used + content.start..done.used + content.end;
            done.used += bytes;
            if kind == ContentType::ApplicationData && !content.is_empty() {
                state.between_messages(kind)?;
                state.idle = 0;
                let plaintext = content.len();
                input.copy_within(content, done.plaintext);
                done.plaintext += plaintext;
            } else if state.is_turning_point(kind, &input[content])? {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl State {
    fn form(&self) -> Form {
        Form { version: self.version, cipher: self.cipher }
    }

    /// The number of the last record under one key. It is kept for an alert.
    fn last_record(&self) -> u64 {
        (1 << self.records_log2) - 1
    }

    /// From this record on the keys should change: a sixteenth before the limit.
    fn late_record(&self) -> u64 {
        let limit = 1u64 << self.records_log2;
        limit - limit / 16
    }

    /// Seals a record, unless only the last number of these keys is left.
    fn seal<'a>(
        &mut self,
        content: Content<impl Iterator<Item = &'a [u8]>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Exhausted> {
        if self.send_sequence >= self.last_record() {
            return Err(Exhausted);
        }
        self.seal_any(content, out);
        Ok(())
    }

    fn seal_any<'a>(
        &mut self,
        content: Content<impl Iterator<Item = &'a [u8]>>,
        out: &mut Vec<u8>,
    ) {
        let sequence = self.send_sequence;
        self.send_sequence += 1;
        let key = &self.send_key[..self.cipher.key_bytes()];
        let nonce = nonce(&self.send_iv, sequence);
        #[cfg(any(test, feature = "sim"))]
        super::seals::note(key, sequence, nonce);
        Aead::with(self.cipher.algorithm(), key, |aead| {
            self.form().seal(aead, &nonce, sequence, content, out);
        });
    }

    fn derive_send_keys(&mut self) {
        let keys = traffic_keys(self.cipher, &self.send_secret[..self.cipher.secret_bytes()]);
        (self.send_key, self.send_iv) = (keys.key, keys.iv);
    }

    fn next_send_keys(&mut self) {
        ratchet(self.cipher, &mut self.send_secret[..self.cipher.secret_bytes()]);
        self.derive_send_keys();
        self.send_sequence = 0;
        self.key_changes = self.key_changes.saturating_add(1);
    }

    fn next_receive_keys(&mut self) {
        ratchet(self.cipher, &mut self.receive_secret[..self.cipher.secret_bytes()]);
        self.receive_sequence = 0;
        self.key_changes = self.key_changes.saturating_add(1);
    }

    fn receive_keys(&self) -> Keys {
        match self.version {
            Version::Tls13 => {
                traffic_keys(self.cipher, &self.receive_secret[..self.cipher.secret_bytes()])
            }
            Version::Tls12 => {
                let mut keys = Keys { key: [0; KEY_BYTES_MAX], iv: [0; IV_BYTES] };
                let (key, iv) = self.receive_secret.split_at(KEY_BYTES_MAX);
                keys.key.copy_from_slice(key);
                keys.iv.copy_from_slice(&iv[..IV_BYTES]);
                keys
            }
        }
    }

    /// Handles a record without application data. Returns whether the key has changed or the peer
    /// has ended.
    fn is_turning_point(&mut self, kind: ContentType, content: &[u8]) -> Result<bool, Violation> {
        self.between_messages(kind)?;
        match (kind, self.version) {
            (ContentType::ApplicationData, _) => self.count_idle("too many empty records")?,
            (ContentType::Alert, version) => match alert::read(version, content)? {
                Heard::End => {
                    self.is_receive_closed = true;
                    return Ok(true);
                }
                Heard::Nothing => self.count_idle("too many warnings")?,
            },
            (ContentType::Handshake, Version::Tls13) => return self.key_update(content),
            (ContentType::Handshake, Version::Tls12) => self.renegotiation(content)?,
        }
        Ok(false)
    }

    /// TLS 1.3: no other record may come between the records of one handshake message (RFC 8446
    /// section 5.1).
    fn between_messages(&self, kind: ContentType) -> Result<(), Violation> {
        if self.version == Version::Tls13
            && self.handshake_seen > 0
            && kind != ContentType::Handshake
        {
            return Err(Violation::unexpected("a record amid a handshake message"));
        }
        Ok(())
    }

    /// Reads (more of) a KeyUpdate, the only handshake message that is allowed (RFC 8446 section
    /// 4.6.3). Returns whether the key has changed.
    fn key_update(&mut self, content: &[u8]) -> Result<bool, Violation> {
        for (at, byte) in content.iter().enumerate() {
            let seen = usize::from(self.handshake_seen);
            if seen < KEY_UPDATE_HEADER.len() {
                if *byte != KEY_UPDATE_HEADER[seen] {
                    return Err(if seen == 0 {
                        Violation::unexpected("a handshake message other than KeyUpdate")
                    } else {
                        Violation::new(Alert::DecodeError, "a KeyUpdate that is not of one byte")
                    });
                }
                self.handshake_seen += 1;
                continue;
            }
            let is_requested = match *byte {
                UPDATE_NOT_REQUESTED => false,
                UPDATE_REQUESTED => true,
                _ => {
                    let cause = "a KeyUpdate that neither wants nor refuses an answer";
                    return Err(Violation::new(Alert::IllegalParameter, cause));
                }
            };
            if at + 1 < content.len() {
                return Err(Violation::unexpected("a record that continues after a KeyUpdate"));
            }
            self.handshake_seen = 0;
            self.count_idle("too many key updates without data")?;
            self.next_receive_keys();
            self.is_update_due |= is_requested;
            return Ok(true);
        }
        Ok(false)
    }

    /// Reads (more of) a ClientHello, the only handshake message that TLS 1.2 allows here, and
    /// skips it.
    fn renegotiation(&mut self, mut content: &[u8]) -> Result<(), Violation> {
        while let Some((&byte, rest)) = content.split_first() {
            match self.handshake_seen {
                0 if byte != CLIENT_HELLO => {
                    return Err(Violation::unexpected("a handshake message after the handshake"));
                }
                1 if byte != 0 => {
                    let cause = "a ClientHello of more than 65,535 bytes";
                    return Err(Violation::new(Alert::DecodeError, cause));
                }
                2 => self.handshake_left = u16::from(byte) << 8,
                3 => self.handshake_left |= u16::from(byte),
                _ => {}
            }
            if self.handshake_seen < HANDSHAKE_HEADER_BYTES {
                self.handshake_seen += 1;
                content = rest;
            }
            if self.handshake_seen == HANDSHAKE_HEADER_BYTES {
                let skipped = content.len().min(usize::from(self.handshake_left));
                content = &content[skipped..];
                self.handshake_left -= u16::try_from(skipped).expect("no more than is left");
                if self.handshake_left == 0 {
                    self.handshake_seen = 0;
                    self.is_refusal_due = true;
                    self.count_idle("too many requests to renegotiate")?;
                }
            }
        }
        Ok(())
    }

    fn count_idle(&mut self, cause: &'static str) -> Result<(), Violation> {
        self.idle += 1;
        if self.idle > Session::IDLE_MAX { Err(Violation::unexpected(cause)) } else { Ok(()) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Does not print secrets.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = &self.state;
        f.debug_struct("Session")
            .field("version", &state.version)
            .field("cipher", &state.cipher)
            .field("send_sequence", &state.send_sequence)
            .field("receive_sequence", &state.receive_sequence)
            .finish_non_exhaustive()
    }
}

/// Records under one key of AES-GCM: 2^24.5 of full size is where an attacker's advantage reaches 2^-57 (RFC 8446
/// section 5.5).
const GCM_RECORDS_LOG2: u8 = 24;
/// With ChaCha20-Poly1305 the sequence numbers would run out first (same section). This limit is
/// below that.
const SEQUENCE_LOG2: u8 = 63;

/// Header of every handshake message: type, three bytes of length.
const HANDSHAKE_HEADER_BYTES: u8 = 4;
const CLIENT_HELLO: u8 = 1;
const KEY_UPDATE_HEADER: [u8; 4] = [24, 0, 0, 1];
const UPDATE_NOT_REQUESTED: u8 = 0;
const UPDATE_REQUESTED: u8 = 1;
/// Our answer, or an update that asks for none.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, UPDATE_NOT_REQUESTED];

/// The longest bytes sealed in front of data: a record with a `KeyUpdate`.
const DUE_BYTES_MAX: usize = 64;
