//! Why a call has failed: the words that Weir itself gives in `Answer.code`.

use std::fmt;

crate::named_enum! {
    /// The word in `Answer.code` for a call that is not done.
    ///
    /// A device may answer with a word of its own. docs/protocol.md explains each of these to
    /// authors of clients.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum CallCode {
        /// Nothing there answers calls of this method.
        Unsupported = "unsupported",
        /// The credentials of the caller do not permit it.
        NotPermitted = "not_permitted",
        /// A field of the call that is too long, or has a forbidden character.
        InvalidField = "invalid_field",
        /// The payload of the call, or of its answer, is over the limit.
        TooLarge = "too_large",
        /// As many calls are on their way as the limits permit. A later one may succeed.
        Busy = "busy",
        /// There was no answer before the deadline. The backend may have carried the call out.
        DeadlineExceeded = "deadline_exceeded",
        /// The backend cannot be reached, or has not taken the call. It has not carried it out.
        Unavailable = "unavailable",
        /// The connection to the backend broke. The backend may have carried the call out.
        Uncertain = "uncertain",
        /// The side that was called has answered with an error.
        Failed = "failed",
    }
}

impl fmt::Display for CallCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
