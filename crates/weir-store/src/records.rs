//! The records of a store, and the requests to it.

use std::collections::BTreeMap;
use std::fmt;

use subtle::ConstantTimeEq as _;

/// Milliseconds since 1970, UTC.
pub type Millis = u64;

/// A serial number: the name of a device for life. The device connects with it as its device id.
///
/// Shape: UTF-8, 1 to 128 bytes, no control characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(Box<str>);

/// Why a text is no serial number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SerialError {
    /// The text is empty.
    #[error("is empty")]
    Empty,
    /// The text is too long.
    #[error("has {0} bytes; at most {max} are allowed", max = Serial::BYTES_MAX)]
    TooLong(usize),
    /// The text has a control character, for example NUL.
    #[error("has the control character {0:?}")]
    Control(char),
}

/// The keyed hash of a device key or of a token. A store never learns more of either.
///
/// `==` takes the same time wherever two hashes differ.
#[derive(Clone, Copy)]
pub struct Hash(pub [u8; 32]);

/// The state of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Imported, not activated yet.
    New,
    /// Activated: the device got a token, which may have ended since.
    Active,
    /// Revoked: none of its tokens is valid, and its key is refused.
    Revoked,
}

/// A device as it is stored.
///
/// Only this record says which tokens are valid. The record of a token merely leads to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Its serial number.
    pub serial: Serial,
    /// Hash of its key.
    pub key: Hash,
    /// Its state.
    pub state: State,
    /// Labels that were imported with it, by name.
    pub labels: BTreeMap<String, String>,
    /// When it was imported first.
    pub created: Millis,
    /// When it was activated first.
    pub activated: Option<Millis>,
    /// When it connected last, as far as the store has been told.
    pub seen: Option<Millis>,
    /// Counts the changes to its valid tokens: issues, revocations, changes of the key. Never
    /// falls.
    pub generation: u64,
    /// Hash of the token issued last, and the token's end.
    pub token: Option<(Hash, Millis)>,
    /// The previous token, during its grace.
    pub previous: Option<Previous>,
}

/// A token that was replaced and is still valid during its grace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Previous {
    /// Its hash.
    pub token: Hash,
    /// Valid before this time: the token's own end or the end of its grace, whichever comes first.
    pub until: Millis,
}

/// A device to be imported.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceEntry {
    /// Its serial number.
    pub serial: Serial,
    /// Hash of its key.
    pub key: Hash,
    /// Its labels, by name.
    pub labels: BTreeMap<String, String>,
}

/// The effect of an import on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The device was unknown.
    Added,
    /// The device was known with the same key and labels.
    Unchanged,
    /// Its labels were replaced.
    Relabelled,
    /// Its key and its labels were replaced. It is [`State::New`] again, and its tokens are no
    /// longer valid.
    Rekeyed,
}

/// A request for a new token.
#[derive(Debug, Clone, PartialEq)]
pub struct Issue {
    /// The reason why the device may have it.
    pub proof: Proof,
    /// Hash of the new token, which no device has used before.
    pub token: Hash,
    /// The time of the request.
    pub now: Millis,
    /// The end of the new token.
    pub expires: Millis,
    /// The latest end of the token that it replaces.
    pub grace_until: Millis,
}

/// The reason why a device may have a token.
#[derive(Debug, Clone, PartialEq)]
pub enum Proof {
    /// The device knows its device key: activation.
    Key {
        /// The device.
        serial: Serial,
        /// Hash of the key in the request.
        key: Hash,
    },
    /// The device has a valid token: refresh. A token in its grace will do.
    Token(Hash),
}

/// A token that is valid from now on.
#[derive(Debug, Clone, PartialEq)]
pub struct Issued {
    /// The device that it belongs to.
    pub serial: Serial,
    /// [`Device::generation`] with this token.
    pub generation: u64,
    /// Whether it is the first token of this device.
    pub is_first: bool,
}

/// Why a token is not issued. Only the operator's counters tell the reasons apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such device.
    UnknownDevice,
    /// The key does not match.
    WrongKey,
    /// The device is revoked.
    Revoked,
    /// The token in the request is not valid.
    InvalidToken,
}

/// The holder of a valid token.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The device.
    pub serial: Serial,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// [`Device::generation`] at the time of reading.
    pub generation: u64,
    /// The end of the token.
    pub expires: Millis,
}

/// The result of a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// The device is revoked from now on.
    Now,
    /// The device was revoked already.
    Before,
    /// There is no such device.
    Unknown,
}

/// A page of the list of devices, which is in the order of the bytes of their serial numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// The page begins after this serial number.
    pub after: Option<Serial>,
    /// The most devices on the page; 1 to 10,000.
    pub limit: usize,
}

impl Serial {
    /// Bytes of the longest serial number.
    pub const BYTES_MAX: usize = 128;

    /// Takes a text that is a serial number.
    ///
    /// # Errors
    /// Says what is wrong with the text.
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

    /// The serial number as text.
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
        // The hash is uniform already.
        state.write(&self.0[..8]);
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to tell two hashes apart in a log.
        write!(f, "{:02x}{:02x}{:02x}{:02x}…", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

impl Device {
    /// The record of a newly imported device.
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

    /// The end of a token if it is valid at this time; `None` if it is not.
    pub fn admits(&self, token: &Hash, now: Millis) -> Option<Millis> {
        if self.state != State::Active {
            return None;
        }
        let current = self.token.filter(|(current, _)| current == token).map(|(_, end)| end);
        let previous = self.previous.filter(|previous| previous.token == *token);
        current.or(previous.map(|previous| previous.until)).filter(|end| now < *end)
    }

    /// The record after an issue. The caller stores it only if the stored record still has this
    /// generation.
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

    /// The record after an import.
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

    /// The record after a revocation.
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
