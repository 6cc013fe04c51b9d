//! What the broker knows of subscribers here, for another process and from one.

use weir_broker::Name;
use weir_wire::handover::v1;

use super::{Attendances, Attended};
use crate::topics::lock;

impl Attendances {
    /// A call that has no answer yet is made again by the other process.
    pub(in crate::topics) fn export(&self) -> Vec<v1::TopicAttendance> {
        let table = lock(&self.table);
        let mut topics: Vec<_> = table.topics.iter().collect();
        topics.sort_unstable_by_key(|(name, _)| Name::clone(name));
        let topics = topics.into_iter().map(|(name, attended)| v1::TopicAttendance {
            topic: name.as_ref().to_owned(),
            is_attended: attended.is_attended,
            known: attended.known.filter(|_| !attended.is_asked),
            again: attended.again,
            is_listed: attended.is_listed || attended.is_asked,
            begun: attended.begun,
            ended: attended.ended,
        });
        topics.collect()
    }

    pub(in crate::topics) fn import(&self, topics: Vec<v1::TopicAttendance>) {
        let mut table = lock(&self.table);
        for topic in topics {
            let name = Name::from(topic.topic);
            let attended = Attended {
                is_attended: topic.is_attended,
                known: topic.known,
                again: topic.again,
                begun: topic.begun,
                ended: topic.ended,
                ..Attended::default()
            };
            table.topics.insert(Name::clone(&name), attended);
            if topic.is_listed {
                table.list(&name);
            }
        }
        self.filled.notify_one();
    }
}
