//! A connection that subscribes.

use weir_engine::ConnId;
use weir_wire::format::Format;
use weir_wire::v1::Position;

use super::presence::Newcomer;

/// A connection that subscribes to a topic.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) conn: ConnId,
    pub(crate) format: Format,
    /// What it has missed since then comes first.
    pub(crate) position: Option<Position>,
    /// Whether it is to hear who enters the topic and who leaves it.
    pub(crate) presence: bool,
    /// Its place among the members of a topic with presence.
    pub(super) newcomer: Option<Newcomer>,
}

impl Subscriber {
    /// A connection that subscribes from now on.
    pub(crate) fn new(conn: ConnId, format: Format) -> Subscriber {
        Subscriber { conn, format, position: None, presence: false, newcomer: None }
    }
}
