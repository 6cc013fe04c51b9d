//! What can go wrong without ending a connection: a closed set of words for `Error.code`.

use std::fmt;

crate::named_enum! {
    /// The word in `Error.code`: something that the device asked for could not be done, and the connection stays.
    ///
    /// Bytes that are no frame or no message are not among them: they end the connection, see
    /// [`CloseReason`](crate::CloseReason). docs/protocol.md explains each to whoever writes a client.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum ErrorCode {
        /// A message without a kind, or of one that the server does not know.
        UnknownKind = "unknown_kind",
        /// A kind that `weir.v1` has and this server does not handle yet.
        NotSupported = "not_supported",
        /// A second `Hello`.
        AlreadyGreeted = "already_greeted",
        /// A topic name that is empty, too long or holds a character that names must not hold.
        TopicName = "topic_name",
        /// The connection, or the server, is in as many topics as it may.
        TooManyTopics = "too_many_topics",
        /// A message that would not fit a frame on its way to the subscribers.
        TooLarge = "too_large",
        /// The server has no room at the moment: the same may work later.
        Busy = "busy",
        /// The device's credentials do not permit it.
        NotPermitted = "not_permitted",
        /// Messages come faster than the connection, or the topic, may take them.
        RateLimited = "rate_limited",
        /// A field that is too long, or holds characters that it must not hold.
        InvalidField = "invalid_field",
    }
}

impl ErrorCode {
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
