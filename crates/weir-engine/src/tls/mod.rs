//! TLS records of an established connection. This module seals and opens them; rustls makes the
//! handshake.
//!
//! ```text
//!  handshake (rustls, on the front) ──secrets, sequence numbers──▶ Session ──open──▶ plaintext, in place
//!                                                                     └────seal──▶ one record at a time
//! ```
//!
//! This is TLS 1.3 (RFC 8446) and the AEAD suites of TLS 1.2 (RFC 5246, 5288, 7905). A [`Session`]
//! is plain bytes without heap memory. It holds no key schedule: each call builds one on its stack.

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
