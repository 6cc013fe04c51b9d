//! What can go wrong without ending a connection: a closed set of words for `Error.code`.

use std::fmt;

/// The word in `Error.code`: something that the device asked for could not be done, and the connection stays.
///
/// Bytes that are no frame or no message are not among them: they end the connection, see
/// [`CloseReason`](crate::CloseReason). docs/protocol.md explains each to whoever writes a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// A message without a kind, or of one that the server does not know.
    UnknownKind,
    /// A kind that `weir.v1` has and this server does not handle yet.
    NotSupported,
    /// A second `Hello`.
    AlreadyGreeted,
    /// A topic name that is empty, too long or holds a character that names must not hold.
    TopicName,
    /// The connection, or the server, is in as many topics as it may.
    TooManyTopics,
    /// A message that would not fit a frame on its way to the subscribers.
    TooLarge,
    /// The server has no room at the moment: the same may work later.
    Busy,
    /// The device's credentials do not permit it.
    NotPermitted,
    /// Messages come faster than the connection, or the topic, may take them.
    RateLimited,
    /// A field that is too long, or holds characters that it must not hold.
    InvalidField,
}

impl ErrorCode {
    /// Every code, in the order of docs/protocol.md.
    pub const ALL: [ErrorCode; 10] = [
        ErrorCode::UnknownKind,
        ErrorCode::NotSupported,
        ErrorCode::AlreadyGreeted,
        ErrorCode::TopicName,
        ErrorCode::TooManyTopics,
        ErrorCode::TooLarge,
        ErrorCode::Busy,
        ErrorCode::NotPermitted,
        ErrorCode::RateLimited,
        ErrorCode::InvalidField,
    ];

    /// The word on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorCode::UnknownKind => "unknown_kind",
            ErrorCode::NotSupported => "not_supported",
            ErrorCode::AlreadyGreeted => "already_greeted",
            ErrorCode::TopicName => "topic_name",
            ErrorCode::TooManyTopics => "too_many_topics",
            ErrorCode::TooLarge => "too_large",
            ErrorCode::Busy => "busy",
            ErrorCode::NotPermitted => "not_permitted",
            ErrorCode::RateLimited => "rate_limited",
            ErrorCode::InvalidField => "invalid_field",
        }
    }

    /// The code whose word this is, if any.
    pub fn from_name(name: &str) -> Option<ErrorCode> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_names_its_code() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_name(code.name()), Some(code));
        }
        assert_eq!(ErrorCode::from_name(""), None);
    }
}
