//! Changes which nodes have subscribers to a topic, and tells what a dead node leaves behind.

use tokio::time::Instant;

use super::LinkId;
use super::state::State;
use crate::contract::{Error, Event};
use crate::records::{Attendance, Name, Occupancy};

impl State {
    /// Carries out a node's call.
    pub(super) fn attend(
        &mut self,
        (id, call): (LinkId, u64),
        topics: &[Attendance],
        now: Instant,
    ) -> Result<Vec<Occupancy>, Error> {
        if !self.presence.has(id) {
            // From now on there is something to look for.
            self.links.values().for_each(|link| link.wake.notify_one());
        }
        let mut answers = Vec::new();
        for one in topics {
            // Calls about members of a topic have other numbers.
            let calls: Name = format!("\u{1}{}", one.topic).into();
            if !self.presence.begin_call(id, &calls, call) {
                return Err(Error::Refused("a later call was carried out".to_owned()));
            }
            let now = self.micros(now);
            answers.push(self.occupancies.attend(id, one, now));
        }
        self.presence.count_attended(id, self.occupancies.count(id));
        Ok(answers)
    }

    /// The subscribers of a node go; `by` hears which topics have none any more.
    pub(super) fn end_attendance(&mut self, of: LinkId, by: LinkId) {
        let ended = self.occupancies.end(of, by);
        self.presence.count_attended(of, 0);
        let Some(link) = self.links.get_mut(&by) else { return };
        for (topic, occupancy) in ended {
            link.notices.push_back(Event::Vacated { topic, occupancy });
            link.wake.notify_one();
        }
    }
}
