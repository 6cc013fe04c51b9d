//! What a store keeps and what it is asked.

use std::collections::BTreeMap;
use std::fmt;

use subtle::ConstantTimeEq as _;

/// Milliseconds since 1970, UTC.
pub type Millis = u64;

/// A serial number: the name of a device for life, and the device id that it connects with.
///
/// Shape: UTF-8, 1 to 128 bytes, no control characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(Box<str>);

/// Why a serial number is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SerialError {
    /// Nothing is in it.
    #[error("is empty")]
    Empty,
    /// It is too long.
    #[error("has {0} bytes; at most {max} are allowed", max = Serial::BYTES_MAX)]
    TooLong(usize),
    /// It has a control character, NUL among them.
    #[error("has the control character {0:?}")]
    Control(char),
}

/// The keyed hash of a device's key or of a token: all that a store ever learns of either.
///
/// `==` takes the same time wherever two differ.
#[derive(Clone, Copy)]
pub struct Hash(pub [u8; 32]);

/// What has become of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Imported, not activated yet.
    New,
    /// Activated: it has been given a token, which may have ended since.
    Active,
    /// Shut out: no token of it is valid, and its key is good for nothing.
    Revoked,
}

/// A device as it is stored.
///
/// This record alone says which tokens are valid; the record of a token only leads to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Its name.
    pub serial: Serial,
    /// Hash of its key.
    pub key: Hash,
    /// What has become of it.
    pub state: State,
    /// What else was imported with it, by name.
    pub labels: BTreeMap<String, String>,
    /// When it was imported first.
    pub created: Millis,
    /// When it was activated first.
    pub activated: Option<Millis>,
    /// When it connected last, as far as that has been written.
    pub seen: Option<Millis>,
    /// Counts what changed which tokens are valid: issues, revocations, changes of the key. Never falls.
    pub generation: u64,
    /// Hash of the token issued last, and when it ends.
    pub token: Option<(Hash, Millis)>,
    /// The token before it, for the time of grace.
    pub previous: Option<Previous>,
}

/// A token that has been replaced and is valid a little longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Previous {
    /// Its hash.
    pub token: Hash,
    /// Valid before this: its own end or that of the time of grace, whichever comes first.
    pub until: Millis,
}

/// A device to be imported.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceEntry {
    /// Its name.
    pub serial: Serial,
    /// Hash of its key.
    pub key: Hash,
    /// What else is known of it.
    pub labels: BTreeMap<String, String>,
}

/// What an import did with one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It was not known.
    Added,
    /// It was known like this.
    Unchanged,
    /// Its labels were replaced.
    Relabelled,
    /// Its key was replaced, and its labels: it is [`State::New`] again, and its tokens are not valid any more.
    Rekeyed,
}

/// Wants a new token.
#[derive(Debug, Clone, PartialEq)]
pub struct Issue {
    /// Why it may have one.
    pub proof: Proof,
    /// Hash of the new token, which nobody has ever used.
    pub token: Hash,
    /// The time at which this is asked.
    pub now: Millis,
    /// When the new token ends.
    pub expires: Millis,
    /// When the one before it ends at the latest.
    pub grace_until: Millis,
}

/// Why somebody may have a token.
#[derive(Debug, Clone, PartialEq)]
pub enum Proof {
    /// He knows the device's key: activation.
    Key {
        /// The device.
        serial: Serial,
        /// Hash of the key that was shown.
        key: Hash,
    },
    /// He has a valid token: refresh. A token in its time of grace will do.
    Token(Hash),
}

/// A token is valid from now on.
#[derive(Debug, Clone, PartialEq)]
pub struct Issued {
    /// Whose it is.
    pub serial: Serial,
    /// [`Device::generation`] with this token.
    pub generation: u64,
    /// Whether it is the first one of this device.
    pub is_first: bool,
}

/// A token is not issued. Which of the reasons it was is for nobody but the operator's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such device.
    UnknownDevice,
    /// The key is another.
    WrongKey,
    /// The device is shut out.
    Revoked,
    /// The token shown is not valid.
    InvalidToken,
}

/// Who holds a valid token.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The device.
    pub serial: Serial,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// [`Device::generation`] when this was read.
    pub generation: u64,
    /// When the token ends.
    pub expires: Millis,
}

/// What a revocation found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// It is shut out from now on.
    Now,
    /// It was already.
    Before,
    /// There is no such device.
    Unknown,
}

/// Which devices to list: in the order of the bytes of their serials.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// Begin behind this one.
    pub after: Option<Serial>,
    /// At most so many; 1 to 10,000.
    pub limit: usize,
}

impl Serial {
    /// Bytes of the longest one.
    pub const BYTES_MAX: usize = 128;

    /// Takes text that is one.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn new(text: &str) -> Result<Serial, SerialError> {
        if text.is_empty() {
            return Err(SerialError::Empty);
        }
        if text.len() > Self::BYTES_MAX {
            return Err(SerialError::TooLong(text.len()));
        }
        match text.chars().find(|char| char.is_control()) {
            Some(control) => Err(SerialError::Control(control)),
            None => Ok(Serial(text.into())),
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq for Hash {
    fn eq(&self, other: &Hash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Hash {}

impl std::hash::Hash for Hash {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // It is uniform as it is.
        state.write(&self.0[..8]);
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to tell two apart in a log.
        write!(f, "{:02x}{:02x}{:02x}{:02x}…", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

impl Device {
    /// What an import makes of a device that is not known.
    pub fn new(entry: DeviceEntry, now: Millis) -> Device {
        Device {
            serial: entry.serial,
            key: entry.key,
            state: State::New,
            labels: entry.labels,
            created: now,
            activated: None,
            seen: None,
            generation: 0,
            token: None,
            previous: None,
        }
    }

    /// Whether a token is valid at a time, and until when.
    pub fn admits(&self, token: &Hash, now: Millis) -> Option<Millis> {
        if self.state != State::Active {
            return None;
        }
        let current = self.token.filter(|(current, _)| current == token).map(|(_, end)| end);
        let previous = self.previous.filter(|previous| previous.token == *token);
        current.or(previous.map(|previous| previous.until)).filter(|end| now < *end)
    }

    /// What an issue makes of it; the caller has it stored if it is still of this generation.
    ///
    /// # Errors
    /// The proof does not hold.
    pub fn issue(&self, issue: &Issue) -> Result<Device, Refusal> {
        if self.state == State::Revoked {
            return Err(Refusal::Revoked);
        }
        match &issue.proof {
            Proof::Key { key, .. } if *key != self.key => return Err(Refusal::WrongKey),
            Proof::Key { .. } => {}
            Proof::Token(token) => {
                self.admits(token, issue.now).ok_or(Refusal::InvalidToken)?;
            }
        }
        let previous =
            self.token.map(|(token, end)| Previous { token, until: end.min(issue.grace_until) });
        Ok(Device {
            state: State::Active,
            activated: self.activated.or(Some(issue.now)),
            generation: self.generation + 1,
            token: Some((issue.token, issue.expires)),
            previous: previous.filter(|previous| issue.now < previous.until),
            ..self.clone()
        })
    }

    /// What an import makes of it.
    pub fn put(&self, entry: &DeviceEntry) -> (Put, Device) {
        let labels = entry.labels.clone();
        if entry.key != self.key {
            let device = Device {
                key: entry.key,
                state: State::New,
                labels,
                generation: self.generation + 1,
                token: None,
                previous: None,
                ..self.clone()
            };
            return (Put::Rekeyed, device);
        }
        let put = if self.labels == labels { Put::Unchanged } else { Put::Relabelled };
        (put, Device { labels, ..self.clone() })
    }

    /// What a revocation makes of it.
    pub fn revoke(&self) -> (Revoked, Device) {
        if self.state == State::Revoked {
            return (Revoked::Before, self.clone());
        }
        let device = Device {
            state: State::Revoked,
            generation: self.generation + 1,
            token: None,
            previous: None,
            ..self.clone()
        };
        (Revoked::Now, device)
    }
}
