//! The reasons to give up a connection.

use rustix::io::Errno;

/// The reason why a connection is unusable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The answer cannot be understood.
    Malformed(&'static str),
    /// The answer has another status than 200.
    Status(u16),
    /// The stream was reset with this code.
    Reset(u32),
    /// The connection is ended with this code.
    GoAway(u32),
    /// The content differs from the first answer's, or has no token.
    Content,
    /// An activation succeeded that must fail.
    LetIn,
    /// The socket ended, or failed.
    Socket(String),
}

impl Fault {
    /// The name in the report.
    pub(super) fn kind(&self) -> String {
        match self {
            Fault::Malformed(_) => "malformed".to_owned(),
            Fault::Status(status) => format!("status_{status}"),
            Fault::Reset(code) => format!("reset_stream_{code}"),
            Fault::GoAway(code) => format!("goaway_{code}"),
            Fault::Content => "other_content".to_owned(),
            Fault::LetIn => "stranger_let_in".to_owned(),
            Fault::Socket(how) => how.clone(),
        }
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Fault {
        Fault::Socket(format!("{:?}", error.kind()).to_lowercase())
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Fault {
        Errno::from_io_error(&error).map_or_else(|| Fault::Socket(error.to_string()), Fault::from)
    }
}
