//! The content of messages and calls.

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// UTF-8 text.
    Text(String),
    /// Bytes.
    Data(Vec<u8>),
}
