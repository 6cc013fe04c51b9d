//! Errors that do not end the connection: a closed set of words for `Error.code`.

use std::fmt;

crate::named_enum! {
    /// The word in `Error.code`: the server could not do something that the device asked for, and
    /// the connection stays.
    ///
    /// Bytes that are no frame or no message have no code here, because they end the connection:
    /// see [`CloseReason`](crate::CloseReason). docs/protocol.md explains each code to authors of
    /// clients.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum ErrorCode {
        /// A message without a kind, or of a kind that the server does not know.
        UnknownKind = "unknown_kind",
        /// A kind that `weir.v1` has and this server does not handle yet.
        NotSupported = "not_supported",
        /// A second `Hello`.
        AlreadyGreeted = "already_greeted",
        /// A topic name that is empty, too long, or has a forbidden character.
        TopicName = "topic_name",
        /// The connection, or the server, is in as many topics as the limit permits.
        TooManyTopics = "too_many_topics",
        /// A message that would not fit a frame on its way to the subscribers.
        TooLarge = "too_large",
        /// The server has no room at the moment. A later attempt may succeed.
        Busy = "busy",
        /// The device's credentials do not permit it.
        NotPermitted = "not_permitted",
        /// Messages come faster than the limit of the connection, or of the topic, permits.
        RateLimited = "rate_limited",
        /// A field that is too long, or has a forbidden character.
        InvalidField = "invalid_field",
    }
}

impl ErrorCode {
    /// The code with this word, if any.
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
