//! The device's end of TLS: a session that mirrors the server's.

use std::collections::{HashSet, VecDeque};
use std::io::IoSlice;

use weir_wire::CloseReason;

use super::dice::Dice;
use super::link::Link;
use crate::time::Nanos;
use crate::tls::seals;
use crate::tls::{Alert, Cipher, Keys12, PLAINTEXT_BYTES_MAX, Session, Version};

/// The device's end of a connection with TLS.
#[derive(Debug)]
pub(crate) struct SecureEnd {
    pub(super) session: Session,
    /// Sealed bytes that are not written yet.
    unsent: VecDeque<u8>,
    /// Bytes sealed so far, and the plaintext in them.
    sealed: u64,
    plain: u64,
    /// The ends of the records that the shard has not read whole, and their plaintext; and the last
    /// record that it has read.
    records: VecDeque<(u64, u64)>,
    last: (u64, u64),
    /// Bytes that came with the adoption.
    pub(super) ahead: u64,
    /// When the shard last read the beginning of a record that is not whole.
    pub(super) begun_at: Option<Nanos>,
    /// Key updates since the server last sent data, and since it last received some.
    updates: u32,
    /// The place at which the server must end, and the reason. Nothing more is sealed.
    pub(crate) end: Option<(u64, CloseReason)>,
    /// The device has sent a fatal alert, so it is told nothing more.
    pub(crate) is_mute: bool,
    /// The server's keys may run out: they permit few records, and cannot change.
    pub(crate) is_limited: bool,
    /// A begun record from the server.
    observed: Vec<u8>,
    /// When, and in which turn, the server sealed the record that is being sent.
    sealed_in: Option<(Nanos, u64)>,
    /// Whether the server has sent `close_notify`.
    pub(crate) has_farewell: bool,
}

/// Bytes on their way to a device.
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    /// When, and in which turn, they were sealed, if that was earlier.
    pub(crate) sealed_in: Option<(Nanos, u64)>,
}

/// The type of records with handshake messages.
const HANDSHAKE: u8 = 22;

/// The most key updates without data that a device sends.
const UPDATES_MAX: u32 = 20;

/// Two ends with new keys: the server's, and the device's.
pub(crate) fn pair(dice: &mut Dice) -> (Session, SecureEnd) {
    let cipher = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305][dice.index(3)];
    let mut secret =
        || -> Vec<u8> { (0..48).map(|_| u8::try_from(dice.below(256)).expect("a byte")).collect() };
    let (ours, theirs) = (secret(), secret());
    let made = if dice.chance(1 << 15) {
        let bytes = if cipher == Cipher::Aes256Gcm { 48 } else { 32 };
        let (ours, theirs) = ((&ours[..bytes], 0), (&theirs[..bytes], 0));
        (Session::tls13(cipher, ours, theirs), Session::tls13(cipher, theirs, ours))
    } else {
        let bytes = if cipher == Cipher::Aes128Gcm { 16 } else { 32 };
        let keys = |secret| (keys_of(secret, bytes), 1);
        let (ours, theirs) = (keys(&ours), keys(&theirs));
        (Session::tls12(cipher, ours, theirs), Session::tls12(cipher, theirs, ours))
    };
    let (Some(mut server), Some(session)) = made else { panic!("keys as long as they should be") };
    // Keys that cannot change end well before their limit, by more records than wait. Short records
    // would be too many.
    let is_short = seals::plaintext_bytes_max() < PLAINTEXT_BYTES_MAX;
    let can_change = server.version() == Version::Tls13;
    let is_limited = dice.chance(1 << 14) && (can_change || !is_short);
    if is_limited {
        server.set_records_log2(u8::try_from(dice.between(7, 9)).expect("small"));
    }
    let end = SecureEnd {
        session,
        unsent: VecDeque::new(),
        sealed: 0,
        plain: 0,
        records: VecDeque::new(),
        last: (0, 0),
        ahead: 0,
        begun_at: None,
        updates: 0,
        end: None,
        is_mute: false,
        is_limited: is_limited && !can_change,
        observed: Vec::new(),
        sealed_in: None,
        has_farewell: false,
    };
    (server, end)
}

fn keys_of(secret: &[u8], bytes: usize) -> Keys12<'_> {
    Keys12 { key: &secret[..bytes], iv: &secret[32..44] }
}

impl SecureEnd {
    /// Notes that this much plaintext has come with the adoption.
    pub(crate) fn skip_plain(&mut self, bytes: u64) {
        (self.plain, self.last.1) = (bytes, bytes);
    }

    /// Seals `plaintext`, in records of any size, and sometimes a `KeyUpdate`.
    pub(crate) fn seal(&mut self, plaintext: &[u8], dice: &mut Dice, updates: &mut u64) {
        let mut rest = plaintext;
        while !rest.is_empty() {
            let most = u32::try_from(rest.len()).expect("a few frames");
            let bytes =
                if dice.chance(3 << 14) { rest.len() } else { dice.between(1, most) as usize };
            let (part, more) = rest.split_at(bytes.min(seals::plaintext_bytes_max()));
            rest = more;
            let mut out = Vec::new();
            let sealed = self.session.seal(&[IoSlice::new(part)], &mut out);
            assert_eq!(sealed, Ok(part.len()), "a device's keys are never spent");
            self.plain += part.len() as u64;
            self.enter(&out);
            let has_updates = self.session.version() == Version::Tls13;
            if has_updates && self.updates < UPDATES_MAX && dice.chance(1 << 12) {
                self.updates += 1;
                *updates += 1;
                let mut out = Vec::new();
                let update = [24, 0, 0, 1, u8::from(dice.chance(3 << 14))];
                self.session.forge(HANDSHAKE, &update, 0, &mut out);
                self.session.forge_new_keys();
                self.enter(&out);
            }
        }
    }

    /// Seals an alert at which the server must end.
    pub(super) fn seal_end(&mut self, alert: Alert, reason: CloseReason) {
        let mut out = Vec::new();
        self.session.seal_alert(alert, &mut out).expect("a device's keys are never spent");
        self.enter(&out);
        self.end = Some((self.sealed, reason));
    }

    fn enter(&mut self, record: &[u8]) {
        self.unsent.extend(record);
        self.sealed += record.len() as u64;
        self.records.push_back((self.sealed, self.plain));
    }

    /// Appends bytes that are no record. The server must end after `bytes` of them.
    pub(super) fn enter_bad(&mut self, bad: &[u8], bytes: usize) {
        self.end = Some((self.sealed + bytes as u64, CloseReason::TlsRecord));
        self.unsent.extend(bad);
        self.sealed += bad.len() as u64;
    }

    /// The bytes to write now: all, some, or one.
    pub(super) fn take_unsent(&mut self, dice: &mut Dice) -> Vec<u8> {
        let all = self.unsent.len();
        let bytes = match dice.below(16) {
            0 => all.min(1),
            1..=2 => dice.index(all + 1),
            _ => all,
        };
        self.unsent.drain(..bytes).collect()
    }

    /// Bytes that come with the adoption.
    pub(crate) fn take_ahead(&mut self, bytes: usize) -> Vec<u8> {
        let ahead: Vec<u8> = self.unsent.drain(..bytes.min(self.unsent.len())).collect();
        self.ahead = ahead.len() as u64;
        ahead
    }

    /// Plaintext in the records that are whole within the first `sealed` bytes.
    pub(super) fn plain_at(&self, sealed: u64) -> u64 {
        let whole = self.records.iter().take_while(|(end, _)| *end <= sealed);
        whole.last().map_or(self.last.1, |(_, plain)| *plain)
    }

    pub(super) fn note_consumed(&mut self, sealed: u64, now: Nanos) {
        let mut is_new = false;
        while self.records.front().is_some_and(|(end, _)| *end <= sealed) {
            self.last = self.records.pop_front().expect("it is there");
            is_new = true;
        }
        if sealed <= self.last.0 {
            self.begun_at = None;
        } else if self.begun_at.is_none() || is_new {
            self.begun_at = Some(now);
        }
    }

    /// Notes whether the server has a record that has left in part.
    pub(crate) fn note_sealed(&mut self, is_sealed: bool, now: Nanos, turn: u64) {
        if is_sealed {
            self.sealed_in.get_or_insert((now, turn));
        } else {
            self.sealed_in = None;
        }
    }

    /// Opens the bytes that the server's kernel took, record by record. Returns the plaintext of
    /// each, and when it was sealed if that was in an earlier turn.
    pub(crate) fn open(&mut self, bytes: &[u8]) -> Result<Vec<Piece>, String> {
        self.observed.extend_from_slice(bytes);
        let mut all = Vec::new();
        loop {
            let whole = self.session.record_bytes(&self.observed).map_err(|bad| bad.to_string())?;
            let Some(bytes) = whole.filter(|bytes| *bytes <= self.observed.len()) else {
                return Ok(all);
            };
            if self.has_farewell {
                return Err("a record behind the last alert".into());
            }
            let mut record: Vec<u8> = self.observed.drain(..bytes).collect();
            match self.session.open(&mut record) {
                Ok(opened) => {
                    self.has_farewell = opened.is_end;
                    record.truncate(opened.plaintext);
                }
                Err(violation) if violation.alert.is_none() => {
                    self.has_farewell = true;
                    record.clear();
                }
                Err(violation) => return Err(format!("the server's record: {violation}")),
            }
            if !record.is_empty() {
                self.updates = 0;
            }
            // TLS's own records leave together with the data behind them.
            let sealed_in = if record.is_empty() { None } else { self.sealed_in.take() };
            all.push(Piece { bytes: record, sealed_in });
        }
    }

    /// Whether no record stands half sent.
    pub(crate) fn is_whole(&self) -> bool {
        self.observed.is_empty()
    }

    /// Whether there is a whole record in the `readable` bytes behind those that the shard has
    /// read.
    pub(super) fn has_whole_record(&self, link: &Link) -> bool {
        let sealed = self.ahead + link.consumed + link.inbound.len() as u64;
        self.records.front().is_some_and(|(end, _)| *end <= sealed)
    }
}

/// The keys and nonces of all records sealed in a run.
pub(super) type Sealed = HashSet<(u64, [u8; 12])>;

/// Begins to note sealed records. In half of the runs records are short, so that a message takes
/// several.
pub(super) fn begin(dice: &mut Dice) -> Sealed {
    seals::record();
    seals::set_plaintext_bytes_max(
        [16, 100, PLAINTEXT_BYTES_MAX, PLAINTEXT_BYTES_MAX][dice.index(4)],
    );
    Sealed::new()
}
