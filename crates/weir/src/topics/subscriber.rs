//! A connection that subscribes.

use weir_engine::ConnId;
use weir_engine::handover::NotUnderstood;
use weir_wire::format::Format;
use weir_wire::handover::v1;
use weir_wire::v1::Position;

use super::Router;
use super::handover::Shards;
use super::presence::Newcomer;
use crate::base::handover::at;

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
    /// What another process needs of one that waits.
    pub(super) fn export(&self) -> v1::TopicSubscriber {
        let Position { epoch, offset } = self.position.unwrap_or_default();
        v1::TopicSubscriber {
            connection: self.conn.to_u64(),
            format: self.format as u32,
            has_position: self.position.is_some(),
            epoch,
            offset,
            presence: self.presence,
            device: self.newcomer.as_ref().map(|newcomer| newcomer.device().to_owned()),
        }
    }
}

impl Router {
    /// One of another process.
    pub(super) fn import_subscriber(
        &self,
        export: &v1::TopicSubscriber,
        shards: Shards,
    ) -> Result<Subscriber, NotUnderstood> {
        let position = Position { epoch: export.epoch, offset: export.offset };
        let device = export.device.as_deref();
        Ok(Subscriber {
            conn: shards.conn("topic_subscriber.connection", export.connection)?,
            format: at("topic_subscriber.format", &Format::ALL, export.format)?,
            position: export.has_position.then_some(position),
            presence: export.presence,
            newcomer: device.map(|device| self.import_newcomer(device)),
        })
    }
}
