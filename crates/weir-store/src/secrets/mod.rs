//! Hashes keys and tokens, and makes tokens, so that no secret reaches a store.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::{Zeroize as _, ZeroizeOnDrop, Zeroizing};

use crate::records::{Hash, Serial};

/// The secrets with which keys and tokens are hashed. Without them nobody can try keys against a
/// stolen store.
///
/// Shape: two keys for BLAKE3, one for each purpose, derived from the 32 bytes of the key file. A
/// keyed hash does not protect a value that can be guessed: device keys should be as random as
/// tokens.
///
/// Limits: gateways that share a store share the key file. With another key file no key and no
/// token in the store matches. So a store remembers the [`Secrets::fingerprint`], and does not open
/// with other secrets.
///
/// Cost: the hash of at most 64 bytes is one block, some 100 ns.
#[derive(Clone, ZeroizeOnDrop)]
pub struct Secrets {
    keys: [u8; SECRET_BYTES],
    tokens: [u8; SECRET_BYTES],
    fingerprint: [u8; SECRET_BYTES],
}

/// A token as its device gets it: 16 random bytes in base64url, without padding.
#[derive(Clone, PartialEq, Eq, ZeroizeOnDrop)]
pub struct Token(String);

/// Why the secrets cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The file cannot be read.
    #[error("key file {path}: cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not exist and cannot be made.
    #[error("key file {path}: does not exist and cannot be made: {source}")]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is not a file.
    #[error("key file {0}: is not a file")]
    NoFile(PathBuf),
    /// The file has another length.
    #[error("key file {path}: has {found}; it must have {SECRET_BYTES} random bytes")]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: String,
    },
    /// Others may read or change the file.
    #[error(
        "key file {path}: has mode {mode:04o}: others than its owner and its group may read it, or others than its \
         owner change it; set its mode to 0600"
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The system gives no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

impl Secrets {
    /// Reads the key file. If there is none, makes one with random bytes that only its owner may
    /// read. The file appears whole or not at all.
    ///
    /// If several processes make it at once, one of them succeeds, and all use its file.
    ///
    /// # Errors
    /// The file is unreadable, cannot be made, has the wrong length, or others may read it.
    pub fn load_or_create(path: &Path) -> Result<Secrets, SecretsError> {
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(path)?,
            Ok(_) | Err(_) => {}
        }
        Self::read(path)
    }

    /// Derives the secrets from these bytes.
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Secrets {
        Secrets {
            keys: blake3::derive_key(KEYS_CONTEXT, secret),
            tokens: blake3::derive_key(TOKENS_CONTEXT, secret),
            fingerprint: blake3::derive_key(FINGERPRINT_CONTEXT, secret),
        }
    }

    /// Tells these secrets from others, and reveals nothing about them.
    pub fn fingerprint(&self) -> Hash {
        Hash(self.fingerprint)
    }

    /// The hash of a device key. It depends on the serial number too, so equal keys of two devices
    /// have different hashes.
    pub fn key_hash(&self, serial: &Serial, key: &str) -> Hash {
        let serial = serial.as_str().as_bytes();
        // The length keeps the two texts apart: serial "a" with key "bc" is not "ab" with "c".
        let length = u8::try_from(serial.len()).expect("a serial has at most 128 bytes");
        let mut hasher = blake3::Hasher::new_keyed(&self.keys);
        hasher.update(&[length]).update(serial).update(key.as_bytes());
        Hash(*hasher.finalize().as_bytes())
    }

    /// The hash of a token; `None` if the text is no token.
    ///
    /// A token has one spelling. Another spelling that decodes to the same bytes is no token.
    pub fn token_hash(&self, token: &str) -> Option<Hash> {
        if token.len() != Token::CHARS {
            return None;
        }
        let mut bytes = [0; TOKEN_BYTES];
        let decoded = URL_SAFE_NO_PAD.decode_slice(token, &mut bytes);
        let hash = (decoded == Ok(TOKEN_BYTES)).then(|| self.hash_of(&bytes));
        bytes.zeroize();
        hash
    }

    /// A new token and its hash.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn new_token(&self) -> Result<(Token, Hash), SecretsError> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(SecretsError::Random)?;
        let token = (Token(URL_SAFE_NO_PAD.encode(bytes)), self.hash_of(&bytes));
        bytes.zeroize();
        Ok(token)
    }

    fn hash_of(&self, token: &[u8; TOKEN_BYTES]) -> Hash {
        Hash(*blake3::keyed_hash(&self.tokens, token).as_bytes())
    }

    fn read(path: &Path) -> Result<Secrets, SecretsError> {
        let unreadable = |source| SecretsError::Read { path: path.into(), source };
        // Asked before opening, because opening a pipe would wait for its other end.
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(SecretsError::NoFile(path.into()));
        }
        // A group may often read a secret that is mounted into a container.
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o027 != 0 {
            return Err(SecretsError::Mode { path: path.into(), mode });
        }
        // Has room for more bytes than are read: a buffer that grew would leave a copy behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(2 * SECRET_BYTES));
        let file = File::open(path).map_err(unreadable)?;
        file.take(SECRET_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        match <&[u8; SECRET_BYTES]>::try_from(bytes.as_slice()) {
            Ok(secret) => Ok(Self::new(secret)),
            Err(_) => {
                let more = if bytes.len() > SECRET_BYTES { "more than " } else { "" };
                let found = format!("{more}{} bytes", bytes.len().min(SECRET_BYTES));
                Err(SecretsError::Length { path: path.into(), found })
            }
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Token {
    /// Characters of a token.
    pub const CHARS: usize = 22;

    /// The token as its device gets it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Makes a key file that is whole from the moment it has its name. If another process was faster,
/// its file stays.
fn create(path: &Path) -> Result<(), SecretsError> {
    let failed = |source| SecretsError::Create { path: path.into(), source };
    let mut secret = Zeroizing::new([0; SECRET_BYTES]);
    getrandom::fill(&mut *secret).map_err(SecretsError::Random)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| SecretsError::NoFile(path.into()))?;
    let mut unique = [0; 8];
    getrandom::fill(&mut unique).map_err(SecretsError::Random)?;
    let suffix = format!(".{:016x}", u64::from_ne_bytes(unique));
    let mut draft = name.to_owned();
    draft.push(suffix);
    let draft = directory.join(draft);
    let written = write_draft(&draft, &*secret).and_then(|()| match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    // Removing a draft that was never made is no error.
    let removed = match fs::remove_file(&draft) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    written.and(removed).and_then(|()| File::open(directory)?.sync_all()).map_err(failed)
}

fn write_draft(draft: &Path, secret: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(secret)?;
    file.sync_all()
}

/// Bytes of the key file, as many as a key of BLAKE3 has.
pub const SECRET_BYTES: usize = 32;
/// 128 random bits, which nobody can guess.
const TOKEN_BYTES: usize = 16;
/// These contexts never change, because stored hashes were made with keys derived under them.
const KEYS_CONTEXT: &str = "weir 2026-11-22 device keys";
const TOKENS_CONTEXT: &str = "weir 2026-11-22 device tokens";
const FINGERPRINT_CONTEXT: &str = "weir 2026-11-22 fingerprint";

#[cfg(test)]
mod tests;
