//! TLS records of an established connection: sealed and opened here, whatever the handshake was made with.
//!
//! ```text
//!  handshake (rustls, on the front) ──secrets, sequence numbers──▶ Session ──open──▶ plaintext, in place
//!                                                                     └────seal──▶ one record at a time
//! ```
//!
//! TLS 1.3 (RFC 8446) and the AEAD suites of TLS 1.2 (RFC 5246, 5288, 7905). A [`Session`] is plain bytes: no heap, no
//! key schedule; those are built on the stack for as long as one call lasts.

mod alert;
mod keys;
mod protocol;
mod record;
#[cfg(any(test, feature = "sim"))]
pub mod seals;
mod session;
#[cfg(test)]
mod tests;

pub use alert::{Alert, Violation};
pub use keys::are_derived;
pub use protocol::{Cipher, Exhausted, Keys12, Opened, Version};
#[cfg(not(any(test, feature = "sim")))]
pub(crate) use record::plaintext_bytes_max;
pub use record::{PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX};
#[cfg(any(test, feature = "sim"))]
pub(crate) use seals::plaintext_bytes_max;
pub use session::Session;
