//! Questions to DNS, and answers.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Looks names up.
pub(super) trait LookUp: Send + Sync {
    /// One look-up. It need not end by itself.
    fn look_up(&self, question: &Question) -> Looking;
}

/// A look-up under way.
pub(super) type Looking = Pin<Box<dyn Future<Output = Result<Answer, NoAnswer>> + Send>>;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question {
    pub(super) name: Arc<str>,
    pub(super) kind: RecordKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RecordKind {
    A,
    Aaaa,
    Srv,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) records: Records,
    /// The least of all records.
    pub(super) ttl: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Records {
    Addresses(Vec<IpAddr>),
    Targets(Vec<Target>),
}

/// An SRV record. Its weight is not used: load decides among endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) priority: u16,
    pub(super) name: Arc<str>,
    pub(super) port: u16,
}

/// Why there are no records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// A server says that there are none.
    None {
        /// How long that counts, if it says so.
        ttl: Option<Duration>,
    },
    /// No server answers, or none can.
    Failed(String),
}

impl RecordKind {
    pub(super) fn word(self) -> &'static str {
        match self {
            RecordKind::A => "A",
            RecordKind::Aaaa => "AAAA",
            RecordKind::Srv => "SRV",
        }
    }
}
